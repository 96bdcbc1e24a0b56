"""Divides the queues of a group among its consumers in the writer's process.

Invariant: a queue has at most one owner. The owner gives it up when all messages it delivered are committed, or when
the consumer is closed, garbage collected, or the thread or event loop that used it has ended. So each message is
delivered to one consumer, unless that one failed. The end of a task says nothing: `asyncio.wait_for` makes one for each
call.

Each of n consumers reads one contiguous block of the queues, as RocketMQ's clients divide them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING

from mqlake.errors import InvalidConfig
from mqlake.runtime.locks import make_lock

if TYPE_CHECKING:
    import asyncio

Queue = tuple[str, int]
"""Topic and queue id."""


class Member:
    """One consumer's membership in its group."""

    def __init__(self, subscription: object, assignment: object) -> None:
        """It ends with `assignment` at the latest. No finalizer says so: a signal handler may interrupt one."""
        self.subscription = subscription
        self._assignment = weakref.ref(assignment)
        self.user: threading.Thread | asyncio.AbstractEventLoop | None = None
        """The thread or event loop that used the consumer last."""
        self.is_closed = False

    def has_departed(self) -> bool:
        return self.is_closed or self._assignment() is None

    def has_ended(self) -> bool:
        user = self.user
        if isinstance(user, threading.Thread):
            # Not `is_alive`: after an interrupt, Python 3.11 takes a running thread for one that has ended.
            return user not in threading.enumerate()
        return user is not None and user.is_closed()


class Share:
    """The members of one group and the queues they own. Any thread may call it."""

    def __init__(self, group: str, changed: Callable[[], None]) -> None:
        """`changed` wakes waiting consumers: they may own other queues now."""
        self.group = group
        self.version = 0
        """Grows with every change of members or owners."""
        self._epochs: dict[str, int] = {}
        self._changed = changed
        self.settling = make_lock("share.settling")
        """Held while progress moves: by a commit, which checks the epoch first, and by a reset, which changes it."""
        self._lock = make_lock("share")
        self._members: list[Member] = []
        self._owners: dict[Queue, Member] = {}

    def count(self) -> int:
        """Return the number of members, without those whose consumer was garbage collected."""
        self._remove_departed()
        return len(self._members)

    def join(self, member: Member) -> None:
        """Add a member. All members need the same subscription: otherwise one would skip what another should get."""
        self._remove_departed()
        with self._lock:
            for other in self._members:
                if other.subscription != member.subscription:
                    raise InvalidConfig(
                        f"subscription of group {self.group}",
                        str(member.subscription),
                        f"another consumer of the group reads {other.subscription}, and all must read the same; "
                        "give one consumer all topics, or use another group",
                    )
            self.version += 1
            self._members.append(member)
        self._changed()

    def has(self, member: Member) -> bool:
        return member in self._members

    def leave(self, member: Member) -> None:
        """Remove a member and release its queues. It is a member to the end, so an interrupted call is made again."""
        with self._lock:
            if member not in self._members:
                return
            self._owners = self._owners_without(member)
            self.version += 1
            self._members = [each for each in self._members if each is not member]
        self._changed()

    def evict_dead(self) -> None:
        """Remove departed members, and members whose thread or event loop has ended.

        A group's only member stays: another thread may continue with it.
        """
        self._remove_departed()
        if len(self._members) > 1:
            for member in [each for each in self._members if each.has_ended()]:
                self.leave(member)

    def _remove_departed(self) -> None:
        for member in [each for each in self._members if each.has_departed()]:
            self.leave(member)

    def target(self, member: Member, queues: list[Queue]) -> set[Queue]:
        """Return the queues that a member should own."""
        with self._lock:
            if member not in self._members:
                return set()
            count, place = len(self._members), self._members.index(member)
        return set(queues[place * len(queues) // count : (place + 1) * len(queues) // count])

    def acquire(self, member: Member, queue: Queue) -> bool:
        """Make a member the owner of a queue if the queue has none; tell whether the member owns it."""
        with self._lock:
            return member in self._members and self._owners.setdefault(queue, member) is member

    def keep(self, member: Member, queues: Container[Queue]) -> None:
        """Release all queues of a member but these."""
        with self._lock:
            owners = self._owners_without(member, queues)
            if len(owners) == len(self._owners):
                return
            self.version += 1
            self._owners = owners
        self._changed()

    def _owners_without(self, member: Member, kept: Container[Queue] = ()) -> dict[Queue, Member]:
        return {queue: owner for queue, owner in self._owners.items() if owner is not member or queue in kept}

    def epoch_of(self, topic: str) -> int:
        """Return a number that grows when progress on a topic is reset. Members then discard their positions in it."""
        return self._epochs.get(topic, 0)

    def reset_positions(self, topics: Iterable[str]) -> None:
        """Make all members discard their positions in topics whose progress was reset. The caller holds `settling`."""
        for topic in topics:
            self._epochs[topic] = self.epoch_of(topic) + 1
        self.version += 1
        self._changed()
