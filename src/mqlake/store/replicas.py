"""What slaves have of the log, and the puts that wait for it.

A put with REPLICA waits until enough slaves have confirmed its end: the replicated end of `Ends`, which moves for all
such puts at once. So there is no list of puts and no thread for one: threads wait in the kernel, asyncio futures in
`store/awaiting.py`.

`replication/master.py` talks to the slaves. Its one thread calls `changed`; any other thread only reads what that set:
one integer, or a tuple that is replaced as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mqlake.config import ReplicationConfig
from mqlake.errors import NotConfirmed, ReplicaMissing, ReplicaTimeout
from mqlake.kernel import Ends
from mqlake.kernel.types import REACHED, REPLICATED
from mqlake.runtime.locks import make_lock

if TYPE_CHECKING:
    import asyncio

    from mqlake.store.awaiting import LoopReplicas


@dataclass(frozen=True, slots=True)
class SlaveState:
    """One attached slave, as `stats().slaves` and `mqlake info` show it."""

    address: str
    sent_offset: int
    """How far it was sent the log."""
    confirmed_offset: int
    """How far it says to have the log."""
    lag_bytes: int
    """What the master has and it has not confirmed."""
    since_ms: int
    """When it attached; milliseconds since 1970."""
    in_sync: bool
    """It is near enough to be waited for."""


class Following(NamedTuple):
    """A slave, as the master sees it."""

    address: str
    sent: int
    """The physical offset of the next transfer."""
    confirmed: int
    """How far it says to have the log: at first what it asked for."""
    since_ms: int
    has_confirmed: bool
    """Whether that is more than what it asked for."""


class Replicas:
    """How far slaves are, and the waiting for them."""

    def __init__(self, root: Path, ends: Ends, config: ReplicationConfig) -> None:
        self._root = root
        self._ends = ends
        self._config = config
        self.needed_count = max(1, config.in_sync_replicas - 1)
        """So many slaves must confirm. RocketMQ 5 waits for none if inSyncReplicas is 1; here, as in 4.9, REPLICA
        always means at least one."""
        self._stop_serving: Callable[[], None] | None = None
        self._nth_confirmed = -1
        """How far the last one of the needed slaves is; -1 if there are too few."""
        self._confirmed: tuple[int, ...] = ()
        self._is_closing = False
        self._adding = make_lock("replicas.loops")
        self._loops: dict[asyncio.AbstractEventLoop, LoopReplicas] = {}
        self._slaves: tuple[Following, ...] = ()

    # ---- for the master

    @property
    def is_served(self) -> bool:
        """Return whether a master accepts slaves."""
        return self._stop_serving is not None

    def serve(self, stop: Callable[[], None] | None) -> None:
        """A master begins, and `stop` ends it before the store closes; or, with None, it has ended."""
        self._stop_serving = stop

    def changed(self, slaves: Sequence[Following]) -> None:
        """Note how far the slaves are, and wake the puts that all needed ones have.

        A slave that has only asked is near, so puts wait for it, but it has confirmed nothing. The replicated end does
        not move back when a slave leaves: what it confirmed is still on two disks.
        """
        self._slaves = tuple(slaves)
        confirmed = self._confirmed = tuple(each.confirmed for each in slaves)
        self._nth_confirmed = self._nth(confirmed)
        self._ends.advance(REPLICATED, self._nth([each.confirmed for each in slaves if each.has_confirmed]))

    def _nth(self, confirmed: Sequence[int]) -> int:
        """Return how far the last one of the needed slaves is; -1 if there are too few."""
        return sorted(confirmed, reverse=True)[self.needed_count - 1] if len(confirmed) >= self.needed_count else -1

    # ---- looking

    def slaves(self) -> tuple[SlaveState, ...]:
        """Return the slaves that are attached, as they are now."""
        end = self._ends.committed
        return tuple(
            SlaveState(
                each.address,
                each.sent,
                each.confirmed,
                max(0, end - each.confirmed),
                each.since_ms,
                self._is_near(each.confirmed, end),
            )
            for each in self._slaves
        )

    def _is_near(self, confirmed: int, end: int) -> bool:
        return end - confirmed < max(1, self._config.max_lag_bytes)

    # ---- waiting

    def wait(self, end: int, since_ns: int) -> None:
        """Return when enough slaves have the log up to `end`; ReplicaMissing or ReplicaTimeout if they do not.

        `since_ns` is when the put began to wait, on the monotonic clock: the disk may have taken a part of its time.
        """
        deadline = since_ns + self._config.replica_timeout_ms * 1_000_000
        missing = self.missing(end)
        if missing is not None:
            raise missing
        while self._ends.replicated < end:
            nudges = self._ends.nudges
            left_ns = deadline - time.monotonic_ns()
            if left_ns <= 0 or self._is_closing:
                raise self.late()
            if self._ends.wait(REPLICATED, end, left_ns, nudges) == REACHED:
                return

    def when_replicated(self, end: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future of this loop that is done when enough slaves have the log up to `end`."""
        waiters = self._loops.get(loop)
        if waiters is None:
            waiters = self._add_loop(loop)
        return waiters.wait(end)

    def _add_loop(self, loop: asyncio.AbstractEventLoop) -> LoopReplicas:
        from mqlake.store.awaiting import LoopReplicas  # imports asyncio, a fifth of the time of `import mqlake`

        with self._adding:
            for gone in [known for known in self._loops if known.is_closed()]:
                self._loops.pop(gone).close()
            timeout_s = self._config.replica_timeout_ms / 1000
            waiters = self._loops[loop] = LoopReplicas(loop, self._ends, timeout_s, self.missing, self.late)
        return waiters

    def missing(self, end: int) -> ReplicaMissing | None:
        """Return the error of a put that need not wait: too few slaves are attached and near."""
        nth = self._nth_confirmed
        if self._ends.replicated >= end or (nth >= 0 and self._is_near(nth, end)):
            return None
        near_count = sum(self._is_near(each, end) for each in self._confirmed)
        return ReplicaMissing(self._root, self.needed_count, near_count)

    def late(self) -> NotConfirmed:
        return ReplicaTimeout(self._root, self._config.replica_timeout_ms, self.needed_count, self._is_closing)

    def close(self) -> None:
        """End the master and the waits: the store closes."""
        if self._stop_serving is not None:
            self._stop_serving()
        self._is_closing = True
        self._ends.nudge()
        with self._adding:
            for waiters in self._loops.values():
                waiters.close()
            self._loops.clear()
