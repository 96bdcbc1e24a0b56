"""Every exception of mqlake, one family:

    StoreError
    ├── InvalidMessage        a message that RocketMQ's format cannot carry, or that passes a limit
    ├── InvalidConfig         a setting that is unknown, out of range, or contradicts the files
    ├── NotAStore             a path that holds no store and cannot become one
    ├── StoreLocked           another process (or this one) writes the store
    ├── StoreClosed           a call on a closed store
    ├── ReadOnlyStore         a write to a store that was opened for reading
    ├── StoreFailed           a sync failed: what was appended since is not acknowledged, puts are refused
    ├── DiskFull              a file could not be given its blocks; nothing was written
    │   └── DiskAboveLimit    the disk is so full that puts are refused; nothing was written
    ├── FlushTimeout          the sync did not end in time: the message is in the log, its durability is unknown
    ├── BadFile               a file of the store has the wrong name or size
    ├── BadConfigFile         config/NAME.json and its .bak are damaged both
    ├── CorruptRecord         bytes in the log that contradict their own header
    ├── CorruptBody           a compressed body that does not inflate
    ├── InvalidFilter         a filter that cannot be understood; it points at the place
    ├── UnknownTopic          no such topic, or no such queue of it
    ├── UnknownGroup          no such consumer group
    ├── NotPermitted          a topic or a group is set up so that this may not be done with it
    ├── OffsetOutOfRange      a queue or log offset before the first or past the last
    │   └── MessagesLost      a consumer's progress lies where the queue has no messages any more
    ├── NotPending            a message that cannot be taken back: its time has come, or it never had one
    ├── TransactionEnded      a transaction that is committed, rolled back or given up already
    ├── TransactionExpired    a transaction whose own time limit is over
    ├── NoSuchMessage         no record begins at this physical offset, or has this id
    ├── UnfinishedBatch       a batch is half in the log, and what would complete it is gone or contradicts it
    ├── ChangedUnderRead      what a Spark task was to read is no longer there as it was planned
    ├── PositionLost          a stream's position is no longer a place in the log
    ├── NotALake              a folder that is no lake and cannot become one
    ├── LakeInUse             another process, or this one, works on the lake
    ├── WrongLake             the lake has another store in this one's place
    ├── LakeGap               bytes that the lake does not have yet are gone from the log
    ├── StageFailed           a stage of the pipeline could not do a byte range
    ├── LakeConflict          a commit that does not go on where the lake ends
    ├── QueryFailed           Spark could not answer a query, or a task of a job failed
    ├── SparkNotStarted       Spark did not start, or its cluster was not reached
    ├── MissingExtra          an optional package is needed for this call
    └── MissingJava           Spark needs a Java that is not there, or too old

Each says where, what was found, what was expected and what to do. Arguments are kept as given, so they pickle.
"""

from __future__ import annotations

import errno
from pathlib import Path


class StoreError(Exception):
    """The root: `except StoreError` catches everything that mqlake raises on purpose."""


class InvalidMessage(StoreError):
    """A message that cannot be stored. Nothing was written."""

    def __init__(self, field: str, found: str, expected: str) -> None:
        super().__init__(field, found, expected)
        self.field, self.found, self.expected = field, found, expected

    def __str__(self) -> str:
        return f"{self.field}: found {self.found}; expected {self.expected}"


class InvalidConfig(StoreError):
    """A setting that cannot be used."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        super().__init__(key, value, expected)
        self.key, self.value, self.expected = key, value, expected

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.expected}"


class NotAStore(StoreError):
    """The path is a file, cannot be written, or holds something else."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path, self.reason, self.remedy = path, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


class StoreLocked(StoreError):
    """One process writes a store at a time."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(path, pid)
        self.path, self.pid = path, pid

    def __str__(self) -> str:
        return (
            f"{self.path}: process {self.pid} writes this store; "
            "stop it, or open with read_only=True to read while it writes"
        )


class StoreClosed(StoreError):
    """The store was closed, by close() or by the end of its with block."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: the store is closed; open it again with MessageStore.open"


