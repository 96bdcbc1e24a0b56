"""`mqlake replay`: turn an archive back into a store, on Spark."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from mqlake.cli import show
from mqlake.cli.options import json_option
from mqlake.cli.spark import master_option, spark_session
from mqlake.config import StoreConfig


@click.command()
@click.argument("lake")
@click.argument("new_store", type=click.Path(path_type=Path))
@click.option("--store", help="Which store of the lake, if it has several.")
@click.option("--topic", "topics", multiple=True, help="Only messages of this topic; may be repeated.")
@click.option("--start-time", help="Stored at or after this time: milliseconds since 1970, or 2026-01-31T08:00.")
@click.option("--end-time", help="Stored before this time.")
@click.option(
    "--keep-queue-offsets", is_flag=True, help="Messages keep their queue offsets; missing offsets have no message."
)
@click.option("--keep-store-times", is_flag=True, help="Messages keep their original store time.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Settings file for NEW_STORE, with RocketMQ's property names.",
)
@master_option
@json_option
def replay(
    lake: str,
    new_store: Path,
    store: str | None,
    topics: tuple[str, ...],
    start_time: str | None,
    end_time: str | None,
    keep_queue_offsets: bool,
    keep_store_times: bool,
    config: Path | None,
    master: str,
    as_json: bool,
) -> None:
    """Create NEW_STORE from the archive in LAKE, in the order of the original log.

    NEW_STORE must be missing or empty. It appears when it is complete.
    """
    from mqlake.spark import replay as run

    given: dict[str, Any] = {"topics": list(topics) or None, "startTime": start_time, "endTime": end_time}
    with spark_session(master) as spark, show.progress(f"replaying {lake}", None, bytes_done=True) as step:
        replayed = run(
            spark,
            lake,
            str(new_store),
            store=store,
            config=StoreConfig.load(config) if config is not None else None,
            keep_queue_offsets=keep_queue_offsets,
            keep_store_times=keep_store_times,
            progress=step.done,
            **{name: value for name, value in given.items() if value is not None},
        )
    if as_json:
        show.print_json({**dataclasses.asdict(replayed), "path": str(replayed.path)})
        return
    told = f"{show.counted(replayed.rows, 'message')}, {show.size(replayed.log_bytes)} of log"
    click.echo(f"{replayed.path}: {told}, from [{replayed.start}, {replayed.end}) of {replayed.store}")
