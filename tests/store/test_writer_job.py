"""A store opened for one piece of work is closed after it, wherever a signal interrupts."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

from mqlake import CommitLogConfig, StoreConfig
from mqlake.store.job import open_job
from tests.helpers import eventually, message
from tests.interrupting import interrupt_at


def test_a_piece_of_work_that_a_signal_interrupts_anywhere_leaves_the_store_free_and_no_thread(tmp_path: Path) -> None:
    config = StoreConfig(commit_log=CommitLogConfig(file_size_bytes=64 << 10))

    def work() -> None:
        with open_job(tmp_path / "s", config) as writer:
            writer.put(message(0), None)

    work()
    threads = set(threading.enumerate())
    for number in itertools.count():
        was_interrupted = interrupt_at(number, work, ("runtime/whole.py", "store/writer.py", "test_writer_job.py"))
        with open_job(tmp_path / "s", config, create=False) as writer:
            assert writer.recovery.reason == "checkpoint"
        assert eventually(lambda: set(threading.enumerate()) <= threads), f"line {number} left a thread"
        if not was_interrupted:
            break
    assert number > 20
