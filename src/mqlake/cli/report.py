"""`mqlake report`: write an HTML page with plots about stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqlake.cli import show
from mqlake.cli.output_file import whole_file, written
from mqlake.cli.spark import session_if_needed, spark_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@click.command()
@spark_command
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default="report.html",
    show_default=True,
    help="File for the page.",
)
@click.option("--title", help="Title of the page. [default: the name of the store]")
def report(stores: tuple[str, ...], lake: str | None, master: str | None, out: Path, title: str | None) -> None:
    """Write an HTML page: traffic, topics, sizes, latency, keys, consumer lag, damage and pipeline runs.

    STORE may be a pattern. The page is one file that loads nothing and has no script.
    """
    if not stores and lake is None:
        raise click.UsageError("name a store, or a lake with --lake")
    with show.progress("counting", None), session_if_needed(master, stores, lake) as spark:
        write_report(spark, stores, lake, out, title)
    click.echo(written(out))


def write_report(
    spark: SparkSession | None, stores: tuple[str, ...], lake: str | None, out: Path, title: str | None
) -> None:
    """Count, and draw the page."""
    import mqlake.spark
    from mqlake.report import render

    with whole_file(out) as path:
        page = render(mqlake.spark.report(spark, stores, lake=lake, title=title))
        path.write_text(page, encoding="utf-8")
