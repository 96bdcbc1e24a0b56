"""After a power cut, every message acknowledged as durable is there, none is invented, and the store continues."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mqlake import FlushConfig
from mqlake.torture.faults.powercut import crash_state, watch_env
from tests.helpers import covers, message, open_small

WRITER = """
import sys
from pathlib import Path
from mqlake import FlushConfig, PoolConfig
from tests.helpers import message, open_small
store_path, acknowledged, mode, first = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
flush = FlushConfig(sync=mode == "sync", interval_ms=20, thorough_interval_ms=40, least_pages=0,
                    queue_interval_ms=10, queue_thorough_interval_ms=30)
pool = PoolConfig(enabled=mode == "pool", buffer_count=2, commit_interval_ms=5)
with acknowledged.open("a") as out, open_small(store_path, flush=flush, pool=pool) as store:
    for number in range(first, first + 400):
        store.put(message(number, queue_id=number % 3, body=b"%06d" % number * (number % 90)))
        if mode == "sync":
            print(number, file=out, flush=True)
"""


def write_until_the_cut(tmp_path: Path, mode: str, cut: int, first: int = 0) -> None:
    """Write the messages from `first` on, up to sync number `cut`."""
    store = tmp_path / "store"
    store.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(WRITER),
        str(store),
        str(tmp_path / "acknowledged"),
        mode,
        str(first),
    ]
    env = watch_env(store, tmp_path / "shadow", kill_at_sync=cut)
    done = subprocess.run(
        command, env=env, cwd=Path(__file__).parents[2], check=False, capture_output=True, timeout=120
    )
    assert done.returncode in (0, -9), done.stderr.decode()


def acknowledged(tmp_path: Path) -> set[int]:
    file = tmp_path / "acknowledged"
    return {int(line) for line in file.read_text().split()} if file.exists() else set()


def require_whole(path: Path, known: set[int], told: str) -> None:
    """Require every acknowledged message once, in order, found by its key, and none that was not put."""
    for _ in range(2):
        with open_small(path, flush=FlushConfig(sync=True)) as store:
            assert store.recovery is not None
            assert store.recovery.reason in ("new", "checkpoint"), told
            found: set[int] = set()
            for queue in store.queues("orders") if "orders" in store.topics() else []:
                numbers = []
                start = 0
                while batch := store.read("orders", queue_id=queue.queue_id, start=start, limit=100):
                    assert [m.queue_offset for m in batch] == [*range(start, start + len(batch))], told
                    numbers += [int(m.keys[0].removeprefix("key-")) for m in batch]
                    start += len(batch)
                assert start == queue.end_offset, told
                assert numbers == sorted(set(numbers)), told
                for m, number in zip(store.read("orders", queue_id=queue.queue_id, limit=1), numbers, strict=False):
                    assert m.body == b"%06d" % number * (number % 90), told
                found |= set(numbers)
            assert known <= found, f"{told}: lost {sorted(known - found)[:5]} of {len(known)}"
            for number in [*sorted(found)[-8:], *sorted(found)[::40]]:
                assert len(store.find("orders", f"key-{number}")) == 1, (told, number)
            assert not store.stats().damage, told
            receipt = store.put(message(10_000, topic="after", queue_id=0))
            assert store.read("after", start=receipt.queue_offset)[0].keys == ["key-10000"]
        known = found


@covers("N4", "N5", "N6", "M2")
@pytest.mark.parametrize(
    ("mode", "cut"), [("async", 4), ("sync", 9), ("sync", 61), ("sync", 230), ("async", 37), ("pool", 45)]
)
def test_a_power_cut_loses_nothing_that_was_acknowledged_and_invents_nothing(
    tmp_path: Path, mode: str, cut: int
) -> None:
    write_until_the_cut(tmp_path, mode, cut)
    for seed in range(12):
        report = crash_state(tmp_path / "store", tmp_path / "shadow", tmp_path / "state", seed, tear=512)
        require_whole(tmp_path / "state", acknowledged(tmp_path), f"{mode}, sync {cut}, seed {seed}: {report['mode']}")
