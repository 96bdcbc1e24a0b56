"""The Delta logs: every table of a lake is also a Delta table, which other engines read without mqlake.

The manifest is the truth. Commit N of the manifest becomes version N of all four tables, also of those it does not
change, so a version means the same in every table and engine. An entry is a pure function of its commit: whoever
writes it writes the same bytes. So a job that was killed after its commit loses nothing; the next one writes the
missing entries before it commits (`roll_forward`). A reader of a Delta table may lag the manifest by one commit and
never sees a part of one, because a version of a table is one file.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from mqlake.errors import BadFile
from mqlake.lake.delta_checkpoint import checkpoint
from mqlake.lake.entries import TABLES, LakeFile, TableName, file_of
from mqlake.lake.manifest import KEEP_S, SNAPSHOT_EVERY
from mqlake.lake.snapshot import LakeSnapshot
from mqlake.lake.storage import Storage
from mqlake.lake.tables import SCHEMAS

LOG = "_delta_log"
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Action = dict[str, Any]


class DeltaLogs:
    """The logs of the four tables."""

    def __init__(
        self, storage: Storage, identity: str, created_ms: int, commit: Callable[[int], Mapping[str, Any]]
    ) -> None:
        """`commit` returns a commit of the manifest by its version."""
        self._storage, self._identity, self._created_ms, self._commit = storage, identity, created_ms, commit
        self._done: dict[TableName, int] = {}
        """The newest version of each table that is known to exist, with all before it."""

    def roll_forward(self, state: LakeSnapshot) -> None:
        """Write the versions up to this one that are missing."""
        for table in TABLES:
            if table not in self._done:
                self._done[table] = self._newest(table)
                self._check_newest(table, state)
            for version in range(self._done[table] + 1, state.version + 1):
                self._write(table, version, self._commit(version) if version else {"time": self._created_ms})

    def write(self, commit: Mapping[str, Any], state: LakeSnapshot) -> None:
        """Write the versions of a commit, which leads to `state`."""
        for table in TABLES:
            self._write(table, state.version, commit)
            if state.version % SNAPSHOT_EVERY == 0:
                self._checkpoint(table, state)

    def forget_old(self, keep: int) -> None:
        """Delete entries that nobody reads any more, of versions before `keep`. A checkpoint holds what they say."""
        before = time.time() - KEEP_S
        for table in TABLES:
            files = [file for file in self._storage.files(f"{table}/{LOG}/") if _version(file.name) is not None]
            checkpoints = [_version(file.name) or 0 for file in files if file.name.endswith(".checkpoint.parquet")]
            first = max((version for version in checkpoints if version <= keep), default=0)
            old = [file.name for file in files if (_version(file.name) or 0) < first and file.time <= before]
            self._storage.delete(old)

    def _newest(self, table: TableName) -> int:
        names = [file.name for file in self._storage.files(f"{table}/{LOG}/") if file.name.endswith(".json")]
        return max((version for name in names if (version := _version(name)) is not None), default=-1)

    def _check_newest(self, table: TableName, state: LakeSnapshot) -> None:
        """Raise an error if the newest entry is not one of ours, before anything is committed."""
        version = self._done[table]
        if version < 1:
            return
        try:
            ours = self._content(table, version, self._commit(version))
        except FileNotFoundError:
            if version <= state.version:  # it was forgotten: nothing was committed for long
                return
            raise self._foreign(entry_name(table, version)) from None
        if self._storage.read(entry_name(table, version)) != ours:
            raise self._foreign(entry_name(table, version))

    def _write(self, table: TableName, version: int, commit: Mapping[str, Any]) -> None:
        content, name = self._content(table, version, commit), entry_name(table, version)
        if not self._storage.create(name, content) and self._storage.read(name) != content:
            raise self._foreign(name)
        self._done[table] = version

    def _content(self, table: TableName, version: int, commit: Mapping[str, Any]) -> bytes:
        actions = [] if version else _creation(table, self._identity, self._created_ms)
        actions += actions_of(table, commit)
        return b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)

    def _foreign(self, name: str) -> BadFile:
        found = "an entry that another program wrote"
        return BadFile(f"{self._storage.place}/{name}", found, "ours: other engines may read a lake, not change it")

    def _checkpoint(self, table: TableName, state: LakeSnapshot) -> None:
        removed = [_remove(path, when, False) for path, when in state.removed.items() if _table_of(path) == table]
        actions = [
            *_creation(table, self._identity, self._created_ms),
            *(_add(file, False) for file in state.files(table)),
            *removed,
        ]
        content = checkpoint(actions)
        self._storage.replace(f"{table}/{LOG}/{state.version:020d}.checkpoint.parquet", content)
        last = {"version": state.version, "size": len(actions)}
        self._storage.replace(f"{table}/{LOG}/_last_checkpoint", json.dumps(last).encode())


def entry_name(table: TableName, version: int) -> str:
    return f"{table}/{LOG}/{version:020d}.json"


def actions_of(table: TableName, commit: Mapping[str, Any]) -> list[Action]:
    """Return what a commit of the manifest does to a table."""
    files = [file for file in map(file_of, commit.get("add", ())) if file.table == table]
    removed = [path for path in commit.get("remove", ()) if _table_of(path) == table]
    merges = bool(commit.get("remove")) and not commit.get("ranges")
    operation = "OPTIMIZE" if merges else "WRITE"
    about = {"timestamp": commit["time"], "operation": operation, "operationParameters": {}, "engineInfo": "mqlake"}
    return [
        {"commitInfo": about},
        *(_remove(path, commit["time"], not merges) for path in removed),
        *(_add(file, not merges) for file in files),
    ]


def _creation(table: TableName, identity: str, created_ms: int) -> list[Action]:
    columns = [
        {"name": field.name, "type": _type(field.type), "nullable": field.nullable, "metadata": {}}
        for field in SCHEMAS[table]
    ]
    about = {
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"mqlake {identity} {table}")),
        "name": table,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": created_ms,
    }
    return [{"protocol": PROTOCOL}, {"metaData": about}]


def _type(kind: pa.DataType) -> Any:
    """Return Delta's name of a type."""
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        inside = {"keyType": _type(kind.key_type), "valueType": _type(kind.item_type)}
        return {"type": "map", **inside, "valueContainsNull": True}
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return {"int32": "integer", "int64": "long", "bool": "boolean"}.get(str(kind), str(kind))


