"""kill -9 of a Spark driver that streams into a store, and of the process that appends its batches, at random moments.

The JVM of a killed driver dies with it. A commit in another process may survive, and ends before the next driver's
commit. Each driver resumes from the checkpoint of the one before. In the end every row is in the store exactly once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from mqlake import MessageStore, StoreError
from mqlake.torture.row import NotAllowed, Outcome, Row

BATCHES, ROWS_EACH = 8, 500
DRIVER_KILLS = 4
"""Driver kills per case, on one stream."""
DRIVER_S = 300.0


class Sink(Row):
    name = "sink"
    title = "kill -9 of a Spark driver and of its commits while it streams into a store"
    allowed = "every row of the stream once"
    share = 5
    stall_s = 1800.0  # five starts of a JVM
    cases = 25  # 100 drivers, and as many commits

    def run(self, case: int, folder: Path) -> Outcome:
        try:
            from mqlake.spark.session import require_java

            require_java()
        except StoreError as error:
            raise NotAllowed(str(error)) from None
        rng, outcome = self.random(case), Outcome()
        write_lines(folder / "in")
        for life in range(DRIVER_KILLS + 1):
            driver = start_driver(folder)
            if life < DRIVER_KILLS:
                outcome.faults += kill_at(driver, folder / "store", rng)
            elif not ends_well(driver):
                outcome.count("errors", [(folder / "driver.txt").read_text()[-2000:]], "the last driver failed")
        outcome.acknowledged = BATCHES * ROWS_EACH
        judge(outcome, folder / "store")
        return outcome


def write_lines(folder: Path) -> None:
    folder.mkdir()
    for batch in range(BATCHES):
        numbers = range(batch * ROWS_EACH, (batch + 1) * ROWS_EACH)
        (folder / f"{batch:03d}.json").write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))


def start_driver(folder: Path) -> subprocess.Popen[bytes]:
    arguments = [str(folder / name) for name in ("in", "checkpoint", "store")]
    command = [sys.executable, "-m", "mqlake.torture.sink_driver", *arguments]
    with (folder / "driver.txt").open("ab") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)


def ends_well(driver: subprocess.Popen[bytes]) -> bool:
    try:
        return driver.wait(DRIVER_S) == 0
    except subprocess.TimeoutExpired:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        return False


def kill_at(driver: subprocess.Popen[bytes], store: Path, rng: random.Random) -> int:
    """Kill some commits, then the driver with its JVM. Return the number of kills."""
    kills = 0
    for _ in range(rng.choice((0, 1))):
        wait_for_end(wait_for_commit(driver, store), store)
    for _ in range(rng.choice((0, 1, 2))):
        kills += kill_commit(driver, store, rng)
    wait_for_commit(driver, store)
    time.sleep(rng.choice((rng.uniform(0, 0.1), rng.uniform(0, 2))))
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        kills += 1
    driver.wait()
    return kills


def wait_for_commit(driver: subprocess.Popen[bytes], store: Path) -> int:
    """Return the process that appends a batch, or 0 if the driver ended before there was one."""
    deadline = time.monotonic() + DRIVER_S
    while driver.poll() is None and time.monotonic() < deadline:
        holder = writer_of(store)
        if holder:
            return holder
        time.sleep(0.001)
    return 0


def wait_for_end(holder: int, store: Path) -> None:
    while holder and writer_of(store) == holder:
        time.sleep(0.001)


def writer_of(store: Path) -> int:
    """Return the process that holds the store's lock, or 0 if none does. It writes its id into the file, as the system
    does not say who holds an open-file-description lock."""
    try:
        inode, text = (store / "lock").stat().st_ino, (store / "lock").read_text()
    except FileNotFoundError:
        return 0
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    is_held = any("OFDLCK" in words and any(word.endswith(f":{inode}") for word in words) for words in lines)
    process = text.removeprefix("lock").strip()
    return int(process) if is_held and process.isdigit() else 0


def kill_commit(driver: subprocess.Popen[bytes], store: Path, rng: random.Random) -> int:
    holder = wait_for_commit(driver, store)
    time.sleep(rng.uniform(0, 0.08))
    if holder and writer_of(store) == holder:
        os.kill(holder, signal.SIGKILL)
        return 1
    return 0


def judge(outcome: Outcome, store: Path) -> None:
    try:
        with MessageStore.open(store, create=False) as opened:
            batches = opened.scan(columns=["topic", "flag"])
            found = Counter(
                number
                for batch in batches
                for topic, number in zip(batch["topic"].to_pylist(), batch["flag"].to_pylist(), strict=True)
                if topic.startswith("topic-")
            )
    except StoreError as error:
        outcome.count("refused", [error], "did not open")
        return
    wanted = range(BATCHES * ROWS_EACH)
    outcome.count("lost", [n for n in wanted if n not in found], "not in the store: row")
    outcome.count("invented", [n for n, count in found.items() if count > 1 or n not in wanted], "more than once: row")
