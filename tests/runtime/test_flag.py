"""A flag can be set by a signal handler, and survives one that raises."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from mqlake.runtime.flag import Flag
from tests.hostile.programs import run
from tests.plain_locks import plain_locks


def test_a_flag_wakes_everyone_who_waits_and_stays_set() -> None:
    flag, woken = Flag(), []
    threads = [threading.Thread(target=lambda: woken.append(flag.wait(30))) for _ in range(5)]
    for each in threads:
        each.start()
    assert not flag.wait(0.01) and not flag.is_set()
    flag.set()
    flag.set()
    for each in threads:
        each.join(10)
    assert woken == [True] * 5 and flag.is_set() and flag.wait() and flag.wait(0)
    with pytest.raises(NotImplementedError):
        flag.clear()


def test_a_wait_ends_when_its_time_is_over() -> None:
    began = time.monotonic()
    assert not Flag().wait(0.15)
    assert 0.1 < time.monotonic() - began < 10


@pytest.mark.parametrize("handler", ["sets", "raises"])
def test_no_handler_in_the_middle_of_a_wait_locks_a_flag(tmp_path: Path, handler: str) -> None:
    program = """
        from mqlake.runtime.flag import Flag
        class Interrupted(Exception):
            pass
        def handle(*_):
            handled.append(True)
            if sys.argv[2] == "sets":
                flag.set()
            else:
                raise Interrupted
        signal.signal(signal.SIGALRM, handle)
        for number in range(3000):
            flag, handled = Flag(), []
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (number % 100 + 1))
                while not handled:
                    flag.wait(0)
                    flag.wait(1e-5)
            except Interrupted:
                flag.set()
            assert flag.wait(10)
    """
    run(program, tmp_path, handler, env=plain_locks())
