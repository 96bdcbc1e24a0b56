"""`mqlake check`: report every broken promise of a store, as a table or as JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from mqlake.cli import show
from mqlake.cli.findings_view import print_report
from mqlake.cli.options import json_option, settings_of, store_command
from mqlake.inspect.check import CheckReport, Progress
from mqlake.inspect.check import check as look
from mqlake.inspect.findings import Finding

EXIT_USAGE = 64
EXIT_CODES = f"""\b
Exit codes:
    0  all promises hold; notes are allowed
    1  warnings: a derived or small file is wrong; no data is lost
    2  errors: something in the log is lost or cannot be read
    3  not a store, or it cannot be read
   {EXIT_USAGE}  the command line is wrong
"""


class VerdictCommand(click.Command):
    """A command whose exit code is a verdict. Usage errors have a code of their own, which is no verdict."""

    def make_context(self, *args: Any, **named: Any) -> click.Context:
        try:
            return super().make_context(*args, **named)
        except click.UsageError as error:
            error.show()
            raise click.exceptions.Exit(EXIT_USAGE) from None


@click.command(cls=VerdictCommand, epilog=EXIT_CODES)
@store_command
@json_option
def check(store: Path, config: Path | None, as_json: bool) -> None:
    """Check log, queues, index, checkpoints and configuration of a store, and report every broken promise.

    Writes nothing. If another process writes the store, it is checked up to what that process has dispatched.
    """
    with show.progress("checking", None, bytes_done=True) as step:
        report = look(store, config=settings_of(config), progress=told(step))
    if as_json:
        for finding in report.findings:
            show.print_json(finding_json(finding))
        show.print_json({"kind": "verdict", **verdict_json(report)})
    else:
        print_report(report)
    sys.exit(int(report.severity))


def told(step: show.Step) -> Progress:
    return lambda done, total: step.done(done, total)


def finding_json(finding: Finding) -> dict[str, Any]:
    return {"kind": "finding", **finding._asdict(), "severity": finding.severity.name.lower()}


def verdict_json(report: CheckReport) -> dict[str, Any]:
    return {
        "path": str(report.path),
        "severity": report.severity.name.lower(),
        "holds": report.holds,
        "live": report.live,
        "firstOffset": report.first_offset,
        "endOffset": report.end_offset,
        "tookMs": report.took_ms,
    }
