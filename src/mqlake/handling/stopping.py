"""How a worker is told to stop: by SIGTERM or Ctrl-C, by an event of the program, or after a pause without messages."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or SIGINT. A second one does what it did before the block.

    Only the main thread can do this; in any other, signals are the program's own matter.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def heard(number: int, frame: FrameType | None) -> None:
        restore()
        stop()

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is heard:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    for number in SIGNALS:
        signal.signal(number, heard)
    try:
        yield
    finally:
        restore()
