"""mqlake: a durable message store whose files are Apache RocketMQ's, byte for byte.

What does something is imported when it is first asked for: a program that puts needs no check, and the processes that
Spark starts for a query need neither.
"""

import importlib
import logging
from typing import TYPE_CHECKING

from mqlake.config import (
    CommitLogConfig,
    ConsumeQueueConfig,
    DeliveryConfig,
    FlushConfig,
    IndexConfig,
    MemoryConfig,
    PoolConfig,
    ReplicationConfig,
    RetentionConfig,
    Role,
    SealConfig,
    StoreConfig,
    TimerConfig,
    TransactionConfig,
)
from mqlake.errors import (
    BackupFailed,
    BadConfigFile,
    BadFile,
    CorruptBody,
    CorruptRecord,
    DiskAboveLimit,
    DiskFull,
    DispatchFailed,
    FileFailed,
    FlushTimeout,
    InvalidConfig,
    InvalidFilter,
    InvalidMessage,
    MessagesLost,
    MissingExtra,
    NoRoute,
    NoSuchMessage,
    NotAStore,
    NotConfirmed,
    NotConnected,
    NotMaster,
    NotPending,
    NotPermitted,
    NotWritten,
    OffsetOutOfRange,
    ReadOnlyStore,
    RemoteError,
    ReplicaMissing,
    ReplicaTimeout,
    ReplicationError,
    RequestRefused,
    RequestTimeout,
    SourceFailed,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreForked,
    StoreLocked,
    TransactionEnded,
    TransactionExpired,
    UnfinishedBatch,
    UnknownGroup,
    UnknownTopic,
)
from mqlake.message import Durability, Message, PutReceipt, StoredMessage
from mqlake.version import __version__

if TYPE_CHECKING:
    from mqlake.delivery.consume.filters import Sql, Tags
    from mqlake.handling.tracking import RunCounts
    from mqlake.inspect.backup import Backup
    from mqlake.inspect.check import CheckReport, check
    from mqlake.inspect.findings import Finding, Severity
    from mqlake.inspect.heal import HealReport
    from mqlake.message_store import MessageStore
    from mqlake.running import run, run_async
    from mqlake.runtime.workers import WorkerHealth
    from mqlake.store.health import Health
    from mqlake.store.read import QueueRange
    from mqlake.store.retention import Retained
    from mqlake.store.stats import StoreStats, TopicStats

PLACES = {
    "Backup": "inspect.backup",
    "WorkerHealth": "runtime.workers",
    "Health": "store.health",
    "CheckReport": "inspect.check",
    "Finding": "inspect.findings",
    "HealReport": "inspect.heal",
    "MessageStore": "message_store",
    "QueueRange": "store.read",
    "Retained": "store.retention",
    "RunCounts": "handling.tracking",
    "Severity": "inspect.findings",
    "Sql": "delivery.consume.filters",
    "StoreStats": "store.stats",
    "Tags": "delivery.consume.filters",
    "TopicStats": "store.stats",
    "check": "inspect.check",
    "run": "running",
    "run_async": "running",
}

__all__ = [
    "Backup",
    "BackupFailed",
    "BadConfigFile",
    "BadFile",
    "CheckReport",
    "CommitLogConfig",
    "ConsumeQueueConfig",
    "CorruptBody",
    "CorruptRecord",
    "DeliveryConfig",
    "DiskAboveLimit",
    "DiskFull",
    "DispatchFailed",
    "Durability",
    "FileFailed",
    "Finding",
    "FlushConfig",
    "FlushTimeout",
    "HealReport",
    "Health",
    "IndexConfig",
    "InvalidConfig",
    "InvalidFilter",
    "InvalidMessage",
    "MemoryConfig",
    "Message",
    "MessageStore",
    "MessagesLost",
    "MissingExtra",
    "NoRoute",
    "NoSuchMessage",
    "NotAStore",
    "NotConfirmed",
    "NotConnected",
    "NotMaster",
    "NotPending",
    "NotPermitted",
    "NotWritten",
    "OffsetOutOfRange",
    "PoolConfig",
    "PutReceipt",
    "QueueRange",
    "ReadOnlyStore",
    "RemoteError",
    "ReplicaMissing",
    "ReplicaTimeout",
    "ReplicationConfig",
    "ReplicationError",
    "RequestRefused",
    "RequestTimeout",
    "Retained",
    "RetentionConfig",
    "Role",
    "RunCounts",
    "SealConfig",
    "Severity",
    "SourceFailed",
    "Sql",
    "StoreClosed",
    "StoreConfig",
    "StoreError",
    "StoreFailed",
    "StoreForked",
    "StoreLocked",
    "StoreStats",
    "StoredMessage",
    "Tags",
    "TimerConfig",
    "TopicStats",
    "TransactionConfig",
    "TransactionEnded",
    "TransactionExpired",
    "UnfinishedBatch",
    "UnknownGroup",
    "UnknownTopic",
    "WorkerHealth",
    "__version__",
    "check",
    "run",
    "run_async",
]


# The program decides where log lines go: without a handler of its own, Python would print warnings.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES})


def __getattr__(name: str) -> object:
    if name not in PLACES:
        raise AttributeError(f"module 'mqlake' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mqlake.{PLACES[name]}"), name)
