"""The wall clock is wrong by what was set, everywhere a program can read it; the clocks that nobody sets stay right."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from mqlake.torture.faults.wrongclock import WrongClock

PROBE = """
import ctypes, datetime, sys, time
for line in sys.stdin:
    walls = [time.time(), time.time_ns() / 1e9, datetime.datetime.now().timestamp(), ctypes.CDLL(None).time(None)]
    walls.append(time.clock_gettime(time.CLOCK_REALTIME))
    print(*walls, time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
"""


def test_the_wall_clock_is_wrong_by_what_was_set_and_the_others_are_right(tmp_path: Path) -> None:
    clock = WrongClock(tmp_path / "clock")
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE], env=clock.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        for ahead_s in (0, 864_000, -3_600, 4.75, -4.75, 0):
            clock.set(ahead_s)
            process.stdin.write("\n")
            process.stdin.flush()
            *walls, monotonic, boot = map(float, process.stdout.readline().split())
            assert all(abs(wall - time.time() - ahead_s) < 2 for wall in walls), (ahead_s, walls)
            assert abs(monotonic - time.monotonic()) < 2
            assert abs(boot - time.clock_gettime(time.CLOCK_BOOTTIME)) < 2
        process.stdin.close()
