"""Undamaged stores for the rows that damage files. All of their records are known.

A crashed store is a copy of an open one: the files of a running writer are what a kill leaves. It was closed once
before, so that its checkpoint is older than its log.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mqlake import Durability, FlushConfig, MessageStore, StoreConfig
from mqlake.torture.ledger import Ack, message_of
from mqlake.torture.writer import Plan

LOG_BYTES = 16384
ENTRY = 20
CONFIG: StoreConfig = replace(
    Plan(mode="async", log_bytes=LOG_BYTES).config(),
    flush=FlushConfig(interval_ms=600_000, thorough_interval_ms=600_000, queue_thorough_interval_ms=600_000),
)
"""Flushes only on request."""


@dataclass(frozen=True, slots=True)
class Record:
    """One message of a pristine store."""

    number: int
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int

    @property
    def ack(self) -> Ack:
        return Ack(self.number, self.queue_offset, self.physical_offset, Durability.DISK, 0)

    @property
    def file(self) -> str:
        return f"commitlog/{self.physical_offset // LOG_BYTES * LOG_BYTES:020d}"

    @property
    def position(self) -> int:
        """Return the position in the file."""
        return self.physical_offset % LOG_BYTES

    def bytes_in(self, file: bytes) -> bytes:
        return file[self.position : self.position + self.size]


@dataclass(frozen=True)
class Pristine:
    """A store that nobody writes to, and all of its records."""

    path: Path
    records: tuple[Record, ...]

    def copy_to(self, target: Path) -> Path:
        shutil.rmtree(target, ignore_errors=True)
        return Path(shutil.copytree(self.path, target))

    def restore(self, target: Path) -> Path:
        """Do the same as `copy_to` if most of it is there already: write only what differs."""
        if not target.exists():
            return self.copy_to(target)
        for path in self._surplus(target):
            path.unlink()
        for name, content in self.contents.items():
            path = target / name
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return target

    def _surplus(self, target: Path) -> list[Path]:
        return [p for p in target.rglob("*") if p.is_file() and p.relative_to(target).as_posix() not in self.contents]

    @cached_property
    def contents(self) -> dict[str, bytes]:
        """Return the contents of every file, by name."""
        files = (path for path in self.path.rglob("*") if path.is_file())
        return {path.relative_to(self.path).as_posix(): path.read_bytes() for path in files}

    def intact_in(self, damaged: Path) -> list[Record]:
        """Return the records whose bytes are all unchanged and in place."""
        now = {name: _content(damaged / name) for name in {record.file for record in self.records}}
        return [r for r in self.records if r.bytes_in(now[r.file]) == r.bytes_in(self.contents[r.file])]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def closed_store(path: Path, count: int, first: int = 0) -> Pristine:
    """Make a store that was closed."""
    with MessageStore.open(path, config=CONFIG) as store:
        records = put_all(store, range(first, first + count))
    return Pristine(path, tuple(records))


@contextmanager
def running_store(path: Path, count: int) -> Iterator[tuple[MessageStore, list[Record]]]:
    """Make a store that was closed half-way and is open again. Copy it before the block ends."""
    half = count // 2
    records = list(closed_store(path, half).records)
    with MessageStore.open(path, config=CONFIG) as store:
        records += put_all(store, range(half, count))
        store.flush()
        store.wait_dispatched()
        yield store, records


def crashed_store(path: Path, count: int) -> Pristine:
    """Make a store whose writer was killed after everything was on disk."""
    making = path.with_name(path.name + ".making")
    with running_store(making, count) as (_, records):
        shutil.copytree(making, path)
    shutil.rmtree(making)
    return Pristine(path, tuple(records))


def put_all(store: MessageStore, numbers: range, durability: Durability | None = None) -> list[Record]:
    records = []
    for number in numbers:
        r = store.put(message_of(number), durability=durability)
        records.append(Record(number, r.topic, r.queue_id, r.queue_offset, r.physical_offset, r.size))
    return records
