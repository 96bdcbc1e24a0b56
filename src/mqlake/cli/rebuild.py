"""`mqlake rebuild`: rebuild consume queues and index from the log, on Spark."""

from __future__ import annotations

from pathlib import Path

import click

from mqlake.cli import show
from mqlake.cli.options import json_option, settings_of, store_command
from mqlake.cli.spark import master_option, spark_session


@click.command()
@store_command
@click.option("--out", type=click.Path(path_type=Path), help="Build in this folder instead; the store is not changed.")
@master_option
@json_option
def rebuild(store: Path, config: Path | None, out: Path | None, master: str, as_json: bool) -> None:
    """Rebuild the consume queues and the key index of a store from its log.

    The store must be closed. The new files replace the old ones when all of them are on disk. With --out the store may
    be written meanwhile, and the folder gets consumequeue/ and index/.
    """
    settings = settings_of(config)
    with show.progress("rebuilding", None), spark_session(master) as spark:
        from mqlake.spark import rebuild as build

        built = build(spark, store, out, config=settings)
    if as_json:
        show.print_json({**built._asdict(), "path": str(built.path)})
        return
    size = show.size(built.end_offset - built.first_offset)
    entries = f"{show.counted(built.entry_count, 'entry')} in {show.counted(built.queue_count, 'queue')}"
    keys = f"{show.counted(built.key_count, 'key')} in {show.counted(built.index_file_count, 'index file')}"
    click.echo(
        f"{show.counted(built.record_count, 'record')} in {size} of log: {entries}, {keys} ({built.took_ms} ms), "
        f"in {built.path}"
    )
    if built.refused_count or built.scar_count:
        click.echo(
            f"{show.counted(built.refused_count, 'entry')} rejected by their queues, "
            f"{show.counted(built.scar_count, 'damaged range')}: see mqlake check {store}"
        )
