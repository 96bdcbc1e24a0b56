"""Break the store on purpose in every Python process that has this folder on its path. BREAK says how."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CUT_BYTES = 500


def no_sync() -> None:
    """Acknowledge without waiting for the disk."""
    sync_in_python()
    os.fsync = os.fdatasync = lambda fd: None


def no_directory_sync() -> None:
    """Sync files but not their names."""
    sync = os.fsync
    os.fsync = lambda fd: None if stat.S_ISDIR(os.fstat(fd).st_mode) else sync(fd)  # type: ignore[arg-type]


def deaf_to_errors() -> None:
    """Treat a failed sync as a success."""

    def deaf(sync: Any) -> Any:
        def call(fd: int) -> None:
            try:
                sync(fd)
            except OSError:
                pass

        return call

    sync_in_python()
    os.fsync, os.fdatasync = deaf(os.fsync), deaf(os.fdatasync)


def sync_in_python() -> None:
    """Sync the log through `os.fdatasync`, which can be patched; otherwise the kernel makes the system call itself."""
    from mqlake.logs.log_writer import LogWriter

    def sync(log: LogWriter, durable: int, target: int) -> bool:
        try:
            for file in (log.files.file_at(start) for start in log.files.starts):
                if file is not None and file.start < target and file.end > durable:
                    os.fdatasync(file.descriptor)
            folder = os.open(log.files.directory, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        except OSError as error:
            log.group.fail(error.errno or errno.EIO)
            log.group.abandon()
            return False
        return log.group.sync_files(target, [], [])

    LogWriter._descriptor_of = lambda log, file: -1  # type: ignore[method-assign, assignment]
    LogWriter.sync = sync  # type: ignore[method-assign, assignment]


def never_resumes() -> None:
    """Keep the disk full for the writer once it was full."""
    if "mqlake.torture.writer" not in sys.orig_argv:
        return
    allocate = os.posix_fallocate
    failed: list[int] = []

    def call(fd: int, offset: int, length: int, /) -> None:
        if failed:
            raise OSError(errno.ENOSPC, "No space left on device")
        try:
            allocate(fd, offset, length)
        except OSError:
            failed.append(fd)
            raise

    os.posix_fallocate = call


def cuts_too_much() -> None:
    """Drop whole records from the end of the log in recovery."""

    def spoil(path: Path) -> None:
        if not (path / "abort").exists():
            return
        for file in sorted((path / "commitlog").iterdir(), reverse=True):
            data = file.read_bytes()
            end = len(data.rstrip(b"\0"))
            if end > CUT_BYTES:
                file.write_bytes(data[: end - CUT_BYTES] + bytes(len(data) - end + CUT_BYTES))
                return

    before_open(spoil)


def refuses_rudely() -> None:
    """Raise an error that is no StoreError and names no remedy."""

    def refuse(path: Path) -> None:
        if not (path / "consumequeue").exists() and (path / "commitlog").exists():
            raise ValueError("unexpected")

    before_open(refuse)


def before_open(act: Callable[[Path], None]) -> None:
    from mqlake import MessageStore

    real = MessageStore.open.__func__  # type: ignore[attr-defined]

    def call(cls: Any, /, path: Any, **settings: Any) -> Any:
        act(Path(path))
        return real(cls, path, **settings)

    MessageStore.open = classmethod(call)  # type: ignore[method-assign, assignment]


def dies_in_the_judge() -> None:
    """Abort, as after a bus error, when a worker opens a store."""
    if "mqlake.torture.work" in sys.orig_argv:
        before_open(lambda path: os.abort())


def is_not_root() -> None:
    """Break nothing: be a user who may not mount."""
    os.geteuid = lambda: 1000


def confirms_early() -> None:
    """Acknowledge at REPLICA without waiting for a slave."""
    from mqlake.store.replicas import Replicas

    def done(replicas: Replicas, end: int, loop: Any) -> Any:
        future = loop.create_future()
        future.set_result(None)
        return future

    Replicas.missing = lambda replicas, end: None  # type: ignore[method-assign, assignment]
    Replicas.wait = lambda replicas, end, since_ns: None  # type: ignore[method-assign, assignment]
    Replicas.when_replicated = done  # type: ignore[method-assign, assignment]


def merges_logs() -> None:
    """Continue at the end of the own log, as RocketMQ's slaves do, whatever it holds."""
    from mqlake.replication.receiving import Receiver

    request = Receiver._request
    Receiver._request = lambda receiver, begin: (  # type: ignore[method-assign, assignment]
        request(receiver, begin) if receiver._log.is_empty else receiver._end
    )


def serves_damage() -> None:
    """Serve, now and then, a body that nobody put."""
    from mqlake import StoredMessage

    StoredMessage.body = property(  # type: ignore[assignment, method-assign]
        lambda self: self.raw_body + b"!" if self.physical_offset % 7 == 0 else self.raw_body
    )


if how := os.environ.get("BREAK"):
    globals()[how]()
