"""For all tests: programs can be interrupted; what was compared with real RocketMQ is said at the end, in counts."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell does it in the background; programs would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests name what they compared with `record_property("compared: WITH WHAT", {kind: count})`."""
    totals: dict[str, Counter[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, counts in report.user_properties:
            if name.startswith("compared: ") and isinstance(counts, dict):
                totals.setdefault(name.removeprefix("compared: "), Counter()).update(counts)
    for title, counter in sorted(totals.items()):
        told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counter.items()))
        terminalreporter.write_line(f"{title}: {told}, none missing")
