"""The messages of one version of a lake as a DataFrame.

The manifest tells which files may have wanted rows: by store, topics, times and offsets, and for keys by the lake's key
index. Other files are not opened. In a folder, Spark's own Parquet reader reads the files and skips row groups and
pages by their statistics. From an object store, for which Spark would need jars, Python workers read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mqlake.codec.index_entry import key_hash, key_text
from mqlake.files.place import place_of
from mqlake.lake import Lake, LakeFile, LakeSnapshot
from mqlake.lake.find import KeyLookup
from mqlake.lake.storage import storage_at
from mqlake.spark.archived import may_have, read_file
from mqlake.spark.jobs.tasks import lazily
from mqlake.spark.options import SourceOptions
from mqlake.spark.reach import reach
from mqlake.spark.schema import STORE, Table, arrow_schema, spark_schema
from mqlake.spark.selection import HALF_OR_ROLLED_BACK, Selection
from mqlake.spark.topics import INTERNAL, wants

NEEDED = ("topic", "queue_id", "physical_offset", "sys_flag", "store_timestamp", "tags", "keys")
"""Columns that a condition may use. Spark reads only those that it needs."""
MAX_HASHES = 10_000
MAX_OFFSETS = 1_000
"""The most offsets that become a condition for Spark."""
GLOBBING = "__globPaths__"
"""Spark's own option for lists of files that it must not take as patterns."""


