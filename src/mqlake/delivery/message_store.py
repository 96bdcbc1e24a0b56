"""The façade of a message queue: what a store remembers of topics, groups and who has read what.

topics, groups -> delivery/topics.py, delivery/groups.py        (config/*.json)
consumer       -> delivery/consumers.py -> delivery/consumer.py
progress       -> delivery/progress.py, delivery/offsets.py     (config/consumerOffset.json)
all of it      -> delivery/state.py, kept on the disk by delivery/housekeeping.py
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from mqlake.delivery.groups import Group
from mqlake.delivery.readdress import Readdressing
from mqlake.delivery.retry import resent
from mqlake.delivery.state import Delivery, Once
from mqlake.delivery.topics import Permission, Topic
from mqlake.delivery.transaction import Transaction, Transactions
from mqlake.delivery.waiting import Waiting
from mqlake.errors import InvalidConfig
from mqlake.logs.topic_table import require_topic
from mqlake.message import WAITING_TOPICS, PutReceipt, StoredMessage
from mqlake.store import message_store
from mqlake.store.engine import Engine
from mqlake.store.follower import Follower

if TYPE_CHECKING:
    from mqlake.delivery.assignment import QueueLag
    from mqlake.delivery.consumer import Consumer
    from mqlake.delivery.consumers import Consumers
    from mqlake.delivery.filters import Filter
    from mqlake.delivery.progress import Start

Item = TypeVar("Item", Topic, Group)


class MessageStore(message_store.MessageStore):
    """A store that delivers: topics and groups that are set up, consumers with stored progress.

    with MessageStore.open("data/store") as store:
        store.put(Message("orders", b'{"id": 17}', tags="created"))
    """

    def __init__(self, engine: Engine | Follower) -> None:
        """Use `MessageStore.open`."""
        super().__init__(engine)
        self._delivery = Once(self._open_delivery)
        self._consumers = Once(self._open_consumers)
        if self._writer is not None:
            self._writer.topics.admit = lambda topic: self._delivery().admit(topic)
            self._writer.log.readdress(Readdressing(self.config, self._note_waiting))
            try:
                self._go_on(self._writer)
            except BaseException:
                self.close()
                raise

    def _open_delivery(self) -> Delivery:
        if self._writer is not None:
            atexit.register(self.close)  # runs before the engine's own: progress is written while the store is open
        return Delivery(self._side)

    def _go_on(self, writer: Engine) -> None:
        """Take up what waits in the store. Where nothing does, the first message for later begins it."""
        if any(writer.queues.queue_ids(topic) for topic in WAITING_TOPICS):
            self._delivery().start()

    def _note_waiting(self, due_ms: int) -> None:
        self._delivery().require_scheduler().stored(due_ms)

    @property
    def delivery(self) -> Delivery:
        """Topics, groups and progress, as tables."""
        self._require_open()
        return self._delivery()

    # ---- topics

    def create_topic(
        self,
        name: str,
        queue_count: int | None = None,
        *,
        permission: Permission = Permission.READ | Permission.WRITE,
        ordered: bool = False,
    ) -> Topic:
        """Set a topic up, durably. One that is there with other settings is an error: `update_topic` changes them."""
        require_topic(name)
        delivery, writer = self.delivery, self.delivery.require_writer()
        count = queue_count or self.config.consume_queue.queues_per_topic
        topic = Topic(name, count, count, permission, ordered)
        known = delivery.topics.find(name)
        if known is not None and known != topic:
            raise _there_already("topic", topic, known)
        delivery.topics.save(topic)
        writer.log.ask_again(name)
        return topic

    def update_topic(self, name: str, **changes: Any) -> Topic:
        """Change settings of a topic (fields of `Topic`), durably; puts from here on go by them."""
        delivery, writer = self.delivery, self.delivery.require_writer()
        topic = _changed(delivery.topics.get(name), changes)
        delivery.topics.save(topic)
        writer.log.ask_again(name)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its queues and all progress on it. Its messages stay in the log until retention takes them:
        by offset, id and key they are found until then."""
        self._consumers_of_open_store().delete_topic(name)

    def topic(self, name: str) -> Topic:
        """How a topic is set up; UnknownTopic where it is not."""
        return self.delivery.topics.get(name)

    # ---- groups

    def create_group(self, name: str, **settings: Any) -> Group:
        """Set a consumer group up (fields of `Group`), durably."""
        self.delivery.require_writer()
        group = _changed(Group(name), settings)
        known = self.delivery.groups.find(name)
        if known is not None and known != group:
            raise _there_already("group", group, known)
        self.delivery.groups.save(group)
        return group

    def update_group(self, name: str, **changes: Any) -> Group:
        """Change settings of a group (fields of `Group`), durably."""
        self.delivery.require_writer()
        group = _changed(self.delivery.groups.get(name), changes)
        self.delivery.groups.save(group)
        return group

    def delete_group(self, name: str) -> None:
        """Delete a group and its progress on every topic; NotPermitted while it has open consumers."""
        self._consumers_of_open_store().delete_group(name)

    def group(self, name: str) -> Group:
        """How a group is set up; UnknownGroup where it is not."""
        return self.delivery.groups.get(name)

    def groups(self) -> list[str]:
        """The groups that are set up or have progress."""
        return self._consumers_of_open_store().groups()

    # ---- consuming

    def consumer(
        self,
        group: str,
        topic: str | Sequence[str],
        *,
        filter: Filter | str | None = None,
        start: Start = "first",
        progress: str | os.PathLike[str] = "group",
        auto_commit: bool = True,
        ordered: bool | None = None,
        on_lost: str = "skip",
        idle_s: float | None = None,
    ) -> Consumer:
        """Read a topic, or several, as a member of a group: from where the group is, or from `start` if it is new.

        `filter`: tags (`"a || b"`) or `Sql(...)`. `start`: `"first"`, `"last"`, a datetime, an offset, or offsets by
        queue id. `progress`: `"group"` shares queues and progress with the group's other consumers in this process;
        `"memory"` or a file's path is this consumer's own, and it reads all queues. `auto_commit`: a message is dealt
        with when the next is asked for; else `commit` says so. `ordered`: nothing of a queue is handed out while
        something of it is not committed; None is what the group says. `on_lost`: what happens where retention was
        faster: `"skip"` goes on and lists it in `lost`, `"fail"` raises. `idle_s`: iteration ends after so long a
        pause; None waits for ever.
        """
        return self._consumers_of_open_store().open(
            group,
            topic,
            wanted=filter,
            start=start,
            progress=progress,
            auto_commit=auto_commit,
            ordered=ordered,
            on_lost=on_lost,
            idle_s=idle_s,
        )

    def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """How far a group is in each queue that it reads."""
        return self._consumers_of_open_store().lag(group, topic)

    def reset(self, group: str, topic: str, to: Start) -> list[QueueLag]:
        """Set a group's progress on a topic anew, durably: see `start` of `consumer`. Open consumers go on there."""
        return self._consumers_of_open_store().reset(group, topic, to)

    def _consumers_of_open_store(self) -> Consumers:
        self._require_open()
        return self._consumers()

    def _open_consumers(self) -> Consumers:
        from mqlake.delivery.consumers import Consumers

        return Consumers(self.delivery, self._require_open)

    # ---- messages for later

    def waiting(self, limit: int = 100) -> list[Waiting]:
        """The messages that are delivered next, the first one first: when, and what."""
        return self.delivery.waiting(limit)

    def cancel(self, at: int | str | PutReceipt | StoredMessage) -> PutReceipt:
        """Take a timed message back that waits: what its put answered, its physical offset, its id, or itself.

        NotPending where its time has come. What it returns is the receipt of the cancellation, a message too.
        """
        timer = self.delivery.require_scheduler().timer()
        waiting = self.get(at.physical_offset if isinstance(at, PutReceipt | StoredMessage) else at)
        return timer.cancel(waiting, self.put)

    def retry(self, group: str, message: StoredMessage, level: int = 0) -> PutReceipt | None:
        """Have a group get a message again, that it could not process, later each time; see `delivery/retry.py`."""
        return self.delivery.retry(group, message, level)

    def resend(self, dead: StoredMessage) -> PutReceipt:
        """Have its group get a dead letter again, as if it came for the first time. The dead letter stays."""
        self.delivery.require_writer()
        return self.put(resent(dead))

    # ---- transactions

    def transaction(self, group: str = "", *, timeout_s: int | None = None) -> Transaction:
        """Messages that become visible together, at the end of a `with` block, or not at all.

        `group` names who is asked about it, should this program end before it decides; after `timeout_s` it no
        longer decides itself.
        """
        return self.transactions.begin(group, timeout_s)

    @property
    def transactions(self) -> Transactions:
        """All transactions: those that are undecided, and the decision about one."""
        return self.delivery.transactions

    # ---- closing

    def close(self) -> None:
        """Write progress, then close the store. A second call does nothing."""
        consumers, delivery = self._consumers.peek(), self._delivery.peek()
        if consumers is not None and not self._closed:
            consumers.close()
        if delivery is not None and not self._closed:
            delivery.close()
            atexit.unregister(self.close)
        super().close()


def _there_already(kind: str, wanted: Item, known: Item) -> InvalidConfig:
    """The error for one that is set up otherwise: it names what differs."""
    names = [each.name for each in fields(wanted) if each.compare]
    differing = [name for name in names if getattr(wanted, name) != getattr(known, name)]
    shown = [", ".join(f"{name} {getattr(item, name)!s}" for name in differing) for item in (wanted, known)]
    return InvalidConfig(f"{kind} {wanted.name}", shown[0], f"it is there with {shown[1]}; update_{kind} changes it")


def _changed(item: Item, changes: dict[str, Any]) -> Item:
    """A copy with some fields changed; InvalidConfig names those that there are."""
    allowed = [each.name for each in fields(item) if each.name not in ("name", "more")]
    for key, value in changes.items():
        if key not in allowed:
            raise InvalidConfig(key, value, f"no such setting; there are {', '.join(allowed)}")
    return replace(item, **changes)
