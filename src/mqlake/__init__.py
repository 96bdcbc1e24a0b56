"""mqlake: a durable message store whose files are Apache RocketMQ's, byte for byte.

`check` and what it answers with are imported when they are first asked for: a program that puts needs none of it.
"""

from typing import TYPE_CHECKING

from mqlake.config import (
    CommitLogConfig,
    ConsumeQueueConfig,
    DeliveryConfig,
    FlushConfig,
    IndexConfig,
    MemoryConfig,
    PoolConfig,
    RetentionConfig,
    StoreConfig,
    TimerConfig,
    TransactionConfig,
)
from mqlake.delivery.filters import Sql, Tags
from mqlake.delivery.message_store import MessageStore
from mqlake.errors import (
    BadConfigFile,
    BadFile,
    CorruptBody,
    CorruptRecord,
    DiskAboveLimit,
    DiskFull,
    FlushTimeout,
    InvalidConfig,
    InvalidFilter,
    InvalidMessage,
    MessagesLost,
    MissingExtra,
    NoSuchMessage,
    NotAStore,
    NotPending,
    NotPermitted,
    OffsetOutOfRange,
    ReadOnlyStore,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreLocked,
    TransactionEnded,
    TransactionExpired,
    UnfinishedBatch,
    UnknownGroup,
    UnknownTopic,
)
from mqlake.message import Durability, Message, PutReceipt, StoredMessage
from mqlake.store.read import QueueRange
from mqlake.store.retention import Retained
from mqlake.store.stats import StoreStats, TopicStats
from mqlake.version import __version__

if TYPE_CHECKING:
    from mqlake.store.check import CheckReport, check
    from mqlake.store.findings import Finding, Severity

__all__ = [
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
    "Durability",
    "Finding",
    "FlushConfig",
    "FlushTimeout",
    "IndexConfig",
    "InvalidConfig",
    "InvalidFilter",
    "InvalidMessage",
    "MemoryConfig",
    "Message",
    "MessageStore",
    "MessagesLost",
    "MissingExtra",
    "NoSuchMessage",
    "NotAStore",
    "NotPending",
    "NotPermitted",
    "OffsetOutOfRange",
    "PoolConfig",
    "PutReceipt",
    "QueueRange",
    "ReadOnlyStore",
    "Retained",
    "RetentionConfig",
    "Severity",
    "Sql",
    "StoreClosed",
    "StoreConfig",
    "StoreError",
    "StoreFailed",
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
    "__version__",
    "check",
]


def __getattr__(name: str) -> object:
    if name not in ("CheckReport", "Finding", "Severity", "check"):
        raise AttributeError(f"module 'mqlake' has no attribute {name!r}")
    from mqlake.store import check, findings

    return getattr(check if hasattr(check, name) else findings, name)
