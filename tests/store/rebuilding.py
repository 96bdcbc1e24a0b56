"""A rebuild without Spark, in this process, and stores of many kinds to rebuild."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from mqlake import StoreConfig
from mqlake.store.assemble import build
from mqlake.store.checkpoint import IndexMark, read_checkpoint
from mqlake.store.harvest import harvest
from mqlake.store.message_store import MessageStore
from mqlake.store.rebuild import Rebuild, Rebuilt
from mqlake.torture.faults.damage import damage
from tests.helpers import LOG_FILE, message, open_bare

KINDS = ("plain", "many queues", "retained", "emptied queue", "deleted topics", "scarred", "torn tail")


def rebuild_here(
    store: Path, out: Path | None = None, *, config: StoreConfig | None = None, part_size: int = 1 << 30, tasks: int = 3
) -> Rebuilt:
    """What `mqlake.spark.rebuild` does, task after task; in no order, for tasks have none."""
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
    """A closed store of a kind, with every sort of message, in small files."""
    draw = random.Random(f"{kind}{seed}")
    with open_bare(path) as store:
        _fill(store, draw, 100 if kind == "few" else 700, queues=12 if kind == "many queues" else 3)
        if kind == "emptied queue":  # all messages of the other topics go
            for number in range(400):
                store.put(message(number, "later", queue_id=0, body=draw.randbytes(400)))
        if kind == "deleted topics":  # one for good, one that came again
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
    """What `delete_topic` of a store with delivery has the store do."""
    assert store._writer is not None
    store._writer.delete_topic(topic)


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
    """A copy of a store whose queues and index the store itself built again: they were not believed."""
    shutil.copytree(path, copy)
    if (copy / "mqlake" / "checkpoint").exists():
        (copy / "mqlake" / "checkpoint").write_bytes(_distrusted(copy))
    (copy / "abort").touch()
    with MessageStore.open(copy, config=config or StoreConfig()) as store:
        assert store.recovery is not None and store.recovery.reason in ("rebuild", "unclean stop", "new")
    return copy


def _distrusted(store: Path) -> bytes:
    checkpoint = read_checkpoint(store / "mqlake" / "checkpoint")
    assert checkpoint is not None
    return replace(checkpoint, clean=False, index=IndexMark(slot_count=-1)).encode()


def queue_files(store: Path) -> dict[str, bytes]:
    """The files of the queues by their names."""
    root = store / "consumequeue"
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def index_files(store: Path) -> list[bytes]:
    """The files of the index, oldest first: their names are when they were made."""
    return [path.read_bytes() for path in sorted((store / "index").iterdir())] if (store / "index").exists() else []


def times_of(store: Path) -> dict[str, tuple[int, int]]:
    """When each file was last changed, and its size."""
    found = (Path(folder, name) for folder, _, names in os.walk(store) for name in names)
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}
