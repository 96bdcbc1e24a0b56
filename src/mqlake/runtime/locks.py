"""Locks by name, and the one order in which they may be taken.

Every lock in mqlake is made here. `ORDER` lists the names from the outermost to the innermost: a thread that holds a
lock may take only locks that stand after it. Two threads that both keep the order cannot wait for each other in a
circle. docs/architecture.md shows the same list with what each lock guards.

In production these are plain locks of `threading` and cost nothing extra. Under test (MQLAKE_RECORD_LOCKS names a
folder) every lock notes which names its thread holds when it is taken. Each pair of names is checked at once against
`ORDER`, so one thread shows a wrong order without a second one that deadlocks with it. A process writes what it found
wrong to the folder, and the test run fails. Locks of one name are never held together, so a pair of equal names is
wrong too.

The kernel has three mutexes of its own (appender, group commit, ends). They are taken after all of these, in that
order, and are never held while Python code runs.
"""

from __future__ import annotations

import os
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

ORDER: Final = (
    "client.loop",
    "backup",
    "store.close",
    "replication",
    "delivery.parts",
    "consumers",
    "consumer",
    "share.settling",
    "share",
    "scheduler",
    "timer.files",
    "retention",
    "retention.trim",
    "transactions",
    "timer",
    "scheduler.wake",
    "services",
    "housekeeping",
    "delivery.tables",
    "config_table",
    "config_file",
    "seals",
    "checkpoint",
    "admission",
    "log",
    "log.commit",
    "log.names",
    "pool",
    "preallocation",
    "follower",
    "slave",
    "queues",
    "queue",
    "unsynced",
    "files",
    "file_cache",
    "index",
    "scars",
    "flush.failure",
    "flush.loops",
    "replicas.loops",
    "health",
    "handling",
    "lock_file",
    "counters",
)
"""From the outermost to the innermost."""
LOOK_S: Final = 0.1
"""A thread that waits on a condition looks at it this often."""
_RANK: Final = {name: rank for rank, name in enumerate(ORDER)}


def make_lock(name: str) -> threading.Lock:
    """Return a lock. `name` stands in `ORDER`."""
    lock = threading.Lock()
    return lock if _recorder is None else _Recorded(name, lock, _recorder)  # type: ignore[return-value]


def make_rlock(name: str) -> threading.RLock:
    """Return a lock that its owner may take again."""
    lock = threading.RLock()
    return lock if _recorder is None else _RecordedAgain(name, lock, _recorder)  # type: ignore[return-value]


def is_mine(lock: threading.RLock) -> bool:
    """Return whether the current thread holds a re-entrant lock."""
    return lock.is_held() if isinstance(lock, _Recorded) else bool(lock._is_owned())  # type: ignore[attr-defined]


def make_global_lock(name: str) -> threading.Lock:
    """Return a lock of the whole process. A forked child can take it, although a thread of the parent may hold it."""
    lock = make_lock(name)
    os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]
    return lock


class Condition(threading.Condition):
    """A condition over a lock of its own. Waiting releases the lock, so it ends the hold.

    Take it with `with condition.lock:`. The lock's own methods are compiled: a signal handler cannot raise between
    taking it and the block, or between the block and its release. `with condition:` would leave it taken then.

    `wait` may return early, and every caller looks at what it waits for again: a `notify` that a handler interrupted
    has woken nobody, or will wake a thread that is gone.
    """

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__(lock)
        self.lock = lock

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(LOOK_S if timeout is None else min(timeout, LOOK_S))


def make_condition(name: str) -> Condition:
    return Condition(make_rlock(name))


class Recorder:
    """The pairs of names that threads have taken one inside the other."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: where violations are written, one file for each process."""
        self._folder = folder
        self._held = threading.local()
        self._mutex = threading.Lock()
        self.pairs: dict[tuple[str, str], str] = {}
        """(outer, inner) -> the stack that took them first."""
        self.violations: list[str] = []

    def lock(self, name: str) -> threading.Lock:
        """Return a recorded lock."""
        return _Recorded(name, threading.Lock(), self)  # type: ignore[return-value]

    def take(self, name: str, lock: _Recorded) -> None:
        held: list[tuple[str, _Recorded]] = self._held.__dict__.setdefault("names", [])
        held[:] = [each for each in held if each[1].is_held()]  # a signal may come between noting a lock and taking it
        if not any(other is lock for _, other in held):  # the owner of a re-entrant lock takes it again
            for outer, _ in held:
                if (outer, name) not in self.pairs:
                    self._note(outer, name)
        held.append((name, lock))

    def give(self, lock: _Recorded) -> None:
        """Forget the newest hold of a lock. One thread may release what another took: then there is none."""
        held: list[tuple[str, _Recorded]] = self._held.__dict__.setdefault("names", [])
        for at in range(len(held) - 1, -1, -1):
            if held[at][1] is lock:
                del held[at]
                return

    def _note(self, outer: str, inner: str) -> None:
        stack = "".join(traceback.format_stack(limit=12)[:-3])
        with self._mutex:
            self.pairs[outer, inner] = stack
            unknown = [name for name in (outer, inner) if name not in _RANK]
            if unknown:
                self._report(f"lock {unknown[0]!r} is not in ORDER\n{stack}")
            elif _RANK[outer] >= _RANK[inner]:
                self._report(f"{inner!r} is taken while {outer!r} is held, against ORDER\n{stack}")

    def _report(self, violation: str) -> None:
        self.violations.append(violation)
        if self._folder is not None:
            with (self._folder / f"{os.getpid()}.txt").open("a", encoding="utf-8") as file:
                file.write(violation + "\n")


class _Recorded:
    """A lock that reports to a recorder. It is noted before it is taken, so a deadlock is on record too."""

    def __init__(self, name: str, lock: threading.Lock | threading.RLock, recorder: Recorder) -> None:
        self._name = name
        self._lock = lock
        self._recorder = recorder

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking:  # a try cannot wait, so it cannot be part of a deadlock; but what it gets is held
            taken = self._lock.acquire(False)
        else:
            self._recorder.take(self._name, self)
            taken = self._lock.acquire(True, timeout)
            if not taken:
                self._recorder.give(self)
            return taken
        if taken:
            self._recorder.take(self._name, self)
        return taken

    def release(self) -> None:
        self._lock.release()
        self._recorder.give(self)

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()  # type: ignore[union-attr]

    def is_held(self) -> bool:
        """Tell whether a thread has it; of a re-entrant lock, whether this one has."""
        own = getattr(self._lock, "_is_owned", None)
        return bool(own() if own is not None else self._lock.locked())  # type: ignore[union-attr]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _RecordedAgain(_Recorded):
    """One that its owner may take again, with what a condition asks of such a lock."""

    def _is_owned(self) -> bool:
        return self.is_held()

    def _release_save(self) -> object:
        self._recorder.give(self)
        return self._lock._release_save()  # type: ignore[union-attr]

    def _acquire_restore(self, state: object) -> None:
        self._recorder.take(self._name, self)
        self._lock._acquire_restore(state)  # type: ignore[union-attr]


def _recorder_of_environment() -> Recorder | None:
    folder = os.environ.get("MQLAKE_RECORD_LOCKS")
    return Recorder(Path(folder)) if folder else None


_recorder = _recorder_of_environment()