class ReadOnlyStore(StoreError):
    """A put to a store that was opened with read_only=True."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: opened read-only; open it without read_only=True to write"


class StoreFailed(StoreError):
    """A sync failed. Reads go on; every put is refused until the store is opened again."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(path, cause)
        self.path, self.cause = path, cause

    def __str__(self) -> str:
        return (
            f"{self.path}: a sync failed ({self.cause}), so the store takes no more messages and acknowledges nothing "
            "that was not durable before; mend the disk, close the store and open it again"
        )


class DiskFull(StoreError):
    """A file of the log could not be allocated. Nothing was written; the same put may be tried again later."""

    def __init__(self, path: Path, size_bytes: int, cause: str) -> None:
        super().__init__(path, size_bytes, cause)
        self.path, self.size_bytes, self.cause = path, size_bytes, cause

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.size_bytes} bytes could not be allocated ({self.cause}); "
            "free space or use a smaller file size, then put again"
        )


class DiskAboveLimit(DiskFull):
    """The disk is fuller than configured for. Puts are taken again, without opening anew, once there is space."""

    def __init__(self, path: Path, used_percent: int, full_percent: int, resume_percent: int) -> None:
        super().__init__(path, 0, f"the disk is {used_percent} % full")
        self.args = (path, used_percent, full_percent, resume_percent)
        self.used_percent, self.full_percent, self.resume_percent = used_percent, full_percent, resume_percent

    def __str__(self) -> str:
        return (
            f"{self.path}: the disk is {self.used_percent} % full; puts are refused from above {self.full_percent} % "
            f"(diskSpaceWarningLevelRatio) until it is at {self.resume_percent} % again: free space"
        )


class FlushTimeout(StoreError):
    """The sync is still running. The message is in the log and may become durable; a retry may store it twice."""

    def __init__(self, path: Path, timeout_ms: int) -> None:
        super().__init__(path, timeout_ms)
        self.path, self.timeout_ms = path, timeout_ms

    def __str__(self) -> str:
        return (
            f"{self.path}: not durable within {self.timeout_ms} ms (syncFlushTimeout); the message may still become so"
        )


class BadFile(StoreError):
    """A file of the store is not what its place and its neighbours say."""

    def __init__(self, file: Path, found: str, expected: str) -> None:
        super().__init__(file, found, expected)
        self.file, self.found, self.expected = file, found, expected

    def __str__(self) -> str:
        return f"{self.file}: found {self.found}; expected {self.expected}"


class BadConfigFile(StoreError):
    """A file of state under `config/` cannot be read, and neither can the one before it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}; put a whole copy in its place, or remove it and its .bak to begin without "
            "what it said"
        )


class CorruptRecord(StoreError):
    """The commit log holds bytes that contradict their own header. Reads raise it; recovery alone catches it."""

    def __init__(self, file: Path, physical_offset: int, reason: str) -> None:
        super().__init__(file, physical_offset, reason)
        self.file, self.physical_offset, self.reason = file, physical_offset, reason

    def __str__(self) -> str:
        return f"{self.file.name}: record at {self.physical_offset}: {self.reason}"


class CorruptBody(StoreError, ValueError):
    """A body whose compression does not hold. The record's CRC may: then it was stored so."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the body cannot be decompressed: {self.reason}; `raw_body` has its bytes as stored"


class InvalidFilter(StoreError):
    """An expression that chooses messages and cannot be understood: says why, and points at the place."""

    def __init__(self, expression: str, position: int, reason: str) -> None:
        super().__init__(expression, position, reason)
        self.expression, self.position, self.reason = expression, position, reason

    def __str__(self) -> str:
        before = self.expression[: self.position]
        line = before.count("\n")
        column = self.position - (before.rfind("\n") + 1)
        shown = (self.expression.splitlines() or [""])[line:][:1] or [""]
        return f"filter: {self.reason}, at character {self.position + 1}\n  {shown[0]}\n  {' ' * column}^"


class UnknownTopic(StoreError):
    """The store has no such topic, or the topic no such queue."""

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
    """The set-up of a topic or of a group forbids it. Nothing was written."""

    def __init__(self, what: str, found: str, remedy: str) -> None:
        super().__init__(what, found, remedy)
        self.what, self.found, self.remedy = what, found, remedy

    def __str__(self) -> str:
        return f"{self.what}: {self.found}; {self.remedy}"


