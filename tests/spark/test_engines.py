"""One lake, written by the pipeline while driver, workers and S3 server are killed, read by every engine."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from mqlake import MessageStore
from mqlake.errors import StoreError
from mqlake.lake import Lake
from mqlake.lake.verify import verify
from mqlake.spark import archive, compact
from mqlake.torture.pipeline import COMMAND_S, kill_worker, put, start
from tests.lake.engines import assert_engines_agree
from tests.lake.jobs import rows_in
from tests.lake.s3 import Server, running
from tests.spark.tables import offsets_of, put_messages, write_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.long]
KILLS = int(os.environ.get("MQLAKE_KILLS", "100"))
BEHIND = 50_000
A_LIFE = 25
"""Kills in the life of one driver: its own at the end, before that those of workers and server."""


class Place:
    """Where a lake is: its address, its folder on this disk, the server, and what readers of a bucket must know."""

    def __init__(self, address: str, folder: Path, server: Server | None = None) -> None:
        self.address, self.folder, self.server = address, str(folder), server
        self.options = None if server is None else {**server.options, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, s3_port: int) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        if request.param == "folder":
            yield Place(str(tmp_path / "lake"), tmp_path / "lake")
        else:
            server = stack.enter_context(running("versitygw", tmp_path, s3_port))
            bucket = server.new_bucket()
            yield Place(f"s3://{bucket}/lake", tmp_path / "s3" / bucket / "lake", server)


@pytest.mark.timeout(1200)
def test_every_engine_reads_the_same_rows_at_three_versions(spark: SparkSession, tmp_path: Path, place: Place) -> None:
    write_store(tmp_path / "store", 400)
    archive(spark, str(tmp_path / "store"), place.address, split_size="50k")
    with MessageStore.open(tmp_path / "store") as opened:
        put_messages(opened, 400, 300)
    archive(spark, str(tmp_path / "store"), place.address, split_size="50k")
    compact(spark, place.address)
    found = assert_engines_agree(spark, place.address, [1, 2, 3], place.folder, place.options)
    assert [text.partition(",")[0] for text in found] == ["400 rows", "700 rows", "700 rows"]


@pytest.mark.timeout(3600)
def test_a_lake_made_under_a_hundred_kills_is_read_alike_by_every_engine(
    spark: SparkSession, tmp_path: Path, place: Place
) -> None:
    rng, kills, lives = random.Random(13), Counter[str](), itertools.count()
    pinned: list[int] = []
    while kills.total() < KILLS:
        one_life(tmp_path, place, rng, kills, lives)
        if not pinned:
            pinned.append(version_of(place.address))
        print(f"{dict(kills)}, version {version_of(place.address)}", flush=True)
    assert kills["driver"] and kills["worker"] and bool(kills["server"]) == (place.server is not None)
    put(tmp_path / "store", next(lives))
    last = start(tmp_path, place.address, rng, "--once", "--batch-bytes", "1m", "--split-size", "100k")
    assert last.wait(COMMAND_S) == 0, (tmp_path / "command.txt").read_text(errors="replace")[-2000:]
    pinned.append(version_of(place.address))
    compact(spark, place.address)
    pinned.append(version_of(place.address))
    assert verify(Lake.open(place.address)) == []
    archived = [row["physical_offset"] for row in rows_in(place.address)]
    assert archived == offsets_of(tmp_path / "store", includeInternal="true")
    found = assert_engines_agree(spark, place.address, pinned, place.folder, place.options)
    told = f"{place.address}: {dict(kills)}, {len(archived)} messages, versions {pinned}: {found}\n"
    with (tmp_path.parent / "engines.txt").open("a") as file:
        file.write(told)
    print(f"\n{told}")


def one_life(folder: Path, place: Place, rng: random.Random, kills: Counter[str], lives: Iterator[int]) -> None:
    """Run the pipeline on a store that grows. Kill workers and the server while it commits, then the pipeline."""
    put(folder / "store", next(lives))
    command = start(folder, place.address, rng, "--every", "10ms")
    done, before, deadline = 0, version_of(place.address), time.monotonic() + COMMAND_S
    while version_of(place.address) == before and command.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    while done < A_LIFE - 1 and command.poll() is None and time.monotonic() < deadline:
        if place.server is not None and rng.random() < 0.4:
            place.server.kill()
            time.sleep(rng.uniform(0, 0.5))
            place.server.start()
            kills["server"] += 1
            done += 1
        elif kill_worker(command.pid, rng):
            kills["worker"] += 1
            done += 1
        else:  # no task runs: there is nothing to do, or the driver is between two batches
            grow(folder / "store", place.address, lives)
        time.sleep(rng.uniform(0.5, 2.5))  # a task may die three times, not four
    if command.poll() is None:
        os.killpg(command.pid, signal.SIGKILL)
        kills["driver"] += 1
    command.wait()


def grow(store: Path, lake: str, lives: Iterator[int]) -> None:
    """Put more messages if the lake has nearly all of them."""
    with MessageStore.open(store, read_only=True) as opened:
        end = opened.end_offset
    with contextlib.suppress(StoreError):
        (state,) = Lake.open(lake).snapshot().stores.values()
        if end - state.end < BEHIND:
            put(store, next(lives))


def version_of(place: str) -> int:
    try:
        return Lake.open(place).snapshot().version
    except StoreError:
        return 0
