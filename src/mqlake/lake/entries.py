"""What a manifest lists: files, ranges of logs, gaps in them; and how a task hands them to the driver.

All of it goes into JSON and comes back the same. A task returns a table of the schema DONE, one JSON text a row, so
that the stages of a pipeline can put theirs together before one commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa

TableName = Literal["messages", "index", "stats", "findings"]
TABLES: tuple[TableName, ...] = ("messages", "index", "stats", "findings")

DONE = pa.schema([pa.field("done", pa.string(), nullable=False)])
"""What a task gives back."""


MARKER = "end-of-file marker"
"""The reason of a gap that is none of the messages'."""


class Gap(NamedTuple):
    """Bytes [start, end) of a log that no row of the archive has, and why."""

    start: int
    end: int
    reason: str


class Seam(NamedTuple):
    """The last archived record: a log that has other bytes there is another log."""

    offset: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of one of the lake's tables. What it holds comes from [start, end) of one store's log."""

    table: TableName
    path: str
    """From the lake's folder on."""
    store: str
    start: int
    end: int
    rows: int
    bytes: int
    crc: int
    """CRC-32 of the whole file."""
    min_time: int | None = None
    """Store times of the messages, in ms; None where there is no row."""
    max_time: int | None = None
    topic: str | None = None
    """None where it holds several."""
    date: str | None = None


@dataclass(frozen=True, slots=True)
class LakeRange:
    """Bytes [start, end) of one store's log, all of them in the files of one commit, or in its gaps."""

    store: str
    """Its name in the lake; the column `store`."""
    identity: str
    path: str
    start: int
    end: int
    gaps: tuple[Gap, ...] = ()
    seam: Seam | None = None
    """None where the range has no record."""


def to_json(entry: LakeFile | LakeRange) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if value not in (None, ())}


def range_of(fields: dict[str, Any]) -> LakeRange:
    seam = Seam(*fields["seam"]) if "seam" in fields else None
    return LakeRange(**{**fields, "gaps": gaps_of(fields.get("gaps", ())), "seam": seam})


def gaps_of(found: Iterable[Sequence[Any]]) -> tuple[Gap, ...]:
    return tuple(Gap(*gap) for gap in found)


def done(files: Iterable[LakeFile] = (), ranges: Iterable[LakeRange] = ()) -> pa.Table:
    """What a task wrote, as its result."""
    texts = [json.dumps({"file": to_json(file)}) for file in files]
    texts += [json.dumps({"range": to_json(part)}) for part in ranges]
    return pa.table([pa.array(texts, pa.string())], schema=DONE)


def harvest(results: pa.Table) -> tuple[list[LakeRange], list[LakeFile]]:
    """What tasks wrote, ready to be committed."""
    found = [json.loads(text) for text in results.column("done").to_pylist()]
    ranges = [range_of(entry["range"]) for entry in found if "range" in entry]
    return ranges, [LakeFile(**entry["file"]) for entry in found if "file" in entry]
