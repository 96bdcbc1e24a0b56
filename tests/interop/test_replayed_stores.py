"""A store made from an archive opens in a real RocketMQ, which serves every message and appends after them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from mqlake import MessageStore, StoreConfig
from mqlake.inspect.repair import repair
from mqlake.spark import archive, replay
from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.rocketmq import RocketMQ
from tests.interop.test_repaired_stores import compare
from tests.interop.test_shared_stores import (
    SETTINGS,
    comparable,
    counts_of,
    dumped_by,
    messages,
    our_lines,
    plain_lines,
)
from tests.lake.jobs import NO_SPARK, run_here, run_jobs_here

pytestmark = WITH_ROCKETMQ
CONFIG = StoreConfig.from_properties(SETTINGS)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Archive a store whose oldest messages retention has deleted."""
    run_jobs_here(monkeypatch)
    monkeypatch.setattr(importlib.import_module("mqlake.spark.jobs.replay"), "run_tasks", run_here)
    with MessageStore.open(tmp_path / "ours", config=CONFIG) as store:
        for message in messages(1, 400):
            store.put(message)
        store.wait_dispatched()
        assert store.retain(before_offset=100_000).file_count
    archive(NO_SPARK, str(tmp_path / "ours"), str(tmp_path / "lake"), split_size="50k")
    return tmp_path / "lake"


@pytest.mark.parametrize("keeps", [False, True], ids=["counted from 0", "with their queue offsets"])
@pytest.mark.parametrize("version", ["5.5.1", pytest.param("4.9.8", marks=pytest.mark.long)])
def test_rocketmq_serves_a_replayed_store_and_appends_to_it(
    version: str, keeps: bool, lake: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = tmp_path / "replayed"
    replay(NO_SPARK, str(lake), str(path), config=CONFIG, keep_queue_offsets=keeps, keep_store_times=keeps)
    counts = counts_of(our_lines(path))
    assert counts["records"] == counts_of(our_lines(tmp_path / "ours"))["records"] > 200
    assert comparable(dumped_by(version, path, tmp_path)) == comparable(our_lines(path))
    RocketMQ(version).write(path, SETTINGS, plain_lines(2, 60))
    ours = comparable(our_lines(path))
    assert counts_of(ours)["records"] == counts["records"] + 60
    record_property(f"compared: RocketMQ {version} on a replayed store", counts_of(ours))


@pytest.mark.parametrize("version", ["5.5.1", pytest.param("4.9.8", marks=pytest.mark.long)])
def test_rocketmq_serves_a_selection_that_kept_its_queue_offsets_after_a_repair(
    version: str, lake: Path, tmp_path: Path
) -> None:
    path = tmp_path / "replayed"
    replay(NO_SPARK, str(lake), str(path), config=CONFIG, keep_queue_offsets=True, tags=["TagA", "BB"])
    repair(path, config=CONFIG)
    assert compare(path, version, SETTINGS, tmp_path) > 20
