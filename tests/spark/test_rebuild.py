"""Rebuild on Spark: the tasks of one store together produce what dispatch does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import mqlake.spark
from mqlake.errors import StoreLocked
from tests.helpers import LOG_FILE, message, open_small
from tests.inspect.rebuilding import index_files, make_store, opened_from_log, queue_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


def test_workers_rebuild_what_dispatch_writes_elsewhere_and_in_place(spark: SparkSession, tmp_path: Path) -> None:
    store = make_store("scarred", tmp_path / "store", 5)
    wanted = opened_from_log(store, tmp_path / "opened")
    built = mqlake.spark.rebuild(spark, store, tmp_path / "out", part_size=LOG_FILE)
    assert built.index_file_count > 1 and built.queue_count > 5
    shutil.rmtree(store / "consumequeue")
    assert mqlake.spark.rebuild(spark, str(store), part_size=LOG_FILE)[1:-1] == built[1:-1]
    for made in (tmp_path / "out", store):
        assert queue_files(made) == queue_files(wanted)
        assert index_files(made) == index_files(wanted)
    with open_small(store) as opened:
        assert opened.recovery is not None and opened.recovery.reason == "checkpoint"


def test_a_store_with_a_writer_is_refused_before_a_task_starts(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.put(message(1))
        with pytest.raises(StoreLocked, match=rf"this process \(pid {os.getpid()}\) already has it open"):
            mqlake.spark.rebuild(spark, tmp_path / "store")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_command_reports_what_was_built(tmp_path: Path) -> None:
    store = make_store("plain", tmp_path / "store", 5)
    command = [sys.executable, "-m", "mqlake", "rebuild", str(store), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--master", "local[1]", "--json"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["record_count"] == 700
    assert queue_files(tmp_path / "out") == queue_files(store)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 3 and "name an empty or a new folder" in done.stderr
