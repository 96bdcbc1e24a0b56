"""`mqlake retain`: delete the oldest log files by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import click

from mqlake import MessageStore, Retained, StoreLocked
from mqlake.cli import show
from mqlake.cli.main import EXIT_STORE_ERROR, complain
from mqlake.cli.options import byte_count, duration_ms, json_option, open_reader, settings_of, store_command


class Conditions(TypedDict):
    """The arguments of `MessageStore.retain`."""

    older_than_ms: int | None
    keep_bytes: int | None
    before_offset: int | None


@click.command()
@store_command
@click.option(
    "--older-than",
    type=duration_ms,
    metavar="TIME",
    help="Files whose newest message is older than this: 90s, 30m, 72h, 3d.",
)
@click.option("--keep-bytes", type=byte_count, metavar="SIZE", help="Keep this much of the log: 1048576, 512m or 10g.")
@click.option(
    "--before-offset", type=click.IntRange(min=0), metavar="N", help="Files that end at or before this physical offset."
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted. Works while another process writes.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def retain(
    store: Path,
    config: Path | None,
    older_than: int | None,
    keep_bytes: int | None,
    before_offset: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete the oldest log files, and the queue and index files that only refer to them.

    A file is deleted if it meets all given conditions; without a condition, if it is older than fileReservedTime. The
    newest file and files held by a gate stay. If another process writes the store, only that process may delete.
    """
    conditions: Conditions = {"older_than_ms": older_than, "keep_bytes": keep_bytes, "before_offset": before_offset}
    with open_reader(store, config) as opened:
        planned = opened.retain(**conditions, dry_run=True)
    if not dry_run and planned.file_count:
        if not yes:
            click.confirm(f"Delete {_amount(planned)} from {store} for good?", abort=True, err=True)
        planned = _delete(store, config, conditions)
    _show(planned, as_json=as_json, dry_run=dry_run)


def _delete(store: Path, config: Path | None, conditions: Conditions) -> Retained:
    try:
        with MessageStore.open(store, create=False, config=settings_of(config)) as opened:
            return opened.retain(**conditions)
    except StoreLocked as error:
        complain(
            f"StoreLocked: {store}: process {error.pid} writes this store, and only it may delete: it does so by age "
            "and by disk use, or when it calls MessageStore.retain; stop it to delete here"
        )
        raise click.exceptions.Exit(EXIT_STORE_ERROR) from None


def _amount(retained: Retained) -> str:
    return f"{show.counted(retained.file_count, 'file')}, {show.size(retained.size_bytes)},"


def _show(retained: Retained, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        show.print_json(
            {
                "dryRun": dry_run,
                "fileCount": retained.file_count,
                "sizeBytes": retained.size_bytes,
                "firstOffset": retained.first_offset,
                "heldBy": list(retained.held_by),
            }
        )
        return
    verb = "would be deleted; the log would begin" if dry_run else "deleted; the log begins"
    click.echo(f"{_amount(retained)} {verb} at {retained.first_offset}")
    if retained.held_by:
        click.echo(f"gates hold more: {', '.join(retained.held_by)}")
