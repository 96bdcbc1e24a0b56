"""Real stores to look at: one without messages, one with every trouble, one with very many topics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from mqlake import Message, MessageStore
from mqlake.config import CommitLogConfig, IndexConfig

TOPIC_COUNT = 2_000
START_MS = 1_767_225_600_000
FIRST_BODY_AT = 88
"""Where the body of a record begins: after its fixed fields and the body's length."""


def empty(path: Path) -> None:
    _open(path).close()


def damaged(path: Path) -> None:
    """Write orders with keys and tags, some of them retried or given up; then harm one, and leave a group behind."""
    with _open(path) as store:
        receipts = [
            store.put(Message("orders", b'{"id": %d}' % n, tags=f"t{n % 3}", keys=f"k{n % 40}")) for n in range(400)
        ]
        for n in range(30):
            topic = "%DLQ%billing" if n % 10 == 0 else "%RETRY%billing"
            store.put(Message(topic, b"again", properties={"RETRY_TOPIC": "orders"}))
        store.wait_dispatched()
    (path / "config").mkdir(exist_ok=True)
    offsets = {"offsetTable": {"orders@billing": {"0": 3}}}
    (path / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    with (path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(receipts[200].physical_offset + FIRST_BODY_AT)
        log.write(b"!!")


def many_topics(path: Path) -> None:
    with _open(path) as store:
        store.put_many(
            [
                Message(f"topic-of-team-{n % 37:02}-number-{n:04}", b"x" * (n % 300), queue_id=0, keys=f"k{n}")
                for n in range(TOPIC_COUNT)
                for _ in range(1 + (n % 100 == 0) * 20)
            ]
        )
        store.wait_dispatched()


def _open(path: Path) -> MessageStore:
    return MessageStore.open(
        path,
        commit_log=CommitLogConfig(file_size_bytes=4 << 20),
        index=IndexConfig(slot_count=1_000, entry_count=20_000),
    )


STORES: dict[str, Callable[[Path], None]] = {"empty": empty, "damaged": damaged, "many-topics": many_topics}
