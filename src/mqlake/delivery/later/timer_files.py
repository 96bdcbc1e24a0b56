"""The timer's files: its own checkpoint, and the files that RocketMQ needs to continue instead.

`mqlake/timer` holds everything that was pending at one moment, the queue offset of the next message of the timer topic
to read, and the physical offset up to which all deliveries are included. It is derived: if it is damaged or missing, it
is rebuilt from the topic and the log.

RocketMQ has `config/timercheck` (how far it has read in time and in the topic) and, in `timerlog/`, a unit of 52 bytes
for each pending message; it rebuilds its `timerwheel` from them. Closing a store writes both, with exactly the pending
messages. While a store is open here, `timercheck` points at the first pending message and there is no timer log. If
RocketMQ takes over after a crash, it loses no message and delivers some again.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from mqlake.errors import BadFile
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import sync_directory
from mqlake.files.small_files import read_small_file, read_whole_file, remove_folder, replace_file

MAGIC = b"MQTIMER1"
HEADER = struct.Struct("<8sqqIIIqI")
"""Magic, next queue offset, delivered to, CRCs of the three `timercheck`s it goes with, count of pairs, their CRC."""
CRC = struct.Struct("<I")

CHECK = struct.Struct(">qqqqqqq")
"""Read time, end of the timer log, next queue offset twice (own and master's), version: state, time, counter."""
PAGE_SIZE = 4096
MAX_CHECK_SIZE = 1 << 20
MAX_TIME_MS = 1 << 43
"""In the year 2248. A later time is damage."""
UNIT = struct.Struct(">iqiqiqiiq")
"""Size, previous unit of its slot, magic, write time, delay after that, physical offset, record size, topic hash, 0."""
BLANK = struct.Struct(">iqi")
BLANK_MAGIC = 0xCBD43194 - (1 << 32)
_log = logging.getLogger(__name__)


class Saved(NamedTuple):
    """The content of the checkpoint."""

    next_offset: int
    """The queue offset of the next message of the timer topic to read."""
    delivered_to: int
    """The physical offset up to which all deliveries are included."""
    rocketmq: tuple[int, int, int]
    """CRCs of the `timercheck` before this checkpoint, and of the two that are written after it, in order."""
    pairs: bytes


def save(layout: Layout, saved: Saved) -> None:
    """Replace the checkpoint, durably."""
    count, crc = len(saved.pairs) // 16, zlib.crc32(saved.pairs)
    header = HEADER.pack(MAGIC, saved.next_offset, saved.delivered_to, *saved.rocketmq, count, crc)
    replace_file(layout.timer, header + CRC.pack(zlib.crc32(header)) + saved.pairs, layout.scratch)


def load(layout: Layout) -> Saved | None:
    """Return the checkpoint; None if it is missing or damaged."""
    try:
        content = read_whole_file(layout.timer)
    except (FileNotFoundError, NotADirectoryError):
        return None
    begin = HEADER.size + CRC.size
    if len(content) >= begin and CRC.unpack_from(content, HEADER.size)[0] == zlib.crc32(content[: HEADER.size]):
        magic, next_offset, delivered_to, *rocketmq, count, crc = HEADER.unpack_from(content)
        pairs = content[begin:]
        if magic == MAGIC and len(pairs) == 16 * count and zlib.crc32(pairs) == crc:
            return Saved(next_offset, delivered_to, (rocketmq[0], rocketmq[1], rocketmq[2]), pairs)
    _log.warning("%s is damaged: reading the pending messages from the timer topic", layout.timer)
    return None


class Check(NamedTuple):
    """The content of RocketMQ's `timercheck`."""

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    @classmethod
    def read(cls, layout: Layout) -> Check:
        """Read the file; all fields are zero if it is missing, and DAMAGED if nobody can have written it so."""
        try:
            content = read_small_file(layout.timer_check, MAX_CHECK_SIZE)
        except (FileNotFoundError, NotADirectoryError):
            content = b""
        check = cls(*CHECK.unpack_from(content.ljust(CHECK.size, b"\0")))
        if min(check) < 0 or max(check.read_ms, check.timestamp) > MAX_TIME_MS or any(content[CHECK.size :]):
            _log.warning("%s is damaged: it says nothing about the timer", layout.timer_check)
            return DAMAGED
        return check

    @property
    def crc(self) -> int:
        return zlib.crc32(CHECK.pack(*self))

    def write(self, layout: Layout) -> None:
        replace_file(layout.timer_check, CHECK.pack(*self).ljust(PAGE_SIZE, b"\0"), layout.scratch)


DAMAGED = Check(read_ms=-1)
"""Not a state of the timer: every message may wait, and there may be a timer log of any length."""


def waiting_units(layout: Layout, check: Check) -> Iterator[int]:
    """Yield the physical offsets of messages in RocketMQ's timer log that are due at its read time or later.

    Raises BadFile if the units end before the position up to which `timercheck` says that they are on disk: then they
    are not all messages that wait. RocketMQ deletes the oldest files, so the first one may begin anywhere.
    """
    end: int | None = None
    for path in sorted(layout.timer_log.glob("[0-9]" * 20)) if layout.timer_log.is_dir() else ():
        start = int(path.name)
        if end not in (None, start) or not path.stat().st_size:
            break
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        end = start
        for at in range(0, len(data) - UNIT.size + 1, UNIT.size):
            size, _, magic, written_ms, delay_ms, offset, *_ = UNIT.unpack_from(data, at)
            if size != UNIT.size or not 0 <= magic <= 0xF:
                break
            end = start + at + UNIT.size
            if written_ms + delay_ms >= check.read_ms:
                yield offset
        if _is_full(data, end - start):
            end = start + len(data)
    if (end or 0) < check.log_end:
        raise BadFile(layout.timer_log, f"units up to {end or 0}", f"units up to {check.log_end}")


def _is_full(data: mmap.mmap, used: int) -> bool:
    """Tell whether the units of a timer log file are followed by the marker, so that the next file goes on."""
    return used + BLANK.size > len(data) or BLANK.unpack_from(data, used)[2] == BLANK_MAGIC


class LogSettings(NamedTuple):
    """RocketMQ's settings: size of a timer log file, length of a time unit, and how many units it looks ahead."""

    file_size: int
    precision_ms: int
    window: int

    @property
    def units_per_file(self) -> int:
        """How many units fit into a file, with room for the marker at its end."""
        return (self.file_size - BLANK.size) // UNIT.size

    def position(self, index: int) -> int:
        """Return the position of a unit in the timer log."""
        return index // self.units_per_file * self.file_size + index % self.units_per_file * UNIT.size


def write_timer_log(layout: Layout, units: memoryview, settings: LogSettings) -> None:
    """Write RocketMQ's timer log; there must be none yet. A crash leaves all of it or none of it."""
    made = layout.scratch / "timerlog"
    remove_folder(made)
    made.mkdir(parents=True)
    step = settings.units_per_file * UNIT.size
    for start in range(0, len(units), step):
        with (made / f"{start // step * settings.file_size:020d}").open("wb") as file:
            file.write(units[start : start + step])
            if start + step < len(units):
                file.write(BLANK.pack(settings.file_size - step, 0, BLANK_MAGIC))
            file.truncate(settings.file_size)
            os.fsync(file.fileno())
    sync_directory(made)
    made.rename(layout.timer_log)
    sync_directory(layout.root)


def remove_timer_log(layout: Layout) -> None:
    """Delete RocketMQ's timer log and wheel. Their messages are pending here; RocketMQ would deliver them again."""
    layout.timer_wheel.unlink(missing_ok=True)
    if layout.timer_log.is_dir():
        aside = layout.scratch / "timerlog.old"
        remove_folder(aside)
        layout.scratch.mkdir(parents=True, exist_ok=True)
        layout.timer_log.rename(aside)
        sync_directory(layout.root)
        remove_folder(aside)
