"""A stream's position in Spark's checkpoint: a record boundary for each store, by the store's folder.

    {"v": 1, "stores": {"/data/store": 4096}}      read up to here
    {"v": 1, "from": "latest"}                     not yet begun

A new stream has a position without offsets: Spark may ask for the initial position more than once, and the answer must
not depend on the clock or the log. The first batch reads nothing and turns it into offsets, which the checkpoint then
holds. Spark compares positions as texts, so a position is always written in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mqlake.errors import InvalidConfig

VERSION = 1
Positions = dict[str, int]


def beginning(start: str) -> dict[str, Any]:
    """Return the position of a stream that has not begun. `start` is only for people who look at the checkpoint."""
    return {"v": VERSION, "from": start}


def offset_of(positions: Mapping[str, int]) -> dict[str, Any]:
    return {"v": VERSION, "stores": dict(sorted(positions.items()))}


def positions_of(offset: Mapping[str, Any]) -> Positions | None:
    """Return the offsets in a position. None if the stream has not begun."""
    if offset.get("v") != VERSION or not isinstance(offset.get("stores", {}), dict):
        expected = (
            f"a position of version {VERSION}; start with a new checkpoint folder, or use the version that wrote it"
        )
        raise InvalidConfig("checkpoint", dict(offset), expected)
    return None if "from" in offset else dict(offset["stores"])


def reported_positions(text: str | None) -> Positions:
    """Return the offsets in the text of a progress report. Empty if the text holds none of ours, or none yet."""
    reported = json.loads(text or "null")
    return dict(reported["stores"]) if isinstance(reported, dict) and "stores" in reported else {}