class OffsetOutOfRange(StoreError):
    """An offset outside of what is there: both ends are named, the end itself is not included."""

    def __init__(self, what: str, offset: int, first_offset: int, end_offset: int) -> None:
        super().__init__(what, offset, first_offset, end_offset)
        self.what, self.offset = what, offset
        self.first_offset, self.end_offset = first_offset, end_offset

    def __str__(self) -> str:
        return f"{self.what}: offset {self.offset} is outside of [{self.first_offset}, {self.end_offset})"


class NotPending(StoreError):
    """Only a message that waits for its moment can be cancelled."""

    def __init__(self, physical_offset: int, found: str, expected: str) -> None:
        super().__init__(physical_offset, found, expected)
        self.physical_offset, self.found, self.expected = physical_offset, found, expected

    def __str__(self) -> str:
        return f"cannot cancel what lies at offset {self.physical_offset}: found {self.found}; expected {self.expected}"


class TransactionEnded(StoreError):
    """A transaction is decided upon once."""

    def __init__(self, transaction_id: str, how: str) -> None:
        super().__init__(transaction_id, how)
        self.transaction_id, self.how = transaction_id, how

    def __str__(self) -> str:
        return f"transaction {self.transaction_id}: {self.how}; begin another one"


class TransactionExpired(StoreError):
    """The time limit that a transaction was begun with is over: it is for the check to decide."""

    def __init__(self, transaction_id: str, age_ms: int, limit_ms: int) -> None:
        super().__init__(transaction_id, age_ms, limit_ms)
        self.transaction_id, self.age_ms, self.limit_ms = transaction_id, age_ms, limit_ms

    def __str__(self) -> str:
        return (
            f"transaction {self.transaction_id}: {self.age_ms} ms old, and its limit is {self.limit_ms} ms; "
            "the check decides now (TransactionConfig.check), or store.transactions.resolve"
        )


class MessagesLost(OffsetOutOfRange):
    """A consumer with on_lost="fail" found its progress outside of the queue: retention was faster, or the log lost
    its end with a power cut."""

    def __str__(self) -> str:
        return (
            f"{self.what}: progress is at {self.offset}, the queue has [{self.first_offset}, {self.end_offset}); "
            'reset() it to "first", or consume with on_lost="skip"'
        )


class NoSuchMessage(StoreError):
    """No message is where a physical offset or a message id points."""

    def __init__(self, wanted: str, reason: str) -> None:
        super().__init__(wanted, reason)
        self.wanted, self.reason = wanted, reason

    def __str__(self) -> str:
        return f"{self.wanted}: {self.reason}"


