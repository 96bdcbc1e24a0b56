"""Audit as a job: every promise that `mqlake check` looks at, of one store or a fleet, one row for each that is broken.

The driver looks at names, sizes and small files, cuts the logs into parts, and lets the workers look at them and at the
chains of index files. Then it does what `check` does, with the pieces that were looked at elsewhere in the place of
its own: it takes each only where the one before ended. So the findings are check's, whatever a store is like.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.config import StoreConfig
from mqlake.spark.jobs.answers import answers
from mqlake.spark.jobs.rebuild import part_size_for
from mqlake.spark.plan import expand
from mqlake.store.check import CheckReport, Examination
from mqlake.store.check_index import Chains, ChainWork, look_at_chains
from mqlake.store.findings import Finding
from mqlake.store.opening import find_store
from mqlake.store.piece import GRID, How, Part, Piece, look_at_part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("promise", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("offset", pa.int64()),
        pa.field("physical_offset", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("queue_offset", pa.int64()),
        pa.field("found", pa.string(), nullable=False),
        pa.field("expected", pa.string(), nullable=False),
        pa.field("cost", pa.string(), nullable=False),
        pa.field("remedy", pa.string(), nullable=False),
    ]
)
"""A finding: where it is, as place in a file and, of the log and of queues, as what it is to a reader."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Work = tuple[int, How, Part | ChainWork]
Answer = list[Piece] | Chains | None


def audit(
    spark: SparkSession, stores: Paths, *, config: StoreConfig | None = None, part_size: int | None = None
) -> DataFrame:
    """One row for each broken promise of these stores: folders, or patterns that name some. Nothing is written."""
    table = pa.concat_tables(
        findings_table(report) for report in reports(spark, stores, config=config, part_size=part_size)
    )
    return spark.createDataFrame(table.cast(FINDINGS))


def reports(
    spark: SparkSession,
    stores: Paths,
    *,
    config: StoreConfig | None = None,
    part_size: int | None = None,
    grid: int = GRID,
) -> list[CheckReport]:
    """What `mqlake.check` reports, store by store."""
    paths = [stores] if isinstance(stores, (str, os.PathLike)) else stores
    layouts = [
        find_store(path, read_only=True, create=False) for path in expand(tuple(os.fspath(path) for path in paths))
    ]
    examined = [Examination(layout, config or StoreConfig(), grid=grid) for layout in layouts]
    size = part_size or part_size_for(sum(one.size for one in examined))
    chains: list[Work] = [(at, one.how, work) for at, one in enumerate(examined) for work in one.chain_works()]
    parts: list[Work] = [(at, one.how, part) for at, one in enumerate(examined) for part in one.parts(size)]
    works = [*chains, *parts]  # the chains of a large index take longest
    return put_together(examined, zip(works, answers(spark, works, look), strict=True))


def look(work: Work) -> Answer:
    """In a worker: what one task looks at."""
    _, how, what = work
    return look_at_part(how, what) if isinstance(what, Part) else look_at_chains(what)


def put_together(examined: list[Examination], found: Iterable[tuple[Work, Answer]]) -> list[CheckReport]:
    """Check's own walk over each store, with what was looked at already."""
    pieces: dict[int, list[Piece]] = defaultdict(list)
    chains: dict[int, dict[str, Chains]] = defaultdict(dict)
    for (number, _, what), answer in found:
        if isinstance(answer, list):
            pieces[number] += answer
        elif answer is not None and isinstance(what, ChainWork):
            chains[number][what.path] = answer
    return [one.walk(pieces[number], chains[number]).report() for number, one in enumerate(examined)]


def findings_table(report: CheckReport) -> pa.Table:
    """The findings of one store as rows."""
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
    """What a place in a file is to a reader: an offset of the log, or a number of a queue."""
    parts = Path(finding.file).parts
    start = int(parts[-1]) if parts[-1].isdigit() else None
    if parts[0] == "commitlog" and finding.offset is not None and start is not None:
        missing = finding.what == "file-missing"  # then the offset is the log's
        return {"physical_offset": finding.offset if missing else start + finding.offset}
    if parts[0] == "consumequeue" and len(parts) >= 3 and parts[2].isdigit():
        number = None
        if len(parts) == 4 and finding.offset is not None and start is not None:
            number = (start + finding.offset) // ENTRY_SIZE
        return {"topic": parts[1], "queue_id": int(parts[2]), "queue_offset": number}
    return {}
