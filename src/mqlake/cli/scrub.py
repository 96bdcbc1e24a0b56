"""`mqlake scrub`: compare the log of a store with its seals."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mqlake.cli import show
from mqlake.cli.check import EXIT_CODES, VerdictCommand, told
from mqlake.cli.options import byte_count, json_option, settings_of, store_command
from mqlake.inspect.findings import HEAL, Severity
from mqlake.inspect.scrub import ScrubReport
from mqlake.inspect.scrub import scrub as compare
from mqlake.store.job import open_job


@click.command(cls=VerdictCommand, epilog=EXIT_CODES)
@store_command
@click.option("--rate", callback=lambda c, p, text: byte_count(text) if text else 0, help="Bytes a second, as in 64m.")
@click.option("--seal", is_flag=True, help="First seal what has no seal yet; no other process may write the store.")
@json_option
def scrub(store: Path, config: Path | None, rate: int, seal: bool, as_json: bool) -> None:
    """Compare every sealed block of the log with its seal, and report those that changed.

    Writes nothing without --seal, and works while another process writes the store.
    """
    settings = settings_of(config)
    if seal:
        with open_job(store, settings, create=False) as writer:
            writer.sealer.seal_all()
    with show.progress("scrubbing", None, bytes_done=True) as step:
        report = compare(store, config=settings, bytes_per_s=rate, progress=told(step))
    if as_json:
        show.print_json(_as_json(report))
    else:
        _print(report)
    sys.exit(int(Severity.ERROR if report.broken else Severity.NOTE))


def _as_json(report: ScrubReport) -> dict[str, object]:
    return {
        "path": str(report.path),
        "sealedBytes": report.sealed_bytes,
        "logBytes": report.log_bytes,
        "broken": [list(block) for block in report.broken],
        "seconds": round(report.took_s, 3),
    }


def _print(report: ScrubReport) -> None:
    console = show.console()
    for start, end in report.broken:
        console.print(f"not as it was sealed: [{start}, {end})")
    speed = show.size(report.sealed_bytes / max(report.took_s, 1e-9))
    sealed = f"{show.size(report.sealed_bytes)} are sealed, in {show.size(report.log_bytes)} of log files"
    verdict = f"{show.counted(len(report.broken), 'block')} changed" if report.broken else "all are as they were sealed"
    console.print(f"{sealed}; {verdict} ({report.took_s:.1f} s, {speed}/s)")
    if report.broken:
        console.print(f"  {HEAL.replace('mqlake repair', f'mqlake repair {report.path}')}")
