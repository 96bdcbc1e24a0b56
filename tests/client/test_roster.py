"""The roster: who counts as a member while a restarted broker does not list everyone yet."""

from __future__ import annotations

from mqlake.client.roster import Roster
from mqlake.client.session import BEAT_S

BEFORE, AFTER = object(), object()
"""Connections to the broker before and after its restart."""


def test_a_member_that_is_no_longer_listed_is_gone_at_once() -> None:
    roster = Roster()
    assert roster.update(BEFORE, ["a", "b"], 0.0) == {"a", "b"}
    assert roster.update(BEFORE, ["a"], 1.0) == {"a"} and not roster.awaited


def test_members_from_before_a_restart_stay_until_they_are_listed_or_a_heart_beat_is_over() -> None:
    roster = Roster()
    roster.update(BEFORE, ["a", "b", "c"], 0.0)
    assert roster.update(AFTER, ["a"], 1.0) == {"a", "b", "c"}
    assert roster.update(AFTER, ["a", "b"], 2.0) == {"a", "b", "c"} and set(roster.awaited) == {"c"}
    assert roster.update(AFTER, ["a"], 3.0) == {"a", "c"}, "b came back and left"
    assert roster.update(AFTER, ["a"], 1.0 + BEAT_S) == {"a"}, "c has had its time"


def test_a_second_restart_awaits_members_that_the_first_already_awaited() -> None:
    roster = Roster()
    roster.update(BEFORE, ["a", "b"], 0.0)
    roster.update(AFTER, ["a"], 1.0)
    assert roster.update(object(), ["a"], BEAT_S) == {"a", "b"}
