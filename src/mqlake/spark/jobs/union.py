"""Union of archive and log as one DataFrame, cut by physical offset at one pinned version of the lake.

Before the cut of each store, Spark's own Parquet reader reads the files of that version. From the cut on, the source
reads the log, up to what can be read at the first action. No message is in both or in neither. What is archived later
is after the cut. If retention deleted a part of the log meanwhile, the source reads it from the lake (`archived.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mqlake.errors import CorruptRecord, InvalidConfig
from mqlake.lake import MARKER, Lake, LakeFile, LakeSnapshot, StoreState
from mqlake.lake.stores import check_seam, refuse_strangers
from mqlake.spark.archived import may_have, state_of
from mqlake.spark.options import SourceOptions, parse_options
from mqlake.spark.plan import expand
from mqlake.spark.schema import DAMAGE, STORE, spark_schema
from mqlake.spark.selection import HALF_OR_ROLLED_BACK
from mqlake.spark.split import Split
from mqlake.spark.topics import INTERNAL, wants

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
    opened = Lake.open(lake)
    snapshot = opened.snapshot()
    boundaries = boundaries_of(opened, snapshot, stores)
    parsed = parse_options({**given, "path": "-", "lake": str(opened.root)})
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
    refuse_strangers(lake.root, snapshot, paths, "name its own lake, or read the store alone")
    found = []
    for path in paths:
        state = state_of(snapshot, str(path)) or next(
            (s for s in snapshot.stores.values() if s.path == str(path)), None
        )
        if state is not None and path.exists():
            check_seam(lake.root, state, path)
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
    whole = Split("", 0, 0, 0, 0, 0, options.topics)
    files = [
        file
        for file in snapshot.files("messages")
        if file.store in names and may_have(options, whole, file) and _in_offsets(options, file)
    ]
    schema = spark_schema(tuple(dict.fromkeys([*options.columns, *NEEDED])))
    if not files:
        return spark.createDataFrame([], schema).select(*options.columns)
    rows = spark.read.schema(schema).parquet(*(str(lake.root / file.path) for file in files))
    for condition in _conditions(lake, files, options):
        rows = rows.where(condition)
    moved = {name: path for name, path in names.items() if name != path}
    if moved and STORE in options.columns:
        pairs = [F.lit(text) for pair in moved.items() for text in pair]
        rows = rows.withColumn(STORE, F.coalesce(F.create_map(*pairs)[F.col(STORE)], F.col(STORE)))
    return rows.select(*options.columns)


NEEDED = ("topic", "queue_id", "physical_offset", "sys_flag", "store_timestamp", "tags", "keys")
"""Columns that a condition may use. Spark reads only those that it needs."""


def _in_offsets(options: SourceOptions, file: LakeFile) -> bool:
    low = options.start_offset is None or file.end > options.start_offset
    return low and (options.end_offset is None or file.start < options.end_offset)


def _conditions(lake: Lake, files: Sequence[LakeFile], options: SourceOptions) -> list[Column]:
    """Return the selection as conditions, equal to what `selection.py` does."""
    found = []
    if options.topics is not None:
        found.append(F.col("topic").isin(*options.topics))
    elif options.topics_pattern is not None:  # Java's regular expressions differ from Python's: match the names here
        found.append(F.col("topic").isin([name for name in _topics(lake, files) if wants(options, name)]))
    elif not options.include_internal:
        found.append(~F.col("topic").rlike(f"^({INTERNAL.pattern})$"))
    if not options.include_internal:
        found.append(F.col("sys_flag").bitwiseAND(F.lit(HALF_OR_ROLLED_BACK)) == 0)
    if options.queues is not None:
        found.append(F.col("queue_id").isin(*options.queues))
    if options.tags is not None:
        found.append(F.col("tags").isin(*options.tags))
    if options.keys is not None:
        found.append(F.arrays_overlap(F.col("keys"), F.array(*map(F.lit, options.keys))))
    if options.start_time is not None:
        found.append(F.col("store_timestamp") >= F.timestamp_millis(F.lit(options.start_time)))
    if options.end_time is not None:
        found.append(F.col("store_timestamp") < F.timestamp_millis(F.lit(options.end_time)))
    if options.start_offset is not None:
        found.append(F.col("physical_offset") >= options.start_offset)
    if options.end_offset is not None:
        found.append(F.col("physical_offset") < options.end_offset)
    return found


def _topics(lake: Lake, files: Sequence[LakeFile]) -> set[str]:
    """Return the topics in files. Files with several topics are read for that."""
    names = {file.topic for file in files if file.topic is not None}
    for file in files:
        if file.topic is None:
            names |= set(pq.read_table(lake.root / file.path, columns=["topic"]).column(0).unique().to_pylist())
    return names


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
