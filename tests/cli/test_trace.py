"""`mqlake trace`: where a message is and was, across topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mqlake import Message
from mqlake.testing import ClockedStore
from tests.cli.conftest import Cli


def test_the_way_of_a_message_is_shown_from_its_put_to_its_dead_letter(
    cli: Cli, mq_store_factory: Callable[..., ClockedStore], tmp_path: Path
) -> None:
    store = mq_store_factory("traced")
    store.create_group("billing", max_retry_count=1)
    store.put(Message("orders", b"bad", keys="17", delay_s=60))
    store.put(Message("orders", b"other", keys="18"))
    store.advance(seconds=61)
    store.run(lambda message: 1 / 0, group="billing", topic="orders", idle_s=0)
    store.advance(seconds=11)
    store.run(lambda message: 1 / 0, group="billing", topic="orders", idle_s=0)
    list(store.consumer("audit", "orders", start="last", idle_s=0))
    store.put(Message("orders", b"again", keys="17"))
    store.close()
    steps = cli.json("trace", tmp_path / "traced", "17")
    assert [step["what"] for step in steps] == ["delayed", "delivered", "delayed", "retried", "dead", "delivered"]
    assert steps[0]["detail"].startswith("for orders, until ") and "try 2 of group billing" in steps[3]["detail"]
    assert steps[1]["groups"] == {"audit": "processed", "billing": "failed"}
    assert steps[3]["groups"] == {"billing": "failed"}, "its last try"
    assert steps[-1]["groups"] == {"audit": "waiting", "billing": "waiting"}
    shown = cli.ok("trace", tmp_path / "traced", "17")
    assert "billing: failed" in shown and "audit: processed" in shown and "dead" in shown and "audit: waiting" in shown


def test_a_key_that_no_message_has_is_exit_code_1(orders: Cli) -> None:
    result = orders.run("trace", orders.store, "nobody")
    assert result.exit_code == 1 and "no message with key 'nobody' in any topic" in result.stderr
    assert [step["what"] for step in orders.json("trace", orders.store, "o3")] == ["put"]
