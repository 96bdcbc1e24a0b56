"""Background threads: what their start promises."""

from __future__ import annotations

import itertools
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from mqlake import FileFailed
from mqlake.runtime.workers import UNTIL_WOKEN, Workers


def test_a_thread_that_the_system_refuses_is_a_typed_error_and_can_be_started_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    worker = Workers().add("helper", lambda: UNTIL_WOKEN)
    with monkeypatch.context() as patched:
        patched.setattr("threading._start_new_thread", refuse)
        with pytest.raises(FileFailed, match=r"thread mqlake-helper: .*ulimit -u"):
            worker.start()
    assert not worker.is_alive
    worker.start()
    worker.stop()


class Interrupted(BaseException):
    """What a signal handler raises."""


def interrupt_at(event_number: int, call: Any) -> bool:
    """Call, and raise before the given line of Python that runs in it, as a handler may. False if it has fewer."""
    left = itertools.count(event_number, -1)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and frame.f_code is not interrupt_at.__code__ and next(left) == 0:
            raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def test_a_wake_up_that_a_signal_interrupts_anywhere_costs_no_later_one() -> None:
    for number in itertools.count():
        called = threading.Event()
        worker = Workers().add("helper", lambda done=called: done.set() or UNTIL_WOKEN)  # type: ignore[misc]
        worker.start()
        assert called.wait(30)
        was_interrupted = interrupt_at(number, worker.wake)
        called.clear()
        worker.wake()
        assert called.wait(30), f"woken after an interrupt at line {number}"
        worker.stop()
        if not was_interrupted:
            assert number > 1, "at least one line was interrupted"
            break
