"""Typed tables: the JSON bodies of one topic as columns, derived from `messages`. Each is a Delta table of its own.

    typed/TOPIC/_delta_log/…    its log, which is its truth: which files count, the columns, and how far it is
    typed/TOPIC/….parquet       rows: where a message is, its columns, and what did not parse

An entry of the log adds files and moves the position of each store (Delta's `txn`: the store's identity and the offset
up to which its messages are in the table), all in one file that exactly one caller can create. So a message is in the
table once, whoever is killed. Columns are added, never changed or removed, and older rows have null there. A table can
be deleted and made again at any time: the bodies themselves stay in `messages`.
"""

from __future__ import annotations

import io
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from mqlake.errors import InvalidConfig, LakeConflict
from mqlake.lake.delta import LOG, PROTOCOL, Action
from mqlake.lake.delta_checkpoint import checkpoint
from mqlake.lake.manifest import SNAPSHOT_EVERY
from mqlake.lake.storage import Storage

FOLDER = "typed"
NAME = re.compile(r"[A-Za-z0-9_-]+")
"""Topics that can be a table: a Delta table's place must read the same in every engine."""


class TypedFile(NamedTuple):
    """A file of a typed table."""

    name: str
    """Below the table's folder."""
    rows: int
    bytes: int
    errors: int
    """Rows whose body did not parse."""


@dataclass
class TypedState:
    """A version of a typed table. Version -1: there is none yet."""

    version: int = -1
    columns: list[dict[str, Any]] = field(default_factory=list)
    """As Delta and Spark write fields of a schema."""
    positions: dict[str, int] = field(default_factory=dict)
    """By the identity of a store: the messages before this offset are in the table."""
    files: dict[str, Action] = field(default_factory=dict)
    created: int = 0

    def apply(self, action: Action) -> None:
        if found := action.get("metaData"):
            self.columns = json.loads(found["schemaString"])["fields"]
            self.created = found["createdTime"]
        if found := action.get("txn"):
            self.positions[found["appId"]] = found["version"]
        if found := action.get("add"):
            self.files[found["path"]] = found

    @property
    def rows(self) -> int:
        return sum(json.loads(file["stats"])["numRecords"] for file in self.files.values())


class TypedTable:
    """The typed table of one topic."""

    def __init__(self, storage: Storage, topic: str) -> None:
        if not NAME.fullmatch(topic):
            raise InvalidConfig("schema", topic, "typed tables need a topic of letters, digits, - and _")
        self._storage = storage
        self.topic = topic
        self.folder = f"{FOLDER}/{topic}"
        self.place = f"{storage.place}/{self.folder}"

    def state(self) -> TypedState:
        """Return the newest version."""
        state = TypedState()
        try:
            begun = int(json.loads(self._storage.read(f"{self.folder}/{LOG}/_last_checkpoint"))["version"])
            content = self._storage.read(self._name(begun, "checkpoint.parquet"))
        except FileNotFoundError:
            pass
        else:
            for row in pq.read_table(io.BytesIO(content)).to_pylist():
                state.apply({name: value for name, value in row.items() if value is not None})
            state.version = begun
        while True:
            try:
                lines = self._storage.read(self._name(state.version + 1, "json")).splitlines()
            except FileNotFoundError:
                return state
            for line in lines:
                state.apply(json.loads(line))
            state.version += 1

    def commit(
        self,
        state: TypedState,
        columns: Sequence[Mapping[str, Any]],
        files: Sequence[TypedFile],
        positions: Mapping[str, int],
        lake_version: int,
    ) -> int:
        """Add files, columns and positions to a version, all or none. Return the new version.

        Raises LakeConflict if another job made that version meanwhile: then none of it counts.
        """
        now = int(time.time() * 1000)
        actions = list(self._about(state.created or now, columns)) if list(columns) != state.columns else []
        actions += [
            {"commitInfo": {"timestamp": now, "operation": "WRITE", "engineInfo": "mqlake", "lake": lake_version}},
            *({"txn": {"appId": store, "version": end, "lastUpdated": now}} for store, end in positions.items()),
            *({"add": _add(file, now)} for file in files),
        ]
        if state.version < 0:
            actions.insert(0, {"protocol": PROTOCOL})
        version = state.version + 1
        content = b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)
        if not self._storage.create(self._name(version, "json"), content):
            raise LakeConflict(self.place, f"version {version}, written by another job", "the next version")
        if version and version % SNAPSHOT_EVERY == 0:
            self._checkpoint(version)
        return version

    def unknown(self, before: float) -> list[str]:
        """Return the files that no version names and that were written before a time (s): killed tasks left them."""
        known = self.state().files
        folder = f"{self.folder}/"
        return [
            file.name
            for file in self._storage.files(folder)
            if file.time <= before and f"/{LOG}/" not in file.name and file.name.removeprefix(folder) not in known
        ]

    def _checkpoint(self, version: int) -> None:
        state = self.state()
        actions: list[Action] = [{"protocol": PROTOCOL}, *self._about(state.created, state.columns)]
        actions += [
            {"txn": {"appId": store, "version": end, "lastUpdated": state.created}}
            for store, end in state.positions.items()
        ]
        actions += [{"add": {**added, "dataChange": False}} for added in state.files.values()]
        self._storage.replace(self._name(version, "checkpoint.parquet"), checkpoint(actions))
        last = json.dumps({"version": version, "size": len(actions)}).encode()
        self._storage.replace(f"{self.folder}/{LOG}/_last_checkpoint", last)

    def _about(self, created: int, columns: Sequence[Mapping[str, Any]]) -> Iterator[Action]:
        yield {
            "metaData": {
                "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"mqlake {self.place} {created}")),
                "name": self.topic,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": list(columns)}),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": created,
            }
        }

    def _name(self, version: int, kind: str) -> str:
        return f"{self.folder}/{LOG}/{version:020d}.{kind}"


def typed_topics(storage: Storage) -> list[str]:
    """Return the topics that have a typed table."""
    return sorted({file.name.split("/")[1] for file in storage.files(f"{FOLDER}/") if f"/{LOG}/" in file.name})


def _add(file: TypedFile, now: int) -> dict[str, Any]:
    stats = {"numRecords": file.rows, "nullCount": {"_error": file.rows - file.errors}}
    fields = {"path": file.name, "partitionValues": {}, "size": file.bytes, "modificationTime": now}
    return {**fields, "dataChange": True, "stats": json.dumps(stats, separators=(",", ":"))}
