"""A stream's position in Spark's checkpoint: a record boundary for each store, by the store's folder.

    {"v": 1, "stores": {"/data/store": 4096}, "seams": {"/data/store": ["9f86…", 3800, 296, 2906180813]}}
    {"v": 1, "from": "latest"}

The first one says: read up to here. Its seam is what was before the position, so that another log at the same path is
noticed (`seam.py`): the store's identity, and offset, size and CRC of the last record. A position without a seam is
valid: older versions wrote none, and a stream may begin before the first record.

The second one says: not yet begun. Spark may ask for the initial position more than once, and the answer must not
depend on the clock or the log. The first batch reads nothing and turns it into offsets, which the checkpoint then
holds. Spark compares positions as texts, so a position is always written in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mqlake.errors import InvalidConfig

VERSION = 1
EXPECTED = f"a position of version {VERSION}; start with a new checkpoint folder, or use the version that wrote it"
Positions = dict[str, int]


class Seam(NamedTuple):
    """What was before a position. `size` is 0 if there was no record."""

    identity: str | None
    """The store's identity; None if it had none."""
    offset: int
    size: int
    crc: int


Seams = dict[str, Seam]


def beginning(start: str) -> dict[str, Any]:
    """Return the position of a stream that has not begun. `start` is only for people who look at the checkpoint."""
    return {"v": VERSION, "from": start}


def offset_of(positions: Mapping[str, int], seams: Mapping[str, Seam] | None = None) -> dict[str, Any]:
    offset = {"v": VERSION, "stores": dict(sorted(positions.items()))}
    return {**offset, "seams": {root: list(seam) for root, seam in sorted(seams.items())}} if seams else offset


def positions_of(offset: Mapping[str, Any]) -> Positions | None:
    """Return the offsets in a position. None if the stream has not begun."""
    if offset.get("v") != VERSION or not isinstance(offset.get("stores", {}), dict):
        raise InvalidConfig("checkpoint", dict(offset), EXPECTED)
    return None if "from" in offset else dict(offset["stores"])


def seams_of(offset: Mapping[str, Any]) -> Seams:
    """Return the seams in a position, of those stores that have one."""
    try:
        return {root: Seam(*seam) for root, seam in offset.get("seams", {}).items()}
    except (AttributeError, TypeError):
        raise InvalidConfig("checkpoint", dict(offset), EXPECTED) from None


def reported_positions(text: str | None) -> Positions:
    """Return the offsets in the text of a progress report. Empty if the text holds none of ours, or none yet."""
    reported = json.loads(text or "null")
    return dict(reported["stores"]) if isinstance(reported, dict) and "stores" in reported else {}
