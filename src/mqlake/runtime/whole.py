"""Steps of the main thread that no signal leaves half done.

Python runs signal handlers in the main thread, between any two instructions, and a handler may raise. No other thread
is ever interrupted so: a step that must be whole runs on another thread, and the main thread only waits for it.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from mqlake.runtime.locks import LOOK_S

Made = TypeVar("Made")
abandoned: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that make something for a caller who was interrupted: nobody will ever use it."""


class Step:
    """Something that another thread is to do, and how it ended."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._order = deque([work])
        """Whoever takes it decides: it is done, or nobody does it."""
        self._error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            work = self._order.pop()
        except IndexError:
            return
        try:
            work()
        except BaseException as error:
            self._error = error
        finally:
            self.done.release()

    def withdraw(self) -> None:
        """Do it no more, unless it has begun."""
        self._order.clear()

    def wait(self) -> None:
        while not self.done.acquire(timeout=LOOK_S):
            pass

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def make_whole(make: Callable[[], Made]) -> Made:
    """Return what `make` returns, made on a thread of its own if this is the main thread.

    If a handler raises meanwhile, nobody refers to what is made: it must then clean up after itself, and its thread is
    `abandoned`. What has not begun by then never begins: a program that goes on after Ctrl-C must not find the store
    open a moment later. The caller must hold no lock that `make` takes.
    """
    if threading.current_thread() is not threading.main_thread():
        return make()
    made: list[Made] = []

    def work() -> None:
        made.append(make())
        if thread in abandoned:
            made.clear()

    step = Step(work)
    thread = threading.Thread(target=step.run, name="mqlake-step", daemon=True)
    try:
        start_thread(thread)
        step.wait()
    except BaseException as error:
        step.withdraw()
        if isinstance(error, NoThread):
            return make()
        abandoned.add(thread)
        made.clear()  # the error's traceback would hold it for as long as the program looks at it
        raise
    step.raise_error()
    return made.pop()


class NoThread(Exception):
    """The system starts no thread now: there are too many, or the program is exiting."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. If a handler raises meanwhile, it starts all the same, or it never does.

    `Thread.start` is Python code: an interrupt in it leaves a thread that ends at once with an error of its own. So it
    runs on another thread, and that one is started by a single compiled call.
    """
    refused: list[RuntimeError] = []

    def start() -> None:
        try:
            thread.start()
        except RuntimeError as error:
            refused.append(error)

    step = Step(start)
    try:
        _thread.start_new_thread(step.run, ())
    except RuntimeError as error:
        if "new thread" not in str(error):  # a handler's own
            raise
        raise NoThread from error
    step.wait()
    if refused:
        raise NoThread from refused[0]
