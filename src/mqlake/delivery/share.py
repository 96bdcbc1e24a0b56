"""Who of a group reads which queue, among its consumers in the writer's process.

Invariant: a queue has one owner at a time, and it changes hands only where nothing of it is under way: its owner gives
it up when all that it handed out is committed, or when it is closed, collected, or the thread or task that used it is
over. So a message goes to one of them, unless that one failed.

Each consumer of n reads a block of the queues, as RocketMQ's clients divide them among themselves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqlake.errors import InvalidConfig

if TYPE_CHECKING:
    import asyncio

Queue = tuple[str, int]
"""Topic and queue id."""


class Member:
    """One consumer's place in its group."""

    def __init__(self, subscription: object) -> None:
        self.subscription = subscription
        self.user: threading.Thread | asyncio.Task[object] | None = None
        """Who used the consumer last."""
        self.is_in = False

    def is_over(self) -> bool:
        user = self.user
        if isinstance(user, threading.Thread):
            return not user.is_alive()
        return user is not None and user.done()


class Share:
    """The consumers of one group. Several threads may call it."""

    def __init__(self, group: str, changed: Callable[[], None]) -> None:
        """`changed` tells those who wait that they may have other queues now."""
        self.group = group
        self.version = 0
        """Rises with every change of members or owners."""
        self.epoch = 0
        """Rises when progress is set anew: what members think of their positions is void."""
        self._changed = changed
        self.settling = threading.Lock()
        """Held while progress is moved: by a commit, which looks at the epoch first, and by who sets it anew."""
        self._lock = threading.Lock()
        self._members: list[Member] = []
        self._owners: dict[Queue, Member] = {}
        self._departed: deque[Member] = deque()

    def count(self) -> int:
        """Members now, those that were collected left out."""
        self._let_the_departed_go()
        return len(self._members)

    def join(self, member: Member) -> None:
        """Take part from here on. All members must want the same: else one passes over what another wants."""
        self._let_the_departed_go()
        with self._lock:
            for other in self._members:
                if other.subscription != member.subscription:
                    raise InvalidConfig(
                        f"subscription of group {self.group}",
                        str(member.subscription),
                        f"another consumer of the group reads {other.subscription}: all of a group read the same; "
                        "give one consumer all topics, or use another group",
                    )
            self._members.append(member)
            member.is_in = True
        self._tell()

    def leave(self, member: Member) -> None:
        """Free all that a member has."""
        with self._lock:
            if not member.is_in:
                return
            member.is_in = False
            self._members.remove(member)
            self._owners = {queue: owner for queue, owner in self._owners.items() if owner is not member}
        self._tell()

    def depart(self, member: Member) -> None:
        """`leave` for a member whose consumer was collected: that may be anywhere, so no lock is taken."""
        self._departed.append(member)

    def evict_the_dead(self) -> None:
        """Free what members have that nobody uses any more. A lone one may go on in another thread."""
        self._let_the_departed_go()
        if len(self._members) > 1:
            for member in [each for each in self._members if each.is_over()]:
                self.leave(member)

    def _let_the_departed_go(self) -> None:
        while self._departed:
            self.leave(self._departed.popleft())

    def target(self, member: Member, queues: list[Queue]) -> set[Queue]:
        """The part of all queues that should be a member's."""
        with self._lock:
            if not member.is_in:
                return set()
            count, place = len(self._members), self._members.index(member)
        return set(queues[place * len(queues) // count : (place + 1) * len(queues) // count])

    def acquire(self, member: Member, queue: Queue) -> bool:
        """Become a queue's owner, if it has none."""
        with self._lock:
            return member.is_in and self._owners.setdefault(queue, member) is member

    def release(self, member: Member, queue: Queue) -> None:
        with self._lock:
            if self._owners.get(queue) is member:
                del self._owners[queue]
        self._tell()

    def begin_anew(self) -> None:
        """Progress is set anew: have all members go by it. The caller holds `settling`."""
        self.epoch += 1
        self._tell()

    def _tell(self) -> None:
        self.version += 1
        self._changed()
