"""Keep signals out of steps that must not be left half done.

Python runs signal handlers in the main thread, between any two instructions, and a handler may raise. No other thread
is ever interrupted so. What would be broken by that runs on a worker, and the main thread only waits for it. If a
handler raises meanwhile, the caller gets its error at once, and the step is finished all the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from mqlake.runtime.locks import LOOK_S
from mqlake.runtime.workers import UNTIL_WOKEN, Worker, Workers

Made = TypeVar("Made")


class _Step:
    """Something to do, and how it ended."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            self.done.release()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error


class Shield:
    """Runs steps of the main thread on a worker. Other threads run them themselves."""

    def __init__(self, name: str, workers: Workers) -> None:
        self._steps: deque[_Step] = deque()
        self._worker: Worker = workers.add(name, self._work)

    def start(self) -> None:
        self._worker.start()

    def run(self, work: Callable[[], None]) -> None:
        """Do something that no signal may interrupt; raise its error. The caller must hold no lock that it takes."""
        if threading.current_thread() is not threading.main_thread() or not self._worker.is_alive:
            work()
            return
        step = _Step(work)
        self._steps.append(step)
        self._worker.wake()
        while not step.done.acquire(timeout=LOOK_S):
            if not self._worker.is_alive:  # the store was closed before the worker came to this step
                self._work()
        step.raise_error()

    def _work(self) -> float:
        while self._steps:
            try:
                step = self._steps.popleft()
            except IndexError:  # another thread took the last one
                break
            step.run()
        return UNTIL_WOKEN


def make_whole(make: Callable[[], Made]) -> Made:
    """Return what `make` returns, made on a thread of its own if this is the main thread.

    If a handler raises meanwhile, nobody refers to what is made: it must then clean up after itself. What has not begun
    by then never begins: a program that goes on after Ctrl-C must not find the store open a moment later.
    """
    if threading.current_thread() is not threading.main_thread():
        return make()
    made: list[Made] = []
    order = deque([make])  # whoever takes it decides: the thread makes it, or nobody does

    def work() -> None:
        try:
            taken = order.pop()
        except IndexError:
            return
        made.append(taken())

    step = _Step(work)
    thread = threading.Thread(target=step.run, name="mqlake-open", daemon=True)
    try:
        thread.start()
        while not step.done.acquire(timeout=LOOK_S):
            pass
    except BaseException as error:
        order.clear()
        if isinstance(error, RuntimeError) and thread.ident is None:  # the program is exiting: it starts no thread
            return make()
        raise
    step.raise_error()
    return made.pop()
