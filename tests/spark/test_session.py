"""A session suits the source. Without a recent Java, the error says what was found and how to get what is needed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from mqlake.cli.spark import failure, start
from mqlake.errors import MissingJava, SparkNotStarted
from mqlake.spark.jobs.tasks import settle
from mqlake.spark.session import (
    JAVA_NEEDED,
    LOCAL_SETTINGS,
    SETTINGS,
    WORKER_PYTHON,
    require_java,
    session,
    worker_python,
)

ARCHIVES = "pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.3.0.jar"


def java_that_prints(home: Path, text: str) -> None:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\n")
    (home / "bin" / "java").chmod(0o755)


def in_a_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield where PySpark was imported from, and by which interpreter."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"text": [pyspark.__file__, sys.executable]})


def test_workers_import_installed_packages_and_no_archives(spark: SparkSession) -> None:
    rows = spark.range(1).mapInArrow(in_a_worker, "text string").collect()
    assert [row.text for row in rows] == [pyspark.__file__, sys.executable]


def test_only_workers_on_this_machine_are_started_by_our_script(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {worker_python(master) for master in ("local", "local[2]", "local[*]")} == {str(WORKER_PYTHON)}
    assert {worker_python(master) for master in ("spark://a:7077", "local-cluster[2,1,1024]")} == {sys.executable}
    monkeypatch.setattr(pyspark, "__file__", "/somewhere/pyspark.zip/pyspark/__init__.py")
    assert worker_python("local") == sys.executable, "PySpark is only in an archive"


def test_the_script_removes_sparks_archives_from_the_path_and_keeps_the_rest() -> None:
    path = ["/a b", *(f"/spark/{name}" for name in ARCHIVES), "/c"]
    environment = {"PYTHONPATH": ":".join(path), "MQLAKE_PYTHON": sys.executable}
    command = [str(WORKER_PYTHON), "-c", "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:])", "x y", "z"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "/a b:/c x y z\n"


@pytest.mark.parametrize(("given", "found"), [({}, "1"), ({"OMP_NUM_THREADS": "4"}, "4")])
def test_a_planning_process_has_one_thread_unless_configured_otherwise(given: dict[str, str], found: str) -> None:
    command = [str(WORKER_PYTHON), "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]
    environment = {"MQLAKE_PYTHON": sys.executable, **given}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{found}\n"


def test_a_task_forgets_only_sparks_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archives = [tmp_path / name for name in (*ARCHIVES, "mine.zip")]
    for archive in archives:
        with zipfile.ZipFile(archive, "w") as made:
            made.writestr(f"in_{archive.stem[:4]}.py", "")
        monkeypatch.syspath_prepend(str(archive))
    with pytest.raises(ImportError):
        importlib.import_module("nowhere_at_all")
    assert all(str(archive) in sys.path_importer_cache for archive in archives)
    settle()
    assert [str(archive) in sys.path_importer_cache for archive in archives] == [False, False, False, True]
    assert importlib.import_module("in_pysp").__file__ == f"{archives[0]}/in_pysp.py", "it must be found again"


def test_the_session_has_the_settings_of_the_source_and_adds_java_options(spark: SparkSession) -> None:
    expected = SETTINGS | LOCAL_SETTINGS
    assert {name: spark.conf.get(name) for name in expected} == expected
    options = spark.sparkContext.getConf().get("spark.driver.extraJavaOptions") or ""
    assert "-Darrow.enable_unsafe_memory_access=true" in options and "-XX:+UseSerialGC" in options


@pytest.mark.parametrize(
    "text", ['openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_372"', "Unable to locate a Java Runtime."]
)
def test_an_old_java_is_refused_with_what_it_prints(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_prints(tmp_path, text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingJava) as caught:
        session("local[1]")
    assert text in str(caught.value)
    assert f"Java {JAVA_NEEDED} or newer" in str(caught.value)
    assert f"apt-get install openjdk-{JAVA_NEEDED}-jre-headless" in str(caught.value)


def test_a_missing_java_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingJava, match="no java on PATH, and JAVA_HOME is not set"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(MissingJava, match="none that runs"):
        require_java()


def test_a_java_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(command: list[str], **how: object) -> None:
        raise subprocess.TimeoutExpired(command, 60)

    java_that_prints(tmp_path, "nothing")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(MissingJava, match="no answer within a minute"):
        require_java()


def test_an_unreachable_master_is_reported_in_one_sentence_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(master: str, **settings: object) -> None:
        os.write(2, b"26/01/01 WARN it tries\njava.io.IOException: Failed to connect\n\tat a.B\n")
        os.write(2, b"Caused by: java.net.ConnectException: Connection refused\n\tat c.D\n")
        raise PySparkRuntimeError("Java gateway process exited")

    monkeypatch.setattr(importlib.import_module("mqlake.spark.session"), "session", fails)
    with pytest.raises(SparkNotStarted) as caught:
        start("spark://nowhere:7077")
    assert str(caught.value).startswith(
        "Spark did not start with the master 'spark://nowhere:7077': Connection refused; name a running one"
    )
    assert capfd.readouterr().err == "", "Java's lines must not appear"


def test_an_error_raised_in_a_worker_is_reported_in_its_own_words() -> None:
    text = "An exception was thrown:\nTraceback (most recent call last):\n  File x\n{}: it is gone\n"
    for name in ("mqlake.errors.ChangedUnderRead", "mqlake.spark.read_split.FileVanished"):
        assert str(failure(text.format(name))) == f"{name.rpartition('.')[2]}: it is gone"


def test_a_recent_java_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_prints(tmp_path, 'openjdk version "21.0.4" 2024-07-16')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == 21
