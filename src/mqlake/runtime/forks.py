"""Give up open stores in a forked child.

A forked child has the parent's memory but none of its threads, and a lock that another thread held at that moment stays
held forever. Both processes would also append to the same offsets. So in the child every open store is given up: it
refuses all calls with `StoreForked`, takes no lock, writes nothing and does nothing when the child exits. The parent is
not affected.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class GivesUp(Protocol):
    """An object that a forked child must not use."""

    def _give_up(self) -> None:
        """Become unusable without touching locks or files. Called in the child, before any other code runs there."""


_open: weakref.WeakSet[GivesUp] = weakref.WeakSet()


def guard(opened: GivesUp) -> None:
    """Give an object up in every forked child, as long as it lives."""
    _open.add(opened)


def _in_child() -> None:
    global _open
    left, _open = list(_open), weakref.WeakSet()
    for opened in left:
        opened._give_up()


os.register_at_fork(after_in_child=_in_child)
