"""The table to Spark: `spark.read.format("mqlake").option(…).load(path)`; `stream.py` is the same for `readStream`.

A DataFrame is a snapshot: its splits are made once, at the first action, and every later action reads the same bytes.
There is no `pushFilters` here, and there must not be: see the package's docstring. What only streams, writes and
workers need is imported by them: Spark makes a process for every query that imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mqlake.errors import InvalidConfig
from mqlake.spark.options import SourceOptions, parse_options, parse_stream_options, without_stream_options
from mqlake.spark.plan import plan
from mqlake.spark.schema import DAMAGE, arrow_schema_for, columns_of, spark_schema
from mqlake.spark.split import Split

if TYPE_CHECKING:
    import pyarrow as pa

    from mqlake.spark.sink import MqlakeStreamWriter, MqlakeWriter
    from mqlake.spark.stream import MqlakeStreamReader


class MqlakeSource(DataSource):
    """A store, or several, as a table: one row a message."""

    @classmethod
    def name(cls) -> str:
        return "mqlake"

    def schema(self) -> StructType:
        """Asked for before it is known whether this is a stream; what does not fit is told by the reader."""
        return spark_schema(parse_options(without_stream_options(self.options)).columns)

    def reader(self, schema: StructType) -> MqlakeReader:
        """`schema` is what `schema()` gave, or one of the user's, which then chooses the columns."""
        options = parse_options(self.options, columns_of(schema))
        _require_columns(options, schema)
        return MqlakeReader(options, arrow_schema_for(schema))

    def streamReader(self, schema: StructType) -> MqlakeStreamReader:
        from mqlake.spark.stream import MqlakeStreamReader

        options, stream = parse_stream_options(self.options, columns_of(schema))
        _require_columns(options, schema)
        return MqlakeStreamReader(options, stream, arrow_schema_for(schema))

    def writer(self, schema: StructType, overwrite: bool) -> MqlakeWriter:
        from mqlake.spark.sink import MqlakeWriter
        from mqlake.spark.sink_options import plan_write

        return MqlakeWriter(plan_write(self.options, schema, overwrite=overwrite, stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> MqlakeStreamWriter:
        from mqlake.spark.sink import MqlakeStreamWriter
        from mqlake.spark.sink_options import plan_write

        return MqlakeStreamWriter(plan_write(self.options, schema, overwrite=overwrite, stream=True))


def _require_columns(options: SourceOptions, schema: StructType) -> None:
    if options.columns != tuple(schema.names):
        raise InvalidConfig("schema", ", ".join(schema.names), f"onDamage=rows needs a column {DAMAGE}")


class MqlakeReader(DataSourceReader):
    """Plans beside the driver (`partitions`), reads in the workers (`read`)."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [split for store in plan(self._options) for split in store.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Split):  # Spark's own, where there is no split at all
            return iter(())
        from mqlake.spark.read_split import read_split

        return read_split(self._options, self._schema, partition)


def explain(*paths: str, **options: object) -> str:
    """What a read with these options would read, and why so: `print(explain("data/store", topics="orders"))`."""
    import json

    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return "\n".join(map(str, plan(parse_options({"paths": json.dumps(paths), **given}))))
