"""The shares of a group's members."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.client.allocation import allocate
from mqlake.remoting.bodies import MessageQueue


def queues_of(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "broker-a", number) for number in range(count)]


@given(st.integers(0, 40), st.integers(1, 12))
def test_every_queue_has_exactly_one_owner_and_shares_differ_by_at_most_one(count: int, members: int) -> None:
    ids = [f"10.0.0.{number}@{number}" for number in range(members)]
    shares = [allocate(queues_of(count), ids, each) for each in ids]
    assert sorted(queue.queue_id for share in shares for queue in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_shares_are_those_of_rocketmqs_average_allocation() -> None:
    """From AllocateMessageQueueAveragely: 8 queues for 3 members are 0-2, 3-5 and 6-7, members sorted by their ids."""
    ids = ["c", "a", "b"]
    found = {each: [queue.queue_id for queue in allocate(queues_of(8), ids, each)] for each in ids}
    assert found == {"a": [0, 1, 2], "b": [3, 4, 5], "c": [6, 7]}


def test_queues_are_sorted_by_broker_and_then_by_id() -> None:
    mixed = [
        MessageQueue("T", "b", 0),
        MessageQueue("T", "a", 10),
        MessageQueue("T", "a", 9),
        MessageQueue("T", "b", 1),
    ]
    assert allocate(mixed, ["x", "y"], "x") == [MessageQueue("T", "a", 9), MessageQueue("T", "a", 10)]


def test_one_that_is_not_a_member_gets_nothing() -> None:
    assert allocate(queues_of(4), ["a"], "b") == []
