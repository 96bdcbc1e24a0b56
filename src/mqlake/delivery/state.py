"""Delivery state of one store: the tables in `config/`, the scheduler, transactions and consumers.

Each file is opened on first use: a program that only puts reads `topics.json` once, with its first message, and nothing
else.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mqlake.config import Role
from mqlake.delivery.housekeeping import Housekeeping
from mqlake.delivery.later.retry import retried
from mqlake.delivery.later.routing import DelayRouting
from mqlake.delivery.later.scheduler import Scheduler
from mqlake.delivery.later.waiting import Waiting, by_the_clock
from mqlake.delivery.registry.config_file import ConfigFile
from mqlake.delivery.registry.filter_table import FilterTable
from mqlake.delivery.registry.groups import Group, Groups
from mqlake.delivery.registry.offsets import ConsumerOffsets, OffsetTable
from mqlake.delivery.registry.system_topics import HALF_TOPIC, INTERNAL_GROUP_PREFIX, system_queue_count
from mqlake.delivery.registry.table import changed, nearest
from mqlake.delivery.registry.topics import Permission, Topic, Topics
from mqlake.delivery.transactions.transaction import Transactions
from mqlake.errors import InvalidConfig, NotMaster, NotPermitted, ReadOnlyStore, StoreError, UnknownTopic, typed_errors
from mqlake.logs.topic_table import require_topic
from mqlake.message import PutReceipt, StoredMessage
from mqlake.runtime.locks import make_lock
from mqlake.runtime.whole import make_whole
from mqlake.store.ports import Reading, Writing

if TYPE_CHECKING:
    from mqlake.delivery.consume.consumers import Consumers

Item = TypeVar("Item", Topic, Group)
Value = TypeVar("Value")
PARTS, TABLES = "delivery.parts", "delivery.tables"
"""Lock names, in lock order: opening a part may open tables, never the other way round."""
_log = logging.getLogger(__name__)


class Once(Generic[Value]):
    """A value created on first use, by the first thread that needs it."""

    def __init__(self, lock: str, make: Callable[[], Value]) -> None:
        """`lock` names the lock that is held while `make` creates the value."""
        self._make = make
        self._lock = make_lock(lock)
        self._made: list[Value] = []

    def __call__(self) -> Value:
        if not self._made:
            with self._lock:
                if not self._made:
                    self._made.append(self._make())
        return self._made[0]

    def peek(self) -> Value | None:
        """Return the value if it exists; never create it."""
        return self._made[0] if self._made else None


class Delivery:
    """Topics, groups, progress and delayed delivery of one store. It uses the store through its ports only."""

    def __init__(self, reading: Reading, writing: Writing | None, require_open: Callable[[], None]) -> None:
        """`require_open` raises unless the store is open."""
        self.reading = reading
        self._writing = writing
        self.require_open = require_open
        self.config = reading.config.delivery
        self._is_slave = reading.config.replication.role is Role.SLAVE
        self.housekeeping = (
            Housekeeping(writing.workers, lambda: writing.log.now_ms) if writing is not None else Housekeeping(None)
        )
        self._is_kept = False
        self._topics = Once(TABLES, lambda: Topics(self._file("topics.json")))
        self._groups = Once(TABLES, lambda: Groups(self._file("subscriptionGroup.json")))
        self._filters = Once(TABLES, lambda: FilterTable(self._file("consumerFilter.json")))
        self._offsets = Once(TABLES, self._open_offsets)
        self._own_tables: weakref.WeakSet[OffsetTable] = weakref.WeakSet()
        delivering = None if self._is_slave else writing
        self.scheduler = Scheduler(delivering, self.housekeeping) if delivering is not None else None
        """Delivers delayed messages; None in a reader and in a slave, whose master does it."""
        self._transactions = Once(PARTS, self._open_transactions)
        self._consumers = Once(PARTS, self._open_consumers)

    def start(self) -> None:
        """Start delivering if anything is pending, and finish commits that a crash interrupted."""
        writing = self._writing
        if writing is None or self.scheduler is None:
            return
        writing.topics.may_write = self.admit
        writing.log.route_delayed(
            DelayRouting(writing.config, self.scheduler.stored, lambda: writing.log.now_ms, self.scheduler.begin)
        )
        self.scheduler.start()
        if writing.queues.queue_ids(HALF_TOPIC):
            self._transactions()

    def _file(self, name: str) -> ConfigFile:
        return ConfigFile(self.reading.layout.config / name, self.reading.layout.scratch)

    def parts(self) -> list[object]:
        """Return the tables and parts that exist by now, without taking a lock."""
        opened: list[Once[Any]] = [
            self._topics,
            self._groups,
            self._filters,
            self._offsets,
            self._transactions,
            self._consumers,
        ]
        return [part for once in opened if (part := once.peek()) is not None]

    @property
    def topics(self) -> Topics:
        """The table in `topics.json`."""
        return self._topics()

    @property
    def groups(self) -> Groups:
        """The table in `subscriptionGroup.json`."""
        return self._groups()

    @property
    def filters(self) -> FilterTable:
        """The table in `consumerFilter.json`."""
        return self._filters()

    @property
    def offsets(self) -> ConsumerOffsets:
        """The table in `consumerOffset.json`. A caller that commits calls `keep` once before."""
        return self._offsets()

    @property
    def consumers(self) -> Consumers:
        """All consumers of the store."""
        self.require_open()
        return self._consumers()

    def _open_consumers(self) -> Consumers:
        with typed_errors(self.reading.layout.root, "imported"):
            from mqlake.delivery.consume.consumers import Consumers

        return Consumers(self)

    def _open_offsets(self) -> ConsumerOffsets:
        offsets = ConsumerOffsets(self._file("consumerOffset.json"))
        offsets.before_save = self._make_log_durable
        return offsets

    def _make_log_durable(self) -> None:
        if self._writing is not None:
            self._writing.flusher.wait_until_durable(self._writing.ends.dispatched)

    def current_offsets(self) -> ConsumerOffsets:
        """Return the groups' current progress. A reader reads the file again."""
        return self.offsets if self._writing is not None else self._open_offsets()

    @property
    def writes(self) -> bool:
        """Whether this process writes the store."""
        return self._writing is not None

    def require_writer(self) -> Writing:
        self.require_open()
        if self._writing is None:
            raise ReadOnlyStore(self.reading.layout.root)
        if self._is_slave:
            raise NotMaster(self.reading.layout.root)
        return self._writing

    def raise_if_failed(self) -> None:
        """Raise the error that stopped a service for good: a waiting consumer might wait forever."""
        if self.housekeeping.failure is not None:
            raise self.housekeeping.failure

    # ---- topics and groups

    def create_topic(self, topic: Topic) -> Topic:
        writer = self.require_writer()
        require_topic(topic.name)
        known = self.topics.find(topic.name)
        if known is not None and known != topic:
            raise _exists("topic", topic, known)
        self.topics.save(topic)
        writer.log.ask_again(topic.name)
        return topic

    def update_topic(self, name: str, changes: dict[str, Any]) -> Topic:
        writer = self.require_writer()
        topic = changed(self.topics.get(name), changes)
        self.topics.save(topic)
        writer.log.ask_again(name)
        return topic

    def create_group(self, name: str, settings: dict[str, Any]) -> Group:
        self.require_writer()
        group = changed(Group(name), settings)
        known = self.groups.find(name)
        if known is not None and known != group:
            raise _exists("group", group, known)
        self.groups.save(group)
        return group

    def update_group(self, name: str, changes: dict[str, Any]) -> Group:
        self.require_writer()
        group = changed(self.groups.get(name), changes)
        self.groups.save(group)
        return group

    def admit(self, topic: str) -> int | None:
        """Return over how many queues puts to a topic are spread; NotPermitted if it takes no messages.

        Called with a topic's first message and after `ask_again`, not for every message.
        """
        known = self.topics.find(topic)
        if known is None:
            known = self.make_topic(topic)
        if Permission.WRITE not in known.permission:
            found = f"its permission is {known.permission!s}, WRITE is needed"
            raise NotPermitted(f"topic {topic!r}", found, "change it with update_topic")
        return known.write_queue_count

    def make_topic(self, name: str) -> Topic:
        """Create a topic on first use: in memory at once, in the file with the next `persist`."""
        if self._writing is None:
            raise self.topics.unknown(name)
        queue_count = system_queue_count(name, len(self.reading.config.delays_ms))
        if queue_count is None:
            if not self.config.auto_create_topics:
                known = nearest(name, self.topics.names)
                raise UnknownTopic(name, None, f"{known}; create_topic sets one up (autoCreateTopicEnable is off)")
            queue_count = self._writing.queue_count(name)
        topic = self.topics.note(Topic(name, queue_count, queue_count))
        self.keep()
        return topic

    def require_group(self, name: str) -> Group:
        """Return a group that may consume. An unknown group is created if the configuration allows it."""
        known = self.know_group(name)
        if not known.enabled:
            raise NotPermitted(f"group {name!r}", "it is not enabled", "change it with update_group")
        return known

    def know_group(self, name: str) -> Group:
        """Return a group, which may be disabled. An unknown group is created if the configuration allows it."""
        known = self.groups.find(name)
        if known is None:
            if self._writing is None:
                return Group(name)  # a reader keeps its own progress, under any name
            if not self.config.auto_create_groups and not name.startswith(INTERNAL_GROUP_PREFIX):
                raise self.groups.unknown(name)
            known = self.groups.note(Group(name))
            self.keep()
        return known

    # ---- later

    def require_scheduler(self) -> Scheduler:
        self.require_writer()
        assert self.scheduler is not None, "a writer has one"
        return self.scheduler

    def cancel(self, at: int | str | PutReceipt | StoredMessage) -> PutReceipt:
        """Cancel a timed message; see `MessageStore.cancel`."""
        writing, timer = self.require_writer(), self.require_scheduler().timer()
        if isinstance(at, PutReceipt | StoredMessage):
            at = at.physical_offset
        waiting = writing.record(at) if isinstance(at, int) else writing.reader.get(at)
        return timer.cancel(waiting, writing.put)

    def retry(self, group: str, message: StoredMessage, level: int = 0) -> PutReceipt | None:
        """Put a failed message again for later delivery; None if the group has no retry queues."""
        writing = self.require_writer()
        again = retried(self.require_group(group), message, level)
        return None if again is None else writing.put(again)

    def waiting(self, limit: int) -> list[Waiting]:
        """Return the messages that are delivered next; in a reader, those that are not due yet."""
        if self.scheduler is not None:
            return self.scheduler.waiting(limit)
        return by_the_clock(self.reading, time.time_ns() // 1_000_000, limit)

    def advance(self, ms: int) -> None:
        """Move the store's clock ahead, and deliver what is due then before returning. For tests."""
        writing = self.require_writer()
        writing.settle()
        writing.log.advance(ms)
        self.housekeeping.catch_up()
        writing.settle()

    @property
    def transactions(self) -> Transactions:
        """The transactions of this store."""
        if self._transactions.peek() is None:  # the log has its half messages once: nobody else may begin with them
            return make_whole(self._transactions)
        return self._transactions()

    def _open_transactions(self) -> Transactions:
        transactions = Transactions(
            self.require_writer(), self.offsets, self.require_scheduler().deliveries, self.require_open
        )
        self.keep()
        self.housekeeping.add("transactions", transactions.step, by_clock=True)
        return transactions

    # ---- to disk

    def keep(self) -> None:
        """Start writing changes to the files every few seconds (`persist_interval_ms`)."""
        if not self._is_kept:
            now_ms = self._writing.log.now_ms if self._writing is not None else time.time_ns() // 1_000_000
            due_ms = now_ms + self.config.persist_interval_ms
            self.housekeeping.add("progress", self._persist, due_ms)
            self._is_kept = True

    def keep_table(self, table: OffsetTable) -> None:
        """Write the progress of one consumer, in a file outside the store, along with the store's own."""
        table.before_save = self._make_log_durable
        self._own_tables.add(table)
        self.keep()

    def _persist(self, now_ms: int) -> int:
        self.persist()
        return now_ms + self.config.persist_interval_ms

    def persist(self) -> None:
        """Write the tables that changed since the last call."""
        for own in list(self._own_tables):
            own.sync()
        if self._writing is not None:
            for opened in (self._topics, self._groups, self._filters, self._offsets):
                table = opened.peek()
                if table is not None:
                    table.sync()

    def close(self) -> None:
        """Close the consumers, stop the services, and write all changes."""
        consumers, transactions = self._consumers.peek(), self._transactions.peek()
        if consumers is not None:
            consumers.close()
        self.housekeeping.close()
        for finish in (
            self.scheduler.close if self.scheduler is not None else None,
            transactions.keep if transactions is not None else None,
            self.persist,
        ):
            try:
                if finish is not None:
                    finish()
            except (StoreError, OSError) as error:  # the store must close; messages are only delivered again
                _log.error("progress could not be written, messages may be delivered again: %s", error)


def _exists(kind: str, wanted: Item, known: Item) -> InvalidConfig:
    """Return the error for an item that exists with other settings. It names the settings that differ."""
    names = [each.name for each in fields(wanted) if each.compare]
    differing = [name for name in names if getattr(wanted, name) != getattr(known, name)]
    shown = [", ".join(f"{name} {getattr(item, name)!s}" for name in differing) for item in (wanted, known)]
    return InvalidConfig(f"{kind} {wanted.name}", shown[0], f"it exists with {shown[1]}; update_{kind} changes it")
