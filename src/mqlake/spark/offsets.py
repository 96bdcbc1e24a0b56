"""A stream's position, as it stands in Spark's checkpoint: for each store, by its folder, a place between two records.

    {"v": 1, "stores": {"/data/store": 4096}}      read up to here
    {"v": 1, "from": "latest"}                     not yet begun

A stream begins with a position that names no place: Spark may ask for it more than once, and the answer must not depend
on the clock or the log. The first batch reads nothing and turns it into places, which the checkpoint then holds.
Spark compares positions as texts, so one position is always written the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mqlake.errors import InvalidConfig

VERSION = 1
Positions = dict[str, int]


def beginning(start: str) -> dict[str, Any]:
    """The position of a stream that has not begun; `start` is told to those who look at it."""
    return {"v": VERSION, "from": start}


def offset_of(positions: Mapping[str, int]) -> dict[str, Any]:
    return {"v": VERSION, "stores": dict(sorted(positions.items()))}


def positions_of(offset: Mapping[str, Any]) -> Positions | None:
    """The places that a position names; None where the stream has not begun."""
    if offset.get("v") != VERSION or not isinstance(offset.get("stores", {}), dict):
        expected = (
            f"a position of version {VERSION}; start with a new checkpoint folder, or use the version that wrote it"
        )
        raise InvalidConfig("checkpoint", dict(offset), expected)
    return None if "from" in offset else dict(offset["stores"])


def places_told(text: str | None) -> Positions:
    """The places in a progress report's text; none where it tells of no position of ours, or of none yet."""
    told = json.loads(text or "null")
    return dict(told["stores"]) if isinstance(told, dict) and "stores" in told else {}
