"""The findings of a check for people: the verdict first, then each kind of finding once, then each remedy once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rich.measure import Measurement
from rich.text import Text

from mqlake.cli import show
from mqlake.inspect.check import CheckReport
from mqlake.inspect.findings import ACCEPT, HEAL, HEALABLE, REPAIR, Finding, Severity

STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
NARROW = 100
"""Below so many columns findings are blocks, one line a field."""
SHOWN_FILES = 3
MORE = re.compile(r"(\d+) more of these")
"""How a check counts findings that it does not list."""


class Kind(NamedTuple):
    """Findings that have the same name and the same cost."""

    first: Finding
    total: int
    files: list[str]

    @property
    def what(self) -> str:
        return f"{self.first.what} ({self.total:,} times)" if self.total > 1 else self.first.what

    @property
    def file(self) -> str:
        """The first file, and how many more there are."""
        more = len(self.files) - 1
        return self.files[0] + (f" and {show.counted(more, 'more file')}" if more else "")

    @property
    def offset(self) -> str:
        return "" if self.first.offset is None else str(self.first.offset)


def kinds_of(findings: Iterable[Finding]) -> list[Kind]:
    """Group findings that repeat one another, in the order of the first of each."""
    found: dict[tuple[Severity, str, str], list[Finding]] = {}
    for row in findings:
        found.setdefault((row.severity, row.what, row.cost), []).append(row)
    return [
        Kind(rows[0], sum(map(times, rows)), list(dict.fromkeys(row.file for row in rows))) for rows in found.values()
    ]


def times(finding: Finding) -> int:
    """Return how many findings a row stands for."""
    more = MORE.fullmatch(finding.found)
    return int(more[1]) if more is not None else 1


def verdict(counts: Mapping[Severity, int]) -> str:
    """Return the verdict in words. Only an error means that messages are lost or cannot be read."""
    found = [show.counted(counts[s], s.name.lower()) for s in reversed(Severity) if counts[s]]
    if counts[Severity.ERROR]:
        return ", ".join(found)
    return ", ".join([*found, "no data lost" if counts[Severity.WARNING] else "all promises hold"])


def print_report(report: CheckReport) -> None:
    console = show.console()
    counts = {severity: sum(times(row) for row in report.findings if row.severity == severity) for severity in Severity}
    size = show.size(report.end_offset - report.first_offset)
    live = ", while it is written" if report.live else ""
    worst = STYLES[report.severity] if report.severity > Severity.NOTE else "green"
    console.print(Text(f"{verdict(counts)} in {size} of log{live} ({report.took_ms} ms)", style=worst))
    kinds = kinds_of(report.findings)
    if kinds:
        console.print()
        _print_kinds(console, kinds)
        if any(kind.total > 1 for kind in kinds):
            console.print(Text("\nOf repeated findings the first is shown; --json prints every one."))
    told = remedies(report)
    if told:
        console.print()
    for remedy in told:
        console.print(Text(f"  {remedy}"))


def _print_kinds(console: show.Output, kinds: list[Kind]) -> None:
    if console.is_plain or console.width >= NARROW:
        made = show.table("", "what", "file", "offset>", "found", "expected", "cost")
        for kind in kinds:
            texts = [kind.what, kind.file, kind.offset, kind.first.found, kind.first.expected, kind.first.cost]
            made.add_row(_severity(kind), *(Text(show.printable(text)) for text in texts))
        if Measurement.get(console, console.options.update(width=show.NEVER_CUT), made).maximum <= console.width:
            console.print(made)
            return
    for kind in kinds:
        console.print(_severity(kind), Text(kind.what))
        console.print(show.facts([(f"  {name}", show.printable(text)) for name, text in _fields(kind)]))


def _severity(kind: Kind) -> Text:
    return Text(kind.first.severity.name.lower(), style=STYLES[kind.first.severity])


def _fields(kind: Kind) -> list[tuple[str, str]]:
    first = kind.first
    at = f" at {kind.offset}" if kind.offset else ""
    shown = [f"{first.file}{at}", *[file for file in kind.files if file != first.file][: SHOWN_FILES - 1]]
    if len(kind.files) > SHOWN_FILES:
        shown.append(f"and {show.counted(len(kind.files) - SHOWN_FILES, 'more file')}")
    files = [("file" if place == 0 else "", text) for place, text in enumerate(shown)]
    return [*files, ("found", first.found), ("expected", first.expected), ("cost", first.cost)]


def remedies(report: CheckReport) -> list[str]:
    """Return what to do, each thing once: `repair` does all that it can do in one run.

    Healing comes first: what a repair has filled can no longer be healed.
    """
    told = [row.remedy for row in report.findings if row.severity > Severity.NOTE]
    repair = f"{REPAIR} {report.path}"
    is_healable = any(row.what in HEALABLE for row in report.findings)
    commands = [HEAL.replace(REPAIR, repair)] if is_healable else []
    if any(remedy.startswith(REPAIR) and remedy != HEAL for remedy in told):
        commands.append(repair)
    elif commands:
        commands.append(ACCEPT.replace(REPAIR, repair))
    others = (remedy.replace(REPAIR, repair) for remedy in told if not remedy.startswith((f"{REPAIR} rebuilds",)))
    return [*dict.fromkeys([*commands, *others])]
