"""The health of a store: the state of every worker, for its own process and for others.

The writer keeps `mqlake/health.json` up to date: it is written when a worker changes its state, not synced, and means
nothing once that writer is gone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from mqlake.errors import StoreError
from mqlake.files.layout import Layout
from mqlake.files.small_files import publish_file, read_small_file
from mqlake.runtime.workers import State, WorkerHealth
from mqlake.store.replicas import SlaveState

MAX_SIZE = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """What `MessageStore.health` returns."""

    workers: tuple[WorkerHealth, ...] = ()
    failure: str | None = None
    """Why the store, or one of its workers, does not do its work; None if all is well."""
    slaves: tuple[SlaveState, ...] = ()
    """The slaves that are attached to this master."""

    @property
    def ok(self) -> bool:
        """No sync failed, and every worker runs."""
        return self.failure is None and all(worker.error is None for worker in self.workers)


def publish_health(layout: Layout, pid: int, workers: Sequence[WorkerHealth], slaves: Sequence[SlaveState]) -> None:
    """Tell other processes. One thread at a time calls this."""
    told = {"writer": pid, "workers": [asdict(each) for each in workers], "slaves": [asdict(each) for each in slaves]}
    content = json.dumps(told)
    try:
        publish_file(layout.health, content.encode())
    except OSError as error:  # others see an old state; this process sees the true one
        _log.debug("%s is not kept up to date: %s", layout.health, error)


def withdraw_health(layout: Layout) -> None:
    """Remove what was told: the writer ends."""
    try:
        layout.health.unlink(missing_ok=True)
    except OSError as error:  # a folder of this name: readers ignore it
        _log.warning("%s is not removed: %s", layout.health, error)


def read_health(layout: Layout, writer: int, behind: Mapping[str, int]) -> Health:
    """Return what the writer with this process id last told; empty if it told nothing.

    `behind` is what the positions say now of workers that follow the log: what the writer told may be old.
    """
    try:
        content = json.loads(read_small_file(layout.health, MAX_SIZE))
        if content["writer"] != writer:
            return Health()
        workers = tuple(WorkerHealth(**each | {"state": State(each["state"])}) for each in content["workers"])
        slaves = tuple(SlaveState(**each) for each in content.get("slaves", ()))
    except (OSError, StoreError, ValueError, TypeError, KeyError):
        return Health()
    workers = tuple(replace(each, behind_bytes=behind.get(each.name, each.behind_bytes)) for each in workers)
    failure = next((f"{each.name}: {each.error}" for each in workers if each.error is not None), None)
    return Health(workers, failure, slaves)
