"""`mqlake tail`, run in its own process as people use it."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from mqlake import Message
from tests.cli.conftest import Cli

pytestmark = pytest.mark.timeout(30)
"""A line that does not come is waited for no longer than this."""


def next_texts(process: subprocess.Popen[str], count: int) -> list[str]:
    """Wait for the next lines that it writes and return their texts."""
    assert process.stdout is not None
    return [json.loads(process.stdout.readline())["text"] for _ in range(count)]


def test_tail_shows_the_newest_messages_of_all_queues_in_log_order(orders: Cli) -> None:
    lines = orders.ok("tail", orders.store, "orders", "--lines", 3).splitlines()
    assert [line.split("  ")[1:] for line in lines] == [
        ["1:1", "[paid o3 all]", "order 3"],
        ["0:2", "[created o4 all]", "order 4"],
        ["1:2", "[paid o5 all]", "order 5"],
    ]


def test_tail_of_one_queue_leaves_out_the_others(orders: Cli) -> None:
    assert [line["text"] for line in orders.json("tail", orders.store, "orders", "--queue", 0)] == [
        *("order 0", "order 2", "order 4")
    ]
    result = orders.run("tail", orders.store, "orders", "--queue", 5)
    assert result.exit_code == 3
    assert "queues 0, 1" in result.stderr


def test_tail_with_no_lines_shows_nothing_old(orders: Cli) -> None:
    assert orders.ok("tail", orders.store, "orders", "--lines", 0) == ""


def test_tail_follow_shows_what_another_process_writes_to_old_and_new_queues(orders: Cli) -> None:
    with orders.open() as store:
        follower = orders.process("tail", orders.store, "orders", "--follow", "--lines", 1, "--json")
        assert next_texts(follower, 1) == ["order 5"]
        for queue_id in (0, 1, 7):
            store.put(Message("orders", b"new in %d" % queue_id, queue_id=queue_id))
            assert next_texts(follower, 1) == [f"new in {queue_id}"]
        store.put_many([Message("orders", b"%d" % number, queue_id=number % 3) for number in range(600)])
        assert sorted(map(int, next_texts(follower, 600))) == list(range(600))
    follower.send_signal(signal.SIGINT)
    _, errors = follower.communicate(timeout=20)
    assert (follower.returncode, errors) == (130, "")


def test_tail_follow_waits_for_a_topic_that_does_not_exist_yet(orders: Cli) -> None:
    with orders.open() as store:
        follower = orders.process("tail", orders.store, "later", "--follow", "--json")
        store.put(Message("orders", b"another topic"))
        store.put(Message("later", b"here"))
        assert next_texts(follower, 1) == ["here"]


def test_tail_follow_continues_when_another_writer_takes_over(orders: Cli) -> None:
    follower = orders.process("tail", orders.store, "orders", "--follow", "--lines", 1, "--json")
    assert next_texts(follower, 1) == ["order 5"]
    for number in range(2):
        orders.put(Message("orders", b"from writer %d" % number))
        assert next_texts(follower, 1) == [f"from writer {number}"]


def test_tail_of_an_unknown_topic_is_an_error(orders: Cli) -> None:
    result = orders.run("tail", orders.store, "nix")
    assert result.exit_code == 3
    assert "UnknownTopic" in result.stderr
