"""Syncs that the kernel makes without the interpreter lock fail as they should, in a process whose disk fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mqlake.torture.faults.failsync import failing_env
from tests.helpers import covers

PROGRAM = """
import asyncio, json, sys, threading
from mqlake import CommitLogConfig, FlushConfig, Message, MessageStore, StoreFailed

store = MessageStore.open(
    sys.argv[1], flush=FlushConfig(sync=True), commit_log=CommitLogConfig(file_size_bytes=1 << 20)
)
acknowledged, refused, lies = [], [], []

def judge(receipt):
    (acknowledged if store.stats().durable_end >= receipt.end else lies).append(receipt.physical_offset)

def by_thread():
    for number in range(40):
        try:
            judge(store.put(Message("t", b"x" * 100, queue_id=0)))
        except StoreFailed as error:
            refused.append(str(error))

async def by_task():
    for number in range(40):
        try:
            judge(await store.put_async(Message("t", b"x" * 100, queue_id=0)))
        except StoreFailed as error:
            refused.append(str(error))

async def tasks():
    await asyncio.gather(*[by_task() for _ in range(4)])

if sys.argv[2] == "threads":
    threads = [threading.Thread(target=by_thread) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
else:
    asyncio.run(tasks())
store.wait_dispatched()
readable = len(store.read("t", limit=1000)) if acknowledged else 0
stats = store.stats()
print(json.dumps([len(acknowledged), refused[:1], len(refused), lies, readable, stats.failure, stats.sync_count]))
store.close()
"""


def run(store: Path, waiters: str, **faults: object) -> list[object]:
    env = failing_env("fdatasync", path="/commitlog/", **faults)  # type: ignore[arg-type]
    command = [sys.executable, "-c", PROGRAM, str(store), waiters]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    answers: list[object] = json.loads(result.stdout)
    return answers


@covers("L3", "L4")
@pytest.mark.parametrize("waiters", ["threads", "tasks"])
@pytest.mark.parametrize(("errno", "after"), [("EIO", 1), ("EIO", 4), ("ENOSPC", 9)])
def test_a_failed_sync_acknowledges_nothing_and_refuses_everything(
    tmp_path: Path, waiters: str, errno: str, after: int
) -> None:
    acknowledged, refusal, refused, lies, readable, failure, syncs = run(
        tmp_path / "s", waiters, errno=errno, after=after, times=1
    )
    assert lies == []
    assert acknowledged + refused == 160  # type: ignore[operator]
    assert refused
    assert readable == acknowledged, "reads still work, and show what is durable"
    reason = "Input/output error" if errno == "EIO" else "No space left on device"
    assert reason in str(refusal)
    assert reason in str(failure)
    assert syncs == after - 1, "the failed sync is not retried"


@pytest.mark.parametrize("waiters", ["threads", "tasks"])
def test_on_a_healthy_disk_every_put_is_covered_by_a_sync(tmp_path: Path, waiters: str) -> None:
    log = tmp_path / "calls"
    acknowledged, _, refused, lies, readable, failure, syncs = run(tmp_path / "s", waiters, after=1_000_000, log=log)
    assert (acknowledged, refused, lies, readable, failure) == (160, 0, [], 160, None)
    made = len(log.read_text().splitlines())  # one may have been in progress while they were counted
    assert 0 < syncs <= made, "every counted sync was made"  # type: ignore[operator]
