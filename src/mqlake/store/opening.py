"""Before a store is opened: is this a place for one, and which sizes do its files have.

File sizes of an existing store are its files'; a configuration that says otherwise is an error that names both. The
numbers of slots and entries of an index file do not follow from its size: they come from the configuration, else from
what was noted under `mqlake/`, else they are RocketMQ's defaults.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from mqlake.codec.index_entry import DEFAULT_ENTRIES, DEFAULT_SLOTS
from mqlake.config import DEFAULT_BATCH_QUEUE_FILE_SIZE, DEFAULT_LOG_FILE_SIZE, DEFAULT_QUEUE_FILE_SIZE, StoreConfig
from mqlake.errors import InvalidConfig, NotAStore
from mqlake.files.layout import Layout
from mqlake.files.names import size_on_disk
from mqlake.files.small_files import replace_file


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
        if not read_only and not os.access(root, os.W_OK | os.X_OK):
            raise NotAStore(root, "it cannot be written", "change its permissions, or open it with read_only=True")
        _refuse_unsupported(layout)
        return layout
    if read_only or not create:
        what = "it holds no store" if root.exists() else "there is no such folder"
        raise NotAStore(root, what, "put a message first, or check the path")
    if root.exists() and any(root.iterdir()):
        names = ", ".join(sorted(entry.name for entry in root.iterdir())[:4])
        raise NotAStore(root, f"it holds something that is not a store ({names})", "name an empty or a new folder")
    try:
        root.mkdir(parents=True, exist_ok=True)
        layout.own.mkdir(exist_ok=True)
    except OSError as error:
        raise NotAStore(root, f"it cannot be made: {error.strerror}", "name a folder that can be written") from None
    return layout


def _refuse_unsupported(layout: Layout) -> None:
    if (layout.consume_queues / "CURRENT").exists():
        raise NotAStore(
            layout.root,
            "its consume queues are a RocksDB database (storeType=defaultRocksDB), which is not supported",
            "start RocketMQ on it with storeType=default, which writes file queues, then open it here",
        )


def resolve(layout: Layout, config: StoreConfig) -> StoreConfig:
    """The configuration with every size filled in."""
    log_size = _size(
        "mappedFileSizeCommitLog", config.commit_log.file_size_bytes, layout.commit_log, DEFAULT_LOG_FILE_SIZE
    )
    queue_size = _size(
        "mappedFileSizeConsumeQueue",
        config.consume_queue.file_size_bytes,
        _some_queue(layout.consume_queues),
        DEFAULT_QUEUE_FILE_SIZE,
    )
    if queue_size % 20:
        raise InvalidConfig("mappedFileSizeConsumeQueue", queue_size, "must be a multiple of 20, the size of an entry")
    noted = read_notes(layout)
    index = config.index
    return replace(
        config,
        commit_log=replace(config.commit_log, file_size_bytes=log_size),
        consume_queue=replace(config.consume_queue, file_size_bytes=queue_size),
        index=replace(
            index,
            slot_count=index.slot_count or noted.get("maxHashSlotNum") or DEFAULT_SLOTS,
            entry_count=index.entry_count or noted.get("maxIndexNum") or DEFAULT_ENTRIES,
        ),
    )


def batch_queue_file_size(layout: Layout) -> int:
    return size_on_disk(_some_queue(layout.batch_queues)) or DEFAULT_BATCH_QUEUE_FILE_SIZE


def note_index_numbers(layout: Layout, config: StoreConfig) -> None:
    """Keep what cannot be learnt from an index file, for those who open the store without a configuration."""
    notes = {"maxHashSlotNum": config.index.slot_count, "maxIndexNum": config.index.entry_count}
    if notes != read_notes(layout):
        replace_file(layout.settings, json.dumps(notes, indent=1).encode(), layout.scratch)


def read_notes(layout: Layout) -> dict[str, int]:
    try:
        notes = json.loads(layout.settings.read_bytes())
        return {name: value for name, value in notes.items() if isinstance(value, int)}
    except (OSError, ValueError, AttributeError):
        return {}


def _size(name: str, configured: int | None, directory: Path, default: int) -> int:
    found = size_on_disk(directory)
    if found is None:
        return configured or default
    if configured is not None and configured != found:
        raise InvalidConfig(name, configured, f"the files in {directory} have {found} bytes; leave it out or say so")
    return found


def _some_queue(directory: Path) -> Path:
    """The folder of any queue that has files; the first is as good as another."""
    for topic in sorted(directory.glob("*")):
        for queue in sorted(topic.glob("*")):
            if queue.name.isdigit() and size_on_disk(queue) is not None:
                return queue
    return directory / "none"
