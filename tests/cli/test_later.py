"""`mqlake put --delay`, `delay`, `dlq`."""

from __future__ import annotations

import json

import pytest

from mqlake import Message
from tests.cli.conftest import Cli

pytestmark = pytest.mark.timeout(60)
TIMER = "rmq_sys_wheel_timer"


def test_a_delayed_message_is_listed_and_can_be_cancelled(orders: Cli) -> None:
    put = orders.json("put", orders.store, "orders", "in an hour", "--delay", "1h", "--config", orders.config)[0]
    assert put["topic"] == TIMER
    orders.ok("put", orders.store, "orders", "tomorrow", "--at", "2099-01-01", "--config", limits(orders, 10**10))
    orders.put(Message("orders", b"by level", delay_level=18, queue_id=1))
    listed = orders.json("delay", "list", orders.store)
    assert [line["text"] for line in listed] == ["in an hour", "by level", "tomorrow"]
    assert [line["level"] for line in listed] == [None, 18, None]
    assert "level 18" in orders.ok("delay", "list", orders.store)
    assert orders.ok("delay", "cancel", orders.store, put["msgId"], "--config", orders.config)
    assert [line["text"] for line in orders.json("delay", "list", orders.store)] == ["by level", "tomorrow"]
    with orders.open():
        assert len(orders.json("delay", "list", orders.store, "--limit", 1)) == 1, "while another process writes"


def limits(cli: Cli, max_delay_s: int) -> object:
    config = cli.folder / "far.conf"
    config.write_text(cli.config.read_text() + f"timerMaxDelaySec={max_delay_s}\n")
    return config


def test_what_cannot_be_delayed_or_cancelled_is_an_error_that_says_why(orders: Cli) -> None:
    assert orders.run("put", orders.store, "orders", "x", "--delay", "1h", "--at", "2099-01-01").exit_code == 2
    assert orders.run("put", orders.store, "orders", "x", "--delay", "soon").exit_code == 2
    far = orders.run("put", orders.store, "orders", "x", "--delay", "30d")
    assert far.exit_code == 3 and "timerMaxDelaySec" in far.stderr
    late = orders.run("delay", "cancel", orders.store, "0")
    assert late.exit_code == 3 and "NotPending" in late.stderr


def test_dead_letters_are_listed_shown_and_resent(orders: Cli) -> None:
    with orders.open() as store, store.consumer("billing", "orders", idle_s=0) as consumer:
        for message in consumer:
            if message.tags == "paid":
                consumer.fail(message, level=-1)
    assert orders.json("dlq", "list", orders.store) == [
        {"group": "billing", "topic": "%DLQ%billing", "messageCount": 3}
    ]
    assert "billing" in orders.ok("dlq", "list", orders.store)
    shown = orders.json("dlq", "show", orders.store, "billing", "--start", 1)
    assert [(line["queueOffset"], line["properties"]["RETRY_TOPIC"]) for line in shown] == [
        (1, "orders"),
        (2, "orders"),
    ]
    assert "1 sent to group billing" in orders.ok("dlq", "resend", orders.store, "billing", 1)
    lines = orders.ok("consume", orders.store, "billing", "orders", "--json").splitlines()
    assert [json.loads(line)["text"] for line in lines] == [shown[0]["text"]]
    assert "3 sent" in orders.ok("dlq", "resend", orders.store, "billing", "--all")
    assert orders.run("dlq", "resend", orders.store, "billing").exit_code == 2
    assert orders.run("dlq", "resend", orders.store, "billing", 0, "--all").exit_code == 2
    assert orders.run("dlq", "resend", orders.store, "billing", 99).exit_code in (2, 3)
    assert "no dead letters" in orders.ok("dlq", "show", orders.store, "nobody")


def test_a_loaded_dump_delivers_nothing_twice(orders: Cli) -> None:
    """The dump has a delayed message twice: as it waited, and as it was delivered."""
    with orders.open() as store:
        waiting = store.put(Message("mails", b"later", queue_id=0, delay_level=1))
        scheduler = store.delivery.require_scheduler()
        scheduler.step(waiting.store_timestamp + 7_200_000)
        store.wait_dispatched()
        assert [message.body for message in store.read("mails")] == [b"later"]
    orders.ok("dump", orders.store, "--out", orders.folder / "dump.jsonl")
    orders.ok("load", orders.folder / "copy", "--from", orders.folder / "dump.jsonl", "--config", orders.config)
    assert orders.json("delay", "list", orders.folder / "copy") == []
    assert [line["text"] for line in orders.json("read", orders.folder / "copy", "mails")] == ["later"]
