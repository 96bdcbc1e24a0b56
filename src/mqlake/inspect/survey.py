"""Survey the files of a folder that may be damaged in any way: which exist, and where each belongs.

`MappedFileQueue.load` refuses a folder with a wrong file in it; a survey accepts everything. The records of a log file
determine its place, because each holds its own offset; if a file has no record, its name does.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import NamedTuple

from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import LAST_START, start_of
from mqlake.kernel import check_record, find_record
from mqlake.logs.commit_log import MARKER_MAGIC, MARKER_SIZE

OFFSET_AT = 28
MAGIC_START = b"\xda\xa3\x20"
MOVED = ".moved"
"""The suffix of a file during a rename; an interrupted repair leaves it."""
MAX_TRIES = 10_000
"""At most this many candidates are checked for a record that gives the place of a file."""


class FoundFile(NamedTuple):
    """A file as it is on disk. `start` is the offset in its name, None if the name is no offset."""

    path: Path
    start: int | None
    size: int


def look(directory: Path) -> list[FoundFile]:
    """Return the files of a folder in the order of their names, without folders; none if it is missing."""
    found = []
    try:
        with os.scandir(directory) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return []  # a link to itself
    for entry in listed:
        try:
            status = entry.stat()
        except OSError as error:  # deleted since, or a link to nowhere or to itself
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            continue
        if not stat.S_ISDIR(status.st_mode):
            found.append(FoundFile(Path(entry.path), start_of(entry.name), status.st_size))
    return found


def open_file(path: Path, start: int) -> MappedFile | None:
    """Map a file of any size for reading, so that any byte of it can be read; return None if it is empty or gone."""
    try:
        size = path.stat().st_size
        file = MappedFile.open(path, start, size, writable=False) if size else None
    except FileNotFoundError:
        return None
    if file is not None and _takes_memory_for_holes(file):
        file.read_in()
    return file


def _takes_memory_for_holes(file: MappedFile) -> bool:
    """Return whether the file is in a tmpfs and has holes.

    A tmpfs gives a hole a block when its mapped page is read: that takes space from the store, and is SIGBUS if there
    is none left.
    """
    status = os.fstat(file.descriptor)
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    return status.st_blocks * 512 < file.size and device in _tmpfs_devices()


def _tmpfs_devices() -> set[str]:
    """Return the device numbers of all mounted tmpfs, as `proc_pid_mountinfo` shows them."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {line.split()[2] for line in mounts if " - tmpfs " in line}


