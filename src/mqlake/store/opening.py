"""Before a store is opened: check the path, and determine the sizes of its files.

An existing store keeps its file sizes; a configuration with other sizes is an error that names both. The sizes are also
noted under `mqlake/`, so that a truncated file cannot change them. The slot and entry counts of an index file do not
follow from its size (`index_numbers`).
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mqlake.codec.index_entry import index_file_size
from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.config import (
    DEFAULT_BATCH_QUEUE_FILE_SIZE,
    DEFAULT_LOG_FILE_SIZE,
    DEFAULT_QUEUE_FILE_SIZE,
    MAX_LOG_FILE_SIZE,
    MIN_LOG_FILE_SIZE,
    IndexConfig,
    StoreConfig,
)
from mqlake.errors import (
    BadFile,
    DiskFull,
    FileFailed,
    InvalidConfig,
    NotAStore,
    StoreError,
    is_disk_full,
    is_passing,
)
from mqlake.files.kinds import FOLDER, in_the_way
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.names import file_name, folder_names, list_files
from mqlake.files.place import home_expanded
from mqlake.files.small_files import read_small_file, replace_file
from mqlake.store.checkpoint import read_checkpoint
from mqlake.store.index_numbers import ENTRIES, SLOTS, IndexNumbers, index_files, numbers_in
from mqlake.store.index_numbers import index_numbers as find_index_numbers
from mqlake.store.recovery import is_latest

LOG_SIZE, QUEUE_SIZE = "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"
INDEXED_FROM = "indexedFrom"
"""The offset from which the entries of the index are ours; RocketMQ wrote those before it."""
SAMPLED_FILES = 100
_log = logging.getLogger(__name__)


def find_store(path: str | os.PathLike[str], *, read_only: bool, create: bool) -> Layout:
    """Return the layout of the store at a path, or of a new one. Raises NotAStore with the reason if it cannot be."""
    root = home_expanded(path)
    try:
        root.stat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise NotAStore(root, f"the system refuses this path ({error})", "name another folder") from None
    layout = Layout(root)
    if root.exists() and not root.is_dir():
        raise NotAStore(root, "it is a file", "name a folder: the store keeps its files there")
    if layout.looks_like_a_store():
        if not read_only and os.statvfs(root).f_flag & os.ST_RDONLY:
            raise NotAStore(root, "its file system is read-only", "open it with read_only=True")
        if not read_only and not os.access(root, os.W_OK | os.X_OK):
            raise NotAStore(root, "it cannot be written", "change its permissions, or open it with read_only=True")
        _refuse_unsupported(layout)
        if not read_only:
            refuse_wrong_kinds(layout)
        return layout
    if read_only or not create:
        what = "it holds no store" if root.exists() else "there is no such folder"
        raise NotAStore(root, what, "put a message first, or check the path")
    if root.exists() and any(root.iterdir()) and not layout.is_barely_begun():
        names = ", ".join(sorted(entry.name for entry in root.iterdir())[:4])
        raise NotAStore(root, f"it holds something that is not a store ({names})", "name an empty or a new folder")
    try:
        root.mkdir(parents=True, exist_ok=True)
        layout.own.mkdir(exist_ok=True)
        sync_directory(root)  # `mqlake/` marks the folder as a store, whatever else a power cut leaves
        sync_directory(root.parent)
    except OSError as error:
        raise NotAStore(root, f"it cannot be created: {error.strerror}", "name a folder that can be written") from None
    return layout


def refusal(root: Path, error: OSError) -> StoreError:
    """Turn an OSError while a store was opened into an error that says what to do."""
    reason = error.strerror or str(error)
    if is_disk_full(error):
        return DiskFull(root, 0, reason)
    if error.errno == errno.EROFS:
        return NotAStore(root, "its file system is read-only", "open it with read_only=True")
    file = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else root
    # for these, `mqlake repair` would not help
    if is_passing(error) or error.errno in (errno.EIO, errno.EACCES, errno.EPERM):
        return FileFailed(file, "opened", error.errno or 0, reason)
    return BadFile(file, f"what the system refuses ({reason})", f"a part of a store; run: mqlake repair {root}")


def refuse_wrong_kinds(layout: Layout, *, read_only: bool = False) -> None:
    """Raise BadFile for a folder instead of a file, a file instead of a folder, a FIFO: using it could block forever.

    Files that are only hints are not needed, so what is there instead is ignored. A reader needs the store's folders
    only: it does without the other files, or names them itself.
    """
    hints = layout.clock, layout.health, layout.last_recovery
    for path, found, expected in in_the_way(layout):
        if path in hints:
            _log.warning("%s is %s instead of %s, and is ignored", path, found, expected)
        elif not read_only or (expected == FOLDER and path.parent == layout.root):
            raise BadFile(path, found, f"{expected}; run: mqlake repair {layout.root}")


def _refuse_unsupported(layout: Layout) -> None:
    if (layout.consume_queues / "CURRENT").exists():
        raise NotAStore(
            layout.root,
            "its consume queues are a RocksDB database (storeType=defaultRocksDB), which is not supported",
            "start RocketMQ on it with storeType=default, which writes file queues, then open it here",
        )
    if (layout.config / "tieredStoreMetadata.json").exists():
        raise NotAStore(
            layout.root,
            "RocketMQ keeps a part of its messages in tiered storage, which is not supported",
            "copy commitlog, consumequeue and index to a folder of their own and open that: it has what is still local",
        )


def resolve(layout: Layout, config: StoreConfig) -> StoreConfig:
    """Return the configuration with every size filled in."""
    noted = read_notes(layout)
    log_size = _size(LOG_SIZE, config.commit_log.file_size_bytes, noted, _log_sizes(layout), DEFAULT_LOG_FILE_SIZE)
    queue_size = _size(
        QUEUE_SIZE, config.consume_queue.file_size_bytes, noted, _queue_sizes(layout), DEFAULT_QUEUE_FILE_SIZE
    )
    if config.commit_log.file_size_bytes is None and not MIN_LOG_FILE_SIZE <= log_size <= MAX_LOG_FILE_SIZE:
        raise _damaged(layout, layout.commit_log, log_size, f"{MIN_LOG_FILE_SIZE} to {MAX_LOG_FILE_SIZE} bytes")
    if queue_size % ENTRY_SIZE:
        if config.consume_queue.file_size_bytes is None:
            raise _damaged(layout, layout.consume_queues, queue_size, f"a multiple of {ENTRY_SIZE} bytes")
        raise InvalidConfig(QUEUE_SIZE, queue_size, f"must be a multiple of {ENTRY_SIZE}, the size of an entry")
    numbers = index_numbers(layout, config.index)
    return replace(
        config,
        commit_log=replace(config.commit_log, file_size_bytes=log_size),
        consume_queue=replace(config.consume_queue, file_size_bytes=queue_size),
        index=replace(config.index, slot_count=numbers.slot_count, entry_count=numbers.entry_count),
    )


def _damaged(layout: Layout, folder: Path, size: int, expected: str) -> BadFile:
    """Return the error for a size that no file of a store has. Nobody configured it: it is that of the files."""
    remedy = f"the store is incomplete or damaged; run: mqlake repair {layout.root}"
    return BadFile(folder, f"files of {size} bytes", f"{expected} each: {remedy}")


def batch_queue_file_size(layout: Layout) -> int:
    return next((size for size, _ in _sizes_of_queues(layout.batch_queues)), DEFAULT_BATCH_QUEUE_FILE_SIZE)


def index_numbers(layout: Layout, config: IndexConfig | None = None) -> IndexNumbers:
    """Return the slot and entry counts of a store's index files."""
    wanted = (config.slot_count, config.entry_count) if config is not None else (None, None)
    return find_index_numbers(layout, read_notes(layout), *wanted)


