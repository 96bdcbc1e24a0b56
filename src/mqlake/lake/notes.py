"""The pipeline's notes about itself in `_mqlake/pipeline.json`: for `mqlake pipeline status`, the report, and people.

The file is always replaced whole. Nothing depends on it: positions come from the manifest. Lost or damaged notes cost
history, never a message.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from mqlake.lake.entries import LakeFile, TableName
from mqlake.lake.lake import Lake
from mqlake.lake.snapshot import LakeSnapshot

NAME = "_mqlake/pipeline.json"
VERSION = 1
TABLES: dict[str, TableName] = {"check": "findings", "archive": "messages", "index": "index", "stats": "stats"}
"""The stages in order, and the table that each of them writes."""


@dataclass(slots=True)
class StageNotes:
    """The notes of one stage. Fields that the report reads have the report's names."""

    position: dict[str, int] = field(default_factory=dict)
    """For each store, the physical offset up to which this stage has processed its log."""
    lag_bytes: int = 0
    rows: int = 0
    """Messages since the run began."""
    bytes: int = 0
    """Bytes of log since the run began."""
    seconds: float = 0.0
    """Worker time since the run began."""
    rows_per_s: float | None = None
    """Per worker, in the last batch."""
    bytes_per_s: float | None = None
    last_error: str | None = None
    at: int | None = None
    """When the stage last finished a batch, in ms."""


@dataclass(slots=True)
class Notes:
    """The notes of one run."""

    state: str = "running"
    """running, done, stopped or failed."""
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    every: str = ""
    """How often the run looks for new messages; `once` if it runs only one time."""
    started: int = 0
    at: int = 0
    batches: int = 0
    latest: dict[str, int] = field(default_factory=dict)
    """Where each store's log ended when the pipeline last looked, by store name."""
    last_error: str | None = None
    failed_stores: dict[str, str] = field(default_factory=dict)
    """Stores that could not be read at the last look, by path, and why."""
    stages: dict[str, StageNotes] = field(default_factory=lambda: {name: StageNotes() for name in TABLES})

    def settle(self, snapshot: LakeSnapshot) -> None:
        """Take positions from the manifest, and compute how far each stage lags the ends of the logs.

        A log reaches at least as far as the lake. So a stage that another job left out lags, even if nothing is new.
        """
        ends = dict(self.latest)
        for store, state in snapshot.stores.items():
            ends[store] = max(state.end, ends.get(store, 0))
        for name, stage in self.stages.items():
            stage.position = {store: reached(snapshot, TABLES[name], store) for store in snapshot.stores}
            lags = [end - stage.position.get(store, end) for store, end in ends.items()]
            stage.lag_bytes = sum(max(0, lag) for lag in lags)

    def took(self, name: str, rows: int, size: int, seconds: float) -> None:
        """Record that a batch went through a stage."""
        stage = self.stages[name]
        stage.rows, stage.bytes, stage.seconds = stage.rows + rows, stage.bytes + size, stage.seconds + seconds
        if seconds > 0:
            stage.rows_per_s, stage.bytes_per_s = rows / seconds, size / seconds
        stage.at = now_ms()

    def failed(self, stage: str | None, text: str) -> None:
        self.state, self.last_error = "failed", text
        if stage in self.stages:
            self.stages[stage].last_error = text

    def save(self, lake: Lake) -> None:
        self.at = now_ms()
        content = json.dumps({"v": VERSION, **asdict(self)}, indent=1).encode() + b"\n"
        lake.storage.replace(NAME, content)

    @classmethod
    def load(cls, lake: Lake) -> Notes | None:
        """Return the saved notes. None if no pipeline ran, or if its notes cannot be read."""
        try:
            fields: dict[str, Any] = json.loads(lake.storage.read(NAME))
            if fields.pop("v") != VERSION:
                return None
            stages = {name: StageNotes(**fields["stages"][name]) for name in TABLES}
            return cls(**{**fields, "stages": stages})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @property
    def state_now(self) -> str:
        """The state. If that is `running`, check that the process still exists."""
        if self.state != "running":
            return self.state
        if self.host != socket.gethostname():
            return "running, on another machine"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "died"
        except PermissionError:
            return "running"
        return "running"


def reached(snapshot: LakeSnapshot, table: TableName, store: str) -> int:
    """Return the offset up to which a table covers a store's log without a gap: `archive` alone writes no stats."""
    state = snapshot.stores[store]
    if table == "messages":
        return state.end
    end = state.start
    for file in snapshot.files(table, store):
        if file.start > end:
            break
        end = max(end, file.end)
    return min(end, state.end)


def rows_of(files: list[LakeFile]) -> int:
    return sum(file.rows for file in files if file.table == "messages")


def now_ms() -> int:
    return int(time.time() * 1000)
