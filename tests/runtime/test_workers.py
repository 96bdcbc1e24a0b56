"""Background threads: what their start promises."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from mqlake import FileFailed
from mqlake.runtime.workers import UNTIL_WOKEN, Workers
from tests.interrupting import interrupt_at


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


def test_a_start_that_a_signal_interrupts_anywhere_is_done_or_done_by_the_next_one() -> None:
    for number in itertools.count():
        called = threading.Event()
        worker = Workers().add("helper", lambda done=called: done.set() or UNTIL_WOKEN)  # type: ignore[misc]
        was_interrupted = interrupt_at(number, worker.start, ("runtime/workers.py", "runtime/whole.py"))
        worker.start()
        assert called.wait(30), f"started after an interrupt at line {number}"
        assert worker.is_alive
        worker.stop()
        assert not worker.is_alive
        if not was_interrupted:
            assert number > 5, "at least some lines were interrupted"
            break


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [(FileFailed(Path("f"), "synced", 5, "EIO"), False), (OSError(5, "EIO"), False), (KeyError("x"), True)],
    ids=["a store error", "a system error", "a mistake"],
)
def test_only_an_unexpected_error_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture, error: Exception, is_shown: bool
) -> None:
    failed = threading.Event()

    def work() -> float:
        raise error

    worker = Workers().add("tried", work, on_trouble=failed.set)
    worker.start()
    assert failed.wait(30)
    worker.stop()
    (record,) = caplog.records
    assert f"tried stopped for good: {error}" in record.getMessage()
    assert (record.exc_info is not None) == is_shown
