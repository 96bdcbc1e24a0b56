"""Services that are due are called, by a thread or by hand; one that fails stops no other."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mqlake import DeliveryConfig
from mqlake.delivery.housekeeping import NEVER_MS, RETRY_MS, Housekeeping
from tests.helpers import eventually, message, open_small


def by_hand() -> Housekeeping:
    """Without a thread."""
    keeper = Housekeeping()
    keeper.close()
    return keeper


def test_a_service_is_called_when_it_is_due_and_says_when_next() -> None:
    calls: list[int] = []
    keeper = by_hand()

    def every_ten(now_ms: int) -> int:
        calls.append(now_ms)
        return now_ms + 10

    keeper.add(every_ten, 5)
    assert [keeper.step(now_ms) for now_ms in (0, 5, 14, 15)] == [5, 15, 15, 25]
    assert calls == [5, 15]
    keeper.call_by(every_ten, 17)
    keeper.call_by(every_ten, 20)
    assert keeper.step(17) == 27 and calls == [5, 15, 17]


def test_one_that_fails_is_told_and_tried_again_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    keeper = by_hand()

    def fails(now_ms: int) -> int:
        raise OSError("no space")

    def works(now_ms: int) -> int:
        calls.append(now_ms)
        return NEVER_MS

    keeper.add(fails)
    keeper.add(works)
    with caplog.at_level(logging.ERROR):
        assert keeper.step(0) == RETRY_MS
    assert calls == [0] and "no space" in caplog.text


def test_who_asks_for_an_earlier_time_while_a_service_works_is_heard() -> None:
    keeper = by_hand()

    def service(now_ms: int) -> int:
        keeper.call_by(service, 50)
        return 100

    keeper.add(service)
    assert keeper.step(0) == 50


def test_the_thread_calls_what_is_due_and_ends_with_close() -> None:
    calls: list[int] = []
    keeper = Housekeeping()

    def service(now_ms: int) -> int:
        calls.append(now_ms)
        return now_ms + 1

    keeper.add(service)
    assert eventually(lambda: len(calls) > 3)
    keeper.close()
    count = len(calls)
    assert not eventually(lambda: len(calls) > count, 0.05)


def test_what_is_noted_reaches_the_disk_while_the_store_is_open(tmp_path: Path) -> None:
    with open_small(tmp_path, delivery=DeliveryConfig(persist_interval_ms=10)) as store:
        store.put(message(1))
        assert eventually((tmp_path / "config" / "topics.json").exists)
