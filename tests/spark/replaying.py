"""Replay in a process that kills itself on the way: `python -m tests.spark.replaying LAKE TO CALL`.

This one process is driver and workers. It dies, as by `kill -9`, at the CALLth call of any function of mqlake, that is,
between any two of its steps. If it reaches the end, it prints how many calls there were.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import mqlake
from mqlake import CommitLogConfig, ConsumeQueueConfig, IndexConfig, StoreConfig
from tests.lake.jobs import NO_SPARK, run_here

CONFIG = StoreConfig(
    commit_log=CommitLogConfig(file_size_bytes=131_072),
    consume_queue=ConsumeQueueConfig(file_size_bytes=100),  # five entries: queues do not begin in their first file
    index=IndexConfig(slot_count=100, entry_count=400),
)
module: Any = importlib.import_module("mqlake.spark.jobs.replay")


PACKAGE = str(Path(mqlake.__file__).parent)


def main(lake: str, to: str, call: str) -> None:
    seen = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal seen
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            seen += 1
            if seen == int(call):
                os.kill(os.getpid(), signal.SIGKILL)

    module.run_tasks, module.RANGE_BYTES, module.STEP_BYTES = run_here, 40_000, 90_000
    sys.setprofile(count)
    module.replay(NO_SPARK, lake, to, config=CONFIG)
    sys.setprofile(None)
    print(seen)


if __name__ == "__main__":
    main(*sys.argv[1:])