def likely_file_size(files: list[FoundFile], spare: list[FoundFile], noted: int = 0) -> int | None:
    """Return the file size that best fits the files, the spare files, the markers and the names.

    What was `noted` when the store was created is believed if a file has that size, or if nothing speaks against it.
    """
    starts = sorted({file.start for file in files if file.start is not None})
    sizes = Counter(file.size for file in files if file.size)
    others = max((count for size, count in sizes.items() if size != noted), default=0)
    if noted and (sizes[noted] or (others < 2 and all(start % noted == 0 for start in starts))):
        return noted
    votes = Counter({size: 2 * count for size, count in sizes.items()})
    for file in spare:  # a spare file is no part of the log: it decides only if the log's own files do not
        votes[file.size] += 1 if file.size else 0
    if len(+votes) == 1 and all(start % size == 0 for start in starts for size in +votes):
        return next(iter(+votes))
    for file in files:
        votes[marked_size(file)] += 3
    for one, other in pairwise(starts):
        votes[other - one] += 1
    largest, step = max((file.size for file in files), default=0), gcd(*starts)
    if 0 < largest <= step:  # the smallest distance between names that fits every file
        parts = (step // n for n in range(1, min(step // largest, MAX_TRIES) + 1) if step % n == 0)
        votes[min(parts)] += 1
    votes[0] = 0
    fits = {size: sum(start % size == 0 for start in starts) for size in +votes}
    return max(fits, key=lambda size: (fits[size], votes[size], size), default=None)


def marked_size(found: FoundFile) -> int:
    """Return the file size that an end-of-file marker implies; 0 if there is no marker."""
    file = open_file(found.path, 0)
    at = file.pages.rfind(MARKER_MAGIC.to_bytes(4, "big"), 4) - 4 if file is not None else -1
    if file is None or at < 0:
        return 0
    told = int.from_bytes(file.pages[at : at + 4], "big", signed=True)
    return at + told if told >= MARKER_SIZE else 0


def own_start(file: MappedFile, file_size: int) -> int | None:
    """Return the start of a log file according to its records; None if it has none.

    No CRC covers the offset in a record, so one that places the file elsewhere needs a second one, if there is one.
    """
    if file.start >= 0:
        if check_record(file.pages, 0, file.size, file.start, True) > 0:
            return file.start
        if find_record(file.pages, 0, file.size, file.start, True) < file.size:
            return file.start
    claims: Counter[int] = Counter()
    at = file.pages.find(MAGIC_START, 4) - 4
    for _ in range(MAX_TRIES):
        if at < 0:
            break
        if check_record(file.pages, at, file.size, -1, True) > 0:
            start = int.from_bytes(file.pages[at + OFFSET_AT : at + OFFSET_AT + 8], "big", signed=True) - at
            if 0 <= start <= LAST_START and start % file_size == 0:
                claims[start] += 1
                if claims[start] > 1:
                    break
        at = file.pages.find(MAGIC_START, at + 5) - 4
    return claims.most_common(1)[0][0] if claims else None


class Placement(NamedTuple):
    """Where the files of the log belong."""

    files: dict[int, MappedFile]
    """Files by start, each with its present size."""
    misnamed: dict[int, Path]
    """Those of them with a wrong name."""
    aside: list[tuple[FoundFile, str]]
    """Files that are not part of the log, and why."""
    apart: frozenset[Path] = frozenset()
    """Those of them with records for a place that no file has, but far from the log."""


def place(found: list[FoundFile], file_size: int) -> Placement:
    """Assign every file its place. If two claim one, the file with that name gets it."""
    files: dict[int, MappedFile] = {}
    misnamed: dict[int, Path] = {}
    aside: list[tuple[FoundFile, str]] = []
    strays: dict[int, FoundFile] = {}
    blank: list[tuple[FoundFile, MappedFile]] = []
    for each in found:
        file = open_file(each.path, -1 if each.start is None else each.start)
        if file is None:
            aside.append((each, "empty"))
            continue
        start = own_start(file, file_size)
        if start is None:
            blank.append((each, file))
        elif start == each.start and start % file_size == 0:
            files[start] = file
        elif start in strays or start % file_size:
            aside.append((each, _of_file(start)))
        else:
            strays[start] = each
    named = (start_of(each.path.name.removesuffix(MOVED)) for each in found)
    names = [start for start in named if start is not None and start % file_size == 0]
    for start in _continuing(files, strays, names, file_size):
        file = open_file(strays[start].path, start)
        if file is not None:
            misnamed[start], files[start] = file.path, file
    left = {start: each for start, each in strays.items() if start not in misnamed}
    apart = frozenset(each.path for start, each in left.items() if start not in files)
    aside += [(each, _of_file(start)) for start, each in left.items()]
    for each, file in blank:
        if each.start is None or each.start in files or each.start % file_size:
            aside.append((each, "no record"))
        else:
            files[each.start] = file
    _drop_what_is_far(files, file_size, aside, {file.start for _, file in blank})
    return Placement(files, misnamed, aside, apart)


def _of_file(start: int) -> str:
    return f"records of the file that starts at {start}"


def _continuing(
    files: Collection[int], strays: Collection[int], names: Collection[int], file_size: int
) -> Iterator[int]:
    """Yield the starts of strays that belong to the log: between other files of it, or adjacent to one.

    If every file has a wrong name, the one in the middle begins, and as many as there are may be missing between two.
    """
    left = sorted(set(strays).difference(files))
    if files:
        low, high, reach = min([*files, *names]), max([*files, *names]), file_size
    elif left:
        low = high = left[len(left) // 2]
        reach = file_size * len(left)
    while near := [start for start in left if low - reach <= start <= high + reach]:
        yield from near
        low, high = min(low, *near), max(high, *near)
        left = [start for start in left if start not in near]


def _drop_what_is_far(
    files: dict[int, MappedFile], file_size: int, aside: list[tuple[FoundFile, str]], blank: set[int]
) -> None:
    """Keep files without a record if they are between files with records, or directly after them."""
    held = [start for start in files if start not in blank]
    start = max(held, default=min(files, default=0) - file_size) + file_size
    while start in files:
        start += file_size
    for far in [known for known in files if known in blank and (known > start or known < min(held, default=known))]:
        file = files.pop(far)
        aside.append((FoundFile(file.path, far, file.size), "no record, and not adjacent to the log"))
