"""The lake's gate in a store: what is not archived yet is not deleted.

It is named by the lake, so that several lakes may have the same store, and moves only behind a commit that is surely
on the disk. Whoever removes a lake takes its gate away with `release`.
"""

from __future__ import annotations

from pathlib import Path

from mqlake.files.layout import Layout
from mqlake.lake.identity import identity_of
from mqlake.lake.lake import Lake
from mqlake.lake.stores import Member
from mqlake.store.gates import Gates

PREFIX = "lake-"


def hold_new(lake: Lake, member: Member) -> None:
    """Before the first plan: from now on nothing goes that the lake does not have."""
    _hold(lake, member.path, member.start)


def move(lake: Lake) -> None:
    """Let go of what the lake has: of every store whose path still leads to it."""
    snapshot = lake.snapshot()
    lake.sync()  # the newest commit may be one of a process that died before it was durable
    for state in snapshot.stores.values():
        if identity_of(Path(state.path)) == state.identity:
            _hold(lake, Path(state.path), state.end)


def _hold(lake: Lake, store: Path, offset: int) -> None:
    gates = Gates(Layout(store).gates)
    if gates.offsets().get(PREFIX + lake.identity) != offset:
        gates.hold(PREFIX + lake.identity, offset)


def release(store: Path, lake_identity: str | None = None) -> list[str]:
    """Keep nothing for a lake any longer, or for any; the names of the gates that went."""
    gates = Gates(Layout(store).gates)
    wanted = PREFIX + (lake_identity or "")
    names = [name for name in gates.offsets() if name == wanted or (lake_identity is None and name.startswith(wanted))]
    for name in names:
        gates.release(name)
    return names
