"""What was durable at the last flush.

`mqlake/checkpoint` says, in offsets: log, queues and index are on the disk up to `dispatched`, and where each queue and
the newest index file ended then. All of it is of one moment, between two steps of the dispatcher. It is written last,
behind the syncs that make it true, and replaced whole: a power cut leaves the old one, true as it was, or the new one.
A file whose checksum does not hold is no file, and opening goes the way of a store that has none.

It also knows RocketMQ's `checkpoint`, which is written beside it and never ahead of what was synced: where that file
holds something else, RocketMQ wrote the store since, and ours proves nothing any more.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mqlake.codec.checkpoint import RocketCheckpoint
from mqlake.config import FlushConfig
from mqlake.files.layout import Layout
from mqlake.files.small_files import replace_file
from mqlake.logs.consume_queues import QueueEnds

MAGIC = b"MQLAKE02"
HEAD_SIZE = len(MAGIC) + 10
"""Magic, a space, the CRC-32 of what follows in eight hexadecimal digits, a line feed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMark:
    """The index at the moment of a checkpoint."""

    files: tuple[str, ...] = ()
    """The names of its files, oldest first."""
    header: bytes = b""
    """The newest file's; empty without a file."""
    slot_count: int = 0
    entry_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One moment of a store."""

    first_offset: int = 0
    """Where the log began."""
    durable: int = 0
    """The log is on the disk up to here."""
    dispatched: int = 0
    """Queues and index hold all before this offset, on the disk."""
    last_record: int = -1
    """The offset of the last record before `dispatched`, -1 without one: proves that the log is still this one."""
    clean: bool = False
    """The store was closed here: nothing came after."""
    generation: int = 0
    """Which opening of the store wrote it: the word of that number in `mqlake/positions`."""
    queue_ends: QueueEnds = field(default_factory=dict)
    index: IndexMark = field(default_factory=IndexMark)
    rocketmq: tuple[int, ...] = ()
    """What RocketMQ's `checkpoint` may hold if nobody else wrote since: the CRC-32 of it before and after this one."""

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
    """A checkpoint, or None where its magic or its checksum does not hold."""
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
    """The checkpoint in a file; None where it is absent or damaged."""
    try:
        return decode_checkpoint(path.read_bytes())
    except OSError:
        return None


def write_checkpoint(layout: Layout, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint; where that fails the old one stays."""
    replace_file(layout.own_checkpoint, checkpoint.encode(), layout.scratch)


def rocketmq_digest(layout: Layout) -> int:
    """The CRC-32 of RocketMQ's `checkpoint` as it is now, 0 where there is none."""
    try:
        return zlib.crc32(layout.checkpoint.read_bytes())
    except OSError:
        return 0


def rocketmq_content(timestamp: int, index_timestamp: int, physical_offset: int) -> bytes:
    """What RocketMQ is to read: log and queues are on the disk up to this time and offset."""
    return RocketCheckpoint(
        log_timestamp=timestamp,
        queue_timestamp=timestamp,
        index_timestamp=index_timestamp,
        queue_physical_offset=physical_offset,
    ).encode()


class Checkpointer:
    """Every so often, and when a store was just recovered: queues and index to the disk, then both checkpoints."""

    def __init__(self, config: FlushConfig, checkpoint: Callable[[], object], *, at_once: bool) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._at_once = at_once
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqlake-checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._at_once:
            self._checkpoint()
        written_at = time.monotonic()
        while not self._stopping.wait(self._config.queue_interval_ms / 1000):
            if time.monotonic() - written_at >= self._config.queue_thorough_interval_ms / 1000:
                self._checkpoint()
                written_at = time.monotonic()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
