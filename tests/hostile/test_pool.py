"""With the transient pool everything works that works without it."""

from __future__ import annotations

from pathlib import Path

from mqlake import Message, PoolConfig
from tests.helpers import bodies, message, open_small

POOL = PoolConfig(enabled=True, buffer_count=3)


def test_every_transaction_commits(tmp_path: Path) -> None:
    with open_small(tmp_path, pool=POOL) as store:
        for number in range(20):
            with store.transaction() as transaction:
                transaction.put(message(number, queue_id=0))
                transaction.put(message(100 + number, "others", queue_id=0))
        store.flush()
        assert bodies(store) == [b"body %d" % number for number in range(20)]
        assert bodies(store, "others") == [b"body %d" % number for number in range(100, 120)]
        assert store.transactions.undecided() == []


def test_a_timed_message_can_be_cancelled_right_after_it_was_put(tmp_path: Path) -> None:
    with open_small(tmp_path, pool=POOL) as store:
        for number in range(20):
            receipt = store.put(Message("orders", b"%d" % number, delay_s=1.0))
            store.cancel(receipt)
        store.put(message(7, queue_id=0, delay_s=1.2))
        assert [m.body for m in store.consumer("group", "orders").poll(5)] == [b"body 7"]


def test_a_read_that_waits_gets_the_very_first_message_of_its_topic(tmp_path: Path) -> None:
    with open_small(tmp_path, pool=POOL) as store:
        for number in range(5):
            store.put(message(number, f"new{number}", queue_id=0))
            assert [m.body for m in store.read(f"new{number}", wait_s=10)] == [b"body %d" % number]
