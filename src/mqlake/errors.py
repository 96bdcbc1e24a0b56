"""All exceptions of mqlake, in one family:

    StoreError
    ├── InvalidMessage        RocketMQ's format cannot hold this message, or it exceeds a limit
    ├── InvalidConfig         a setting is unknown, out of range, or contradicts the files
    ├── NotAStore             the path holds no store and cannot become one
    ├── StoreLocked           another process (or this one) has the store open for writing
    ├── StoreClosed           a call on a closed store
    ├── ReadOnlyStore         a write to a store that was opened for reading
    ├── NotMaster             a write to a store that follows a master
    ├── StoreForked           a call in a forked child on a store that its parent opened
    ├── StoreFailed           a sync failed: nothing appended since is acknowledged, and puts are refused
    │   └── DispatchFailed    dispatch stopped for good: later puts would never be seen, so they are refused
    ├── DiskFull              the blocks of a file could not be allocated; nothing was written
    │   └── DiskAboveLimit    the disk is above its limit, so puts are refused; nothing was written
    ├── FileFailed            the system would not make, open or map a file, or start a thread; the disk is not full
    ├── NotConfirmed          the message is stored, but was not confirmed to be as durable as asked
    │   ├── FlushTimeout      the sync did not end in time
    │   ├── ReplicaTimeout    not enough slaves confirmed it in time
    │   └── ReplicaMissing    not enough slaves are attached and near enough to wait for them
    ├── BadFile               a file of the store has the wrong name or size
    ├── BadConfigFile         config/NAME.json and its .bak are both damaged
    ├── NotWritten            the system refused to write a small file: its old content still holds
    ├── BackupFailed          no whole copy of a store could be made: nothing is left of it
    ├── SourceFailed          a copy of the log cannot give the bytes that are to be healed
    ├── CorruptRecord         bytes in the log contradict their own header
    ├── CorruptBody           a compressed body cannot be decompressed
    ├── InvalidFilter         a filter expression does not parse; the error points at the place
    ├── UnknownTopic          no such topic, or no such queue of it
    ├── UnknownGroup          no such consumer group
    ├── NotPermitted          the settings of a topic or a group forbid the call
    ├── OffsetOutOfRange      a queue offset or physical offset outside the range that exists
    │   └── MessagesLost      a consumer's progress points at messages that the queue no longer has
    ├── NotPending            the message cannot be cancelled: it was already due, or was never timed
    ├── TransactionEnded      the transaction is already committed, rolled back or abandoned
    ├── TransactionExpired    the transaction is older than its own time limit
    ├── BadFrame              bytes from a connection are no frame of the remoting protocol
    ├── BadRequest            a request lacks a field, or a field has a value that cannot be used
    ├── RemoteError           a broker or a name server could not do what its client asked
    │   ├── RequestRefused    it answered with a code other than success
    │   ├── RequestTimeout    it did not answer in time: whether it did what was asked is unknown
    │   ├── NotConnected      it cannot be reached, or the connection broke before its answer
    │   └── NoRoute           no name server knows where a topic is
    ├── ReplicationError      a master and its slave cannot go on together
    │   ├── BadTransfer       bytes from a connection are no frame of the replication protocol
    │   ├── MasterAlive       a slave is to be promoted, and its master still answers
    │   ├── MasterUnknown     a slave is to be promoted, and its master cannot be asked whether it is gone
    │   ├── SlaveRefused      a slave wants a part of the log that its master does not have
    │   ├── ControllerMode    the other side speaks the protocol of controller mode
    │   ├── FilesDiffer       master and slave cut their logs into files of different sizes
    │   ├── NoMaster          no master answers at the address that is followed
    │   ├── NotOnMaster       the master does not have the bytes that a slave needs
    │   └── Diverged          a slave's log is not the beginning of its master's
    ├── NoSuchMessage         no record starts at this physical offset, or has this id
    ├── UnfinishedBatch       part of a batch is in the log, and the rest is missing or contradicts it
    ├── OtherRows             a job's id was used before, for other rows
    ├── ChangedUnderRead      what a Spark task should read is no longer as planned
    ├── PositionLost          a stream's position is no longer in the log, or another log is at its path
    ├── NotALake              the folder is no lake and cannot become one
    ├── LakeInUse             another process, or this one, is changing the lake
    ├── WrongLake             the lake holds a different store under this store's name
    ├── LakeGap               the log lost bytes before they were archived
    ├── StageFailed           a stage of the pipeline failed on a byte range
    ├── LakeConflict          a commit does not start where the lake ends
    ├── VersionGone           the lake no longer has, or does not yet have, a version
    ├── StorageFailed         an object store refused or did not answer
    ├── QueryFailed           a query could not be answered, or a task of a Spark job failed
    ├── SparkNotStarted       Spark did not start, or its cluster could not be reached
    ├── NotOnConnect          the call needs a session in this process, and this one is of Spark Connect
    ├── MissingExtra          the call needs an optional package
    └── MissingJava           Spark needs Java, and none was found or it is too old

Each error says where, what was found, what was expected and what to do. Arguments are kept as given, so that errors
pickle.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType


class StoreError(Exception):
    """The root of the family: `except StoreError` catches everything that mqlake raises on purpose."""


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


class DiskFull(StoreError):
    """A file could not be allocated. Nothing was written; the caller may retry the put later.

    `size_bytes` is 0 where no size is known: a store that was being opened.
    """

    def __init__(self, path: Path, size_bytes: int, cause: str) -> None:
        super().__init__(path, size_bytes, cause)
        self.path, self.size_bytes, self.cause = path, size_bytes, cause

    def __str__(self) -> str:
        if not self.size_bytes:  # not a log file: the store could not be opened, or a small file not be made
            return f"{self.path}: the disk is full ({self.cause}); free space, then try again"
        return (
            f"{self.path}: {self.size_bytes} bytes could not be allocated ({self.cause}); "
            "free space or use a smaller file size, then put again"
        )


class DiskAboveLimit(DiskFull):
    """Disk use is above the configured limit. Puts resume once there is space; the store need not be reopened."""

    def __init__(self, path: Path, used_percent: int, full_percent: int, resume_percent: int) -> None:
        super().__init__(path, 0, f"the disk is {used_percent} % full")
        self.args = (path, used_percent, full_percent, resume_percent)
        self.used_percent, self.full_percent, self.resume_percent = used_percent, full_percent, resume_percent

    def __str__(self) -> str:
        return (
            f"{self.path}: the disk is {self.used_percent} % full; puts are refused above {self.full_percent} % "
            f"(diskSpaceWarningLevelRatio) until use falls to {self.resume_percent} %; free some space"
        )


class FileFailed(StoreError):
    """The system would not make, open or map a file, or start a thread; the disk is not full. Nothing was written."""

    REMEDIES = MappingProxyType(
        {
            errno.EMFILE: "raise the limit of open files (ulimit -n), or close files and sockets of this process",
            errno.ENFILE: "the whole system has no descriptors left: raise fs.file-max, or end other processes",
            errno.ENOMEM: "free memory, or raise vm.max_map_count",
            errno.EAGAIN: "free memory, or raise the limits of memory and threads (ulimit -v, ulimit -u)",
            errno.EIO: "the disk reports an error: look at the kernel's log (dmesg) before you write on",
            errno.EACCES: "change its permissions, or run as a user that has them",
            errno.EPERM: "change its permissions, or run as a user that has them",
            errno.EROFS: "its file system is read-only: open the store with read_only=True",
        }
        | dict.fromkeys(
            (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENXIO),
            "something else has its name: look at it (ls -l), or run `mqlake repair`, which moves it away",
        )
    )

    def __init__(self, path: Path, action: str, number: int, reason: str) -> None:
        super().__init__(path, action, number, reason)
        self.path, self.action, self.number, self.reason = path, action, number, reason

    def __str__(self) -> str:
        remedy = self.REMEDIES.get(self.number, "look at the system's log, then try again")
        return f"{self.path}: could not be {self.action} ({self.reason}); {remedy}"


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


class BadFile(StoreError):
    """A file of the store has a size or a name that does not fit its neighbours."""

    def __init__(self, file: Path | str, found: str, expected: str) -> None:
        super().__init__(file, found, expected)
        self.file, self.found, self.expected = file, found, expected

    def __str__(self) -> str:
        return f"{self.file}: found {self.found}; expected {self.expected}"


class BadConfigFile(StoreError):
    """A state file under `config/` cannot be read, and neither can its backup."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}; replace it with an intact copy, or remove it and its .bak to start without "
            "its contents"
        )


