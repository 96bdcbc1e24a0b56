"""The life of a store: open, closed, or inherited by a forked child. It closes exactly once, whoever calls.

A store closes when its owner calls `close`, when nobody refers to it any more, and when the program ends. In a forked
child it closes in no way at all: it belongs to the parent.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from mqlake.errors import StoreClosed, StoreError, StoreForked
from mqlake.runtime.locks import make_lock

_log = logging.getLogger(__name__)
_open: weakref.WeakSet[Life] = weakref.WeakSet()


class Life:
    """The life of one open store. It does not refer to the façade, so that an unused façade can be collected."""

    def __init__(
        self,
        path: Path,
        closers: Sequence[Callable[[], None]],
        give_up: Callable[[], None],
        is_worker: Callable[[], bool],
        leave: Callable[[], None],
    ) -> None:
        """`closers` are called in their order, once. `give_up` is called in a forked child instead. `is_worker` tells
        whether the current thread is one of the store's own. `leave` is called before the store is closed because
        nobody refers to it.
        """
        self._path = path
        self._opener = os.getpid()
        self._left = list(closers)
        """What is still to be closed: a close that is interrupted resumes there."""
        self._give_up = give_up
        self._is_worker = is_worker
        self._leave = leave
        self._closing = make_lock("store.close")
        self._closers: set[int] = set()
        """Threads that are in `close`."""
        self._refusal: Callable[[], StoreError] | None = None
        _open.add(self)

    def require_open(self) -> None:
        """Raise StoreClosed or StoreForked unless the store is open."""
        if self._refusal is not None:
            raise self._refusal()

    def refusal(self) -> StoreError:
        """Return the error for a call on a store that is not open."""
        return self._refusal() if self._refusal is not None else StoreClosed(self._path)

    def close(self) -> None:
        """Close the store, unless that was done before. Returns when it is closed, whoever closes it.

        A caller that closing itself waits for returns at once: one of the store's workers (a check that closes the
        store), or the thread that closes it already (a signal handler).
        """
        thread = threading.get_ident()
        if not self._left or thread in self._closers:
            return
        try:
            self._closers.add(thread)
            if not self._is_worker():
                with self._closing:
                    self._close_what_is_left()
            elif self._closing.acquire(blocking=False):
                try:
                    self._close_what_is_left()
                finally:
                    self._closing.release()
        finally:
            self._closers.discard(thread)

    def _close_what_is_left(self) -> None:
        """Call the closers that are left, all of them, and raise the first error afterwards.

        One that raises is called again: a signal handler may have interrupted it. If it raises again it is given up,
        because those after it must let go of the lock and the files.
        """
        self._refusal = self._refusal or (lambda: StoreClosed(self._path))
        first: Exception | None = None
        again = False
        while self._left:
            try:
                self._left[0]()
            except Exception as error:
                first = first or error
                again = not again
                if again:
                    continue
                _log.exception("%s: a part of the store did not close", self._path)
            again = False
            del self._left[0]
        if first is not None:
            raise first

    def close_unreferenced(self) -> None:
        """Close a store that nobody refers to any more, on a thread of its own.

        The garbage collector may call this on any thread, in the middle of anything, one of the store's own workers
        included: that thread must not wait here.
        """
        if self._refusal is not None or os.getpid() != self._opener:
            return
        self._leave()
        warnings.warn(f"{self._path}: the store was not closed", ResourceWarning, stacklevel=2)
        if sys.is_finalizing():
            self.close()
        else:
            threading.Thread(target=self.close, name="mqlake-close").start()

    def give_up(self) -> None:
        """In a forked child: refuse everything. No lock is taken: another thread may have held it when it forked."""
        path, opener = self._path, self._opener
        self._refusal = lambda: StoreForked(path, opener)
        self._left.clear()
        self._give_up()


def _close_all() -> None:
    """A program that ends without closing, or is interrupted while it does, still closes its stores."""
    for life in list(_open):
        try:
            life.close()
        except Exception:
            _log.exception("a store did not close at the end of the program")


atexit.register(_close_all)
