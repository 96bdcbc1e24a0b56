"""The torture of the pipeline kills what it means to kill."""

from __future__ import annotations

import os
import random
import subprocess
import sys

from mqlake.torture.pipeline import kill_worker

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
