"""The lake's part of a report: its tables, what its pipeline did, and what the pipeline's check found."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.inspect.findings import Severity
from mqlake.lake import Lake
from mqlake.lake.notes import TABLES, Notes
from mqlake.lake.parquet import read_table
from mqlake.lake.snapshot import LakeSnapshot
from mqlake.lake.storage import Storage
from mqlake.lake.tables import FINDINGS
from mqlake.report.data import CheckFacts, FindingFacts, LakeFacts, LakeStore, LakeTable, Run, Stage

FINDINGS_SHOWN = 1_000


def lake_facts(path: str) -> LakeFacts:
    lake = Lake.open(path)
    snapshot = lake.snapshot()
    notes = Notes.load(lake)
    if notes is not None:
        notes.settle(snapshot)
    return LakeFacts(
        path=str(path),
        version=snapshot.version,
        committed_ms=snapshot.time_ms or None,
        tables=_tables(snapshot),
        stores=[LakeStore(state.path, state.start, state.end) for state in snapshot.stores.values()],
        run=None if notes is None else _run(notes),
        stages=[] if notes is None else _stages(notes),
        check=_check(lake.storage, snapshot),
    )


def _tables(snapshot: LakeSnapshot) -> list[LakeTable]:
    tables = []
    for name in ("messages", "index", "stats", "findings"):
        files = snapshot.files(name)
        if files:
            tables.append(LakeTable(name, len(files), sum(f.rows for f in files), sum(f.bytes for f in files)))
    return tables


def _run(notes: Notes) -> Run:
    return Run(notes.state_now, notes.started, notes.at, notes.batches, notes.last_error)


def _stages(notes: Notes) -> list[Stage]:
    return [
        Stage(
            *(name, stage.rows, stage.bytes, stage.rows_per_s),
            _position(stage.position),
            *(stage.lag_bytes, stage.at, stage.last_error),
        )
        for name, stage in notes.stages.items()
    ]


def _position(offsets: Mapping[str, int]) -> str:
    """Return how far a stage is in each log; without the store's name if there is one."""
    if len(offsets) == 1:
        return "".join(f"{offset:,}" for offset in offsets.values())
    return ", ".join(f"{store}: {offset:,}" for store, offset in offsets.items())


def _check(storage: Storage, snapshot: LakeSnapshot) -> CheckFacts | None:
    """Return the findings in the lake, and how many bytes of log they cover."""
    files = snapshot.files(TABLES["check"])
    if not files:
        return None
    read = [read_table(storage, file, FINDINGS) for file in files if file.rows]
    rows = pa.concat_tables([FINDINGS.empty_table(), *read])
    by_severity = [rows.filter(pc.equal(rows["severity"], one.name.lower())) for one in sorted(Severity, reverse=True)]
    worst = pa.concat_tables(by_severity).slice(0, FINDINGS_SHOWN)
    return CheckFacts(
        bytes=sum(file.end - file.start for file in files),
        counts={part["severity"][0].as_py(): part.num_rows for part in by_severity if part.num_rows},
        worst=[
            FindingFacts(
                *(row["store"], row["severity"], row["promise"]),
                row["file"] if row["offset"] is None else f"{row['file']} at {row['offset']:,}",
                *(row["found"], row["cost"]),
            )
            for row in worst.to_pylist()
        ],
    )