def _add(file: LakeFile, changes_data: bool) -> Action:
    path = file.path.removeprefix(f"{file.table}/")
    fields = {"path": path, "partitionValues": {}, "size": file.bytes, "modificationTime": file.added}
    return {"add": {**fields, "dataChange": changes_data, "stats": json.dumps(_stats(file), separators=(",", ":"))}}


def _remove(path: str, when_ms: int, changes_data: bool) -> Action:
    return {
        "remove": {"path": path.partition("/")[2], "deletionTimestamp": when_ms, "dataChange": changes_data},
    }


def _stats(file: LakeFile) -> dict[str, Any]:
    """Return what engines may skip a file by, and answer min and max from. So the bounds must be exact."""
    if file.first is None or not file.rows:
        return {"numRecords": file.rows}
    times = _moment(file.min_time), _moment(file.max_time)
    bounds: Iterable[tuple[str, Any, Any]] = [
        ("store", file.store, file.store),
        ("topic", file.min_topic, file.max_topic),
        ("physical_offset", file.first, file.last),
        ("store_timestamp", *(times if None not in times else (None, None))),
    ]
    known = [(name, low, high) for name, low, high in bounds if low is not None]
    return {
        "numRecords": file.rows,
        "minValues": {name: low for name, low, _ in known},
        "maxValues": {name: high for name, _, high in known},
        "nullCount": {name: 0 for name, _, _ in known},
    }


def _moment(time_ms: int | None) -> str | None:
    """Return a time as Delta writes it. None for a year that has no four digits: no checksum covers a record's time."""
    if time_ms is None:
        return None
    try:
        return (EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return None


def _table_of(path: str) -> str:
    return path.partition("/")[0]


def _version(name: str) -> int | None:
    """Return the version of an entry or a checkpoint."""
    digits = name.rpartition("/")[2].partition(".")[0]
    return int(digits) if len(digits) == 20 and digits.isdigit() else None
