"""`mqlake consume`, `groups`, `lag`, `reset`, `topic`, `group`, `top`."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from mqlake import Message
from tests.cli.conftest import Cli

pytestmark = pytest.mark.timeout(60)


def texts(cli: Cli, *arguments: object) -> list[str]:
    return [line["text"] for line in cli.json("consume", cli.store, *arguments)]


def test_consume_prints_what_the_group_has_not_read_and_remembers_it(orders: Cli) -> None:
    assert sorted(texts(orders, "billing", "orders")) == [f"order {number}" for number in range(6)]
    assert texts(orders, "billing", "orders") == []
    orders.put(Message("orders", b"order 6", queue_id=1))
    assert texts(orders, "billing", "orders") == ["order 6"]
    assert "order 6" in orders.ok("consume", orders.store, "audit", "orders", "--start", "10m")


def test_consume_respects_its_limit_and_filters(orders: Cli) -> None:
    assert len(texts(orders, "a", "orders", "--limit", 4)) == 4
    assert len(texts(orders, "a", "orders")) == 2
    assert sorted(texts(orders, "b", "orders", "--tags", "paid")) == ["order 1", "order 3", "order 5"]
    assert sorted(texts(orders, "c", "orders", "--sql", "KEYS STARTSWITH 'o3'")) == ["order 3"]
    assert texts(orders, "d", "orders", "--start", "last") == []
    assert orders.run("consume", orders.store, "d", "orders", "--tags", "a", "--sql", "b").exit_code == 2


def test_a_filter_that_does_not_parse_is_shown_with_a_caret(orders: Cli) -> None:
    result = orders.run("consume", orders.store, "c", "orders", "--sql", "a > AND")
    assert result.exit_code == 3
    assert result.stderr.splitlines()[1:] == ["  a > AND", "      ^"]


def test_consume_while_another_process_writes_needs_progress_of_its_own(orders: Cli) -> None:
    with orders.open() as store:
        result = orders.run("consume", orders.store, "billing", "orders")
        assert (
            result.exit_code == 3
            and "groups are shared within that process only" in result.stderr
            and "--progress" in result.stderr
        )
        mine = orders.folder / "mine.json"
        follower = orders.process("consume", orders.store, "me", "orders", "--progress", mine, "--follow", "--json")
        assert follower.stdout is not None
        seen = {json.loads(follower.stdout.readline())["text"] for _ in range(6)}
        store.put(Message("orders", b"new", queue_id=0))
        assert len(seen) == 6 and json.loads(follower.stdout.readline())["text"] == "new"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 130
        assert len(texts(orders, "me", "orders", "--progress", mine)) <= 1  # the last one may be delivered again


def test_groups_and_lag_show_the_progress_of_each_group(orders: Cli) -> None:
    texts(orders, "billing", "orders", "--limit", 2)
    orders.ok("group", "create", orders.store, "idle", "--max-retries", 3)
    found = {(row["group"], row["topic"]): row["lag"] for row in orders.json("groups", orders.store)}
    assert found == {("billing", "orders"): 4, ("idle", None): 0}
    rows = orders.json("lag", orders.store, "billing", "orders")
    assert sum(row["lag"] for row in rows) == 4 and {row["queueId"] for row in rows} >= {0, 1}
    assert "billing" in orders.ok("groups", orders.store)
    assert "progress" in orders.ok("lag", orders.store, "billing")
    result = orders.run("lag", orders.store, "biling")
    assert result.exit_code == 3 and "it has billing" in result.stderr


def test_reset_moves_a_group(orders: Cli) -> None:
    texts(orders, "billing", "orders")
    assert sum(row["lag"] for row in orders.json("reset", orders.store, "billing", "orders", "--to", "first")) == 6
    assert len(texts(orders, "billing", "orders")) == 6
    orders.json("reset", orders.store, "billing", "orders", "--offset", 2, "--queue", 1)
    assert texts(orders, "billing", "orders") == ["order 5"]
    orders.json("reset", orders.store, "billing", "orders", "--to", "1h")
    orders.json("reset", orders.store, "billing", "orders", "--to", "last")
    assert texts(orders, "billing", "orders") == []
    assert "outside of [0, 3)" in orders.run("reset", orders.store, "billing", "orders", "--offset", 99).stderr
    assert orders.run("reset", orders.store, "billing", "orders").exit_code == 2
    assert orders.run("reset", orders.store, "billing", "orders", "--to", "first", "--queue", 1).exit_code == 2
    assert orders.run("reset", orders.folder / "nothing", "billing", "orders", "--to", "first").exit_code == 3


def test_topics_are_created_changed_listed_and_deleted(cli: Cli) -> None:
    assert cli.ok("topic", "create", cli.store, "orders", "--queues", 3) == "topic orders: 3 queues, rw\n"
    cli.put(*(Message("orders", b"%d" % number) for number in range(6)))
    assert {row["queueId"] for row in cli.json("topics", cli.store)} == {0, 1, 2}
    cli.ok("topic", "update", cli.store, "orders", "--permission", "r")
    with cli.open() as store, pytest.raises(Exception, match="WRITE is needed"):
        store.put(Message("orders", b""))
    rows = cli.json("topic", "list", cli.store)
    assert [(row["topicName"], row["perm"], row["writeQueueNums"]) for row in rows] == [("orders", 4, 3)]
    assert "orders" in cli.ok("topic", "list", cli.store)
    assert cli.run("topic", "delete", cli.store, "orders", input="n\n").exit_code == 1
    cli.ok("topic", "delete", cli.store, "orders", "--yes")
    assert cli.json("topic", "list", cli.store) == cli.json("topics", cli.store) == []
    assert "not in this store" in cli.run("topic", "delete", cli.store, "orders", "--yes").stderr


def test_groups_are_created_changed_listed_and_deleted(cli: Cli) -> None:
    cli.ok("group", "create", cli.store, "billing", "--ordered")
    cli.ok("group", "update", cli.store, "billing", "--disabled", "--no-broadcast")
    row = cli.json("group", "list", cli.store)[0]
    assert row["consumeMessageOrderly"] and not row["consumeEnable"] and not row["consumeBroadcastEnable"]
    assert "billing" in cli.ok("group", "list", cli.store)
    cli.ok("group", "delete", cli.store, "billing", "--yes")
    assert cli.json("group", "list", cli.store) == []


def test_top_shows_rates_once_for_scripts(orders: Cli) -> None:
    texts(orders, "billing", "orders", "--limit", 2)
    rows = orders.json("top", orders.store, "--once", "--interval", "0.05")
    assert rows[0]["topic"] in ("orders", "clicks") and rows[0]["putsPerSecond"] == 0
    assert {(row.get("group"), row.get("lag")) for row in rows} >= {("billing", 4)}
    shown = orders.ok("top", orders.store, "--once", "--interval", "0.05", "--rows", 1)
    assert "put/s" in shown and "and 1 more" in shown and "billing" in shown


def test_top_sees_what_another_process_puts_and_ends_with_ctrl_c(orders: Cli) -> None:
    with orders.open() as store:
        rows: list[dict[str, Any]] = []
        while not rows or not rows[0]["putsPerSecond"]:  # otherwise nothing was put between its two samples
            watching = orders.process("top", orders.store, "--once", "--json", "--interval", "1")
            while watching.poll() is None:
                store.put(Message("clicks", b"c", queue_id=0))
                time.sleep(0.01)
            assert watching.stdout is not None and watching.returncode == 0
            rows = [json.loads(line) for line in watching.stdout.read().splitlines()]
        assert rows[0]["topic"] == "clicks" and 0 < rows[0]["putsPerSecond"] < 1000
    live = orders.process("top", orders.store, "--interval", "0.05")
    assert live.stdout is not None
    live.stdout.read(10)
    live.send_signal(signal.SIGINT)
    assert live.wait(20) == 130


def test_impossible_requests_are_refused_and_create_no_topic(orders: Cli) -> None:
    asked = orders.run("consume", orders.store, "billing", "order")
    assert asked.exit_code == 3 and "UnknownTopic: topic 'order': not in this store; it has orders" in asked.stderr
    orders.ok("consume", orders.store, "billing", "orders", "--limit", 1)
    asked = orders.run("reset", orders.store, "billing", "order", "--to", "first")
    assert asked.exit_code == 3 and "UnknownTopic" in asked.stderr
    assert "order" not in {line["topicName"] for line in orders.json("topic", "list", orders.store)}
    asked = orders.run("reset", orders.store, "billing", "orders", "--to", 99)
    assert asked.exit_code == 2 and "for a queue offset use --offset 99" in asked.stderr
    asked = orders.run("reset", orders.store, "billing", "orders", "--offset", 99)
    assert asked.exit_code == 3 and "offset 99 is outside of [0, " in asked.stderr
    asked = orders.run("topic", "create", orders.store, "orders", "--queues", 77)
    assert asked.exit_code == 3 and "write_queue_count 77" in asked.stderr and "update_topic changes it" in asked.stderr


def test_a_damaged_state_file_is_replaced_by_its_bak_and_reported(orders: Cli) -> None:
    for name in ("some", "more"):
        orders.ok("topic", "create", orders.store, name)
    state = orders.store / "config" / "topics.json"
    state.write_text("{")
    process = orders.process("topic", "list", orders.store, "--json")
    listed, told = process.communicate(timeout=30)
    assert process.returncode == 0 and '"some"' in listed and '"more"' not in listed
    assert "topics.json.bak is used: topics.json: " in told
    state.with_name("topics.json.bak").write_text("")
    asked = orders.run("topic", "list", orders.store)
    assert asked.exit_code == 3 and "BadConfigFile" in asked.stderr and "replace it with an intact copy" in asked.stderr
