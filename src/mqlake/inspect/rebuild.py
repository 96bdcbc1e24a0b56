"""Rebuild consume queues and index from the log, next to the existing ones, and replace those at once.

The result is byte for byte what opening the store without derived files would write, except for the names of index
files, which hold their creation time. The caller runs the parts (`harvest`) and the works (`assemble`) wherever it
likes.

To replace the files of the store, it must be closed; its lock is held throughout. First the checkpoint drops its state
of the index, so that after a crash the next opening rebuilds everything. Then the finished folders, which are on disk,
are renamed into place, and a new checkpoint records them. With `out` the store is only read and may be written
meanwhile: the rebuild covers what its writer has dispatched.
"""

from __future__ import annotations

import datetime
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from mqlake.config import StoreConfig
from mqlake.errors import NotAStore
from mqlake.files.layout import Layout
from mqlake.files.lock import StoreLock, writer_of
from mqlake.files.mapped_file import sync_directory, sync_file
from mqlake.files.names import start_of
from mqlake.files.positions import Positions
from mqlake.inspect.assemble import Built, BuiltIndex, BuiltQueue, KeyRun, QueueWork, Site, Work, index_works
from mqlake.inspect.harvest import Part, Piece, StagedRun, Staging, Walk, harvest_at, parts_of
from mqlake.inspect.queue_files import queue_folders
from mqlake.logs.consume_queues import BatchQueues, QueueEnds
from mqlake.logs.scars import Scars
from mqlake.logs.topic_table import can_be_folder
from mqlake.store.checkpoint import Checkpoint, IndexMark, rocketmq_digest, write_checkpoint
from mqlake.store.contents import Contents
from mqlake.store.dispatch import MAX_QUEUE_OFFSET
from mqlake.store.follower import Follower
from mqlake.store.index_numbers import require_known
from mqlake.store.opening import find_store, index_numbers, keep_notes, mend_last_file, resolve
from mqlake.store.recovery import Reporter, Trust, abort_content, believe_log, find_end, judge


class Rebuilt(NamedTuple):
    """What was built."""

    path: Path
    """The folder of `consumequeue` and `index`."""
    first_offset: int
    end_offset: int
    record_count: int
    queue_count: int
    entry_count: int
    refused_count: int
    """Entries that their queues reject, as in dispatch: their records are damaged."""
    index_file_count: int
    key_count: int
    scar_count: int
    took_ms: int


class _Closed(Contents):
    """A store without a writer: which part of its log is trusted, and where it ends. Changes nothing."""

    def __init__(self, layout: Layout, config: StoreConfig) -> None:
        super().__init__(layout, config, writable=False)
        foreign = frozenset(BatchQueues(layout.batch_queues, 0, 0).topics())
        known = layout, self.log_files, self.queues
        self.trust: Trust = believe_log(*known, self.scars, foreign, self.deleted_topics) or judge(
            *known, self.index, self.scars, foreign, self.deleted_topics
        )
        found = find_end(self.log_files, self.trust, Reporter())
        self.end, self.last_record = found.offset, found.last_record
        for scar in found.scars:
            self.scars.add(*scar)


