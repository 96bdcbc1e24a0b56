"""Stores with more queues than descriptors can be written, closed, opened, followed and listed."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mqlake import Durability, FlushConfig, MessageStore
from tests.helpers import message, open_small

ROOT = Path(__file__).parents[2]
TOPICS = 300
WRITE = f"""
import os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
from mqlake import MessageStore
from tests.helpers import message, open_small
path = Path(sys.argv[1])
for turn in range(2):
    with open_small(path) as store:
        for number in range({TOPICS}):
            store.put(message(turn, topic=f"t{{number}}", queue_id=0))
        with MessageStore.open(path, read_only=True, config=store.config) as reader:
            for one in (store, reader):
                for number in range({TOPICS}):
                    assert len(one.read(f"t{{number}}", queue_id=0, start=0, limit=9)) == turn + 1
        assert store.stats().failure is None
    assert not (path / "abort").exists()
"""


def test_a_store_with_more_queues_than_descriptors_is_written_followed_and_reopened(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("limit", [12, 40])
def test_listing_topics_with_few_descriptors_works_or_names_what_is_missing(tmp_path: Path, limit: int) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(100):
            store.put(message(number, topic=f"t{number:03d}", queue_id=0))
    done = subprocess.run(
        [sys.executable, "-m", "mqlake", "topics", tmp_path / "s"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert "ulimit -n" in done.stderr
    else:
        assert "t099" in done.stdout
    assert done.returncode == 0 or limit < 40


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_reader_finds_a_new_topic_as_soon_as_its_first_message_is_acknowledged_as_durable(
    tmp_path: Path, sync: bool
) -> None:
    with (
        open_small(tmp_path / "s", flush=FlushConfig(sync=sync)) as store,
        MessageStore.open(tmp_path / "s", read_only=True, config=store.config) as reader,
    ):
        for number in range(30):
            store.put(message(number, topic=f"t{number}", queue_id=0), durability=Durability.DISK)
            assert len(reader.read(f"t{number}", queue_id=0, start=0)) == 1
