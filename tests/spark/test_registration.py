"""`format("mqlake")` is known on any session: plain, in threads, on Spark Connect. `test_cluster.py` has the cluster.

A program has one Spark, and that of the tests is a session of `mqlake.spark.session`. So the others are programs of
their own: `python -m tests.spark.test_registration FUNCTION FOLDER` prints what FUNCTION returns.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import mqlake.spark
from mqlake.errors import MissingJava, NotOnConnect
from mqlake.spark.session import require_java
from mqlake.torture.faults.damage import damage
from tests.helpers import eventually
from tests.spark.cluster import QUICK_START
from tests.spark.cluster_jobs import write_and_stream
from tests.spark.tables import offsets_of, write_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(700)
ROWS = "select 'new' topic, 'body' body, 7 flag"


def expected_of(folder: Path) -> list[int]:
    count = len(offsets_of(folder / "store"))
    return [count, 2 * count]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", 60)
    return tmp_path


# ---- threads of the tests' own session


def in_a_thread(work: Any) -> Any:
    """Return what a new thread returns. Raises its error."""
    done: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


@pytest.mark.xdist_group("spark")
def test_a_new_thread_can_read_write_and_stream(spark: SparkSession, folder: Path) -> None:
    found = in_a_thread(lambda: write_and_stream(spark, str(folder / "store"), str(folder)))
    assert found == expected_of(folder)


@pytest.mark.xdist_group("spark")
def test_threads_that_write_at_once_each_write_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(ROWS)
    threads = [threading.Thread(target=rows.write.format("mqlake").mode("append").save, args=[str(tmp_path / "store")])]
    threads += [
        threading.Thread(target=lambda: rows.write.format("mqlake").mode("append").save(str(tmp_path / "store")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert eventually(lambda: len(offsets_of(tmp_path / "store")) == 4, 10)


@pytest.mark.xdist_group("spark")
def test_registering_twice_or_where_spark_knows_the_format_does_no_harm(spark: SparkSession, folder: Path) -> None:
    count = len(offsets_of(folder / "store"))
    for _ in range(2):
        assert spark.read.format("mqlake").load(str(folder / "store")).count() == count
        assert mqlake.spark.register(spark) is spark


# ---- programs of their own


def plain(folder: str) -> dict[str, Any]:
    """A session that knows nothing of us, in a virtual environment that is not activated."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        spark.read.format("mqlake").load(f"{folder}/store").count()
        before = "found"
    except Exception as error:  # Py4JJavaError or one of PySpark's, depending on the version
        before = "not found" if "DATA_SOURCE_NOT_FOUND" in str(error) else str(error)
    assert mqlake.spark.register(spark) is spark is mqlake.spark.session("local[2]"), "the one that runs"
    written = in_a_thread(lambda: write_and_stream(spark, f"{folder}/store", folder))
    findings = mqlake.spark.audit(spark, f"{folder}/store").count()
    spark.stop()
    return {"written": written, "before": before, "findings": findings}


def connect(folder: str) -> dict[str, Any]:
    """A session of Spark Connect, with its server."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    mqlake.spark.register(spark)
    store, damaged, lake = f"{folder}/store", f"{folder}/damaged", f"{folder}/lake"
    result: dict[str, Any] = {"written": in_a_thread(lambda: write_and_stream(spark, store, folder))}
    for name, path in (("findings", store), ("damages", damaged)):
        result[name] = mqlake.spark.audit(spark, path).count()
    try:
        mqlake.spark.pipeline(spark, store, lake, once=True)
    except NotOnConnect as error:
        result["pipeline"] = str(error)
    result["nothing made"] = not Path(lake).exists()
    mqlake.spark.archive(spark, store, lake)
    result["union"] = mqlake.spark.union(spark, store, lake).count()
    spark.stop()
    return result


def run(function: Any, folder: Path, environment: dict[str, str]) -> Any:
    try:
        require_java()
    except MissingJava as reason:
        pytest.skip(str(reason))
    environment = {**environment, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": QUICK_START}
    command = [sys.executable, "-m", "tests.spark.test_registration", function.__name__, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "result.json").read_text())


@pytest.mark.xdist_group("plain")
def test_a_plain_session_knows_the_format_once_it_is_registered_also_where_the_environment_is_not_activated(
    folder: Path, tmp_path: Path
) -> None:
    """The first python3 on the PATH has no mqlake."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "PYTHONPATH")}
    java = Path(shutil.which("java") or "/usr/bin/java").parent
    environment |= {"PATH": f"{programs}:{java}:/usr/bin:/bin"}
    assert run(plain, folder, environment) == {"written": expected_of(folder), "before": "not found", "findings": 0}


@pytest.mark.xdist_group("connect")
@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="Spark Connect needs pip install pyspark[connect]")
def test_spark_connect_runs_everything_but_the_pipeline_which_is_refused_by_name(folder: Path) -> None:
    shutil.copytree(folder / "store", folder / "damaged")
    damage(folder / "damaged", 1, files="commitlog/*", kind="flip_bit")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    found = run(connect, folder, environment)
    count = len(offsets_of(folder / "store"))
    refusal = "mqlake.spark.pipeline does not run on Spark Connect; use a session of mqlake.spark.session"
    assert found.pop("pipeline").startswith(refusal)
    assert found.pop("damages") >= 1
    assert found == {"written": expected_of(folder), "findings": 0, "nothing made": True, "union": count}


def main(function: str, folder: str) -> None:
    result = {"plain": plain, "connect": connect}[function](folder)
    Path(folder, "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
