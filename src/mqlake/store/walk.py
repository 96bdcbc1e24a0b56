"""Walk the records of one log file, CRC included, on every processor.

Invariant: the result is the one that a single `walk_records` from the same position gives. A walk depends only on where
it starts, so parts that were walked in parallel form one walk if each ended exactly where the next one started. At the
first part that did not, a single thread continues from there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import find_record, walk_records
from mqlake.kernel.types import REACHED_END, Walked

PART_BYTES = 32 << 20
SEARCHED_BYTES = 256 << 10
"""How far into a part a first record is searched for. The unused end of a file has none and must not be read for it."""
MAX_THREADS = 8


def walk_file(file: MappedFile, position: int) -> Walked:
    """Walk the records of a log file from `position` on, up to the first that is torn or invalid."""
    threads = min(len(os.sched_getaffinity(0)), MAX_THREADS)
    if threads == 1 or file.size - position < 2 * PART_BYTES:
        return walk_records(file.pages, position, file.size, file.start, True)
    starts = _starts(file, position)
    whole = _joined(_walk_parts(file, starts, threads), [*starts[1:], file.size])
    if whole.why != REACHED_END or whole.position < file.size:
        rest = walk_records(file.pages, whole.position, file.size, file.start, True)
        whole = _followed_by(whole, rest)
    return whole


def _starts(file: MappedFile, position: int) -> list[int]:
    """Return where parts begin: at `position`, then at a whole record soon after every further PART_BYTES."""
    starts = [position]
    for target in range(position + PART_BYTES, file.size - SEARCHED_BYTES, PART_BYTES):
        found = find_record(file.pages, target, target + SEARCHED_BYTES, file.start)
        if found < target + SEARCHED_BYTES:
            starts.append(found)
    return starts


def _walk_parts(file: MappedFile, starts: Sequence[int], threads: int) -> list[Walked]:
    """Walk each part to the start of the next, on several threads: the kernel walks without the interpreter lock.

    Threads take parts in file order, and take no more once one has stopped early. The rest is walked again after
    damage, so walking much of it for every scar would take too long.
    """
    ends = [*starts[1:], file.size]
    walked: dict[int, Walked] = {}
    left = iter(range(len(starts)))  # shared by all threads: each part is taken once
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for part in left:
                walked[part] = walk_records(file.pages, starts[part], ends[part], file.start, True)
                if failures or walked[part].position < ends[part]:
                    for _ in left:
                        pass
        except BaseException as error:
            failures.append(error)

    helpers = [threading.Thread(target=work, name="mqlake-walk", daemon=True) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
    return [walked[part] for part in sorted(walked)]


def _joined(parts: Sequence[Walked], ends: Sequence[int]) -> Walked:
    """Join the parts into one walk, up to the first that did not reach the start of the next."""
    whole = parts[0]
    for before, part, end in zip(parts, parts[1:], ends, strict=False):
        if before.why != REACHED_END or before.position != end:
            break
        whole = _followed_by(whole, part)
    return whole


def _followed_by(walked: Walked, more: Walked) -> Walked:
    if not more.record_count:
        return walked._replace(position=more.position, why=more.why)
    return more._replace(record_count=walked.record_count + more.record_count)