class LakeTable:
    """What a read takes from one version of a lake."""

    def __init__(
        self, lake: Lake, snapshot: LakeSnapshot, names: Mapping[str, str] | None, options: SourceOptions
    ) -> None:
        """`names` maps the wanted stores of the lake to the values of the column `store`; None: all, unchanged."""
        self._lake, self._snapshot, self._options = lake, snapshot, options
        self._names = {name: name for name in snapshot.stores} if names is None else names
        self.all = [file for file in snapshot.files("messages") if file.store in self._names]
        self._topics_of: dict[int, set[str]] = {}
        """The topics in which a wanted key has a hash."""
        self._lookups = self._look_up()
        self.files = [file for file in self.all if self._may_have(file)]
        """The files to read."""

    def __str__(self) -> str:
        by = f", of which the key index names {self._offset_count:,} messages" if self._lookups else ""
        size, total = sum(file.bytes for file in self.files), sum(file.bytes for file in self.all)
        return (
            f"{self._lake.place}, version {self._snapshot.version}: {len(self.files)} of {len(self.all)} files, "
            f"{size:,} of {total:,} bytes{by}"
        )

    def frame(self, spark: SparkSession) -> DataFrame:
        if not self.files:
            return spark.createDataFrame([], spark_schema(self._options.columns))
        return self._by_spark(spark) if place_of(self._lake.place).is_local else self._by_workers(spark)

    # ---- which files

    def _look_up(self) -> dict[str, KeyLookup]:
        """Return what the index has for the wanted keys, by store. Nothing if the index cannot decide."""
        options = self._options
        topics = options.topics if options.topics is not None else self._known_topics()
        if options.keys is None or topics is None or options.include_internal or "" in options.keys:
            return {}
        if len(topics) * len(options.keys) > MAX_HASHES:
            return {}
        for topic in topics:
            for key in options.keys:
                self._topics_of.setdefault(key_hash(key_text(topic, key)), set()).add(topic)
        hashes = self._topics_of.keys()
        return {name: KeyLookup(self._lake.storage, self._snapshot, name, hashes) for name in self._names}

    def _known_topics(self) -> list[str] | None:
        """Return the wanted topics of the files. None if a file has too many to list."""
        names: set[str] = set()
        for file in self.all:
            if file.topics is None:
                return None
            names.update(file.topics)
        return sorted(topic for topic in names if wants(self._options, topic))

    def _may_have(self, file: LakeFile) -> bool:
        options = self._options
        low = options.start_offset is None or file.end > options.start_offset
        if not low or not (options.end_offset is None or file.start < options.end_offset):
            return False
        if not may_have(options, options.topics, file):
            return False
        looked = self._lookups.get(file.store)
        return looked is None or not looked.covers(file) or bool(looked.inside(file))

    @property
    def _offset_count(self) -> int:
        return sum(len(looked.offsets) for looked in self._lookups.values())

    # ---- by Spark's reader

    def _by_spark(self, spark: SparkSession) -> DataFrame:
        columns = self._options.columns
        schema = spark_schema(tuple(dict.fromkeys([*columns, *NEEDED])))
        rows = by_spark(spark, schema, self._lake.place, [file.path for file in self.files])
        for condition in self._conditions():
            rows = rows.where(condition)
        moved = {name: path for name, path in self._names.items() if name != path}
        if moved and STORE in columns:
            pairs = [F.lit(text) for pair in moved.items() for text in pair]
            rows = rows.withColumn(STORE, F.coalesce(F.create_map(*pairs)[F.col(STORE)], F.col(STORE)))
        return rows.select(*columns)

    def _conditions(self) -> list[Column]:
        """Return the selection as conditions, equal to what `selection.py` does."""
        options, found = self._options, []
        if options.topics is not None:
            found.append(F.col("topic").isin(*options.topics))
        elif options.topics_pattern is not None:  # Java's regular expressions differ from Python's: match names here
            found.append(F.col("topic").isin(self._matching_topics()))
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
            found += self._indexed()
        if options.start_time is not None:
            found.append(F.col("store_timestamp") >= F.timestamp_millis(F.lit(options.start_time)))
        if options.end_time is not None:
            found.append(F.col("store_timestamp") < F.timestamp_millis(F.lit(options.end_time)))
        if options.start_offset is not None:
            found.append(F.col("physical_offset") >= options.start_offset)
        if options.end_offset is not None:
            found.append(F.col("physical_offset") < options.end_offset)
        return found

    def _indexed(self) -> list[Column]:
        """Return conditions by the hits of the index, if it has those of all files to read, and they are few.

        Every row group of a file spans nearly all of its offsets. So topics, not offsets, tell Spark which to skip.
        """
        covered = self._lookups and all(self._lookups[file.store].covers(file) for file in self.files)
        if not covered or not 0 < self._offset_count <= MAX_OFFSETS:
            return []
        offsets = {offset for looked in self._lookups.values() for offset in looked.offsets}
        topics = {
            topic for looked in self._lookups.values() for each in looked.hashes for topic in self._topics_of[each]
        }
        return [F.col("physical_offset").isin(*sorted(offsets)), F.col("topic").isin(*sorted(topics))]

    def _matching_topics(self) -> list[str]:
        """Return the wanted topics. Files with too many to list are read for that."""
        names = {topic for file in self.files for topic in file.topics or ()}
        for file in self.files:
            if file.topics is None:
                names |= _topics_in(self._lake, file)
        return sorted(topic for topic in names if wants(self._options, topic))

    # ---- by our workers

    def _by_workers(self, spark: SparkSession) -> DataFrame:
        reach(spark, self._lake.place)
        schema = arrow_schema(self._options.columns)
        work = partial(read_in_worker, self._lake.place, self._options, dict(self._names))
        return lazily(spark, self.files, work, schema).select(*self._options.columns)


def by_spark(spark: SparkSession, schema: StructType, folder: str, names: Iterable[str]) -> DataFrame:
    """Return the rows of files of a folder, by Spark's own reader.

    Every path is literal. Else a name with `[ ] { } * ?` or a backslash would be a pattern, which can match files of
    another lake, and a session could have another default file system.
    """
    paths = [f"file:{folder}/{name}" for name in names]
    return spark.read.schema(schema).option(GLOBBING, "false").parquet(*paths)


def read_in_worker(
    place: str, options: SourceOptions, names: Mapping[str, str], file: LakeFile
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a file."""
    table = Table(names[file.store], arrow_schema(options.columns))
    start = max(file.start, options.start_offset or 0)
    end = file.end if options.end_offset is None else min(file.end, options.end_offset)
    selection = Selection(options, options.topics)
    yield from read_file(storage_at(place), file, start, end, selection, table, options.topics)


def _topics_in(lake: Lake, file: LakeFile) -> set[str]:
    from mqlake.lake.messages import groups_within

    groups = groups_within(lake.storage, file, [{}], ["topic"])
    return {topic for rows in groups for topic in rows.column("topic").unique().to_pylist()}
