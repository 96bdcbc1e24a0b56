"""Union of archive and log as one DataFrame, cut by physical offset at one pinned version of the lake.

Before the cut of each store, the files of that version are read (`lake_table.py`). From the cut on, the source
reads the log, up to what can be read at the first action. No message is in both or in neither. What is archived later
is after the cut. If retention deleted a part of the log meanwhile, the source reads it from the lake (`archived.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from mqlake.errors import CorruptRecord, InvalidConfig
from mqlake.lake import MARKER, Lake, LakeSnapshot, StoreState
from mqlake.lake.stores import check_seam, refuse_strangers
from mqlake.spark.archived import state_of
from mqlake.spark.jobs.lake_table import LakeTable
from mqlake.spark.options import SourceOptions, parse_options
from mqlake.spark.plan import expand
from mqlake.spark.reach import reach
from mqlake.spark.schema import DAMAGE

_LOG = logging.getLogger("mqlake.spark.plan")
CUT = "startOffset", "endOffset", "failOnDataLoss"


@dataclass(frozen=True)
class Boundary:
    """Where one store's archive ends and its log takes over."""

    store: str
    offset: int
    state: StoreState | None
    """None if the lake does not have the store."""


def union(spark: SparkSession, stores: str | Sequence[str] | None, lake: str, **options: object) -> DataFrame:
    """Return the messages of stores, archived or not, each once. `stores` None means all stores of the lake.

    `options` are those of the source and select from both parts. If a store's folder is gone, only its archive is read.
    """
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    reach(spark, lake)
    opened = Lake.open(lake)
    snapshot = opened.snapshot()
    boundaries = boundaries_of(opened, snapshot, stores)
    parsed = parse_options({**given, "path": "-", "lake": opened.place})
    if DAMAGE in parsed.columns:
        raise InvalidConfig("option onDamage", parsed.on_damage, "skip or fail: `lake info` lists the gaps of a lake")
    if parsed.on_damage == "fail":
        _refuse_damage(boundaries)
    parts = [_archived(spark, opened, snapshot, boundaries, parsed)]
    logs = [_log(spark, snapshot, boundary, given, parsed) for boundary in boundaries if Path(boundary.store).exists()]
    return reduce(DataFrame.unionAll, parts + logs)


def boundaries_of(lake: Lake, snapshot: LakeSnapshot, stores: str | Sequence[str] | None) -> list[Boundary]:
    """Return the cut of every store."""
    if stores is None:
        return [Boundary(state.path, state.end, state) for state in snapshot.stores.values()]
    paths = expand((stores,) if isinstance(stores, str) else tuple(stores))
    refuse_strangers(lake.place, snapshot, paths, "name its own lake, or read the store alone")
    found = []
    for path in paths:
        state = state_of(snapshot, str(path)) or next(
            (s for s in snapshot.stores.values() if s.path == str(path)), None
        )
        if state is not None and path.exists():
            check_seam(lake.place, state, path)
        found.append(Boundary(str(path), state.end if state is not None else 0, state))
    return found


def _refuse_damage(boundaries: Sequence[Boundary]) -> None:
    for boundary in boundaries:
        for gap in boundary.state.gaps if boundary.state is not None else ():
            if gap.reason != MARKER:
                raise CorruptRecord(Path(boundary.store), gap.start, gap.reason)


def _archived(
    spark: SparkSession, lake: Lake, snapshot: LakeSnapshot, boundaries: Sequence[Boundary], options: SourceOptions
) -> DataFrame:
    """Return the part that the pinned version has."""
    names = {boundary.state.name: boundary.store for boundary in boundaries if boundary.state is not None}
    table = LakeTable(lake, snapshot, names, options)
    _LOG.info("%s", table)
    return table.frame(spark)


def _log(
    spark: SparkSession, snapshot: LakeSnapshot, boundary: Boundary, given: dict[str, str], options: SourceOptions
) -> DataFrame:
    """Return the part of one store that the pinned version lacks: all of it if the lake does not have the store."""
    own = {name: text for name, text in given.items() if name.lower() not in {cut.lower() for cut in CUT}}
    start = max(boundary.offset, options.start_offset or 0)
    own |= {"failOnDataLoss": "false", "columns": json.dumps(options.columns)}
    if boundary.state is not None or not snapshot.stores:
        own["lake"] = str(options.lake)
    if boundary.state is not None or options.start_offset is not None:
        own["startOffset"] = str(start)
    if options.end_offset is not None:
        own["endOffset"] = str(max(start, options.end_offset))
    return spark.read.format("mqlake").options(**own).load(boundary.store)
