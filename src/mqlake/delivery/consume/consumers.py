"""All consumers of one store: opens them, divides queues among those of one group, reports each group's progress."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from functools import partial

from mqlake.config import require_seconds
from mqlake.delivery.consume.assignment import Assignment, QueueLag, Source, Subscription, lag_of, place
from mqlake.delivery.consume.consumer import Consumer
from mqlake.delivery.consume.filters import Filter, filter_of
from mqlake.delivery.consume.progress import GROUP, Progress, Start
from mqlake.delivery.consume.share import Share
from mqlake.delivery.housekeeping import NEVER_MS
from mqlake.delivery.registry.system_topics import is_system_topic, retry_topic
from mqlake.delivery.registry.topics import Permission
from mqlake.delivery.state import Delivery
from mqlake.errors import InvalidConfig, NotPermitted, UnknownGroup, UnknownTopic
from mqlake.logs.topic_table import require_topic
from mqlake.message import WAITING_TOPICS
from mqlake.runtime.locks import make_lock
from mqlake.store.ports import Writing

DEAD_MS = 1_000
"""Pause between checks for consumers whose thread has ended."""
ON_LOST = ("skip", "fail")


class Consumers:
    """The consumers and groups of a store. Any thread may call it."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._reading = delivery.reading
        self._source = Source(delivery.reading, delivery.require_open, delivery.raise_if_failed, self.queues_of)
        self._lock = make_lock("consumers")
        self._shares: dict[str, Share] = {}
        self._open: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._watches = False

    def open(
        self,
        group: str,
        topics: str | Sequence[str],
        *,
        wanted: Filter | str | None,
        start: Start,
        progress: str | os.PathLike[str],
        auto_commit: bool,
        ordered: bool | None,
        on_lost: str,
        idle_s: float | None,
    ) -> Consumer:
        """Open a consumer; see `MessageStore.consumer`. It joins its group unless it keeps its own progress."""
        if on_lost not in ON_LOST:
            raise InvalidConfig("on_lost", on_lost, f"must be one of {', '.join(ON_LOST)}")
        if idle_s is not None:
            require_seconds("idle_s", idle_s)
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        known = self._delivery.require_group(group)
        chosen = filter_of(wanted)
        for name in names:
            self._require_topic(name)
        kept, share = self._progress_of(group, progress)
        subscription = Subscription(names, chosen, retry_topic(group) if share is not None else None)
        fail = on_lost == "fail"
        assignment = Assignment(self._source, subscription, kept, share, fail_when_lost=fail)
        try:
            assignment.join()
            assignment.begin(start)
            consumer = Consumer(
                self._source,
                assignment,
                kept,
                auto_commit=auto_commit,
                ordered=known.ordered if ordered is None else ordered,
                idle_s=idle_s,
                retry=partial(self._delivery.retry, group) if share is not None else None,
            )
        except BaseException:
            assignment.depart()
            assignment.settle()
            kept.close()
            raise
        for name in names if share is not None else ():
            self._delivery.filters.note(name, group, chosen)
        self._open.add(consumer)
        self._watch()
        return consumer

    def _progress_of(self, group: str, where: str | os.PathLike[str]) -> tuple[Progress, Share | None]:
        if where != GROUP:
            if not self._delivery.require_group(group).broadcast_enabled:
                found = "its consumers must share progress (consumeBroadcastEnable is off)"
                raise NotPermitted(f"group {group!r}", found, "change it with update_group")
            kept = Progress.own(where, group)
            self._delivery.keep_table(kept.table)
            return kept, None
        if not self._delivery.writes:
            raise NotPermitted(
                f"group {group!r}",
                "only the process that writes a store can share a group's progress; several processes need a broker",
                'give this consumer its own progress: progress="memory", or the path of a file',
            )
        self._delivery.keep()
        with self._lock:
            share = self._shares.setdefault(group, Share(group, self._reading.look_again))
        return Progress(self._delivery.offsets, group), share

    def _require_topic(self, name: str) -> None:
        """Raise unless a topic may be read. An unknown topic is created if the configuration allows it."""
        require_topic(name)
        known = self._delivery.topics.find(name)
        if known is None and not self._has_queues(name):
            known = self._delivery.make_topic(name)
        if known is not None and Permission.READ not in known.permission:
            found = f"its permission is {known.permission!s}, READ is needed"
            raise NotPermitted(f"topic {name!r}", found, "change it with update_topic")

    def _has_queues(self, topic: str) -> bool:
        """Return whether a topic has queues, once dispatch has come to what was acknowledged before."""
        if not self._reading.reader.queue_ids(topic):
            self._reading.settle()
        return bool(self._reading.reader.queue_ids(topic))

    def queues_of(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, empty ones included; UnknownTopic if there is no such topic."""
        known = self._delivery.topics.find(topic)
        ids = self._reading.reader.queue_ids(topic)
        if known is None and not ids and not is_system_topic(topic):
            raise self._delivery.topics.unknown(topic)
        return sorted({*ids, *range(known.read_queue_count if known is not None else 0)})

    # ---- groups

    def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """Return how far a group has read each queue; UnknownGroup if it has neither settings nor progress."""
        self._reading.settle()
        progress = Progress(self._delivery.current_offsets(), group)
        read = [known.topic for known in progress.table.subscriptions() if known.group == group]
        if group not in self._delivery.groups and not read:
            raise self._delivery.groups.unknown(group)
        if topic is not None and topic not in read:
            raise UnknownTopic(topic, None, f"progress of group {group} on {', '.join(sorted(read)) or 'no topic'}")
        return [
            lag_of(self._reading.reader, progress, name, queue_id)
            for name in (sorted(read) if topic is None else [topic])
            for queue_id in self._queues_or_none(name)
        ]

    def _queues_or_none(self, topic: str) -> list[int]:
        try:
            return self.queues_of(topic)
        except UnknownTopic:
            return []

    def groups(self) -> list[str]:
        """Return the names of all groups that have settings or progress."""
        having = {known.group for known in self._delivery.current_offsets().subscriptions()}
        return sorted(having | set(self._delivery.groups.names))

    def reset(self, group: str, topic: str, to: Start) -> list[QueueLag]:
        """Reset a group's progress on a topic. Durable on return; open consumers continue from there."""
        self._delivery.require_writer()
        if group not in self.groups():
            raise UnknownGroup(group, ", ".join(self.groups()) or "none")
        self.queues_of(topic)  # raises if there is no such topic
        progress, share = self._progress_of(group, GROUP)
        assert share is not None, "the writer shares a group's progress"
        with share.settling:
            place(self._source, progress, [topic], to)
            share.reset_positions([topic])
        progress.table.sync()
        return self.lag(group, topic)

    def count_of(self, group: str) -> int:
        """Return how many consumers of a group are open in this process."""
        share = self._shares.get(group)
        return 0 if share is None else share.count()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic: its settings, its queues and all progress on it."""
        writer = self._delivery.require_writer()
        if topic in WAITING_TOPICS or topic in writer.batch_queues.topics():
            raise NotPermitted(f"topic {topic!r}", "the store itself needs it", "it cannot be deleted")
        writer.shield.run(lambda: self._delete_topic(topic, writer))

    def _delete_topic(self, topic: str, writer: Writing) -> None:
        topics = self._delivery.topics

        def require() -> None:
            if topic not in topics and not self._reading.reader.queue_ids(topic):
                raise topics.unknown(topic)

        def forget() -> None:
            if topic in topics:
                topics.delete(topic)

        writer.delete_topic(topic, require=require, forget=forget)
        self._delivery.offsets.forget(topic=topic)
        self._delivery.filters.forget(topic=topic)
        for consumer in list(self._open):
            consumer.forget(topic)
        for share in list(self._shares.values()):
            with share.settling:
                share.reset_positions([topic])
        self._delivery.persist()

    def delete_group(self, group: str) -> None:
        """Delete a group: its settings and its progress on every topic."""
        self._delivery.require_writer()
        if group not in self.groups():
            raise self._delivery.groups.unknown(group)
        if count := self.count_of(group):
            raise NotPermitted(f"group {group!r}", f"it has {count} open consumers", "close them first")
        if group in self._delivery.groups:
            self._delivery.groups.delete(group)
        self._delivery.offsets.forget(group=group)
        self._delivery.filters.forget(group=group)
        self._delivery.persist()

    # ---- dead consumers

    def _watch(self) -> None:
        if not self._watches and self._delivery.writes:
            self._delivery.housekeeping.add("consumers", self.step)
            self._watches = True

    def step(self, now_ms: int) -> int:
        """Release the queues of consumers whose thread or event loop has ended."""
        for share in list(self._shares.values()):
            share.evict_dead()
        return now_ms + DEAD_MS if self._shares else NEVER_MS

    def close(self) -> None:
        """Close all open consumers. Each commits the messages it has processed."""
        for consumer in list(self._open):
            consumer.close()
