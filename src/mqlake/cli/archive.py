"""`mqlake archive`: append what is new in stores to a lake."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mqlake.cli import show
from mqlake.cli.options import json_option
from mqlake.cli.spark import master_option, spark_session

if TYPE_CHECKING:
    from mqlake.spark.jobs.archive import Archived
    from mqlake.spark.jobs.typed import Typed


@click.command()
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@click.option("--lake", required=True, help="The lake: a folder, s3://…, gs://… or az://…; created if missing.")
@click.option("--no-index", is_flag=True, help="Write no key index: look-ups by key then read all messages.")
@click.option("--add-store", is_flag=True, help="Allow a new store in a lake that already has others.")
@click.option("--accept-gap", is_flag=True, help="Continue if messages were deleted before they were archived.")
@click.option("--split-size", default="256m", show_default=True, metavar="SIZE", help="Log bytes for each task.")
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="TOPIC=SCHEMA",
    help="Keep the JSON bodies of a topic as columns too: infer, a file of columns (.json), or columns as in SQL.",
)
@master_option
@json_option
def archive(
    stores: tuple[str, ...],
    lake: str,
    no_index: bool,
    add_store: bool,
    accept_gap: bool,
    split_size: str,
    schemas: tuple[str, ...],
    master: str,
    as_json: bool,
) -> None:
    """Append what is new in stores to a lake of Parquet files.

    Each step is one commit, so the next run resumes a killed one. After a commit, the retention of the store may delete
    what is archived and nothing more. Works while the store is written.
    """
    by_topic = schemas_of(schemas)
    with spark_session(master) as spark, show.progress("archiving", None, bytes_done=True) as step:
        from mqlake.spark import archive as run
        from mqlake.spark import type_bodies

        results = run(
            spark,
            list(stores),
            lake,
            index=not no_index,
            split_size=split_size,
            add_store=add_store,
            accept_gap=accept_gap,
            progress=step.done,
        )
        typed = type_bodies(spark, lake, by_topic) if by_topic else []
    show_results(results, as_json=as_json)
    if typed:
        show_typed(typed, as_json=as_json)


def schemas_of(given: tuple[str, ...]) -> dict[str, str]:
    """Parse TOPIC=SCHEMA."""
    found = {}
    for text in given:
        topic, sign, schema = text.partition("=")
        if not topic or not sign or not schema.strip():
            raise click.BadParameter(f"{text!r} is not TOPIC=SCHEMA, as in orders=infer or 'orders=id BIGINT'")
        found[topic] = schema
    return found


def show_typed(results: list[Typed], *, as_json: bool) -> None:
    if as_json:
        for result in results:
            show.print_json(asdict(result))
        return
    made = show.table("typed table", "messages>", "not parsed>", "version>", "new columns")
    for result in results:
        numbers = [show.count(result.rows), show.count(result.errors), str(result.version)]
        made.add_row(result.topic, *numbers, ", ".join(result.added_columns))
    show.console().print(made)


def show_results(results: list[Archived], *, as_json: bool) -> None:
    if as_json:
        for result in results:
            show.print_json(asdict(result))
        return
    made = show.table("store", "from>", "to>", "messages>", "files>", "size>", "in gaps>")
    for result in results:
        numbers = [str(result.start), str(result.end), show.count(result.rows), show.count(result.file_count)]
        made.add_row(result.store, *numbers, show.size(result.file_bytes), show.size(result.gap_bytes))
    show.console().print(made)
