"""The tables of stores for SQL in this process: `messages`, `queues`, `stats`, as `mqlake.spark.views` has them.

Each query sees the stores as they are when it runs. `queues` and `stats` are made when a query names them, by the
functions that Spark's workers call, so both engines count alike.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from mqlake.embedded.messages import SCHEMA, batches
from mqlake.embedded.need import NOTHING, Need, need_of
from mqlake.embedded.values import is_whole, with_texts
from mqlake.errors import QueryFailed

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

TRAFFIC = {
    "messages": "sum",
    "bytes": "sum",
    "body_bytes": "sum",
    "min_size": "min",
    "max_size": "max",
    "latency_ms": "sum",
    "max_latency_ms": "max",
}
HINT = "; this is DuckDB's dialect, --master 'local[*]' asks Spark"
_OURS = re.compile(r"^mqlake(?:\.\w+)*\.(\w+: .*)$", re.MULTILINE)
"""Our own error, in the traceback of the stream that DuckDB reads."""
_PLACE = re.compile(r"LINE (\d+):")


class EmbeddedTables:
    """The tables of some stores. One thread at a time uses it."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)
        self._raised: BaseException | None = None
        """What ended the reading of a store: of an error in a stream that it reads, DuckDB passes on only a text."""
        self._database = duckdb.connect(":memory:")
        self._database.execute("set enable_external_access = false")
        self._database.execute("set default_null_order = 'nulls_first_on_asc_last_on_desc'")  # as in Spark
        self._database.register("messages", pa.Table.from_batches([], SCHEMA))

    names = ("messages", "queues", "stats")

    def cut(self, text: str) -> tuple[list[str], str]:
        """Split at each ; that ends a statement; return the statements, and the rest after the last one.

        DuckDB says where texts and comments end: it has E'…' and $$…$$ too.
        """
        written = text.encode()
        ends = [place for place, _ in duckdb.tokenize(text) if written.startswith(b";", place)]
        starts = [0, *(place + 1 for place in ends)]
        *found, rest = (
            written[start:end].decode().strip() for start, end in zip(starts, [*ends, len(written)], strict=True)
        )
        return [one for one in found if one], rest

    def query(self, text: str) -> duckdb.DuckDBPyRelation | None:
        """Return the result of a query, which is read as it is fetched; None for a statement without one."""
        self._raised = None
        try:
            statements = self._database.extract_statements(text)
            if len(statements) != 1:
                raise QueryFailed(f"{len(statements)} statements; expected one")
            kind, results = statements[0].type, statements[0].expected_result_type
            if kind == duckdb.StatementType.TRANSACTION:  # after an error in one, only its end is possible
                self._database.execute(text)
                return None
            self._register_others(text)
            self._database.register("messages", pa.Table.from_batches([], SCHEMA))
            if kind == duckdb.StatementType.EXPLAIN or re.match(r"\s*explain\b", text, re.IGNORECASE):
                return self._explained(text)
            has_rows = duckdb.ExpectedResultType.QUERY_RESULT in results
            if has_rows or kind == duckdb.StatementType.SET:  # SET VARIABLE n = (SELECT …) reads too
                self._register_messages(self._need_of(kind, text))
            if not has_rows:
                self._database.execute(text)
                return None
            found = self._database.sql(text)
            is_count = duckdb.ExpectedResultType.CHANGED_ROWS in results and found.columns == ["Count"]
            return None if is_count else found
        except duckdb.Error as error:
            raise self._raised or failure(str(error)) from None

    def _need_of(self, kind: duckdb.StatementType, text: str) -> Need:
        """Return what of `messages` a statement reads."""
        if kind == duckdb.StatementType.PRAGMA:  # it cannot be planned, and reads no rows
            return NOTHING
        if kind == duckdb.StatementType.MULTI:  # PIVOT takes its columns from rows; a plan without rows misses reads
            return Need(frozenset(SCHEMA.names), None, 2)
        try:
            plan = self._database.execute(f"explain (format json) {text}").fetchall()[0][1]
        except duckdb.ParserException:  # EXPLAIN does not take some that read no rows, as USE and TRUNCATE
            return NOTHING
        need = need_of(json.loads(plan))
        if kind == duckdb.StatementType.EXECUTE:  # with its parameters in place, a plan may have fewer reads
            return need._replace(read_count=2 * need.read_count)
        return need

    def _explained(self, text: str) -> duckdb.DuckDBPyRelation:
        """Return the text of a plan, as one row. The plan is made over an empty table, so nothing can be measured."""
        rows = self._database.execute(text).fetchall()
        if any(kind == "analyzed_plan" for kind, _ in rows):
            raise QueryFailed("EXPLAIN ANALYZE is not possible here; use EXPLAIN")
        return self._database.sql("select ? as plan", params=["\n".join(plan for _, plan in rows)])

    def rows_of(self, found: duckdb.DuckDBPyRelation) -> tuple[list[str], list[DuckDBPyType], Iterator[list[Any]]]:
        """Return names, types and rows of a result. What would not reach Python is a text as DuckDB writes it, also
        inside of lists, maps and structs. Times are in the session's zone."""
        kinds = list(found.types)
        names = list(found.columns)
        places = [f"c{place}" for place in range(len(names))]  # two columns of a query may have the same name
        texts = [
            place if is_whole(kind) else f"cast({place} as {with_texts(kind)})"
            for place, kind in zip(places, kinds, strict=True)
        ]
        shown = found.query("answer", f"select {', '.join(texts)} from (select * from answer) t({', '.join(places)})")
        assert shown is not None, "a select has a result"
        return names, kinds, self._rows(shown)

    def columns_of(self, table: str) -> list[tuple[str, str]]:
        """Return the columns of a table with their types."""
        self._register_others(table)
        try:
            found = self._database.table(table)
        except duckdb.Error as error:
            raise failure(str(error)) from None
        return list(zip(found.columns, map(str, found.types), strict=True))

    def close(self) -> None:
        self._database.close()

    def _rows(self, found: duckdb.DuckDBPyRelation) -> Iterator[list[Any]]:
        try:
            for batch in found.to_arrow_reader():
                columns = [column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns]
                yield from map(list, zip(*columns, strict=True))
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow has its own for DuckDB's
            raise self._raised or failure(str(error)) from None

    # ---- tables

    def _register_messages(self, need: Need) -> None:
        if not need.read_count:
            return
        reader = pa.RecordBatchReader.from_batches(SCHEMA, self._batches(need))
        self._database.register("messages", reader if need.read_count == 1 else reader.read_all())

    def _batches(self, need: Need) -> Iterator[pa.RecordBatch]:
        try:
            for path in self._paths:
                yield from batches(path, need.columns, need.topics)
        except (Exception, KeyboardInterrupt) as error:
            self._raised = error
            raise

    def _register_others(self, text: str) -> None:
        if re.search(r"\bqueues\b", text, re.IGNORECASE):
            self._database.register("queues", self._queues())
        if re.search(r"\bstats\b", text, re.IGNORECASE):
            self._database.register("counted", self._counted())
            place = "store, topic, queue_id, tags, time as minute"
            sums = ", ".join(f"cast({how}({name}) as bigint) as {name}" for name, how in TRAFFIC.items())
            self._database.execute(
                f"create or replace view stats as select {place}, {sums} from counted "
                "where kind = 'traffic' and not internal group by store, topic, queue_id, tags, time"
            )

    def _queues(self) -> pa.Table:
        from mqlake.spark.jobs.queues import queues_of

        return pa.concat_tables(map(queues_of, self._paths))

    def _counted(self) -> pa.Table:
        from mqlake.spark.jobs.stats import plans_of
        from mqlake.spark.jobs.stats_rows import ROWS
        from mqlake.spark.jobs.stats_split import stats_split

        splits = [split for path in self._paths for made in plans_of(path, None) for split in made.splits]
        return pa.concat_tables([ROWS.empty_table(), *map(stats_split, splits)])


def failure(text: str) -> QueryFailed:
    """Return DuckDB's error as one sentence, with the place in the query if it shows one."""
    own = _OURS.findall(text)
    if own:
        return QueryFailed(own[-1])
    lines = text.strip().splitlines()
    sentence = re.sub(r"^\w[\w ]* Error: ", "", lines[0])
    hint = HINT if re.match(r"(Parser|Catalog|Binder) Error", lines[0]) else ""
    for shown, mark in itertools.pairwise(lines):
        place = _PLACE.match(shown)
        if place is not None and mark.strip() == "^":
            return QueryFailed(f"{sentence}{hint}", int(place[1]), mark.index("^") - place.end())
    return QueryFailed(f"{sentence}{hint}")
