"""Locks are taken in one order, and a run in which they are not fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from mqlake.runtime.locks import ORDER, Recorder, make_condition

ROOT = Path(__file__).parents[2]


def test_a_lock_taken_against_the_order_is_a_violation_with_the_stack_that_took_it() -> None:
    recorder = Recorder()
    with recorder.lock("checkpoint"), recorder.lock("log"):
        pass
    assert not recorder.violations
    with recorder.lock("log"), recorder.lock("checkpoint"):
        pass
    (violation,) = recorder.violations
    assert violation.startswith("'checkpoint' is taken while 'log' is held, against ORDER")
    assert "test_locks.py" in violation


def test_two_locks_of_one_name_and_unknown_names_are_violations() -> None:
    recorder = Recorder()
    with recorder.lock("queue"), recorder.lock("queue"):
        pass
    with recorder.lock("queue"), recorder.lock("of no table"):
        pass
    assert len(recorder.violations) == 2
    assert "'of no table' is not in ORDER" in recorder.violations[1]


def test_a_wait_on_a_condition_ends_the_hold() -> None:
    recorder = Recorder()
    condition = threading.Condition(recorder.lock("preallocation"))
    with condition:
        condition.wait(0.01)
    with recorder.lock("log"), condition:
        pass
    assert not recorder.violations


def test_a_waiter_sees_its_condition_although_the_notify_was_interrupted() -> None:
    condition = make_condition("preallocation")
    reached: list[bool] = []

    def change() -> None:  # and a handler raises before `notify`
        with condition.lock:
            reached.append(True)

    threading.Timer(0.05, change).start()
    with condition.lock:
        assert condition.wait_for(lambda: reached, 30)


def test_a_test_run_with_a_planted_inversion_fails() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MQLAKE_RECORD_LOCKS"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "tests/runtime/planted_inversion.py",
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stdout
    assert "'checkpoint' is taken while 'log' is held" in done.stdout


def test_the_table_in_the_architecture_page_is_the_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## Locks") :]
    table = table[: table.index("\n## ", 1)]
    assert tuple(re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE)) == ORDER
