"""A rebuild without Spark, in this process, and stores of many kinds to rebuild."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from mqlake import MessageStore, StoreConfig
from mqlake.inspect.assemble import build
from mqlake.inspect.harvest import harvest
from mqlake.inspect.rebuild import Rebuild, Rebuilt
from mqlake.store.checkpoint import IndexMark, read_checkpoint
from mqlake.torture.faults.damage import damage
from tests.helpers import LOG_FILE, message, open_bare, writer_of

KINDS = ("plain", "many queues", "retained", "emptied queue", "deleted topics", "scarred", "torn tail")


def rebuild_here(
    store: Path, out: Path | None = None, *, config: StoreConfig | None = None, part_size: int = 1 << 30, tasks: int = 3
) -> Rebuilt:
    """Do what `mqlake.spark.rebuild` does, one task at a time, in random order because tasks have none."""
    shuffled = random.Random(part_size)
    with Rebuild(store, out, config or StoreConfig()) as job:
        parts = job.parts(part_size)
        shuffled.shuffle(order := list(range(len(parts))))
        pieces = {number: harvest(job.staging, parts[number]) for number in order}
        works = job.works(chain.from_iterable(pieces.values()), tasks)
        shuffled.shuffle(order := list(range(len(works))))
        built = {number: build(job.site, works[number]) for number in order}
        return job.finish(built.values())


def make_store(kind: str, path: Path, seed: int) -> Path:
    """Make a closed store of that kind, with every sort of message, in small files."""
    draw = random.Random(f"{kind}{seed}")
    with open_bare(path) as store:
        _fill(store, draw, 100 if kind == "few" else 700, queues=12 if kind == "many queues" else 3)
        if kind == "emptied queue":  # all messages of the other topics are deleted
            for number in range(400):
                store.put(message(number, "later", queue_id=0, body=draw.randbytes(400)))
        if kind == "deleted topics":  # one for good, one created again
            for topic in ("%RETRY%group", "events"):
                delete_topic(store, topic)
            for number in range(40):
                store.put(message(number, "events", queue_id=number % 2))
        if kind in ("retained", "emptied queue"):
            store.wait_dispatched()
            assert store.retain(before_offset=store.end_offset - 2 * LOG_FILE).file_count
    if kind == "scarred":
        for _ in range(6):
            damage(path, draw.randrange(1 << 30), files="commitlog/*", kind="flip_bit")
    elif kind == "torn tail":
        (path / "abort").touch()
        with MessageStore.open(path, read_only=True) as store:
            end = store.end_offset
        with (path / "commitlog" / f"{end - end % LOG_FILE:020d}").open("r+b") as file:
            file.seek(end % LOG_FILE)
            file.write(b"\0\0\1\0\xda\xa3\x20\xa7" + draw.randbytes(50))
    return path


def delete_topic(store: MessageStore, topic: str) -> None:
    """Do what `delete_topic` does in a store with delivery."""
    writer_of(store).delete_topic(topic)


def _fill(store: MessageStore, draw: random.Random, count: int, *, queues: int) -> None:
    for number in range(count):
        fields: dict[str, Any] = {"queue_id": draw.randrange(queues), "body": draw.randbytes(draw.randrange(600))}
        topic = draw.choice(["orders", "orders", "events", "%RETRY%group"])
        kind = draw.random()
        if kind < 0.05:
            fields["sys_flag"] = draw.choice([0x4, 0x8, 0xC])
        elif kind < 0.1:
            topic, fields["properties"] = "SCHEDULE_TOPIC_XXXX", {"DELAY": str(draw.randrange(20))}
        elif kind < 0.2:
            topic, fields["properties"] = "orders", {"INNER_MULTI_DISPATCH": "%LMQ%one,%LMQ%two"}
        elif kind < 0.3:
            fields["keys"] = ""
        store.put(message(number, topic, **fields))


def opened_from_log(path: Path, copy: Path, config: StoreConfig | None = None) -> Path:
    """Copy a store and let an opening that does not trust its queues and index rebuild them."""
    shutil.copytree(path, copy)
    if (copy / "mqlake" / "checkpoint").exists():
        (copy / "mqlake" / "checkpoint").write_bytes(_distrusted(copy))
    (copy / "abort").touch()
    with MessageStore.open(copy, config=config or StoreConfig(), deliver=False) as store:
        assert store.recovery is not None and store.recovery.reason in ("rebuild", "unclean stop", "new")
    return copy


def _distrusted(store: Path) -> bytes:
    checkpoint = read_checkpoint(store / "mqlake" / "checkpoint")
    assert checkpoint is not None
    return replace(checkpoint, clean=False, index=IndexMark(slot_count=-1)).encode()


def queue_files(store: Path) -> dict[str, bytes]:
    """Return the queue files by name."""
    root = store / "consumequeue"
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def index_files(store: Path) -> list[bytes]:
    """Return the index files, oldest first: their names are their creation times."""
    return [path.read_bytes() for path in sorted((store / "index").iterdir())] if (store / "index").exists() else []


def times_of(store: Path) -> dict[str, tuple[int, int]]:
    """Return each file's modification time and size."""
    found = (Path(folder, name) for folder, _, names in os.walk(store) for name in names)
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}
