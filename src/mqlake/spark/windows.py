"""Which parts of a log can hold records of a time window, by the times that are known of its files.

The times of a block are those of all its records, so this is exact whatever the clock did (`logs/file_times.py`). A
file without known times is read as a whole, and so is the open one. The parts begin and end between records.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mqlake.files.layout import Layout
from mqlake.logs.file_times import FileTimes, times_of
from mqlake.spark.options import SourceOptions

Part = tuple[int, int]
NEAR_BYTES = 8 << 20
"""Parts that are nearer than this are read as one: a task costs more than walking what lies between them."""


def parts_in_time(store: str, file_size: int, start: int, stop: int, options: SourceOptions) -> list[Part]:
    """Return the parts of [start, stop) to read, in log order. All of it if no times or all damage are asked for."""
    by_time = options.start_time is not None or options.end_time is not None
    if not by_time or options.on_damage != "skip" or start >= stop:
        return [(start, stop)]
    layout, parts = Layout(Path(store)), []
    for log_start in range(start - start % file_size, stop, file_size):
        known = times_of(layout, log_start)
        inside = [(0, file_size)] if known is None else _wanted(known, file_size, options)
        parts += [(max(start, log_start + low), min(stop, log_start + high)) for low, high in inside]
    return _joined([part for part in parts if part[0] < part[1]])


def _wanted(known: FileTimes, file_size: int, options: SourceOptions) -> list[Part]:
    """Return the blocks of a file that have a record in time, and what is in no block."""
    ends, oldest, newest = (np.frombuffer(column, np.int64) for column in known)
    wanted = np.full(len(ends), True)
    if options.start_time is not None:
        wanted &= newest >= options.start_time
    if options.end_time is not None:
        wanted &= oldest < options.end_time
    starts = np.concatenate([[0], ends]).astype(np.int64)
    found = list(zip(starts[:-1][wanted].tolist(), ends[wanted].tolist(), strict=True))
    return [*found, (int(starts[-1]), file_size)]


def _joined(parts: list[Part]) -> list[Part]:
    """Return the same parts, with those that are near each other as one."""
    joined: list[Part] = []
    for low, high in parts:
        if joined and low - joined[-1][1] < NEAR_BYTES:
            joined[-1] = joined[-1][0], high
        else:
            joined.append((low, high))
    return joined
