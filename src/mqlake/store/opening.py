"""Before a store is opened: is this a place for one, and which sizes do its files have.

File sizes of an existing store are its files'; a configuration that says otherwise is an error that names both. They
are noted under `mqlake/`, so that a file that lost its size does not change what the size is. The numbers of slots and
entries of an index file do not follow from its size: they come from the configuration, else from the notes, else they
are RocketMQ's defaults.
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

from mqlake.codec.index_entry import DEFAULT_ENTRIES, DEFAULT_SLOTS
from mqlake.config import DEFAULT_BATCH_QUEUE_FILE_SIZE, DEFAULT_LOG_FILE_SIZE, DEFAULT_QUEUE_FILE_SIZE, StoreConfig
from mqlake.errors import BadFile, DiskFull, InvalidConfig, NotAStore, StoreError, is_disk_full
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.names import file_name, list_files
from mqlake.files.small_files import replace_file

SLOTS, ENTRIES = "maxHashSlotNum", "maxIndexNum"
LOG_SIZE, QUEUE_SIZE = "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"
SAMPLED_FILES = 100
_log = logging.getLogger(__name__)


def find_store(path: str | os.PathLike[str], *, read_only: bool, create: bool) -> Layout:
    """The layout of a store at a path that holds one, or may come to; NotAStore with the reason where it may not."""
    root = Path(path)
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
        sync_directory(root)  # by this name it is known for a store, whatever else a power cut leaves of it
        sync_directory(root.parent)
    except OSError as error:
        raise NotAStore(root, f"it cannot be made: {error.strerror}", "name a folder that can be written") from None
    return layout


def refusal(root: Path, error: OSError) -> StoreError:
    """What the system would not do while a store was opened, with what to do."""
    reason = error.strerror or str(error)
    if is_disk_full(error):
        return DiskFull(root, 0, reason)
    if error.errno == errno.EROFS:
        return NotAStore(root, "its file system is read-only", "open it with read_only=True")
    file = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else root
    return BadFile(file, f"what the system refuses ({reason})", f"a part of a store; run: mqlake repair {root}")


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
    """The configuration with every size filled in."""
    noted = read_notes(layout)
    log_size = _size(LOG_SIZE, config.commit_log.file_size_bytes, noted, _log_sizes(layout), DEFAULT_LOG_FILE_SIZE)
    queue_size = _size(
        QUEUE_SIZE, config.consume_queue.file_size_bytes, noted, _queue_sizes(layout), DEFAULT_QUEUE_FILE_SIZE
    )
    if queue_size % 20:
        raise InvalidConfig(QUEUE_SIZE, queue_size, "must be a multiple of 20, the size of an entry")
    index = config.index
    return replace(
        config,
        commit_log=replace(config.commit_log, file_size_bytes=log_size),
        consume_queue=replace(config.consume_queue, file_size_bytes=queue_size),
        index=replace(
            index,
            slot_count=index.slot_count or noted.get(SLOTS) or DEFAULT_SLOTS,
            entry_count=index.entry_count or noted.get(ENTRIES) or DEFAULT_ENTRIES,
        ),
    )


def batch_queue_file_size(layout: Layout) -> int:
    return next((size for size, _ in _sizes_of_queues(layout.batch_queues)), DEFAULT_BATCH_QUEUE_FILE_SIZE)


def index_numbers(layout: Layout) -> tuple[int, int]:
    """Slots and entries of the index files of a store that is opened without a configuration."""
    noted = read_notes(layout)
    return noted.get(SLOTS) or DEFAULT_SLOTS, noted.get(ENTRIES) or DEFAULT_ENTRIES


def mend_last_file(layout: Layout, config: StoreConfig) -> None:
    """A last log file that lost its size gets it back: what a crash, or a power cut, leaves of a file in the making.

    It is filled up with zeroes, or cut where it is too long and holds nothing there: records decide for themselves.
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
        _log.warning("%s has %d bytes and is given %d again", path, found[-1][1], size)
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())


def begin_behind_first_file(layout: Layout, config: StoreConfig) -> None:
    """Give a new store a log that begins where a first file would end, as after retention: queues of such a log may
    begin at any number.
    """
    size = config.commit_log.file_size_bytes
    assert size is not None, "sizes are resolved before a store is opened"
    layout.commit_log.mkdir(parents=True, exist_ok=True)
    MappedFile.create(layout.commit_log / file_name(size), size, size, reserve=True).sync()


def keep_notes(layout: Layout, config: StoreConfig) -> None:
    """Keep what cannot be learnt from the files, or not from damaged ones, for those who open the store next."""
    notes = {
        SLOTS: config.index.slot_count,
        ENTRIES: config.index.entry_count,
        LOG_SIZE: config.commit_log.file_size_bytes,
        QUEUE_SIZE: config.consume_queue.file_size_bytes,
    }
    if notes != read_notes(layout):
        replace_file(layout.settings, json.dumps(notes, indent=1).encode(), layout.scratch)


def numbers_are_noted(layout: Layout, config: StoreConfig) -> bool:
    """The index was made with these numbers of slots and entries: a file of another size is damaged."""
    noted = read_notes(layout)
    return (noted.get(SLOTS), noted.get(ENTRIES)) == (config.index.slot_count, config.index.entry_count)


def read_notes(layout: Layout) -> dict[str, int]:
    try:
        notes = json.loads(layout.settings.read_bytes())
        return {name: value for name, value in notes.items() if isinstance(value, int)}
    except (OSError, ValueError, AttributeError):
        return {}


Sizes = list[tuple[int, Path]]
"""Sizes of files, each with the folder where it was found; the first counts."""


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
    """Those of all files, the last one's last: a crash may have left it short."""
    sizes = [size for _, size in list_files(layout.commit_log, strict=False) if size]
    return [(size, layout.commit_log) for size in [*sorted(sizes[:-1], key=sizes.count, reverse=True), *sizes[-1:]]]


def _queue_sizes(layout: Layout) -> Sizes:
    """What most of the first files have, of as many queues as it takes to tell."""
    sizes = list(itertools.islice(_sizes_of_queues(layout.consume_queues), SAMPLED_FILES))
    counts = Counter(size for size, _ in sizes)
    return sorted(sizes, key=lambda found: -counts[found[0]])


def _sizes_of_queues(directory: Path) -> Iterator[tuple[int, Path]]:
    for topic in sorted(directory.glob("*")):
        for queue in sorted(topic.glob("*")):
            if queue.name.isdigit():
                yield from ((size, queue) for _, size in list_files(queue, strict=False) if size)
