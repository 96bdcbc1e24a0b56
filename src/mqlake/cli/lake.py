"""`mqlake lake`: show or check a lake, find a message in it, release the gate of a store."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqlake.cli import show
from mqlake.cli.archive import schemas_of, show_typed
from mqlake.cli.main import EXIT_NOTHING_FOUND
from mqlake.cli.options import Subcommands, json_option
from mqlake.cli.spark import master_option, spark_session

if TYPE_CHECKING:
    from mqlake.lake import LakeSnapshot

lake_argument = click.argument("lake")


@click.group(cls=Subcommands)
def lake() -> None:
    """Show, check and search the archive that `mqlake archive` writes."""


@lake.command()
@lake_argument
@json_option
def info(lake: str, as_json: bool) -> None:
    """Show which byte ranges of which stores a lake holds, its files, and the gaps."""
    from mqlake.lake import Lake

    opened = Lake.open(lake)
    stores = [store_json(opened.snapshot(), name) for name in opened.snapshot().stores]
    if as_json:
        show.print_json({"id": opened.identity, "version": opened.snapshot().version, "stores": stores})
        return
    made = show.table("store", "from>", "to>", "messages>", "files>", "size>", "markers>", "damaged or lost>")
    for row in stores:
        sizes = [show.size(row[name]) for name in ("fileBytes", "markerBytes", "lostBytes")]
        made.add_row(
            row["path"], str(row["start"]), str(row["end"]), *map(show.count, (row["rows"], row["files"])), *sizes
        )
    show.console().print(made)
    for row in stores:
        for start, end, reason in row["gaps"]:
            click.echo(f"{row['path']}: [{start}, {end}): {reason}")


def store_json(snapshot: LakeSnapshot, name: str) -> dict[str, Any]:
    from mqlake.lake import MARKER

    state, files = snapshot.stores[name], snapshot.files("messages", name)
    lost = [gap for gap in state.gaps if gap.reason != MARKER]
    return {
        "path": state.path,
        "identity": state.identity,
        "start": state.start,
        "end": state.end,
        "rows": sum(file.rows for file in files),
        "files": len(files),
        "fileBytes": sum(file.bytes for file in files),
        "markerBytes": sum(gap.end - gap.start for gap in state.gaps if gap.reason == MARKER),
        "lostBytes": sum(gap.end - gap.start for gap in lost),
        "gaps": lost,
    }


@lake.command()
@lake_argument
@json_option
def check(lake: str, as_json: bool) -> None:
    """Check that the lake holds every byte it claims: files as committed, rows and gaps without a hole or overlap.

    Exit code 1 if it does not.
    """
    from mqlake.lake import Lake
    from mqlake.lake.verify import verify

    with show.progress("checking", None, bytes_done=False) as step:
        findings = verify(Lake.open(lake), step.done)
    for finding in findings:
        if as_json:
            show.print_json(finding._asdict())
        else:
            click.echo(f"{finding.what}: {finding.where}: found {finding.found}; expected {finding.expected}")
    if findings:
        raise click.exceptions.Exit(EXIT_NOTHING_FOUND)
    if not as_json:
        click.echo("all promises hold")


@lake.command()
@lake_argument
@click.argument("topic")
@click.argument("key")
def find(lake: str, topic: str, key: str) -> None:
    """Print the archived messages of a topic with a key or a client id, as JSON lines."""
    from mqlake.lake import Lake
    from mqlake.lake.find import find as look

    found = look(Lake.open(lake), topic, key).to_pylist(maps_as_pydicts="strict")
    for row in found:
        times = {name: row[name].isoformat() for name in ("born_timestamp", "store_timestamp")}
        show.print_json({**row, **times, "body": base64.b64encode(row["body"]).decode()})
    if not found:
        raise click.exceptions.Exit(EXIT_NOTHING_FOUND)


@lake.command("type")
@lake_argument
@click.argument("schemas", nargs=-1, metavar="[TOPIC=SCHEMA]...")
@master_option
@json_option
def type_(lake: str, schemas: tuple[str, ...], master: str, as_json: bool) -> None:
    """Keep JSON bodies of topics as columns of tables of their own, up to what the lake has.

    SCHEMA is infer, a file of columns as Spark writes it (.json), or columns as in SQL. Without topics, the tables that
    exist are brought up to date, with the columns they have.
    """
    by_topic = schemas_of(schemas)
    with spark_session(master) as spark:
        from mqlake.spark import type_bodies

        show_typed(type_bodies(spark, lake, by_topic or None), as_json=as_json)


@lake.command()
@click.argument("old")
@click.argument("new")
def convert(old: str, new: str) -> None:
    """Convert a lake of an older version of mqlake, at OLD, into a new one at NEW.

    OLD is only read. Every file of NEW is read back and compared. Afterwards use NEW; OLD can be deleted.
    """
    from mqlake.lake.convert import convert as run

    with show.progress("converting", None, bytes_done=True) as step:
        done = run(old, new, step.done)
    told = f"{show.counted(done.rows, 'message')} of {show.counted(done.stores, 'store')}"
    click.echo(f"{told}: {show.counted(done.files_before, 'file')} became {show.count(done.files_after)}")


@lake.command()
@click.argument("store", type=click.Path(path_type=Path, exists=True))
@click.option("--lake", "of_lake", help="Only for this lake. Default: for all lakes.")
def release(store: Path, of_lake: str | None) -> None:
    """Release a store from a lake. Its retention may then delete messages that are not archived."""
    from mqlake.lake import Lake
    from mqlake.lake.gate import release as let_go
    from mqlake.store.opening import find_store

    find_store(store, read_only=True, create=False)  # a folder that is no store has no gates either: say so
    names = let_go(store, Lake.open(of_lake).identity if of_lake is not None else None)
    click.echo(f"released: {', '.join(names)}" if names else "no lake holds a gate of this store")
