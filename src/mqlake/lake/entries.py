"""The entries of a manifest: files, log ranges and the gaps in them; and how a task returns them to the driver.

All of them convert to JSON and back without loss. A task returns a table of the schema DONE, one JSON text per row, so
that a pipeline can collect the results of all its stages and commit them at once.
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
"""The schema of a task's result."""


MARKER = "end-of-file marker"
"""The reason of a gap that is not damage: it never held a message."""


class Gap(NamedTuple):
    """Bytes [start, end) of a log that no archived row covers, and the reason."""

    start: int
    end: int
    reason: str


class Seam(NamedTuple):
    """The last archived record. A log with other bytes at this offset is a different log."""

    offset: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of one table of the lake. Its content comes from [start, end) of one store's log."""

    table: TableName
    path: str
    """Its name in the lake."""
    store: str
    start: int
    end: int
    rows: int
    bytes: int
    crc: int
    """CRC-32 of the whole file."""
    min_time: int | None = None
    """Smallest store time of the messages, in ms. None if there are no rows."""
    max_time: int | None = None
    first: int | None = None
    """Smallest physical offset of the messages."""
    last: int | None = None
    min_topic: str | None = None
    """First topic of the messages, in the order of their UTF-8 bytes."""
    max_topic: str | None = None
    topics: tuple[str, ...] | None = None
    """All topics of the messages, in that order. None if they are too many to list."""
    added: int = 0
    """When the file was committed, in ms."""

    def may_have(self, topic: str) -> bool:
        """Return whether the file may have messages of a topic."""
        if self.topics is not None:
            return topic in self.topics
        return self.min_topic is None or self.max_topic is None or self.min_topic <= topic <= self.max_topic


@dataclass(frozen=True, slots=True)
class LakeRange:
    """Bytes [start, end) of one store's log. Every byte is in the files of one commit or in a gap."""

    store: str
    """The store's name in the lake; the value of the column `store`."""
    identity: str
    path: str
    start: int
    end: int
    gaps: tuple[Gap, ...] = ()
    seam: Seam | None = None
    """None if the range has no record."""


OLD_FIELDS = ("topic", "date")


def to_json(entry: LakeFile | LakeRange) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if value not in (None, ())}


def file_of(fields: dict[str, Any]) -> LakeFile:
    """Return a file. Fields that it had in an older format are left out."""
    if "topic" in fields or "date" in fields:
        fields = {name: value for name, value in fields.items() if name not in OLD_FIELDS}
    return LakeFile(**{**fields, "topics": tuple(fields["topics"])}) if "topics" in fields else LakeFile(**fields)


def range_of(fields: dict[str, Any]) -> LakeRange:
    seam = Seam(*fields["seam"]) if "seam" in fields else None
    return LakeRange(**{**fields, "gaps": gaps_of(fields.get("gaps", ())), "seam": seam})


def gaps_of(found: Iterable[Sequence[Any]]) -> tuple[Gap, ...]:
    return tuple(Gap(*gap) for gap in found)


def done(files: Iterable[LakeFile] = (), ranges: Iterable[LakeRange] = ()) -> pa.Table:
    """Return what a task wrote as a table of the schema DONE."""
    texts = [json.dumps({"file": to_json(file)}) for file in files]
    texts += [json.dumps({"range": to_json(part)}) for part in ranges]
    return pa.table([pa.array(texts, pa.string())], schema=DONE)


def harvest(results: pa.Table) -> tuple[list[LakeRange], list[LakeFile]]:
    """Return the ranges and files in the results of tasks, ready to commit."""
    found = [json.loads(text) for text in results.column("done").to_pylist()]
    ranges = [range_of(entry["range"]) for entry in found if "range" in entry]
    return ranges, [file_of(entry["file"]) for entry in found if "file" in entry]
