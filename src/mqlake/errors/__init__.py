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
pickle. The modules of this package group them by what raises them; import them from here.
"""

from mqlake.errors.files import (
    FULL,
    PASSING,
    BadConfigFile,
    BadFile,
    CorruptBody,
    CorruptRecord,
    DiskAboveLimit,
    DiskFull,
    FileFailed,
    NotWritten,
    file_error,
    is_disk_full,
    is_passing,
    typed_errors,
)
from mqlake.errors.pipeline import (
    ChangedUnderRead,
    LakeConflict,
    LakeGap,
    LakeInUse,
    MissingExtra,
    MissingJava,
    NotALake,
    NotOnConnect,
    OtherRows,
    PositionLost,
    QueryFailed,
    SparkNotStarted,
    StageFailed,
    StorageFailed,
    VersionGone,
    WrongLake,
)
from mqlake.errors.reading import (
    FILTER_SHOWN,
    InvalidFilter,
    MessagesLost,
    NoSuchMessage,
    NotPending,
    NotPermitted,
    OffsetOutOfRange,
    TransactionEnded,
    TransactionExpired,
    UnknownGroup,
    UnknownTopic,
)
from mqlake.errors.remote import (
    BadFrame,
    BadRequest,
    BadTransfer,
    ControllerMode,
    Diverged,
    FilesDiffer,
    MasterAlive,
    MasterUnknown,
    NoMaster,
    NoRoute,
    NotConnected,
    NotOnMaster,
    RemoteError,
    ReplicationError,
    RequestRefused,
    RequestTimeout,
    SlaveRefused,
)
from mqlake.errors.root import StoreError
from mqlake.errors.store import (
    BackupFailed,
    DispatchFailed,
    FlushTimeout,
    InvalidConfig,
    InvalidMessage,
    NotAStore,
    NotConfirmed,
    NotMaster,
    ReadOnlyStore,
    ReplicaMissing,
    ReplicaTimeout,
    SourceFailed,
    StoreClosed,
    StoreFailed,
    StoreForked,
    StoreLocked,
    UnfinishedBatch,
)

__all__ = [
    "FILTER_SHOWN",
    "FULL",
    "PASSING",
    "BackupFailed",
    "BadConfigFile",
    "BadFile",
    "BadFrame",
    "BadRequest",
    "BadTransfer",
    "ChangedUnderRead",
    "ControllerMode",
    "CorruptBody",
    "CorruptRecord",
    "DiskAboveLimit",
    "DiskFull",
    "DispatchFailed",
    "Diverged",
    "FileFailed",
    "FilesDiffer",
    "FlushTimeout",
    "InvalidConfig",
    "InvalidFilter",
    "InvalidMessage",
    "LakeConflict",
    "LakeGap",
    "LakeInUse",
    "MasterAlive",
    "MasterUnknown",
    "MessagesLost",
    "MissingExtra",
    "MissingJava",
    "NoMaster",
    "NoRoute",
    "NoSuchMessage",
    "NotALake",
    "NotAStore",
    "NotConfirmed",
    "NotConnected",
    "NotMaster",
    "NotOnConnect",
    "NotOnMaster",
    "NotPending",
    "NotPermitted",
    "NotWritten",
    "OffsetOutOfRange",
    "OtherRows",
    "PositionLost",
    "QueryFailed",
    "ReadOnlyStore",
    "RemoteError",
    "ReplicaMissing",
    "ReplicaTimeout",
    "ReplicationError",
    "RequestRefused",
    "RequestTimeout",
    "SlaveRefused",
    "SourceFailed",
    "SparkNotStarted",
    "StageFailed",
    "StorageFailed",
    "StoreClosed",
    "StoreError",
    "StoreFailed",
    "StoreForked",
    "StoreLocked",
    "TransactionEnded",
    "TransactionExpired",
    "UnfinishedBatch",
    "UnknownGroup",
    "UnknownTopic",
    "VersionGone",
    "WrongLake",
    "file_error",
    "is_disk_full",
    "is_passing",
    "typed_errors",
]

# Tracebacks and pickles name the public place, wherever in this package a class is written.
for _public in list(vars().values()):
    if isinstance(_public, type) and issubclass(_public, StoreError):
        _public.__module__ = __name__
