"""mqlake: a durable message store whose files are Apache RocketMQ's, byte for byte.

What does something is imported when it is first asked for: a program that puts needs no check, and the processes that
Spark starts for a query need neither.
"""

import importlib
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
from mqlake.version import __version__

if TYPE_CHECKING:
    from mqlake.delivery.filters import Sql, Tags
    from mqlake.delivery.message_store import MessageStore
    from mqlake.store.check import CheckReport, check
    from mqlake.store.findings import Finding, Severity
    from mqlake.store.read import QueueRange
    from mqlake.store.retention import Retained
    from mqlake.store.stats import StoreStats, TopicStats

PLACES = {
    "CheckReport": "store.check",
    "Finding": "store.findings",
    "MessageStore": "delivery.message_store",
    "QueueRange": "store.read",
    "Retained": "store.retention",
    "Severity": "store.findings",
    "Sql": "delivery.filters",
    "StoreStats": "store.stats",
    "Tags": "delivery.filters",
    "TopicStats": "store.stats",
    "check": "store.check",
}

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
    if name not in PLACES:
        raise AttributeError(f"module 'mqlake' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mqlake.{PLACES[name]}"), name)
