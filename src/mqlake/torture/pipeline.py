"""kill -9 of `mqlake pipeline run`, driver and workers, at random moments, while the store grows.

The death of a worker costs a task, which Spark runs again. The death of the driver costs the running batch, and the
next command resumes from what the lake holds. In the end the archive must hold every record of the log exactly once,
the index every key exactly once, and the Delta table, read without the manifest, the same.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from mqlake import CommitLogConfig, Message, MessageStore, StoreError
from mqlake.torture.row import NotAllowed, Outcome, Row

MESSAGES = 600
"""Messages put before each command."""
DRIVER_KILLS = 4
"""Driver kills per case, on one lake."""
COMMAND_S = 400.0
LOG_BYTES = 1 << 16


class Pipeline(Row):
    name = "pipeline"
    title = "kill -9 of the pipeline's driver and workers while it brings a growing log into a lake"
    allowed = "every record of the log in the archive once, every key in the index once"
    share = 5
    stall_s = 1800.0  # five starts of a JVM
    cases = 25  # 100 drivers, and some workers

    def run(self, case: int, folder: Path) -> Outcome:
        try:
            from mqlake.spark.session import require_java

            require_java()
        except StoreError as error:
            raise NotAllowed(str(error)) from None
        rng, outcome = self.random(case), Outcome()
        for life in range(DRIVER_KILLS + 1):
            put(folder / "store", life)
            if life < DRIVER_KILLS:
                command = start(folder, str(folder / "lake"), rng, "--every", "10ms")
                outcome.faults += kill_at(command, folder / "lake", rng)
            else:
                last = start(folder, str(folder / "lake"), rng, "--once")
                if last.wait(COMMAND_S) != 0:
                    said = (folder / "command.txt").read_text(errors="replace")[-2000:]
                    outcome.count("errors", [said], "the last command failed")
        outcome.acknowledged = MESSAGES * (DRIVER_KILLS + 1)
        judge(outcome, folder / "store", folder / "lake")
        return outcome


def put(store: Path, life: int) -> None:
    with MessageStore.open(store, commit_log=CommitLogConfig(file_size_bytes=LOG_BYTES)) as opened:
        for number in range(life * MESSAGES, (life + 1) * MESSAGES):
            opened.put(Message(f"topic-{number % 7}", b"." * (number * 31 % 700), keys=f"key-{number}"))


def start(folder: Path, lake: str, rng: random.Random, *how: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mqlake", "pipeline", "run", str(folder / "store"), "--lake", lake]
    command += ["--batch-bytes", f"{rng.choice((20, 60))}k", "--split-size", "12k", "--master", "local[2,4]", *how]
    with (folder / "command.txt").open("ab") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)


def kill_at(command: subprocess.Popen[bytes], lake: Path, rng: random.Random) -> int:
    """Kill a worker now and then, then the command with its JVM after some commits. Return the number of kills."""
    kills = 0
    for _ in range(rng.choice((0, 0, 1, 2))):
        wait_for_commits(command, lake, 1)
        kills += kill_worker(command.pid, rng)
    wait_for_commits(command, lake, rng.choice((0, 1, 1, 2, 4)))
    time.sleep(rng.choice((rng.uniform(0, 0.1), rng.uniform(0, 1.5))))
    if command.poll() is None:
        os.killpg(command.pid, signal.SIGKILL)
        kills += 1
    command.wait()
    return kills


def wait_for_commits(command: subprocess.Popen[bytes], lake: Path, count: int) -> None:
    """Wait until the lake has `count` more commits, or the command ended."""
    wanted = commits_in(lake) + count
    deadline = time.monotonic() + COMMAND_S
    while command.poll() is None and commits_in(lake) < wanted and time.monotonic() < deadline:
        time.sleep(0.002)


def commits_in(lake: Path) -> int:
    try:
        return len(os.listdir(lake / "_mqlake" / "manifest"))
    except FileNotFoundError:
        return 0


def kill_worker(session: int, rng: random.Random) -> int:
    """Kill one of the Python processes that Spark's daemon started. Return 0 if there is none at the moment.

    `session` is the command's: the daemon leaves its process group.
    """
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
            is_daemon = b"pyspark.daemon" in Path("/proc", process, "cmdline").read_bytes()
        except OSError:
            continue
        parent, of_session = int(fields[1]), int(fields[3])
        if of_session == session and is_daemon:
            found.append((int(process), parent))
    workers = [process for process, parent in found if parent in {daemon for daemon, _ in found}]
    if not workers:
        return 0
    try:
        os.kill(rng.choice(workers), signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def judge(outcome: Outcome, store: Path, lake: Path) -> None:
    from mqlake.lake import Lake
    from mqlake.lake.messages import groups_within
    from mqlake.lake.verify import verify

    opened = Lake.open(lake)
    snapshot = opened.snapshot()
    found: Counter[int] = Counter()
    for file in snapshot.files("messages"):
        for rows in groups_within(opened.storage, file, [{}], ["physical_offset"]):
            found.update(rows.column("physical_offset").to_pylist())
    named: Counter[int] = Counter()
    for file in snapshot.files("index"):
        for rows in groups_within(opened.storage, file, [{}], ["physical_offset"]):
            named.update(rows.column("physical_offset").to_pylist())
    with MessageStore.open(store, read_only=True) as log:
        wanted = [offset for batch in log.scan(columns=["physical_offset"]) for offset in batch[0].to_pylist()]
    for counted, what in ((found, "archive"), (named, "index")):
        outcome.count("lost", [offset for offset in wanted if offset not in counted], f"not in the {what}: record at")
        twice = [offset for offset, count in counted.items() if count > 1 or offset not in set(wanted)]
        outcome.count("invented", twice, f"more than once in the {what}: record at")
    outcome.count("errors", verify(opened), "the lake is not intact")
    outcome.count("lost", sorted(set(wanted) - set(by_delta(lake))), "not in the Delta table: record at")


def by_delta(lake: Path) -> list[int]:
    """Return the offsets in the table messages as another engine sees it: from its Delta log alone."""
    try:
        import deltalake
    except ImportError:
        from mqlake.lake.delta_read import live_files
        from mqlake.lake.storage import storage_at

        newest = max(int(path.stem) for path in (lake / "messages" / "_delta_log").glob("*.json"))
        paths = [str(lake / path) for path in live_files(storage_at(lake), "messages", newest)]
    else:
        paths = deltalake.DeltaTable(str(lake / "messages")).file_uris()
    import pyarrow.parquet as pq

    files = [pq.ParquetFile(path.removeprefix("file://")) for path in paths]
    found = [offset for file in files for offset in file.read(["physical_offset"]).column(0).to_pylist()]
    assert len(found) == len(set(found)), "a record is in the Delta table once"
    return found
