"""Where two logs part, found by asking the master for a few blocks of its own.

Two logs that were one have equal bytes up to some offset and different ones after it: every record holds its offset and
its time. So a binary search over blocks of 64 KiB finds the first block that differs, with a connection for each
question: 14 of them for a gigabyte. Where a master's log ends is not said in its protocol, so it is found in the same
way.
"""

from __future__ import annotations

import time
from typing import Final

from mqlake.errors import NotConnected
from mqlake.kernel import walk_records
from mqlake.logs.commit_log import CommitLog
from mqlake.replication.link import Link
from mqlake.replication.receiving import first_difference

BLOCK_BYTES: Final = 64 * 1024
PATIENCE_S: Final = 2.0
"""How long a master may take to send a block. One that does not send it does not have it."""
START_PATIENCE_S: Final = 10.0
"""One without a log shows a sign of life after 5 s (haSendHeartbeatInterval)."""


def find_start(address: str) -> int | None:
    """Return where a master begins for a slave without a log: at its first byte, or its newest file (RocketMQ); None if
    it has no log. NotConnected if it does not say.
    """
    link = Link(address, 0)
    try:
        deadline = time.monotonic() + START_PATIENCE_S
        while time.monotonic() < deadline:
            for transfer in link.receive():
                return transfer.physical_offset if transfer.body or transfer.physical_offset else None
    finally:
        link.close()
    raise NotConnected(address, f"the master did not say in {START_PATIENCE_S:.0f} s where its log begins")


def find_end(log: CommitLog, address: str, missing_at: int, start: int) -> int:
    """Return where the log of a master ends that has nothing at an offset, and begins for new slaves at `start`, which
    is less. If it has nothing that this log has, that is where this log begins.
    """
    low, high, step = missing_at, missing_at, BLOCK_BYTES
    first = max(log.first_offset, start, 1)  # 0 would mean the master's newest file
    while low > first:
        low, high, step = max(first, low - step), low, step * 2
        if _ask(address, low, 1):
            break
    else:
        return max(log.first_offset, start)
    while high - low > BLOCK_BYTES:
        middle = (low + high) // 2
        low, high = (middle, high) if _ask(address, middle, 1) else (low, middle)
    return low + len(_ask(address, low, high - low))


def find_parting(log: CommitLog, address: str, differs_at: int) -> int:
    """Return the physical offset of the first record in which the logs differ, at or before `differs_at`."""
    low, high = log.first_offset // BLOCK_BYTES, differs_at // BLOCK_BYTES
    found = differs_at
    while low < high:
        middle = (low + high) // 2
        difference = _difference(log, address, max(middle * BLOCK_BYTES, log.first_offset))
        if difference is None:
            low = middle + 1
        else:
            high, found = middle, difference
    if found == differs_at:  # no question was about this block: it may differ earlier
        difference = _difference(log, address, max(high * BLOCK_BYTES, log.first_offset))
        found = differs_at if difference is None else difference
    return _record_with(log, found)


def _difference(log: CommitLog, address: str, start: int) -> int | None:
    """Return the first offset of a block at which the logs differ; None as far as the master has the same."""
    start = max(start, 1)  # 0 would mean the master's newest file
    theirs = _ask(address, start, min(BLOCK_BYTES, log.ends.appended - start))
    for stretch in log.stretches(start, start + len(theirs)):
        ours = memoryview(stretch.data)[stretch.position : stretch.end]
        piece, theirs = theirs[: len(ours)], theirs[len(ours) :]
        if ours != piece:
            return stretch.log_start + stretch.position + first_difference(ours, piece)
    return None


def _ask(address: str, start: int, size: int) -> bytes:
    """Return the master's bytes from an offset on, as many as it sends in time."""
    found = bytearray()
    deadline = time.monotonic() + PATIENCE_S
    try:
        link = Link(address, start)
    except NotConnected:
        return b""
    try:
        while len(found) < size and time.monotonic() < deadline:
            for transfer in link.receive():
                if transfer.is_heartbeat:  # it has sent all that it has
                    return bytes(found[:size])
                found += transfer.body
    except NotConnected:
        pass
    finally:
        link.close()
    return bytes(found[:size])


def _record_with(log: CommitLog, offset: int) -> int:
    """Return where the record begins that holds an offset."""
    stretch = log.stretch(offset, log.ends.appended)
    if stretch is None:
        return offset
    position = offset - stretch.log_start  # the walk takes records that end there or before
    return stretch.log_start + walk_records(stretch.data, 0, position, stretch.log_start, False).position
