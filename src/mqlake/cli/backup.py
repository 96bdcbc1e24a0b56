"""`mqlake backup`: copy a store, even while it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mqlake.cli import show
from mqlake.cli.check import told, verdict_json
from mqlake.cli.findings_view import verdict
from mqlake.cli.options import json_option, settings_of, store_command
from mqlake.inspect.backup import Backup
from mqlake.inspect.backup import backup as copy
from mqlake.inspect.findings import Severity


@click.command()
@store_command
@click.argument("dest", type=click.Path(path_type=Path))
@json_option
def backup(store: Path, config: Path | None, dest: Path, as_json: bool) -> None:
    """Copy a store to DEST, a new or empty folder. Another process may write the store meanwhile.

    The copy holds all messages before a stated offset of the log and none after it. It is checked, and it is a cleanly
    closed store: restore it with cp -a, or open it in place. Files share their blocks with those of the store if the
    file system supports that. DEST appears when the copy is complete, or not at all.
    """
    with show.progress("copying", None, bytes_done=True) as step:
        made = copy(store, dest, config=settings_of(config), progress=told(step))
    if as_json:
        show.print_json(_as_json(made))
    else:
        show.console().print(show.facts(_facts(made), title=str(dest)))


def _as_json(made: Backup) -> dict[str, Any]:
    return {
        "path": str(made.path),
        "firstOffset": made.first_offset,
        "endOffset": made.end_offset,
        "live": made.live,
        "reflinkedCount": made.reflinked_count,
        "copiedCount": made.copied_count,
        "sizeBytes": made.size_bytes,
        "tookMs": made.took_ms,
        "check": verdict_json(made.report),
    }


def _facts(made: Backup) -> list[tuple[str, str]]:
    counts = {severity: sum(row.severity == severity for row in made.report.findings) for severity in Severity}
    log = show.size(made.end_offset - made.first_offset)
    return [
        ("offset", f"{made.end_offset}: all before it, {log} of log{', while it was written' if made.live else ''}"),
        ("reflinked", show.counted(made.reflinked_count, "file")),
        ("copied", show.counted(made.copied_count, "file")),
        ("on disk", show.size(made.size_bytes)),
        ("check", verdict(counts)),
        ("time", f"{made.took_ms / 1000:.2f} s"),
    ]