def mend_last_file(layout: Layout, config: StoreConfig) -> None:
    """Restore the size of the last log file, which a crash or a power cut during its creation can leave wrong.

    A short file is extended with zeros; a long one is cut if it holds only zeros after its size. Whether its records
    are valid is for recovery to decide. A file that the checkpoint covers and that is missing is recreated empty, so
    that its physical offsets and queue offsets are not assigned again.
    """
    size = config.commit_log.file_size_bytes
    assert size is not None, "sizes are resolved before a store is opened"
    found = list_files(layout.commit_log, strict=False)
    if found and found[-1][1] not in (0, size):
        path = layout.commit_log / file_name(found[-1][0])
        with path.open("rb") as file:
            file.seek(size)
            if file.read(size).strip(b"\0"):
                return
        _log.warning("%s has %d bytes instead of %d; restoring its size", path, found[-1][1], size)
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())
    _make_lost_files(layout, size)


def _make_lost_files(layout: Layout, size: int) -> None:
    """Recreate the missing files at the end of the log, up to what was durable; if all are gone, only the last one."""
    checkpoint = read_checkpoint(layout.own_checkpoint)
    if checkpoint is None or not is_latest(layout, checkpoint):
        return
    end = max(checkpoint.durable, checkpoint.dispatched)
    found = [start for start, length in list_files(layout.commit_log, strict=False) if length]
    start = max(found) + size if found else max(0, end - 1) // size * size
    while start < end:
        path = layout.commit_log / file_name(start)
        _log.error("%s is missing and its messages are lost; creating an empty file instead", path)
        layout.commit_log.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        MappedFile.create(path, start, size, reserve=size, scratch=layout.scratch).sync()
        sync_directory(layout.commit_log)
        start += size


