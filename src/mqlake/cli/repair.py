"""`mqlake repair`: repair a damaged store, in place or as a copy."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mqlake.cli import show
from mqlake.cli.check import EXIT_USAGE, VerdictCommand, finding_json, told, verdict_json
from mqlake.cli.findings_view import print_report
from mqlake.cli.options import json_option, settings_of, store_command
from mqlake.inspect.check import CheckReport
from mqlake.inspect.repair import Action, RepairReport
from mqlake.inspect.repair import repair as mend
from mqlake.replication.fetch import source_of

EXIT_REFUSED = 4
EXIT_CODES = f"""\b
Exit codes:
    0  all promises hold now; notes are allowed
    1  warnings remain
    2  errors remain
    3  not a store, or another process writes it, or it cannot be written
    4  not confirmed: nothing was changed
   {EXIT_USAGE}  the command line is wrong
"""


@click.command(cls=VerdictCommand, epilog=EXIT_CODES)
@store_command
@click.option("--to", type=click.Path(path_type=Path), help="Repair a copy in this folder; the store is not changed.")
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    help="Heal the log from another copy: a folder (a backup, a replica's store) or HOST:PORT of its replication.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def repair(store: Path, config: Path | None, to: Path | None, source: str | None, yes: bool, as_json: bool) -> None:
    """Repair a damaged store, for mqlake and for RocketMQ.

    Files get their right names and sizes, ranges of the log without a record become filler records, queues and index
    are rebuilt. Everything that is overwritten or removed is kept under mqlake/backup.

    With --from, damaged ranges of the log get their bytes back from another copy, each proven by the seals or by the
    records themselves. What cannot be healed stays as it is: run repair again without --from to deal with it.

    Without --from, a block of the log that differs from its seal is accepted as it is, as a step of the plan: its
    records are served, but nothing proves them any more. So heal first, if there is a copy.
    """
    copy = source_of(source) if source is not None else None

    def confirm(before: CheckReport, actions: list[Action]) -> bool:
        if as_json:
            return yes or to is not None
        print_report(before)
        click.echo()
        _print_actions(actions)
        try:
            return yes or to is not None or click.confirm(f"Repair {store} in place?", default=False)
        except click.Abort:  # no terminal to answer
            return False

    with show.progress("checking", None, bytes_done=True) as step:
        progress = told(step) if yes or to is not None else None  # no progress bar while a question is open
        report = mend(store, to=to, config=settings_of(config), confirm=confirm, progress=progress, source=copy)
    if as_json:
        _print_json(report)
    else:
        _print_result(report)
    sys.exit(int(report.after.severity) if report.done else EXIT_REFUSED)


def _print_actions(actions: list[Action]) -> None:
    made = show.table("do", "file", "offset>", "bytes>", "why*", title="plan")
    for action in actions:
        numbers = ["" if number is None else str(number) for number in (action.offset, action.length)]
        made.add_row(action.what, show.printable(action.file), *numbers, show.printable(action.why))
    show.console().print(made)


def _print_result(report: RepairReport) -> None:
    console = show.console()
    if not report.done:
        console.print("nothing was changed")
        return
    if report.actions and report.healed is None:
        console.print(f"done: {show.counted(len(report.actions), 'step')}")
    if report.accepted_count:
        records = show.counted(report.accepted_count, "record")
        console.print(f"{records} accepted unproven: their blocks are sealed as they are now")
    if report.backup is not None:
        console.print(f"what was there before is in {report.backup}")
    if report.healed is not None:
        healed = report.healed
        console.print(f"healed from {healed.source}: {show.counted(len(healed.healed), 'range')}")
        for start, end, reason in healed.left:
            console.print(f"  not healed: [{start}, {end}): {show.printable(reason)}")
    print_report(report.after)


def _print_json(report: RepairReport) -> None:
    for finding in report.before.findings:
        show.print_json(finding_json(finding))
    for action in report.actions:
        show.print_json({"kind": "action", **action._asdict()})
    if report.healed is not None:
        left = [each._asdict() for each in report.healed.left]
        show.print_json({"kind": "healed", "ranges": report.healed.healed, "left": left})
    backup = None if report.backup is None else str(report.backup)
    told = {"done": report.done, "backup": backup, "acceptedRecords": report.accepted_count}
    show.print_json({"kind": "repair", **told, **verdict_json(report.after)})
