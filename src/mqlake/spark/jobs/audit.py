"""Audit stores on Spark: check every promise that `mqlake check` checks, and return one row per broken one.

The driver inspects names, sizes and small files, cuts the logs into parts, and lets workers inspect the parts, the
chains of index files, and the seals of the log. Then it walks each store as `check` does, with the workers' pieces
instead of its own. It accepts a piece only if it begins where the one before ended. So the findings are those of
`check` for any store.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.config import StoreConfig
from mqlake.inspect.check import CheckReport, Examination
from mqlake.inspect.check_index import Chains, ChainWork, look_at_chains
from mqlake.inspect.check_seals import SealWork, compare
from mqlake.inspect.findings import Finding
from mqlake.inspect.piece import GRID, How, Part, Piece, look_at_part
from mqlake.lake.tables import FINDINGS
from mqlake.spark.jobs.answers import answers
from mqlake.spark.jobs.rebuild import part_size_for
from mqlake.spark.plan import expand
from mqlake.store.opening import find_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Work = tuple[int, How, Part | ChainWork | SealWork]
Answer = list[Piece] | Chains | list[int] | None


def audit(
    spark: SparkSession, stores: Paths, *, config: StoreConfig | None = None, part_size: int | None = None
) -> DataFrame:
    """Return one row for each broken promise of these stores. Paths may be patterns. Writes nothing."""
    table = pa.concat_tables(
        findings_table(report) for report in reports(spark, stores, config=config, part_size=part_size)
    )
    return spark.createDataFrame(
        table.cast(FINDINGS), from_arrow_schema(FINDINGS)
    )  # Connect cannot infer it from no row


def reports(
    spark: SparkSession,
    stores: Paths,
    *,
    config: StoreConfig | None = None,
    part_size: int | None = None,
    grid: int = GRID,
) -> list[CheckReport]:
    """Return what `mqlake.check` reports, store by store."""
    paths = [stores] if isinstance(stores, (str, os.PathLike)) else stores
    layouts = [
        find_store(path, read_only=True, create=False) for path in expand(tuple(os.fspath(path) for path in paths))
    ]
    examined = [Examination(layout, config or StoreConfig(), grid=grid) for layout in layouts]
    size = part_size or part_size_for(sum(one.size for one in examined))
    chains: list[Work] = [(at, one.how, work) for at, one in enumerate(examined) for work in one.chain_works()]
    parts: list[Work] = [(at, one.how, part) for at, one in enumerate(examined) for part in one.parts(size)]
    seals: list[Work] = [(at, one.how, work) for at, one in enumerate(examined) for work in one.seals.works(size)]
    works = [*chains, *parts, *seals]  # the chains of a large index take longest, so they start first
    return put_together(examined, zip(works, answers(spark, works, look), strict=True))


def look(work: Work) -> Answer:
    """Inspect what one task was given. Runs in a worker."""
    _, how, what = work
    if isinstance(what, SealWork):
        return compare(what)
    return look_at_part(how, what) if isinstance(what, Part) else look_at_chains(what)


def put_together(examined: list[Examination], found: Iterable[tuple[Work, Answer]]) -> list[CheckReport]:
    """Walk each store as `check` does, with the pieces that were inspected already."""
    pieces: dict[int, list[Piece]] = defaultdict(list)
    chains: dict[int, dict[str, Chains]] = defaultdict(dict)
    seals: dict[int, dict[SealWork, list[int]]] = defaultdict(dict)
    for (number, _, what), answer in found:
        if isinstance(what, SealWork):
            seals[number][what] = cast(list[int], answer)
        elif isinstance(what, Part):
            pieces[number] += cast(list[Piece], answer)
        elif answer is not None:
            chains[number][what.path] = cast(Chains, answer)
    return [one.walk(pieces[number], chains[number], seals[number]).report() for number, one in enumerate(examined)]


def findings_table(report: CheckReport) -> pa.Table:
    """Return the findings of one store as rows."""
    return table_of(str(report.path), report.findings)


def table_of(store: str, findings: Iterable[Finding]) -> pa.Table:
    return pa.Table.from_pylist([_row(store, finding) for finding in findings], schema=FINDINGS)


def _row(store: str, finding: Finding) -> dict[str, Any]:
    return {
        "store": store,
        "severity": finding.severity.name.lower(),
        "promise": finding.what,
        "file": finding.file,
        "offset": finding.offset,
        **_place(finding),
        **{name: getattr(finding, name) for name in ("found", "expected", "cost", "remedy")},
    }


def _place(finding: Finding) -> dict[str, Any]:
    """Return the place of a finding as readers see it: a physical offset, or a queue and a queue offset."""
    parts = Path(finding.file).parts
    start = int(parts[-1]) if parts[-1].isdigit() else None
    if parts[0] == "commitlog" and finding.offset is not None and start is not None:
        missing = finding.what == "file-missing"  # then the offset is a physical one
        return {"physical_offset": finding.offset if missing else start + finding.offset}
    if parts[0] == "consumequeue" and len(parts) >= 3 and parts[2].isdigit():
        number = None
        if len(parts) == 4 and finding.offset is not None and start is not None:
            number = (start + finding.offset) // ENTRY_SIZE
        return {"topic": parts[1], "queue_id": int(parts[2]), "queue_offset": number}
    return {}
