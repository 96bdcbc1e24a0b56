"""`mqlake rebuild`: consume queues and index from the log, on Spark."""

from __future__ import annotations

from pathlib import Path

import click

from mqlake.cli import show
from mqlake.cli.options import json_option, settings_of, store_command
from mqlake.cli.spark import master_option, spark_session


@click.command()
@store_command
@click.option("--out", type=click.Path(path_type=Path), help="Build here; the store itself stays as it is.")
@master_option
@json_option
def rebuild(store: Path, config: Path | None, out: Path | None, master: str, as_json: bool) -> None:
    """Build a store's consume queues and key index anew from its log, and put them in the place of those it has.

    The store must be closed; with --out it may be written meanwhile, and the folder gets consumequeue/ and index/.
    The old ones are replaced when the new ones are on the disk.
    """
    settings = settings_of(config)
    with show.progress("rebuilding", None), spark_session(master) as spark:
        from mqlake.spark import rebuild as build

        built = build(spark, store, out, config=settings)
    if as_json:
        show.print_json({**built._asdict(), "path": str(built.path)})
        return
    size = show.size(built.end_offset - built.first_offset)
    click.echo(
        f"{show.count(built.record_count)} records in {size} of log: {show.count(built.entry_count)} entries in "
        f"{show.count(built.queue_count)} queues, {show.count(built.key_count)} keys in {built.index_file_count} "
        f"index files ({built.took_ms} ms), in {built.path}"
    )
    if built.refused_count or built.scar_count:
        click.echo(
            f"{show.count(built.refused_count)} entries that no queue takes, {show.count(built.scar_count)} damaged "
            f"ranges: see mqlake check {store}"
        )
