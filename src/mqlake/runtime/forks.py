"""Give up open stores in a forked child.

A forked child has the parent's memory but none of its threads, and a lock that another thread held at that moment stays
held forever. Both processes would also append to the same offsets. So in the child every open store is given up: it
refuses all calls with `StoreForked`, takes no lock, writes nothing and does nothing when the child exits. The parent is
not affected.

Its sockets are closed in the child. With copies of them in a living child, a port would answer and a connection stay
open after the parent has died: its peers would wait for nobody, and the next process could not listen there.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable
from typing import NoReturn, Protocol


class GivesUp(Protocol):
    """An object that a forked child must not use."""

    def _give_up(self) -> None:
        """Become unusable without touching locks or files. Called in the child, before any other code runs there."""


_open: weakref.WeakSet[GivesUp] = weakref.WeakSet()
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_USES = ("__getattribute__", "__setattr__", "__getitem__", "__iter__", "__contains__", "__len__", "__call__")


def guard(opened: GivesUp) -> None:
    """Give an object up in every forked child, as long as it lives."""
    _open.add(opened)


def close_in_child(opened: socket.socket) -> socket.socket:
    """Have every forked child close its copy of a socket, and return the socket."""
    _sockets.add(opened)
    return opened


def disable(part: object, error: Callable[[], Exception]) -> None:
    """Have every use of an object raise an error from now on, whoever refers to it.

    The class is replaced, because a program may have kept a part of the store, or one of its methods, from before the
    fork. No lock is taken. A subclass without fields of its own has the same layout, so it can replace any class.
    """

    def refuse(self: object, *arguments: object) -> NoReturn:
        raise error()

    part.__class__ = type("Disabled", (type(part),), {"__slots__": (), **dict.fromkeys(_USES, refuse)})


def _in_child() -> None:
    global _open, _sockets
    left, _open = list(_open), weakref.WeakSet()
    copies, _sockets = list(_sockets), weakref.WeakSet()
    for opened in left:
        opened._give_up()
    for copy in copies:
        copy.close()  # of the child's descriptor only: the connection is the parent's


os.register_at_fork(after_in_child=_in_child)
