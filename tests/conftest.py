"""For all tests: programs can be interrupted; the order of locks is recorded; counts of what was
compared with real RocketMQ are printed at the end."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REAL_ROCKETMQ = {Path(__file__).parent / name for name in ("clients", "interop")}
LOCKS = "MQLAKE_RECORD_LOCKS"
"""Names the folder where this run's processes, children included, write locks taken in the wrong order."""
if LOCKS not in os.environ:  # inherited by workers of a parallel run and by programs that tests start
    os.environ[LOCKS] = tempfile.mkdtemp(prefix="mqlake-locks-")

# Else every program that a test starts would compile all modules that it imports, which takes half of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No deadlines: a machine that pauses for a moment must not fail an example.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs; children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests recorded with `record_property("compared: WITH WHAT", {kind: count})`."""
    totals: dict[str, Counter[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, counts in report.user_properties:
            if name.startswith("compared: ") and isinstance(counts, dict):
                totals.setdefault(name.removeprefix("compared: "), Counter()).update(counts)
    for title, counter in sorted(totals.items()):
        told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counter.items()))
        terminalreporter.write_line(f"{title}: {told}, none missing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a real RocketMQ, or its clients: `make test` is without them."""
    for item in items:
        if not REAL_ROCKETMQ.isdisjoint(item.path.parents):
            item.add_marker(pytest.mark.rocketmq)


@pytest.fixture(autouse=True)
def _locks_are_taken_in_order() -> Iterator[None]:
    """Fail the test that first took a lock in the wrong order."""
    from mqlake.runtime import locks

    assert locks._recorder is not None, "locks were imported before the recording was switched on"
    before = len(locks._recorder.violations)
    yield
    assert not locks._recorder.violations[before:], "\n".join(locks._recorder.violations[before:])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if any process, including children of tests, took locks in the wrong order."""
    if hasattr(session.config, "workerinput"):
        return
    folder = Path(os.environ[LOCKS])
    found = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))]
    shutil.rmtree(folder, ignore_errors=True)
    if found:
        print("\nlocks were taken in a wrong order:\n" + "\n".join(found))
        session.exitstatus = 1
