"""The checkpoint: what was durable at the last flush.

`mqlake/checkpoint` states that log, queues and index are on disk up to `dispatched`, and where each queue and the
newest index file ended at that moment, which lies between two steps of the dispatcher. It is written last, after the
syncs that make it true, and replaced atomically: a power cut leaves the old checkpoint, which is still true, or the new
one. A file with a wrong checksum counts as missing.

It also holds the digest of RocketMQ's `checkpoint`, which we write next to it and which never claims more than was
synced. If that file has another digest, RocketMQ wrote to the store since, and our checkpoint proves nothing.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mqlake.codec.checkpoint import RocketCheckpoint
from mqlake.config import FlushConfig
from mqlake.errors import BadFile
from mqlake.files.layout import Layout
from mqlake.files.small_files import read_small_file, replace_file
from mqlake.logs.consume_queues import QueueEnds
from mqlake.runtime.workers import Workers

MAGIC = b"MQLAKE02"
MAX_SIZE = 1 << 30
"""An upper bound: a checkpoint with many queues is large, but never this large."""
HEAD_SIZE = len(MAGIC) + 10
"""Magic, a space, the CRC-32 of what follows in eight hexadecimal digits, a line feed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMark:
    """The index at the moment of a checkpoint."""

    files: tuple[str, ...] = ()
    """The names of its files, oldest first."""
    header: bytes = b""
    """The header of the newest file; empty if there is no file."""
    slot_count: int = 0
    entry_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a store at one moment."""

    first_offset: int = 0
    """Where the log began."""
    durable: int = 0
    """The log is on disk up to here."""
    dispatched: int = 0
    """Everything before this offset is in queues and index, on disk."""
    last_record: int = -1
    """The offset of the last record before `dispatched`, or -1. Proves that the log is still the same one."""
    clean: bool = False
    """The store was closed here: nothing was written after."""
    generation: int = 0
    """Which opening of the store wrote this: the generation word of `mqlake/positions`."""
    queue_ends: QueueEnds = field(default_factory=dict)
    index: IndexMark = field(default_factory=IndexMark)
    rocketmq: tuple[int, ...] = ()
    """The CRC-32 of RocketMQ's `checkpoint` before and after this write. Any other value: RocketMQ wrote since."""

    def encode(self) -> bytes:
        index = self.index
        body = json.dumps(
            {
                "firstOffset": self.first_offset,
                "durable": self.durable,
                "dispatched": self.dispatched,
                "lastRecord": self.last_record,
                "clean": self.clean,
                "generation": self.generation,
                "queueEnds": self.queue_ends,
                "index": [index.files, index.header.hex(), index.slot_count, index.entry_count],
                "rocketmq": self.rocketmq,
            },
            separators=(",", ":"),
        ).encode()
        return b"%s %08x\n" % (MAGIC, zlib.crc32(body)) + body


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    """Decode a checkpoint. Return None if its magic or its checksum is wrong."""
    body = data[HEAD_SIZE:]
    if data[:HEAD_SIZE] != b"%s %08x\n" % (MAGIC, zlib.crc32(body)):
        return None
    fields = json.loads(body)
    files, header, slot_count, entry_count = fields["index"]
    return Checkpoint(
        first_offset=fields["firstOffset"],
        durable=fields["durable"],
        dispatched=fields["dispatched"],
        last_record=fields["lastRecord"],
        clean=fields["clean"],
        generation=fields["generation"],
        queue_ends={topic: {int(i): end for i, end in ends.items()} for topic, ends in fields["queueEnds"].items()},
        index=IndexMark(
            files=tuple(files), header=bytes.fromhex(header), slot_count=slot_count, entry_count=entry_count
        ),
        rocketmq=tuple(fields["rocketmq"]),
    )


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Return the checkpoint in a file; None if it is missing or damaged."""
    try:
        return decode_checkpoint(read_small_file(path, MAX_SIZE))
    except (OSError, BadFile):
        return None


def write_checkpoint(layout: Layout, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint. If that fails, the old one stays."""
    replace_file(layout.own_checkpoint, checkpoint.encode(), layout.scratch)


def rocketmq_digest(layout: Layout) -> int:
    """Return the CRC-32 of RocketMQ's `checkpoint` as it is now; 0 if there is none."""
    try:
        return zlib.crc32(read_small_file(layout.checkpoint, MAX_SIZE))
    except (OSError, BadFile):
        return 0


def rocketmq_content(timestamp: int, index_timestamp: int, physical_offset: int) -> bytes:
    """Return a `checkpoint` for RocketMQ: log and queues are on disk up to this time and offset."""
    return RocketCheckpoint(
        log_timestamp=timestamp,
        queue_timestamp=timestamp,
        index_timestamp=index_timestamp,
        queue_physical_offset=physical_offset,
    ).encode()


class Checkpointer:
    """Writes a checkpoint at intervals, and at once after a recovery that changed something."""

    def __init__(self, config: FlushConfig, write: Callable[[], object], workers: Workers, *, at_once: bool) -> None:
        self._config = config
        self._write = write
        self._written_at = -math.inf if at_once else time.monotonic()
        self._worker = workers.add("checkpoint", self._work, keeps_trying=True)

    def start(self) -> None:
        self._worker.start()

    def _work(self) -> float:
        if time.monotonic() - self._written_at >= self._config.queue_thorough_interval_ms / 1000:
            self._write()
            self._written_at = time.monotonic()
        return self._config.queue_interval_ms / 1000

    def close(self) -> None:
        self._worker.stop()
