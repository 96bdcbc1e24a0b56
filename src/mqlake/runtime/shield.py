"""Keep signals out of the steps of an open store that must not be left half done.

As `runtime/whole.py`, on a worker that waits for such steps. If a handler raises meanwhile, the caller gets its error
at once, and the step is finished all the same; one that has not begun by then never begins.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from mqlake.runtime.locks import LOOK_S
from mqlake.runtime.whole import Step
from mqlake.runtime.workers import UNTIL_WOKEN, Worker, Workers


class Shield:
    """Runs steps of the main thread on a worker. Other threads run them themselves."""

    def __init__(self, name: str, workers: Workers) -> None:
        self._steps: deque[Step] = deque()
        self._worker: Worker = workers.add(name, self._work)

    def start(self) -> None:
        self._worker.start()

    def run(self, work: Callable[[], None]) -> None:
        """Do something that no signal may interrupt; raise its error. The caller must hold no lock that it takes."""
        if threading.current_thread() is not threading.main_thread() or not self._worker.is_alive:
            work()
            return
        step = Step(work)
        try:
            self._steps.append(step)
            self._worker.wake()
            while not step.done.acquire(timeout=LOOK_S):
                if not self._worker.is_alive:  # the store was closed before the worker came to this step
                    self._work()
        except BaseException:
            step.withdraw()
            raise
        step.raise_error()

    def _work(self) -> float:
        while self._steps:
            try:
                step = self._steps.popleft()
            except IndexError:  # another thread took the last one
                break
            step.run()
        return UNTIL_WOKEN
