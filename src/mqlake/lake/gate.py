"""The lake's gate in a store: retention must not delete what is not yet archived.

The gate carries the lake's identity, so several lakes can archive the same store. It moves only after a durable
commit. After deleting a lake, remove its gate with `release`.
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
    """Set the gate at the member's start, before the first plan. From now on retention keeps what the lake lacks."""
    _hold(lake, member.path, member.start)


def move(lake: Lake) -> None:
    """Move the gates to the lake's end, in every store whose path still leads to the same store."""
    snapshot = lake.snapshot()
    lake.sync()  # the process that wrote the newest commit may have died before it was durable
    for state in snapshot.stores.values():
        if identity_of(Path(state.path)) == state.identity:
            _hold(lake, Path(state.path), state.end)


def _hold(lake: Lake, store: Path, offset: int) -> None:
    gates = Gates(Layout(store).gates)
    if gates.offsets().get(PREFIX + lake.identity) != offset:
        gates.hold(PREFIX + lake.identity, offset)


def release(store: Path, lake_identity: str | None = None) -> list[str]:
    """Remove the gate of one lake, or of all lakes. Return the names of the removed gates."""
    gates = Gates(Layout(store).gates)
    wanted = PREFIX + (lake_identity or "")
    names = [name for name in gates.offsets() if name == wanted or (lake_identity is None and name.startswith(wanted))]
    for name in names:
        gates.release(name)
    return names
