"""`mqlake stats`: count traffic, in this process or on Spark."""

from __future__ import annotations

from typing import Any

import click
from rich.cells import cell_len
from rich.text import Text

from mqlake.cli import show
from mqlake.cli.options import json_option
from mqlake.cli.spark import session_if_needed, spark_command

DIMENSIONS = {"store": "store", "topic": "topic", "queue": "queue_id", "tag": "tags", "minute": "time"}


def _dimensions(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in DIMENSIONS:
            raise click.BadParameter(f"{name!r}; expected some of {', '.join(DIMENSIONS)}, with commas between")
    return names


@click.command()
@spark_command
@click.option(
    "--by", default="topic", show_default=True, callback=_dimensions, help="Some of store,topic,queue,tag,minute."
)
@click.option("--internal", is_flag=True, help="Include RocketMQ's system topics, half messages and rolled-back ones.")
@json_option
def stats(
    stores: tuple[str, ...], lake: str | None, master: str | None, by: tuple[str, ...], internal: bool, as_json: bool
) -> None:
    """Count messages, bytes, sizes and the time from born to store, by topic, queue, tag or minute.

    With --lake, the counts of its pipeline are used, and only the rest of the logs is read.
    """
    if not stores and lake is None:
        raise click.UsageError("name a store, or a lake with --lake")
    with show.progress("counting", None), session_if_needed(master, stores, lake) as spark:
        import mqlake.spark

        found = mqlake.spark.stats(spark, stores, lake=lake)
    names: list[Any] = [DIMENSIONS[name] for name in by]
    rows = found.traffic(*names, internal=internal).to_pylist()
    if as_json:
        for row in rows:
            show.print_json({name: _plain(value) for name, value in row.items()})
        return
    heads = [f"{name}>" if name == "queue" else name for name in by]
    heads += ["messages>", "bytes>", "bodies>", "smallest>", "largest>", "latency>", "most>"]
    cells = [[*(_cell(row[DIMENSIONS[name]]) for name in by), *_figures(row)] for row in rows]
    shown = max(fitting(heads, cells), len(by) + 2)
    table = show.table(*heads[:shown])
    for line in cells:
        table.add_row(*map(Text, line[:shown]))
    show.console().print(table)


def fitting(heads: list[str], cells: list[list[str]]) -> int:
    """Return how many of the first columns fit the screen whole: a number that is cut would be another number."""
    used, space = 0, show.console().width
    for place, head in enumerate(heads):
        used += max(cell_len(text) for text in (head.rstrip(">"), *(line[place] for line in cells))) + 2
        if used - 2 > space:
            return place
    return len(heads)


def _figures(row: dict[str, Any]) -> list[str]:
    if not row["messages"]:
        return ["0"] + [""] * 6
    mean = row["latency_ms"] / row["messages"]
    sizes = [show.size(row[name]) for name in ("bytes", "body_bytes", "min_size", "max_size")]
    return [show.count(row["messages"]), *sizes, f"{mean:,.1f} ms", f"{row['max_latency_ms']:,} ms"]


def _cell(value: Any) -> str:
    if value is None:
        return "(none)"
    return (
        show.moment(round(value.timestamp() * 1000))[:16] if hasattr(value, "timestamp") else show.printable(str(value))
    )


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value
