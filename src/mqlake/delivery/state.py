"""What this layer keeps of one store in `config/`, each file opened when it is first needed.

A program that only puts reads `topics.json` once, with its first message, and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from mqlake.delivery.config_file import ConfigFile
from mqlake.delivery.filter_table import FilterTable
from mqlake.delivery.groups import Group, Groups
from mqlake.delivery.housekeeping import Housekeeping
from mqlake.delivery.offsets import ConsumerOffsets, OffsetTable
from mqlake.delivery.registry import nearest
from mqlake.delivery.retry import retried
from mqlake.delivery.scheduler import Scheduler
from mqlake.delivery.system_topics import HALF_TOPIC, INTERNAL_GROUP_PREFIX, system_queue_count
from mqlake.delivery.topics import Permission, Topic, Topics
from mqlake.delivery.transaction import Transactions
from mqlake.delivery.waiting import Waiting, by_the_clock
from mqlake.errors import NotPermitted, ReadOnlyStore, StoreError, UnknownTopic
from mqlake.message import Durability, PutReceipt, StoredMessage
from mqlake.store.engine import Engine
from mqlake.store.follower import Follower

Value = TypeVar("Value")
_log = logging.getLogger(__name__)


class Once(Generic[Value]):
    """A value that is made when it is first asked for, by one thread."""

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[Value] = []

    def __call__(self) -> Value:
        if not self._made:
            with self._lock:
                if not self._made:
                    self._made.append(self._make())
        return self._made[0]

    def peek(self) -> Value | None:
        return self._made[0] if self._made else None


class Delivery:
    """Topics, groups and progress of one store, and who keeps them on the disk."""

    def __init__(self, side: Engine | Follower) -> None:
        self.side = side
        self.config = side.config.delivery
        self.housekeeping = Housekeeping()
        self._is_kept = False
        self._topics = Once(lambda: Topics(self._file("topics.json")))
        self._groups = Once(lambda: Groups(self._file("subscriptionGroup.json")))
        self._filters = Once(lambda: FilterTable(self._file("consumerFilter.json")))
        self._offsets = Once(self._open_offsets)
        self._own_tables: weakref.WeakSet[OffsetTable] = weakref.WeakSet()
        self.scheduler: Scheduler | None = Scheduler(side, self.housekeeping) if isinstance(side, Engine) else None
        """Messages for later, for the writer."""
        self._transactions = Once(self._open_transactions)

    def _file(self, name: str) -> ConfigFile:
        return ConfigFile(self.side.layout.config / name, self.side.layout.scratch)

    @property
    def topics(self) -> Topics:
        """`topics.json`."""
        return self._topics()

    @property
    def groups(self) -> Groups:
        """`subscriptionGroup.json`."""
        return self._groups()

    @property
    def filters(self) -> FilterTable:
        """`consumerFilter.json`."""
        return self._filters()

    @property
    def offsets(self) -> ConsumerOffsets:
        """`consumerOffset.json`. Who commits calls `keep` once before."""
        return self._offsets()

    def _open_offsets(self) -> ConsumerOffsets:
        offsets = ConsumerOffsets(self._file("consumerOffset.json"))
        offsets.before_save = self._make_log_durable
        return offsets

    def _make_log_durable(self) -> None:
        if isinstance(self.side, Engine):
            self.side.flusher.wait_until_durable(self.side.dispatcher.dispatched)

    def current_offsets(self) -> ConsumerOffsets:
        """The group's progress as it is now: a reader looks at the file again."""
        return self.offsets if isinstance(self.side, Engine) else self._open_offsets()

    # ---- who may

    def admit(self, topic: str) -> int | None:
        """How many queues a put spreads its messages over: asked with the first message of a topic, not after it."""
        known = self.topics.find(topic)
        if known is None:
            known = self.make_topic(topic)
        if Permission.WRITE not in known.permission:
            found = f"its permission is {known.permission!s}, WRITE is needed"
            raise NotPermitted(f"topic {topic!r}", found, "change it with update_topic")
        return known.write_queue_count

    def make_topic(self, name: str) -> Topic:
        """A topic that comes into being by use, in memory at once and in the file a little later."""
        if not isinstance(self.side, Engine):
            raise self.topics.unknown(name)
        queue_count = system_queue_count(name, len(self.side.config.delays_ms))
        if queue_count is None:
            if not self.config.auto_create_topics:
                known = nearest(name, self.topics.names)
                raise UnknownTopic(name, None, f"{known}; create_topic sets one up (autoCreateTopicEnable is off)")
            queue_count = self.side.queue_count(name)
        topic = self.topics.note(Topic(name, queue_count, queue_count))
        self.keep()
        return topic

    def require_group(self, name: str) -> Group:
        """A group that consumes; one that is not set up comes into being, where that is allowed."""
        known = self.groups.find(name)
        if known is None:
            if not isinstance(self.side, Engine):
                return Group(name)  # a reader keeps progress of its own, under any name
            if not self.config.auto_create_groups and not name.startswith(INTERNAL_GROUP_PREFIX):
                raise self.groups.unknown(name)
            known = self.groups.note(Group(name))
            self.keep()
        if not known.enabled:
            raise NotPermitted(f"group {name!r}", "it is not enabled", "change it with update_group")
        return known

    def require_writer(self) -> Engine:
        if not isinstance(self.side, Engine):
            raise ReadOnlyStore(self.side.layout.root)
        return self.side

    def require_scheduler(self) -> Scheduler:
        self.require_writer()
        assert self.scheduler is not None, "a writer has one"
        return self.scheduler

    def retry(self, group: str, message: StoredMessage, level: int = 0) -> PutReceipt | None:
        """Have a group get a message again that failed; None where it wants none again."""
        engine = self.require_writer()
        again = retried(self.require_group(group), message, level)
        if again is None:
            return None
        receipt = engine.log.append(again, Durability.DISK if engine.config.flush.sync else Durability.PAGE_CACHE)
        engine.publish()
        return receipt

    def waiting(self, limit: int) -> list[Waiting]:
        """The messages that are delivered next; for a reader, those whose time has not come."""
        if self.scheduler is not None:
            return self.scheduler.waiting(limit)
        return by_the_clock(self.side, time.time_ns() // 1_000_000, limit)

    @property
    def transactions(self) -> Transactions:
        """Half messages, and what becomes of them."""
        return self._transactions()

    def _open_transactions(self) -> Transactions:
        transactions = Transactions(self.require_writer(), self.offsets, self.require_scheduler().deliveries)
        self.keep()
        self.housekeeping.add(transactions.step)
        return transactions

    def start(self) -> None:
        """Go on with messages that the store holds for later, and with transactions that a crash left behind."""
        self.require_scheduler().start()
        if self.require_writer().queues.queue_ids(HALF_TOPIC):
            self._transactions()

    # ---- to the disk

    def keep(self) -> None:
        """From here on, what changes reaches the disk every few seconds."""
        if not self._is_kept:
            self._is_kept = True
            self.housekeeping.add(self._persist, time.time_ns() // 1_000_000 + self.config.persist_interval_ms)

    def keep_table(self, table: OffsetTable) -> None:
        """Progress of a consumer's own, in a file that is none of the store's."""
        table.before_save = self._make_log_durable
        self._own_tables.add(table)
        self.keep()

    def _persist(self, now_ms: int) -> int:
        self.persist()
        return now_ms + self.config.persist_interval_ms

    def persist(self) -> None:
        """Write what changed since the last time."""
        for own in list(self._own_tables):
            own.sync()
        if isinstance(self.side, Engine):
            for opened in (self._topics, self._groups, self._filters, self._offsets):
                table = opened.peek()
                if table is not None:
                    table.sync()

    def close(self) -> None:
        """Stop what runs, and write what changed."""
        self.housekeeping.close()
        transactions = self._transactions.peek()
        for keep in (
            self.scheduler.close if self.scheduler is not None else None,
            transactions.keep if transactions is not None else None,
            self.persist,
        ):
            try:
                if keep is not None:
                    keep()
            except (StoreError, OSError) as error:  # what is not written comes again; the store must close all the same
                _log.error("progress is not written: %s", error)
