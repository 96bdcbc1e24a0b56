"""What opening, writing and keeping a store can raise."""

from __future__ import annotations

import os
from pathlib import Path

from mqlake.errors.root import StoreError


class InvalidMessage(StoreError):
    """The message cannot be stored. Nothing was written."""

    def __init__(self, field: str, found: str, expected: str) -> None:
        super().__init__(field, found, expected)
        self.field, self.found, self.expected = field, found, expected

    def __str__(self) -> str:
        return f"{self.field}: found {self.found}; expected {self.expected}"


class InvalidConfig(StoreError):
    """A setting has a value that cannot be used."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        super().__init__(key, value, expected)
        self.key, self.value, self.expected = key, value, expected

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.expected}"


class NotAStore(StoreError):
    """The path is a file, is not writable, or holds something else."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path, self.reason, self.remedy = path, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


class StoreLocked(StoreError):
    """Only one process at a time may write a store."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(path, pid)
        self.path, self.pid = path, pid

    def __str__(self) -> str:
        if self.pid == os.getpid():
            return f"{self.path}: this process (pid {self.pid}) already has it open; share it, or close it first"
        writer = f"process {self.pid}" if self.pid > 0 else "another process"
        return f"{self.path}: {writer} writes this store; stop it, or open with read_only=True to read while it writes"


class StoreClosed(StoreError):
    """The store was closed, by close() or at the end of its with block."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: the store is closed; open it again with MessageStore.open"


class StoreForked(StoreError):
    """The store was opened by the parent of this process. Nothing was done."""

    def __init__(self, path: Path, opener: int) -> None:
        super().__init__(path, opener)
        self.path, self.opener = path, opener

    def __str__(self) -> str:
        return (
            f"{self.path}: this store was opened by process {self.opener} before it forked this one, and cannot be "
            "used here; open it with read_only=True in this process, or fork before opening"
        )


class ReadOnlyStore(StoreError):
    """A put to a store that was opened with read_only=True."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: opened read-only; open it without read_only=True to write"


class NotMaster(StoreError):
    """A write to a store in the role SLAVE: its log is its master's, byte for byte."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path}: this store is a slave and takes writes from its master only; write to the master, or close "
            "the store and open it in the role ASYNC_MASTER"
        )


class StoreFailed(StoreError):
    """A sync failed. Reads still work; every put is refused until the store is reopened."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(path, cause)
        self.path, self.cause = path, cause

    def __str__(self) -> str:
        return (
            f"{self.path}: a sync failed ({self.cause}), so the store takes no more messages and acknowledges nothing "
            "that was not durable before; repair the disk, then close and reopen the store"
        )


class DispatchFailed(StoreFailed):
    """Dispatch stopped for good. What it dispatched before can be read; every put is refused."""

    def __str__(self) -> str:
        return (
            f"{self.path}: dispatch to consume queues and index stopped ({self.cause}), so the store takes no more "
            "messages: nobody would ever see them; close the store, remove the cause and open it again"
        )


class NotConfirmed(StoreError):
    """The message is in the log, and a put that is repeated stores it twice. Only its durability is less than asked."""


class FlushTimeout(NotConfirmed):
    """The sync is still running. The message is in the log and may become durable; a retry may store it twice."""

    def __init__(self, path: Path, timeout_ms: int) -> None:
        super().__init__(path, timeout_ms)
        self.path, self.timeout_ms = path, timeout_ms

    def __str__(self) -> str:
        return (
            f"{self.path}: not durable within {self.timeout_ms} ms (syncFlushTimeout); the message may still become so"
        )


class ReplicaTimeout(NotConfirmed):
    """RocketMQ's FLUSH_SLAVE_TIMEOUT: the message is stored here, and slaves may still get it."""

    def __init__(self, path: Path, timeout_ms: int, needed_count: int, is_closed: bool = False) -> None:
        """`is_closed`: the store was closed before the time was over."""
        super().__init__(path, timeout_ms, needed_count, is_closed)
        self.path, self.timeout_ms, self.needed_count, self.is_closed = path, timeout_ms, needed_count, is_closed

    def __str__(self) -> str:
        until = "before the store was closed" if self.is_closed else f"within {self.timeout_ms} ms (slaveTimeout)"
        return (
            f"{self.path}: stored here, but not confirmed by {_slaves(self.needed_count)} {until}; "
            "a repeated put would store the message twice"
        )


class ReplicaMissing(NotConfirmed):
    """RocketMQ's SLAVE_NOT_AVAILABLE: the message is stored here alone."""

    def __init__(self, path: Path, needed_count: int, attached_count: int) -> None:
        super().__init__(path, needed_count, attached_count)
        self.path, self.needed_count, self.attached_count = path, needed_count, attached_count

    def __str__(self) -> str:
        return (
            f"{self.path}: stored here only: {_slaves(self.needed_count)} must confirm it (inSyncReplicas), and "
            f"{self.attached_count} of those attached are near enough (haSlaveFallbehindMax); start or mend a slave"
        )


def _slaves(count: int) -> str:
    return "a slave" if count == 1 else f"{count} slaves"


class BackupFailed(StoreError):
    """A backup was not made. Nothing is left of it, and the store is as it was."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path, self.reason, self.remedy = path, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: no backup was made: {self.reason}; {self.remedy}"


class SourceFailed(StoreError):
    """A copy of the log cannot give the bytes that are to be healed. Nothing was changed."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.source, self.reason = source, reason

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}; heal from another copy of this log"


class UnfinishedBatch(StoreError):
    """A batch was begun, and the log does not show how much of it was appended. Nothing was written."""

    def __init__(self, store: Path, source: str, batch: int, offset: int, found: str) -> None:
        super().__init__(store, source, batch, offset, found)
        self.store, self.source, self.batch, self.offset, self.found = store, source, batch, offset, found

    def __str__(self) -> str:
        return (
            f"{self.store}: batch {self.batch} of {self.source} was begun at offset {self.offset} and not ended, and "
            f"{self.found}; inspect what it appended (mqlake scan, from that offset), then continue with a new "
            "checkpoint or another jobId"
        )
