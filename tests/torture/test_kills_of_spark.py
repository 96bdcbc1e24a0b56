"""The torture of pipeline and sink kills what it means to kill."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from mqlake import MessageStore
from mqlake.torture.pipeline import kill_worker
from mqlake.torture.run import Result, Torture
from mqlake.torture.sink import writer_of
from mqlake.torture.work import Job

DAEMON = """
import os, sys
os.setpgid(0, 0)  # as Spark's daemon does
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), flush=True)
"""
DRIVER = """  # its own arguments must not look like the daemon's
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1], "pyspark" + ".daemon"]).returncode)
"""


def test_a_worker_is_found_although_the_daemon_has_a_process_group_of_its_own() -> None:
    command = [sys.executable, "-c", DRIVER, DAEMON]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, start_new_session=True, text=True, **pipes) as driver:  # type: ignore[call-overload]
        worker = int(driver.stdout.readline())
        assert kill_worker(os.getpid(), random.Random(1)) == 0, "that of another session is left alone"
        assert os.path.exists(f"/proc/{worker}")  # noqa: PTH110
        assert kill_worker(driver.pid, random.Random(1)) == 1
        assert driver.stdout.readline() == "-9\n"


def test_the_process_that_appends_a_batch_is_found_by_the_lock_of_its_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert writer_of(store) == 0
    with MessageStore.open(store):
        assert writer_of(store) == os.getpid()
    assert writer_of(store) == 0


def test_a_row_without_a_single_fault_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def worked(_: Torture, job: Job, result: Result) -> bool:
        result.cases = result.tried = 3
        return True

    monkeypatch.setattr(Torture, "_work", worked)
    result = Torture(tmp_path, seed=1).run_row("sink", None)
    assert not result.is_good
    assert result.failures[0].broken == ["no case had a fault, so this row shows nothing"]