class QueryFailed(StoreError):
    """A query that Spark does not understand, or that failed while it ran."""

    def __init__(self, reason: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(reason, line, column)
        self.reason, self.line, self.column = reason, line, column

    def __str__(self) -> str:
        return self.reason if self.line is None else f"line {self.line}, column {self.column}: {self.reason}"


class SparkNotStarted(StoreError):
    """Spark did not start, or its cluster was not reached."""

    def __init__(self, master: str, reason: str) -> None:
        super().__init__(master, reason)
        self.master, self.reason = master, reason

    def __str__(self) -> str:
        return (
            f"Spark did not start with the master {self.master!r}: {self.reason}; name one that runs, like "
            "spark://host:7077, or local[*] for this machine (mqlake --verbose shows all that Spark says)"
        )


class MissingExtra(StoreError):
    """An optional package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return f"{self.what} needs an optional package: pip install 'mqlake[{self.extra}]'"


class UnfinishedBatch(StoreError):
    """A batch that was begun can neither be completed nor told from what else is there. Nothing was written."""

    def __init__(self, store: Path, source: str, batch: int, offset: int, found: str) -> None:
        super().__init__(store, source, batch, offset, found)
        self.store, self.source, self.batch, self.offset, self.found = store, source, batch, offset, found

    def __str__(self) -> str:
        return (
            f"{self.store}: batch {self.batch} of {self.source} was begun at offset {self.offset} and not ended, and "
            f"{self.found}; look at what it left (mqlake scan, from that offset on), then go on with a new checkpoint "
            "or another jobId"
        )


class ChangedUnderRead(StoreError):
    """A task did not find what the plan of its read says. No row of it counts: Spark fails the task."""

    def __init__(self, store: str, offset: int, found: str, expected: str) -> None:
        super().__init__(store, offset, found, expected)
        self.store, self.offset, self.found, self.expected = store, offset, found, expected

    def __str__(self) -> str:
        return (
            f"{self.store}: offset {self.offset}: found {self.found}; expected {self.expected}; "
            "load() it again to read the store as it is now"
        )


class PositionLost(StoreError):
    """A stream has come to a place in the log that is not there any more, or not yet again."""

    def __init__(self, store: str, position: int, found: str) -> None:
        super().__init__(store, position, found)
        self.store, self.position, self.found = store, position, found

    def __str__(self) -> str:
        return (
            f"{self.store}: the stream stands at {self.position}, {self.found}; "
            "bring the log back, or set failOnDataLoss=false to go on without what is lost, or start again with a new "
            "checkpoint folder; a gate (store.retention.hold) keeps what a stream still needs"
        )


class NotALake(StoreError):
    """The folder holds something else, is not there, or is of a newer format."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path, self.reason, self.remedy = path, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


class LakeInUse(StoreError):
    """One job changes a lake at a time. Reading needs no lock."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(path, holder)
        self.path, self.holder = path, holder

    def __str__(self) -> str:
        return f"{self.path}: {self.holder} works on this lake; wait for it, or stop it"


class WrongLake(StoreError):
    """What the lake has of a store is not this store's. Nothing was written."""

    def __init__(self, lake: Path, store: str, found: str, remedy: str) -> None:
        super().__init__(lake, store, found, remedy)
        self.lake, self.store, self.found, self.remedy = lake, store, found, remedy

    def __str__(self) -> str:
        return f"{self.lake}: {self.store}: {self.found}; {self.remedy}"


class LakeGap(StoreError):
    """The log begins behind the lake's end: retention, or another tool, deleted what was not archived."""

    def __init__(self, lake: Path, store: str, end: int, first_offset: int) -> None:
        super().__init__(lake, store, end, first_offset)
        self.lake, self.store, self.end, self.first_offset = lake, store, end, first_offset

    def __str__(self) -> str:
        return (
            f"{self.lake}: {self.store}: the lake ends at {self.end}, the log begins at {self.first_offset}: "
            f"{self.first_offset - self.end} bytes were deleted before they were archived; bring the files back, "
            "or go on without them (--accept-gap), which lists them as lost"
        )


class StageFailed(StoreError):
    """A stage of the pipeline gave up. Nothing of the batch counts; the next run takes it again."""

    def __init__(self, stage: str, what: str, cause: str) -> None:
        super().__init__(stage, what, cause)
        self.stage, self.what, self.cause = stage, what, cause

    def __str__(self) -> str:
        return f"{self.stage} of {self.what}: {self.cause}"


class LakeConflict(StoreError):
    """A commit that contradicts what the lake has by now. Nothing was committed."""

    def __init__(self, lake: Path, found: str, expected: str) -> None:
        super().__init__(lake, found, expected)
        self.lake, self.found, self.expected = lake, found, expected

    def __str__(self) -> str:
        return f"{self.lake}: found {self.found}; expected {self.expected}; run the job again: it goes on at the end"


class MissingJava(StoreError):
    """Spark runs on Java."""

    def __init__(self, found: str, needed: int) -> None:
        super().__init__(found, needed)
        self.found, self.needed = found, needed

    def __str__(self) -> str:
        return (
            f"Spark needs Java {self.needed} or newer; found {self.found}; install one (Debian and Ubuntu: "
            f"apt-get install openjdk-{self.needed}-jre-headless) or point JAVA_HOME at one"
        )


def is_disk_full(error: Exception) -> bool:
    """The disk has no room, or this user may have no more of it."""
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))
