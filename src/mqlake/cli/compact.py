"""`mqlake compact`: merge small files of a lake into large ones."""

from __future__ import annotations

from dataclasses import asdict

import click

from mqlake.cli import show
from mqlake.cli.options import byte_count, duration_ms, json_option
from mqlake.cli.spark import master_option, spark_session


@click.command()
@click.argument("lake")
@click.option(
    "--target", type=byte_count, default="128m", show_default=True, metavar="SIZE", help="Size of the merged files."
)
@click.option(
    "--grace",
    type=duration_ms,
    default="1h",
    show_default=True,
    metavar="TIME",
    help="How long replaced files stay on disk.",
)
@master_option
@json_option
def compact(lake: str, target: int, grace: int, master: str, as_json: bool) -> None:
    """Merge the small files of each table, and delete files that earlier runs replaced.

    Replaced files stay on disk for the grace time, so that their readers can finish; a later run deletes them.
    """
    with spark_session(master) as spark:
        from mqlake.spark import compact as run

        done = run(spark, lake, target_bytes=target, grace_s=grace / 1000)
    if as_json:
        show.print_json(asdict(done))
        return
    before = f"{show.counted(done.files_before, 'file')}, {show.size(done.bytes_before)},"
    after = f"{show.count(done.files_after)}, {show.size(done.bytes_after)}"
    click.echo(f"{before} became {after}; {show.count(done.deleted)} old files deleted")
