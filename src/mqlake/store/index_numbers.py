"""Determine how many slots and entries the index files of a store have.

The files do not store these counts, and a size of 40 + 4 · slots + 20 · entries has many solutions. The sources, in
order: the configuration, the notes of an earlier writer, a proof from the files, RocketMQ's defaults. A file proves its
counts by its entries: with only one solution do their offsets rise from the header's first to its last, and are all
chains valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.index_entry import DEFAULT_ENTRIES, DEFAULT_SLOTS, HEADER_SIZE, IndexHeader, index_file_size
from mqlake.errors import BadFile, InvalidConfig
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import check_index, index_entries_hold

SLOTS, ENTRIES = "maxHashSlotNum", "maxIndexNum"
SLOT_SIZE, ENTRY_SIZE, OFFSET_AT = 4, 20, 4
MAX_TRIES = 64
"""How many candidates for a file's last entry are tried."""


class IndexNumbers(NamedTuple):
    slot_count: int
    entry_count: int
    known: bool
    """False: these are the defaults, and the files have other sizes."""


def index_numbers(
    layout: Layout, noted: dict[str, int], slots: int | None = None, entries: int | None = None
) -> IndexNumbers:
    """Return the counts of a store's index. `slots` and `entries` are the configured ones."""
    wanted = slots or noted.get(SLOTS), entries or noted.get(ENTRIES)
    if wanted[0] and wanted[1]:
        return IndexNumbers(wanted[0], wanted[1], True)
    default = wanted[0] or DEFAULT_SLOTS, wanted[1] or DEFAULT_ENTRIES
    files = index_files(layout)
    if not files or all(size == index_file_size(*default) for _, size in files):
        return IndexNumbers(*default, True)
    found = {numbers for path, _ in files if (numbers := numbers_in(path)) is not None}
    fitting = [pair for pair in found if wanted[0] in (None, pair[0]) and wanted[1] in (None, pair[1])]
    return IndexNumbers(*fitting[0], True) if len(found) == len(fitting) == 1 else IndexNumbers(*default, False)


def index_files(layout: Layout) -> list[tuple[Path, int]]:
    """Return the index files that hold an entry, with their sizes."""
    names = sorted(path for path in layout.index.glob("*") if path.name.isdigit() and path.is_file())
    return [(path, path.stat().st_size) for path in names if _count(path) > 1]


def require_known(layout: Layout, numbers: IndexNumbers) -> None:
    """Raise InvalidConfig if the index would have to be built with unknown counts."""
    if not numbers.known:
        expected = "the numbers that the index files were made with: name both in a broker.conf, --config broker.conf"
        raise InvalidConfig(f"{SLOTS}, {ENTRIES}", f"unknown, for the files in {layout.index}", expected)


def _count(path: Path) -> int:
    """Return the position after a file's last entry; 0 if its header is not whole."""
    with path.open("rb") as file:
        header = file.read(HEADER_SIZE)
    return IndexHeader.decode(header).next_entry if len(header) == HEADER_SIZE else 0


def numbers_in(path: Path) -> tuple[int, int] | None:
    """Return slots and entries of one file as its content proves them; None if it does not."""
    try:
        file = MappedFile.open(path, 0, path.stat().st_size, writable=False)
    except (OSError, BadFile):
        return None
    header = file.pages[:HEADER_SIZE]
    decoded = IndexHeader.decode(header)
    proven = set()
    for last in _places_of_last_entry(file, decoded):
        slots, rest = divmod(last - HEADER_SIZE - ENTRY_SIZE * (decoded.next_entry - 1), SLOT_SIZE)
        entries, odd = divmod(file.size - HEADER_SIZE - SLOT_SIZE * slots, ENTRY_SIZE)
        if rest == odd == 0 < slots and decoded.next_entry <= entries and _holds(file, slots, entries, header):
            proven.add((slots, entries))
    return proven.pop() if len(proven) == 1 else None


def _holds(file: MappedFile, slots: int, entries: int, header: bytes) -> bool:
    if not index_entries_hold(file.pages, slots, entries, header):
        return False
    faults, used = check_index(file.pages, slots, entries, IndexHeader.decode(header).next_entry, True)
    return not faults and used > 0


def _places_of_last_entry(file: MappedFile, header: IndexHeader) -> Iterator[int]:
    """Yield where the last entry may be: it names the header's last offset, and only zeros follow it."""
    ranges = file.data_ranges(HEADER_SIZE)
    wanted = header.end_offset.to_bytes(8, "big", signed=True)
    tries = 0
    if any(wanted):
        for start, stop in reversed(ranges):
            at = file.pages.rfind(wanted, max(HEADER_SIZE, start - len(wanted)), stop)
            while at >= 0 and tries < MAX_TRIES:
                tries += 1
                yield at - OFFSET_AT
                at = file.pages.rfind(wanted, max(HEADER_SIZE, start - len(wanted)), at + len(wanted) - 1)
        return
    for start, stop in reversed(ranges):  # offset 0: the file holds the keys of the log's first message only
        used = len(file.pages[start:stop].rstrip(b"\0"))
        if used:
            yield from range(start + used - ENTRY_SIZE, start + used)
            return