class NotWritten(StoreError):
    """A small file could not be written. It holds what it held before, and so does memory."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(path, cause)
        self.path, self.cause = path, cause

    def __str__(self) -> str:
        return f"{self.path}: it cannot be written ({self.cause}), and nothing was changed; mend that and try again"


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


class CorruptRecord(StoreError):
    """Bytes of the commit log contradict their own header.

    Recovery, reads, scans and dispatch catch it: damage before the watermark becomes a scar that they skip. It reaches
    the caller from a look-up by physical offset, and from a scan with on_damage="fail".
    """

    def __init__(self, file: Path, physical_offset: int, reason: str) -> None:
        super().__init__(file, physical_offset, reason)
        self.file, self.physical_offset, self.reason = file, physical_offset, reason

    def __str__(self) -> str:
        return f"{self.file.name}: record at {self.physical_offset}: {self.reason}"


class CorruptBody(StoreError, ValueError):
    """A compressed body cannot be decompressed. If the record's CRC is right, the body was stored that way."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the body cannot be decompressed: {self.reason}; `raw_body` holds the bytes as stored"


FILTER_SHOWN = 160
"""So many characters of a line are shown, around the place of an error."""


class InvalidFilter(StoreError):
    """A filter expression does not parse. The text gives the reason and points at the place."""

    def __init__(self, expression: str, position: int, reason: str) -> None:
        super().__init__(expression, position, reason)
        self.expression, self.position, self.reason = expression, position, reason

    def __str__(self) -> str:
        before = self.expression[: self.position]
        line = before.count("\n")
        column = self.position - (before.rfind("\n") + 1)
        shown = ((self.expression.splitlines() or [""])[line:][:1] or [""])[0]
        start = max(0, column - FILTER_SHOWN // 2) if len(shown) > FILTER_SHOWN else 0
        shown, column = shown[start : start + FILTER_SHOWN], column - start
        return f"filter: {self.reason}, at character {self.position + 1}\n  {shown}\n  {' ' * column}^"


class UnknownTopic(StoreError):
    """The store has no such topic, or the topic has no such queue."""

    def __init__(self, topic: str, queue_id: int | None, known: str) -> None:
        super().__init__(topic, queue_id, known)
        self.topic, self.queue_id, self.known = topic, queue_id, known

    def __str__(self) -> str:
        what = f"topic {self.topic!r}" + (f", queue {self.queue_id}" if self.queue_id is not None else "")
        return f"{what}: not in this store; it has {self.known}"


class UnknownGroup(StoreError):
    """The store has no such consumer group."""

    def __init__(self, group: str, known: str) -> None:
        super().__init__(group, known)
        self.group, self.known = group, known

    def __str__(self) -> str:
        return f"group {self.group!r}: not in this store; it has {self.known}"


class NotPermitted(StoreError):
    """The settings of a topic or a group forbid the call. Nothing was written."""

    def __init__(self, what: str, found: str, remedy: str) -> None:
        super().__init__(what, found, remedy)
        self.what, self.found, self.remedy = what, found, remedy

    def __str__(self) -> str:
        return f"{self.what}: {self.found}; {self.remedy}"


class OffsetOutOfRange(StoreError):
    """An offset is outside the half-open range [first_offset, end_offset)."""

    def __init__(self, what: str, offset: int, first_offset: int, end_offset: int) -> None:
        super().__init__(what, offset, first_offset, end_offset)
        self.what, self.offset = what, offset
        self.first_offset, self.end_offset = first_offset, end_offset

    def __str__(self) -> str:
        return f"{self.what}: offset {self.offset} is outside of [{self.first_offset}, {self.end_offset})"


class NotPending(StoreError):
    """Only a timed message that is not yet due can be cancelled."""

    def __init__(self, physical_offset: int, found: str, expected: str) -> None:
        super().__init__(physical_offset, found, expected)
        self.physical_offset, self.found, self.expected = physical_offset, found, expected

    def __str__(self) -> str:
        return f"cannot cancel the message at {self.physical_offset}: found {self.found}; expected {self.expected}"


class TransactionEnded(StoreError):
    """A transaction is decided only once."""

    def __init__(self, transaction_id: str, how: str) -> None:
        super().__init__(transaction_id, how)
        self.transaction_id, self.how = transaction_id, how

    def __str__(self) -> str:
        return f"transaction {self.transaction_id}: {self.how}; begin a new one"


class TransactionExpired(StoreError):
    """The transaction is older than its time limit. From now on only the check decides it."""

    def __init__(self, transaction_id: str, age_ms: int, limit_ms: int) -> None:
        super().__init__(transaction_id, age_ms, limit_ms)
        self.transaction_id, self.age_ms, self.limit_ms = transaction_id, age_ms, limit_ms

    def __str__(self) -> str:
        return (
            f"transaction {self.transaction_id}: {self.age_ms} ms old, its limit is {self.limit_ms} ms; "
            "now only the check (TransactionConfig.check) or store.transactions.resolve can decide it"
        )


class MessagesLost(OffsetOutOfRange):
    """The progress of a consumer with on_lost="fail" is outside its queue.

    Either retention deleted the messages before the consumer read them, or a power cut took the end of the log.
    """

    def __str__(self) -> str:
        return (
            f"{self.what}: progress is at {self.offset}, the queue has [{self.first_offset}, {self.end_offset}); "
            'reset() it to "first", or consume with on_lost="skip"'
        )


class BadFrame(StoreError):
    """Bytes from a connection are no frame of the remoting protocol. What follows cannot be read: close it."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        super().__init__(where, found, expected)
        self.where, self.found, self.expected = where, found, expected

    def __str__(self) -> str:
        return f"frame: {self.where}: found {self.found}; expected {self.expected}"


class BadRequest(StoreError):
    """A request lacks a field, or a field or its body has a value that cannot be used."""

    def __init__(self, field: str, found: str, expected: str) -> None:
        super().__init__(field, found, expected)
        self.field, self.found, self.expected = field, found, expected

    def __str__(self) -> str:
        return f"request: {self.field}: found {self.found}; expected {self.expected}"


class RemoteError(StoreError):
    """The root of what a client's call to a broker or a name server raises. `address` says which one."""

    address: str


class RequestRefused(RemoteError):
    """The answer's code is not success. `code` is its number and `code_name` RocketMQ's name for it."""

    def __init__(self, address: str, request: str, code: int, code_name: str, remark: str) -> None:
        super().__init__(address, request, code, code_name, remark)
        self.address, self.request, self.code, self.code_name, self.remark = address, request, code, code_name, remark

    def __str__(self) -> str:
        return f"{self.address} refused {self.request}: {self.code_name} ({self.code}): {self.remark or 'no remark'}"


class RequestTimeout(RemoteError):
    """No answer came in time. The broker may have done what was asked."""

    def __init__(self, address: str, request: str, timeout_s: float) -> None:
        super().__init__(address, request, timeout_s)
        self.address, self.request, self.timeout_s = address, request, timeout_s

    def __str__(self) -> str:
        return f"{self.address} did not answer {self.request} within {self.timeout_s:g} s; it may have been done"


class NotConnected(RemoteError):
    """No connection could be opened, or it broke before the answer."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}; is a broker running there, and does it use TLS as this client does?"


class NoRoute(RemoteError):
    """No name server knows the topic, and no broker creates topics by their first message; or no master has it now."""

    def __init__(self, address: str, topic: str, is_known: bool = False) -> None:
        """`is_known`: the topic has a route, but no queue that takes messages."""
        super().__init__(address, topic, is_known)
        self.address, self.topic, self.is_known = address, topic, is_known

    def __str__(self) -> str:
        if self.is_known:
            return (
                f"{self.address} knows topic {self.topic}, but no master that takes messages for it: there are only "
                "slaves now, or the topic may only be read"
            )
        return f"{self.address} knows no topic {self.topic}; create it, or let the broker create topics by themselves"


class ReplicationError(StoreError):
    """The root of what keeps a master and a slave apart for good. Cut connections are no such error."""


class BadTransfer(ReplicationError):
    """Bytes from a connection are no frame of the replication protocol. What follows cannot be read: close it."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        super().__init__(where, found, expected)
        self.where, self.found, self.expected = where, found, expected

    def __str__(self) -> str:
        return f"replication: {self.where}: found {self.found}; expected {self.expected}"


class MasterAlive(ReplicationError):
    """A promotion was refused, because two masters would both take messages. Nothing was changed."""

    def __init__(self, path: Path, master: str) -> None:
        super().__init__(path, master)
        self.path, self.master = path, master

    def __str__(self) -> str:
        return (
            f"{self.path} is not promoted: the master at {self.master} still accepts connections; stop it first, or "
            "name the right address if another process listens there now"
        )


class MasterUnknown(ReplicationError):
    """A promotion was refused, because it cannot be seen from here whether the old master is gone."""

    def __init__(self, path: Path, master: str, reason: str) -> None:
        super().__init__(path, master, reason)
        self.path, self.master, self.reason = path, master, reason

    def __str__(self) -> str:
        return (
            f"{self.path} is not promoted: whether the master at {self.master} is gone cannot be seen from here: "
            f"{self.reason}; name it by its IP address, or mend this; if you have made sure by other means that it "
            "takes no more messages, say so with --gone"
        )


class SlaveRefused(ReplicationError):
    """A slave cannot follow this master from where it is. Its connection is closed; both stores are as they were."""

    def __init__(self, slave: str, wanted: int, first: int, end: int, reason: str) -> None:
        super().__init__(slave, wanted, first, end, reason)
        self.slave, self.wanted, self.first, self.end, self.reason = slave, wanted, first, end, reason

    def __str__(self) -> str:
        return (
            f"slave {self.slave} asks for the log from {self.wanted}, and this master has [{self.first}, {self.end}): "
            f"{self.reason}; set the slave up anew, from an empty folder or from a backup of this store"
        )


class ControllerMode(ReplicationError):
    """The other side is a RocketMQ 5 broker in controller mode, which replicates by another protocol."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who

    def __str__(self) -> str:
        return (
            f"replication: {self.who} is a broker in controller mode, whose protocol is not spoken here; "
            "run it with enableControllerMode=false"
        )


class FilesDiffer(ReplicationError):
    """The master's log files have another size than the slave's. Nothing more is appended."""

    def __init__(self, path: Path, file_size: int, boundary: int | None) -> None:
        """`boundary`: where a file of the master's begins or ends, if that showed."""
        super().__init__(path, file_size, boundary)
        self.path, self.file_size, self.boundary = path, file_size, boundary

    def __str__(self) -> str:
        at = "in the middle of a file here" if self.boundary is None else f"at offset {self.boundary}"
        return (
            f"{self.path}: log files have {self.file_size} bytes here, and the master's do not: one of them begins or "
            f"ends {at}; replicate into an empty folder with the master's mappedFileSizeCommitLog"
        )


class NoMaster(ReplicationError):
    """No master sends its log from this address. What was appended before stays."""

    def __init__(self, master: str, silent_s: float, last: str | None) -> None:
        """`last`: why the last connection ended, or could not be opened."""
        super().__init__(master, silent_s, last)
        self.master, self.silent_s, self.last = master, silent_s, last

    def __str__(self) -> str:
        last = f" ({self.last})" if self.last is not None else ""
        return (
            f"{self.master}: no master has sent its log for {self.silent_s:.1f} s{last}; is it running, and is this "
            "its replication port (haListenPort, 10912 unless it is set)?"
        )


class NotOnMaster(ReplicationError):
    """The master sends nothing from the offset that was asked for. Nothing was appended, and nothing is lost here."""

    def __init__(self, path: Path, master: str, offset: int, reason: str, remedy: str) -> None:
        super().__init__(path, master, offset, reason, remedy)
        self.path, self.master, self.offset, self.reason, self.remedy = path, master, offset, reason, remedy

    def __str__(self) -> str:
        where = f"{self.path}: the master at {self.master} has no bytes at offset {self.offset}"
        return f"{where}: {self.reason}; {self.remedy}"


class Diverged(ReplicationError):
    """Master and slave have different logs. Nothing was appended, and they are never merged."""

    def __init__(self, path: Path, master: str, offset: int, end: int, found: str) -> None:
        """`offset`: where they part; `end`: where the slave's log ends; `found`: how it shows."""
        super().__init__(path, master, offset, end, found)
        self.path, self.master, self.offset, self.end, self.found = path, master, offset, end, found

    def __str__(self) -> str:
        return (
            f"{self.path}: this log and the one of the master at {self.master} part at offset {self.offset}: "
            f"{self.found}; {self.end - self.offset} bytes from there on exist only here; save what you need of them "
            "(mqlake scan), then replicate into an empty folder instead"
        )


class NoSuchMessage(StoreError):
    """No message starts at the given physical offset or message id."""

    def __init__(self, wanted: str, reason: str) -> None:
        super().__init__(wanted, reason)
        self.wanted, self.reason = wanted, reason

    def __str__(self) -> str:
        return f"{self.wanted}: {self.reason}"


class QueryFailed(StoreError):
    """DuckDB or Spark cannot parse a query, or the query failed while it ran."""

    def __init__(self, reason: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(reason, line, column)
        self.reason, self.line, self.column = reason, line, column

    def __str__(self) -> str:
        return self.reason if self.line is None else f"line {self.line}, column {self.column}: {self.reason}"


class SparkNotStarted(StoreError):
    """Spark did not start, or its cluster could not be reached."""

    def __init__(self, master: str, reason: str) -> None:
        super().__init__(master, reason)
        self.master, self.reason = master, reason

    def __str__(self) -> str:
        return (
            f"Spark did not start with the master {self.master!r}: {self.reason}; name a running one, like "
            "spark://host:7077, or local[*] for this machine (mqlake --verbose shows Spark's own output)"
        )


class NotOnConnect(StoreError):
    """A session of Spark Connect runs its functions on the server. What must run in this program cannot use it."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what, instead)
        self.what, self.instead = what, instead

    def __str__(self) -> str:
        return f"{self.what} does not run on Spark Connect; {self.instead}"


class MissingExtra(StoreError):
    """An optional package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return f"{self.what} needs an optional package: pip install 'mqlake[{self.extra}]'"


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


class OtherRows(StoreError):
    """A job with this id wrote other rows before. Nothing was written."""

    def __init__(self, store: Path, job: str, what: str, before: str, now: str) -> None:
        super().__init__(store, job, what, before, now)
        self.store, self.job, self.what, self.before, self.now = store, job, what, before, now

    def __str__(self) -> str:
        return (
            f"{self.store}: the job {self.job!r} {self.what} {self.before}, and now it has {self.now}: nothing was "
            "written; give these rows another jobId, or write the same rows as before"
        )


class ChangedUnderRead(StoreError):
    """A task did not find what its plan says. Spark fails the task, so none of its rows count."""

    def __init__(self, store: str, offset: int, found: str, expected: str) -> None:
        super().__init__(store, offset, found, expected)
        self.store, self.offset, self.found, self.expected = store, offset, found, expected

    def __str__(self) -> str:
        return (
            f"{self.store}: offset {self.offset}: found {self.found}; expected {self.expected}; "
            "call load() again to read the store as it is now"
        )


class PositionLost(StoreError):
    """A stream's position is before the log's first byte or after its end, or the log is not the one that was read."""

    def __init__(self, store: str, position: int, found: str, effect: str = "continues without what is lost") -> None:
        """`effect`: what the stream does if loss is accepted."""
        super().__init__(store, position, found, effect)
        self.store, self.position, self.found, self.effect = store, position, found, effect

    def __str__(self) -> str:
        return (
            f"{self.store}: the stream is at {self.position}, {self.found}; "
            "restore the log, or start again with a new checkpoint folder, or set failOnDataLoss=false: then the "
            f"stream {self.effect}; a gate (store.retention.hold) keeps the log that a stream still needs"
        )


class NotALake(StoreError):
    """The folder holds something else, does not exist, or has a newer format."""

    def __init__(self, path: Path | str, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path, self.reason, self.remedy = path, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


class LakeInUse(StoreError):
    """Only one job at a time may change a lake. Readers need no lock."""

    def __init__(self, path: Path | str, holder: str) -> None:
        super().__init__(path, holder)
        self.path, self.holder = path, holder

    def __str__(self) -> str:
        return f"{self.path}: {self.holder} is changing this lake; wait for it, or stop it"


class WrongLake(StoreError):
    """What the lake holds under this store's name comes from another store. Nothing was written."""

    def __init__(self, lake: Path | str, store: str, found: str, remedy: str) -> None:
        super().__init__(lake, store, found, remedy)
        self.lake, self.store, self.found, self.remedy = lake, store, found, remedy

    def __str__(self) -> str:
        return f"{self.lake}: {self.store}: {self.found}; {self.remedy}"


class LakeGap(StoreError):
    """The log starts after the lake's end: retention, or another tool, deleted bytes before they were archived."""

    def __init__(self, lake: Path | str, store: str, end: int, first_offset: int) -> None:
        super().__init__(lake, store, end, first_offset)
        self.lake, self.store, self.end, self.first_offset = lake, store, end, first_offset

    def __str__(self) -> str:
        return (
            f"{self.lake}: {self.store}: the lake ends at {self.end}, the log begins at {self.first_offset}: "
            f"{self.first_offset - self.end} bytes were deleted before they were archived; restore the files, "
            "or continue without them (--accept-gap), which lists them as lost"
        )


class StageFailed(StoreError):
    """A stage of the pipeline failed. Nothing of the batch counts; the next run repeats it."""

    def __init__(self, stage: str, what: str, cause: str) -> None:
        super().__init__(stage, what, cause)
        self.stage, self.what, self.cause = stage, what, cause

    def __str__(self) -> str:
        return f"{self.stage} of {self.what}: {self.cause}"


class LakeConflict(StoreError):
    """A commit contradicts what the lake holds by now. Nothing was committed."""

    def __init__(self, lake: Path | str, found: str, expected: str) -> None:
        super().__init__(lake, found, expected)
        self.lake, self.found, self.expected = lake, found, expected

    def __str__(self) -> str:
        return (
            f"{self.lake}: found {self.found}; expected {self.expected}; "
            "run the job again: it continues at the lake's end"
        )


class VersionGone(StoreError):
    """The version of a lake was forgotten, or does not exist yet."""

    def __init__(self, lake: Path | str, version: int, first: int, newest: int) -> None:
        super().__init__(lake, version, first, newest)
        self.lake, self.version, self.first, self.newest = lake, version, first, newest

    def __str__(self) -> str:
        return f"{self.lake}: there is no version {self.version}; there are {self.first} to {self.newest}"


class StorageFailed(StoreError):
    """An object store refused a request, or did not answer after several tries."""

    def __init__(self, place: str, what: str, found: str) -> None:
        super().__init__(place, what, found)
        self.place, self.what, self.found = place, what, found

    def __str__(self) -> str:
        return f"{self.place}: {self.what}: {self.found}; check the address, the bucket and the credentials"


class MissingJava(StoreError):
    """No Java was found, or it is too old for Spark."""

    def __init__(self, found: str, needed: int) -> None:
        super().__init__(found, needed)
        self.found, self.needed = found, needed

    def __str__(self) -> str:
        return (
            f"Spark needs Java {self.needed} or newer; found {self.found}; install one (Debian and Ubuntu: "
            f"apt-get install openjdk-{self.needed}-jre-headless) or set JAVA_HOME to one"
        )


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})


def is_disk_full(error: Exception) -> bool:
    """Return whether the disk has no space left, or the user's quota is used up."""
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in FULL)


def is_passing(error: Exception) -> bool:
    """Return whether the same call may succeed later by itself: space, descriptors or memory ran out."""
    if isinstance(error, FileFailed):
        return error.number in PASSING
    return is_disk_full(error) or (isinstance(error, OSError) and error.errno in PASSING)


@contextmanager
def typed_errors(path: Path, action: str) -> Iterator[None]:
    """Raise FileFailed or DiskFull instead of OSError, about the file that it names, or about `path`."""
    try:
        yield
    except OSError as error:
        named = Path(error.filename) if isinstance(error.filename, str) else path
        raise file_error(named, action, 0, error) from error


def file_error(path: Path, action: str, size_bytes: int, error: OSError) -> StoreError:
    """Return the error for what the system said while a file was made, opened or given blocks."""
    reason = error.strerror or str(error)
    if is_disk_full(error):
        return DiskFull(path, size_bytes, reason)
    return FileFailed(path, action, error.errno or 0, reason)