def begin_behind_first_file(layout: Layout, config: StoreConfig) -> None:
    """Begin the log of a new store where a first file would end, as after retention. Its queues may then begin at any
    queue offset.
    """
    size = config.commit_log.file_size_bytes
    assert size is not None, "sizes are resolved before a store is opened"
    layout.commit_log.mkdir(parents=True, exist_ok=True)
    MappedFile.create(layout.commit_log / file_name(size), size, size, reserve=size).sync()


def keep_notes(layout: Layout, config: StoreConfig, *, indexed_from: int) -> None:
    """Save the sizes for the next opening: files do not show all of them, and damaged files show none."""
    notes = {
        SLOTS: config.index.slot_count,
        ENTRIES: config.index.entry_count,
        LOG_SIZE: config.commit_log.file_size_bytes,
        QUEUE_SIZE: config.consume_queue.file_size_bytes,
    }
    if indexed_from > 0:
        notes[INDEXED_FROM] = indexed_from
    if notes != read_notes(layout):
        replace_file(layout.settings, json.dumps(notes, indent=1).encode(), layout.scratch)


def numbers_are_noted(layout: Layout, config: StoreConfig) -> bool:
    """Return whether the index was made with these slot and entry counts. If so, a file of another size is damaged."""
    noted = read_notes(layout)
    wanted = config.index.slot_count, config.index.entry_count
    if SLOTS in noted and ENTRIES in noted:
        return (noted[SLOTS], noted[ENTRIES]) == wanted
    assert wanted[0] and wanted[1], "sizes are resolved before a store is opened"
    files = index_files(layout)
    fit = all(size == index_file_size(wanted[0], wanted[1]) for _, size in files)
    return not fit and any(numbers_in(path) == wanted for path, _ in files)  # last: a proof reads a whole file


def indexed_from(layout: Layout) -> int:
    """Return the offset from which the entries of the index are ours; 1 << 62 if mqlake never wrote here."""
    return read_notes(layout).get(INDEXED_FROM, 0) if layout.settings.exists() else 1 << 62


def read_notes(layout: Layout) -> dict[str, int]:
    try:
        notes = json.loads(read_small_file(layout.settings, 1 << 20))
        return {name: value for name, value in notes.items() if type(value) is int and value > 0}
    except (OSError, BadFile, ValueError, AttributeError):
        return {}


Sizes = list[tuple[int, Path]]
"""File sizes, each with the folder where it was found. The first one counts."""


def _size(name: str, configured: int | None, noted: dict[str, int], sizes: Sizes, default: int) -> int:
    known = dict(reversed(sizes))
    agree = len(known) == 1 and len(sizes) > 1
    found = noted[name] if name in noted and (noted[name] in known or not agree) else next(iter(sizes), (None,))[0]
    if found is None:
        return configured or default
    if configured is not None and configured != found and known:
        directory = known.get(found, sizes[0][1])
        raise InvalidConfig(name, configured, f"the files in {directory} have {found} bytes; leave it out or say so")
    return configured or found


def _log_sizes(layout: Layout) -> Sizes:
    """Return the sizes of all log files, most frequent first, the last file's last: a crash can leave it short."""
    sizes = [size for _, size in list_files(layout.commit_log, strict=False) if size]
    return [(size, layout.commit_log) for size in [*sorted(sizes[:-1], key=sizes.count, reverse=True), *sizes[-1:]]]


def _queue_sizes(layout: Layout) -> Sizes:
    """Return the sizes of the first queue files, the most frequent first."""
    sizes = list(itertools.islice(_sizes_of_queues(layout.consume_queues), SAMPLED_FILES))
    counts = Counter(size for size, _ in sizes)
    return sorted(sizes, key=lambda found: -counts[found[0]])


def _sizes_of_queues(directory: Path) -> Iterator[tuple[int, Path]]:
    for topic in sorted(folder_names(str(directory))):
        for queue_id in sorted(name for name in folder_names(f"{directory}/{topic}") if name.isdigit()):
            queue = directory / topic / queue_id
            yield from ((size, queue) for _, size in list_files(queue, strict=False) if size)
