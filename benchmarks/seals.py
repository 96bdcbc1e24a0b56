"""What seals cost a put, with and without by turns in one run, and how fast records are walked and a scrub reads.

    python -m benchmarks.seals DIR [ROUNDS]

Sealing runs ten times as often here as by default. On a machine with other work only the medians mean something; the
processor time of the putting thread says what the turns of other programs hide.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path

from benchmarks.machine import describe
from mqlake import CommitLogConfig, IndexConfig, Message, MessageStore, RetentionConfig, SealConfig
from mqlake.files.names import file_name
from mqlake.inspect.scrub import scrub
from mqlake.kernel import survey_records

PUTS = 60_000
MESSAGES = [Message("t", bytes(1024), queue_id=number % 4) for number in range(64)]


def put(path: Path, *, sealed: bool) -> tuple[float, float]:
    """Return puts a second, and microseconds of the putting thread for each."""
    shutil.rmtree(path, ignore_errors=True)
    with MessageStore.open(
        path,
        deliver=False,
        seals=SealConfig(enabled=sealed, interval_ms=500),
        retention=RetentionConfig(enabled=False),
        commit_log=CommitLogConfig(file_size_bytes=256 << 20),
        index=IndexConfig(slot_count=100_000, entry_count=400_000),
    ) as store:
        began, worked = time.perf_counter(), time.thread_time()
        for number in range(PUTS):
            store.put(MESSAGES[number & 63])
        return PUTS / (time.perf_counter() - began), (time.thread_time() - worked) / PUTS * 1e6


def main(folder: Path, rounds: int) -> None:
    print(describe())
    path = folder / "seals-benchmark"
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for turn in range(rounds):
        for sealed in (True, False) if turn % 2 else (False, True):
            found[sealed].append(put(path, sealed=sealed))
    for sealed, rows in found.items():
        rate, cost = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{'with' if sealed else 'without'} seals: {rate:,.0f} puts/s, {cost:.2f} µs of the putting thread each")
    put(path, sealed=True)
    log = (path / "commitlog" / file_name(0)).read_bytes()
    began = time.perf_counter()
    walked = survey_records(log, 0, len(log), 0, len(log)).position
    print(f"walk before sealing: {walked / 1e9 / (time.perf_counter() - began):.1f} GB/s")
    worked = time.process_time()
    report = scrub(path)
    worked = time.process_time() - worked
    size = report.sealed_bytes / 1e9
    print(f"scrub: {size / report.took_s:.2f} GB/s, {size / worked:.2f} GB for a second of processor time")
    shutil.rmtree(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
