"""A standalone Spark cluster on this machine: a master and workers with one core each, real processes on loopback.

    with Cluster(tmp_path, workers=2) as cluster:
        assert cluster.call(digest, store) == ...

A program has one Spark context, and that of the tests holds the shared session, so a driver is a separate process.
`call` starts one and runs a function of a module in it, with the session first. The block ends all processes by id.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from mqlake.errors import MissingJava
from mqlake.spark.session import require_java, session
from tests.helpers import eventually

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WAIT_S = 90.0


class Cluster:
    """A master and `workers` workers with one core each. Their logs are in `folder`."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""
        self.worker_pids: list[int] = []

    def __enter__(self) -> Cluster:
        try:
            require_java()
        except MissingJava as reason:
            pytest.skip(str(reason))
        try:
            self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.master = self._logged("Starting Spark master at ", 1)[0].split()[-1]
            for number in range(self._count):
                arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", "1"]
                arguments += ["--memory", "1g", "--work-dir", str(self._folder / f"work-{number}")]
                worker = self._start(f"worker-{number}", "worker.Worker", *arguments, self.master)
                self.worker_pids.append(worker.pid)
            self._logged("Registering worker ", self._count)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 540.0, **settings: object) -> Any:
        """Run `function(spark, *arguments)` in its own driver. Arguments and result are passed as JSON."""
        place, result = f"{function.__module__}:{function.__qualname__}", self._folder / "result.json"
        command = [sys.executable, "-m", "tests.spark.cluster", self.master, place, json.dumps([arguments, settings])]
        command.append(str(result))
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(result.read_text())

    def _start(self, name: str, daemon: str, *arguments: str) -> subprocess.Popen[bytes]:
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [str(program), f"org.apache.spark.deploy.{daemon}", *arguments]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, env=self._environment(), stdout=log, stderr=subprocess.STDOUT)
        self._processes.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
            "PYSPARK_PYTHON": sys.executable,
        }

    def _logged(self, text: str, times: int) -> list[str]:
        """Wait until the master has logged this text so many times. Return those lines."""
        log = self._folder / "master.log"

        def lines() -> list[str]:
            return [line for line in log.read_text().splitlines() if text in line]

        assert eventually(lambda: len(lines()) >= times or self._dead(), WAIT_S), log.read_text()[-2000:]
        assert not self._dead(), log.read_text()[-2000:]
        return lines()

    def _dead(self) -> bool:
        return any(process.poll() is not None for process in self._processes)

    def _stop(self) -> None:
        """Stop workers, which end their executors, before the master."""
        for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
            for process in reversed(self._processes):
                end(process)
            for process in self._processes:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    continue


def content_digest(rows: Iterable[dict[str, Any]]) -> str:
    """Return one text that identifies the exact content: every column of every row, ordered by store and offset."""
    ordered = sorted(rows, key=lambda row: (row["store"], row["physical_offset"]))
    texts = [repr({name: str(row[name]) for name in sorted(row)}) for row in ordered]
    return f"{len(texts)} rows, {hashlib.sha256(chr(10).join(texts).encode()).hexdigest()}"


def digest(spark: SparkSession, store: str, options: dict[str, str]) -> str:
    """Return the digest of a read of the store."""
    table: pa.Table = spark.read.format("mqlake").options(**options).load(store).toArrow()
    return content_digest(table.to_pylist(maps_as_pydicts="strict"))


def digest_while_killed(spark: SparkSession, store: str, options: dict[str, str], workers: list[int]) -> list[str]:
    """Return the same while the executors of the first worker are killed in the middle, and what was killed when.

    If a read finishes before a kill, read again.
    """
    import threading

    import psutil

    tracker = spark.sparkContext.statusTracker()
    killed: list[str] = []

    def tasks_done() -> int:
        infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return max((info.numCompletedTasks for info in infos if info is not None), default=0)

    def kill(over: threading.Event) -> None:
        if eventually(lambda: over.is_set() or tasks_done() >= 3, WAIT_S) and not over.is_set():
            for process in psutil.Process(workers[0]).children():
                # the script that started the worker may have left a zombie child, which has no command line
                with contextlib.suppress(psutil.ZombieProcess):
                    if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                        killed.append(f"executor {process.pid} after {tasks_done()} tasks")
                        process.kill()

    found = ""
    while not killed:
        over = threading.Event()
        killer = threading.Thread(target=kill, args=(over,))
        killer.start()
        found = digest(spark, store, options)
        over.set()
        killer.join()
    return [found, *killed]


def main(master: str, place: str, call: str, result: str) -> None:
    module, name = place.split(":")
    arguments, settings = json.loads(call)
    started = session(
        master,
        **{
            "spark_ui_enabled": "false",
            "spark_ui_showConsoleProgress": "false",
            "spark_sql_shuffle_partitions": 2,
            "spark_driver_memory": "512m",
            "spark_driver_host": "127.0.0.1",
            "spark_driver_bindAddress": "127.0.0.1",
            "spark_driver_extraJavaOptions": QUICK_START,
            "spark_executor_memory": "512m",
            "spark_executor_extraJavaOptions": QUICK_START,
            "spark_sql_session_timeZone": "UTC",
            **settings,
        },
    )
    started.sparkContext.setLogLevel("ERROR")
    Path(result).write_text(json.dumps(getattr(importlib.import_module(module), name)(started, *arguments)))
    started.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