class Rebuild:
    """One rebuild, a context manager: `parts`, then `works` of their pieces, then `finish` with the results."""

    def __init__(self, path: str | os.PathLike[str], out: str | os.PathLike[str] | None, config: StoreConfig) -> None:
        self._began = time.monotonic()
        self._layout = layout = find_store(path, read_only=out is not None, create=False)
        self._out = Path(out) if out is not None else None
        self._lock = StoreLock(layout.lock) if out is None else None
        try:
            self._place = _work_folder(layout, self._out)
            self._config = resolve(layout, config)
            if config.index.enabled:
                require_known(layout, index_numbers(layout, config.index))
            if self._out is None:
                mend_last_file(layout, self._config)
            self._store: _Closed | Follower
            if self._out is not None and writer_of(layout.lock):
                self._store = Follower(layout, self._config, derive=False)
                self._end, self._checkpoint = self._store.ends.visible, None
            else:
                self._store = _Closed(layout, self._config)
                self._end, self._checkpoint = self._store.end, self._store.trust.checkpoint
            self._begin()
        except BaseException:
            self._release()
            raise

    def _begin(self) -> None:
        log = self._store.log_files
        self._first = log.first_offset
        self._scars = Scars(self._layout.scars, self._layout.scratch if self._out is None else None)
        self._scars.ranges = self._store.scars.ranges
        self._walk = Walk(log, self._first, self._end, self._scars)
        self._foreign = frozenset(BatchQueues(self._layout.batch_queues, 0, 0).topics())
        self._refused = self._entry_count = self._key_count = 0
        shutil.rmtree(self._place, ignore_errors=True)
        for name in ("staging", "consumequeue", "index"):
            (self._place / name).mkdir(parents=True)
        index = self._config.index
        self._deleted_topics = self._store.deleted_topics.ends
        self.staging = Staging(
            str(self._place / "staging"), self._config.delays_ms, index.enabled, index.tags, self._deleted_topics
        )
        assert index.slot_count and index.entry_count, "sizes are resolved"
        self.site = Site(
            str(self._place / "staging"),
            str(self._place / "consumequeue"),
            str(self._place / "index"),
            str(self._layout.consume_queues),
            self._store.queues.file_size,
            index.slot_count,
            index.entry_count,
            self._first,
            self._end,
            log.file_size,
        )

    @property
    def size(self) -> int:
        return self._end - self._first

    def parts(self, size: int) -> list[Part]:
        """Split the log into parts of `size` bytes, to be harvested."""
        self._parts = parts_of(self._store.log_files, self._end, size)
        return self._parts

    def works(self, pieces: Iterable[Piece], task_count: int) -> list[Work]:
        """Return the works for these pieces, largest first; the queues are spread over `task_count` works."""
        runs: dict[tuple[str, int], list[StagedRun]] = defaultdict(list)
        keys: list[KeyRun] = []
        for piece in self._walk.chain(pieces, self._again):
            for run in piece.runs:
                if run.topic not in self._foreign:
                    self._entry_count += run.entry_count
                    if can_be_folder(run.topic) and run.queue_id >= 0 and 0 <= run.first < MAX_QUEUE_OFFSET:
                        runs[run.topic, run.queue_id].append(run)
                    else:
                        self._refused += run.entry_count
            if piece.key_count:
                self._key_count += piece.key_count
                keys.append(KeyRun(piece.stage, piece.key_place, piece.key_count))
        name = int(datetime.datetime.now().strftime("%Y%m%d%H%M%S%f")[:17])
        return [*index_works(keys, self.site.entry_count, name), *self._spread(self._queue_works(runs), task_count)]

    def _again(self, offset: int) -> Piece:
        part = next(part for part in self._parts if part.low <= offset - part.start < part.high)
        return harvest_at(self.staging, part, offset - part.start)

    def _queue_works(self, runs: dict[tuple[str, int], list[StagedRun]]) -> list[QueueWork]:
        """Return the queues of the log, of the disk and of the checkpoint, without deleted topics."""
        checkpoint = self._checkpoint
        ends = checkpoint.queue_ends if checkpoint is not None and self._end >= checkpoint.dispatched else {}
        folders = (path for path in queue_folders(self._layout.consume_queues) if path.name.isdigit() and path.is_dir())
        here = {(path.parent.name, int(path.name)) for path in folders}
        known = {(topic, i) for topic, of in ends.items() for i in of}
        deleted = self._deleted_topics.keys() - {topic for topic, _ in runs}
        return [
            QueueWork(topic, i, runs.get((topic, i), []), ends.get(topic, {}).get(i, 0))
            for topic, i in sorted({*runs, *here, *known})
            if topic not in deleted
        ]

    def _spread(self, works: list[QueueWork], task_count: int) -> list[list[QueueWork]]:
        tasks: list[list[QueueWork]] = [[] for _ in range(min(task_count, len(works)))]
        costs = [0] * len(tasks)
        for work in sorted(works, key=lambda work: work.cost, reverse=True):
            lightest = costs.index(min(costs))
            tasks[lightest].append(work)
            costs[lightest] += work.cost + 1000  # every queue has a fixed cost
        return tasks

    # ---- after the works

    def finish(self, built: Iterable[Built]) -> Rebuilt:
        """Move the new queues and index into place."""
        queues: list[BuiltQueue] = []
        index: list[BuiltIndex] = []
        for one in built:
            if isinstance(one, BuiltIndex):
                index.append(one)
            else:
                queues += one
        shutil.rmtree(self.site.staging)
        for folder in (Path(self.site.index_files), *(p for p in Path(self.site.queues).rglob("*") if p.is_dir())):
            sync_directory(folder)
        sync_directory(Path(self.site.queues))
        sync_directory(self._place)
        if self._out is not None:
            self._move_to(self._out)
        else:
            self._replace(queues, sorted(index))
        return Rebuilt(
            self._out or self._layout.root,
            self._first,
            self._end,
            self._walk.record_count,
            sum(1 for queue in queues if queue.end),
            self._entry_count,
            self._refused + sum(queue.refused_count for queue in queues),
            len(index),
            self._key_count,
            len(self._scars.ranges),
            round((time.monotonic() - self._began) * 1000),
        )

    def _move_to(self, target: Path) -> None:
        names = ("consumequeue", "index") if self._config.index.enabled else ("consumequeue",)
        for name in names:
            (self._place / name).rename(target / name)
        sync_directory(target)

    def _replace(self, queues: list[BuiltQueue], index: list[BuiltIndex]) -> None:
        layout, store = self._layout, self._store
        assert isinstance(store, _Closed), "the lock is held"
        layout.own.mkdir(exist_ok=True)
        positions = Positions.open(layout.positions)
        generation = positions.generation if positions is not None else 0
        had_abort = layout.abort.exists()
        if not had_abort:
            layout.abort.write_text(abort_content(generation))
            sync_file(layout.abort)
            sync_directory(layout.root)
        if self._checkpoint is not None:
            write_checkpoint(layout, replace(self._checkpoint, clean=False, index=IndexMark(slot_count=-1)))
        self._keep_strangers()
        for name in ("consumequeue", "index") if self._config.index.enabled else ("consumequeue",):
            if (layout.root / name).exists():
                (layout.root / name).rename(self._place / f"old-{name}")
            (self._place / name).rename(layout.root / name)
        sync_directory(layout.root)
        self._sync_log()
        keep_notes(layout, self._config, indexed_from=0)
        write_checkpoint(layout, self._new_checkpoint(store, queues, index, generation))
        if not had_abort:
            layout.abort.unlink()
            sync_directory(layout.root)

    def _keep_strangers(self) -> None:
        """Keep files in the folders of queues that belong to no queue, as recovery does."""
        for path in self._layout.consume_queues.rglob("*"):
            if path.is_file() and start_of(path.name) is None:
                place = self._layout.set_aside / path.relative_to(self._layout.consume_queues)
                place.parent.mkdir(parents=True, exist_ok=True)
                path.rename(place)

    def _sync_log(self) -> None:
        """Sync the log after a crash too: the checkpoint will state that it is on disk."""
        log = self._store.log_files
        known = self._checkpoint.durable if self._checkpoint is not None else 0
        for start in log.starts:
            file = log.file_at(start)
            if file is not None and file.end > known:
                file.sync()

    def _new_checkpoint(
        self, store: _Closed, queues: list[BuiltQueue], index: list[BuiltIndex], generation: int
    ) -> Checkpoint:
        ends: QueueEnds = defaultdict(dict)
        for queue in queues:
            ends[queue.topic][queue.queue_id] = queue.end
        numbers = self._config.index.enabled
        return Checkpoint(
            first_offset=self._first,
            durable=max(self._end, store.trust.watermark),
            dispatched=self._end,
            last_record=self._walk.last_record if self._walk.last_record >= 0 else store.last_record,
            clean=store.trust.untouched,
            generation=generation,
            queue_ends=dict(ends),
            index=IndexMark(
                files=tuple(one.name for one in index),
                header=index[-1].header if index else b"",
                slot_count=self.site.slot_count if numbers else 0,
                entry_count=self.site.entry_count if numbers else 0,
            ),
            rocketmq=(rocketmq_digest(self._layout),),
        )

    def __enter__(self) -> Rebuild:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _work_folder(layout: Layout, out: Path | None) -> Path:
    """Return the folder to build in. In the store it is one that opening clears after a crash."""
    if out is None:
        return layout.scratch / "rebuild"
    place = out / ".rebuild"
    if out.exists() and (not out.is_dir() or any(entry != place for entry in out.iterdir())):
        raise NotAStore(out, "it exists already and is not empty", "name an empty or a new folder to build in")
    return place
