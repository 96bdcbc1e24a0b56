"""The seam of a stream's position: what shows that the log before it is still the one that was read.

A path and an offset do not identify a place in a log: another store can take over the path, and a store that was
restored from a backup is written again from an earlier offset. The record that ends at the position decides. It holds
its own offset, its time and its content, so no other log has the same bytes there; and a log that has them is right,
whatever its identity. The identity decides if there is no such record: none was read yet, or retention deleted it.
"""

from __future__ import annotations

from mqlake.files.layout import Layout
from mqlake.kernel import crc32
from mqlake.spark.boundaries import Boundaries, FileGone
from mqlake.spark.offsets import Seam
from mqlake.spark.ways import Snapshot


def identity_in(layout: Layout) -> str | None:
    """Return the content of a store's identity file. None if it has none yet: RocketMQ's stores, read-only ones."""
    try:
        return layout.identity.read_text(encoding="ascii", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def seam_before(snapshot: Snapshot, position: int, identity: str | None) -> Seam | None:
    """Return the seam of a position. None if there is nothing to remember."""
    log = snapshot.follower.log
    found = Boundaries(log, snapshot.first, snapshot.end).last_record(position)
    if found is None:
        return Seam(identity, position, 0, 0) if identity is not None else None
    return Seam(identity, *found, _crc(snapshot, *found))


def contradiction(snapshot: Snapshot, seam: Seam, identity: str | None) -> str | None:
    """Return what shows that a seam is not of this log. None if nothing does."""
    is_other = None not in (seam.identity, identity) and seam.identity != identity
    whose = f"another store is here now (its identity is {identity}, expected {seam.identity})"
    if seam.size and snapshot.first <= seam.offset and seam.offset + seam.size <= snapshot.end:
        crc = _crc(snapshot, seam.offset, seam.size)
        if crc == seam.crc:
            return None
        rewritten = "the log before it was rewritten, as after a restore from a backup, or is that of another store"
        found = f"the {seam.size} bytes at {seam.offset} have the CRC {crc:#010x}, expected {seam.crc:#010x}"
        return f"{whose if is_other else rewritten}: {found}"
    return whose if is_other else None


def is_same_store(seam: Seam, identity: str | None) -> bool:
    """Return whether a seam is known to be of the store with this identity."""
    return seam.identity is not None and seam.identity == identity


def _crc(snapshot: Snapshot, offset: int, size: int) -> int:
    """Return the CRC of bytes of the log. A record lies in one file, so what is beyond a file's end does not count."""
    stretch = snapshot.follower.log.stretch(offset, offset + size)
    if stretch is None:
        raise FileGone(offset)
    return crc32(memoryview(stretch.data)[stretch.position : stretch.end])
