"""`mqlake times`: note which store times the closed files of a log hold."""

from __future__ import annotations

from pathlib import Path

import click

from mqlake.cli import show
from mqlake.cli.options import open_reader, store_command


@click.command()
@store_command
def times(store: Path, config: Path | None) -> None:
    """Note the store times in the closed files of the log, so that reads of a time window skip the others.

    A writer of mqlake does this by itself. Use it for stores that RocketMQ writes, also while it runs.
    """
    from mqlake.files.layout import Layout
    from mqlake.logs.file_times import keep_times

    with open_reader(store, config) as opened:
        file_size, end = opened.config.commit_log.file_size_bytes, opened.end_offset
    assert file_size is not None, "an open store knows its file size"
    made = keep_times(Layout(store), file_size, end)
    click.echo(f"times of {show.counted(made, 'file')} noted")
