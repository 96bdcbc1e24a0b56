"""What was durable at the last flush.

`mqlake/checkpoint` holds offsets, in two slots that take turns: each is written whole, with a sequence number and a
checksum, and synced; a power cut spoils at most the one in the making. It says: the log is on the disk and in its
queues and index, themselves on the disk, up to `dispatched`.

RocketMQ's `checkpoint` holds times. It is written beside ours, never ahead of what was synced, for RocketMQ to read.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.checkpoint import RocketCheckpoint
from mqlake.config import FlushConfig
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import sync_directory
from mqlake.files.small_files import replace_file

MAGIC = b"MQLAKE01"
SLOT = struct.Struct("<8sqqqqqI")
SLOT_SIZE = 4096


class Checkpoint(NamedTuple):
    """One slot."""

    sequence: int
    dispatched: int
    """Log, queues and index hold all before this offset, on the disk."""
    last_record: int
    """The offset of the last record before `dispatched`, -1 without one: proves that the log is still this one."""
    clean: int
    """1 when the store was closed here: nothing came after."""
    generation: int

    def encode(self) -> bytes:
        body = SLOT.pack(MAGIC, *self, 0)[:-4]
        return (body + struct.pack("<I", zlib.crc32(body))).ljust(SLOT_SIZE, b"\0")


class CheckpointFile:
    """The file and its next slot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.latest = self._read()

    def _read(self) -> Checkpoint | None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        slots = [decode_slot(data[at : at + SLOT_SIZE]) for at in (0, SLOT_SIZE)]
        return max((slot for slot in slots if slot is not None), key=lambda slot: slot.sequence, default=None)

    def write(self, dispatched: int, last_record: int, *, clean: bool, generation: int) -> None:
        """Write the next slot and sync it."""
        sequence = self.latest.sequence + 1 if self.latest else 1
        slot = Checkpoint(sequence, dispatched, last_record, int(clean), generation)
        is_new = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, slot.encode(), (sequence % 2) * SLOT_SIZE)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_directory(self._path.parent)
        self.latest = slot


def decode_slot(data: bytes) -> Checkpoint | None:
    """A slot, or None where its magic or its checksum does not hold."""
    if len(data) < SLOT.size:
        return None
    magic, *fields, crc = SLOT.unpack_from(data)
    if magic != MAGIC or crc != zlib.crc32(data[: SLOT.size - 4]):
        return None
    return Checkpoint(*fields)


class Checkpointer:
    """Every so often: queues and index to the disk, then both checkpoints."""

    def __init__(self, config: FlushConfig, checkpoint: Callable[[], object]) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqlake-checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        written_at = time.monotonic()
        while not self._stopping.wait(self._config.queue_interval_ms / 1000):
            if time.monotonic() - written_at >= self._config.queue_thorough_interval_ms / 1000:
                self._checkpoint()
                written_at = time.monotonic()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()


def write_rocket_checkpoint(layout: Layout, timestamp: int, index_timestamp: int, physical_offset: int) -> None:
    """RocketMQ's own file: log and queues are on the disk up to this time and offset."""
    content = RocketCheckpoint(
        log_timestamp=timestamp,
        queue_timestamp=timestamp,
        index_timestamp=index_timestamp,
        queue_physical_offset=physical_offset,
    )
    replace_file(layout.checkpoint, content.encode(), layout.scratch)
