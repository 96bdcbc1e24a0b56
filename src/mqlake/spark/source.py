"""The data source for Spark: `spark.read.format("mqlake").option(…).load(path)`. `stream.py` does `readStream`.

A DataFrame is a snapshot: its splits are made once, at the first action, and every later action reads the same bytes.
There must be no `pushFilters` here: see the package's docstring. What only streams, writes and workers need is imported
on use, because Spark starts a process that imports this module for every query.
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
from mqlake.spark.split import RemoteSplit, Split

if TYPE_CHECKING:
    import pyarrow as pa

    from mqlake.spark.sink import MqlakeStreamWriter, MqlakeWriter
    from mqlake.spark.stream import MqlakeStreamReader


class MqlakeSource(DataSource):
    """One or more stores as a table with one row per message."""

    @classmethod
    def name(cls) -> str:
        return "mqlake"

    def schema(self) -> StructType:
        """Return the schema. Spark calls this before it knows if this is a stream, so the reader checks the options."""
        return spark_schema(parse_options(without_stream_options(self.options)).columns)

    def reader(self, schema: StructType) -> MqlakeReader:
        """Return the reader. `schema` comes from `schema()` or from the user; a user's schema selects the columns."""
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
    """Plan in a process next to the driver (`partitions`) and read in the workers (`read`)."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        if self._options.endpoint is not None:
            from mqlake.spark.remote import plan_remote

            return plan_remote(self._options)
        return [split for store in plan(self._options) for split in store.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RemoteSplit):
            from mqlake.spark.remote import read_remote

            return read_remote(self._options, self._schema, partition)
        if not isinstance(partition, Split):  # Spark passes its own partition if there is no split
            return iter(())
        from mqlake.spark.read_split import read_split

        return read_split(self._options, self._schema, partition)


def explain(*paths: str, **options: object) -> str:
    """Describe what a read with these options would read, and why: `print(explain("data/store", topics="orders"))`."""
    import json

    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return "\n".join(map(str, plan(parse_options({"paths": json.dumps(paths), **given}))))
