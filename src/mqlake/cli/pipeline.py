"""`mqlake pipeline`: bring logs into a lake on Spark, and show the status from the files of the lake alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING

import click

from mqlake.cli import show
from mqlake.cli.main import EXIT_STORE_ERROR
from mqlake.cli.options import Subcommands, json_option
from mqlake.cli.spark import spark_session
from mqlake.runtime.flag import Flag

if TYPE_CHECKING:
    from mqlake.lake import Lake
    from mqlake.lake.notes import Notes
    from mqlake.spark.jobs.pipeline import Batch

lake_option = click.option("--lake", required=True, help="The lake: a folder, s3://…, gs://… or az://…")


@click.group(cls=Subcommands)
def pipeline() -> None:
    """Run logs through check, archive, index and stats into a lake, each record exactly once."""


@pipeline.command()
@click.argument("stores", nargs=-1, required=True, metavar="STORE…")
@lake_option
@click.option("--once", is_flag=True, help="Process what is there now, then exit.")
@click.option("--every", default="10s", show_default=True, help="Look for new messages this often: 500ms, 10s, 1m.")
@click.option("--master", default="local[*,4]", show_default=True, help="Spark master.")
@click.option("--batch-bytes", default="1g", show_default=True, help="At most this many log bytes in one commit.")
@click.option("--split-size", default="128m", show_default=True, help="At most this many log bytes in one task.")
@click.option("--add-store", is_flag=True, help="Allow new stores in a lake that already has others.")
@click.option("--accept-gap", is_flag=True, help="Continue if messages were deleted before they were archived.")
@click.option("--strict", is_flag=True, help="Stop if one store cannot be read. Default: archive the others.")
def run(
    stores: tuple[str, ...],
    lake: str,
    once: bool,
    every: str,
    master: str,
    batch_bytes: str,
    split_size: str,
    add_store: bool,
    accept_gap: bool,
    strict: bool,
) -> None:
    """Bring the logs of STORE… (folders, or patterns) into a lake, and keep it up to date.

    It may be killed at any moment and started again: no record is lost or processed twice. Ctrl-C, or SIGTERM, stops it
    after the current batch. Exit code 3 if a store could not be read.
    """
    from mqlake.lake import Lake

    began = time.monotonic()
    with deaf_to_term(), spark_session(master) as spark, asked_to_stop() as stop:
        import mqlake.spark

        notes = mqlake.spark.pipeline(
            spark,
            stores,
            lake,
            once=once,
            every=every,
            batch_bytes=batch_bytes,
            split_size=split_size,
            add_store=add_store,
            accept_gap=accept_gap,
            strict=strict,
            told=tell,
            stop=stop,
        )
    done, took = notes.stages["archive"], time.monotonic() - began
    batches = show.counted(notes.batches, "batch")
    what = f"{show.counted(done.rows, 'message')}, {show.size(done.bytes)} of the log in {batches}"
    show.console().print(f"{notes.state}: {what}, {took:.1f} s")
    print_notes(Lake.open(lake), notes)
    if notes.failed_stores:
        raise click.exceptions.Exit(EXIT_STORE_ERROR)


@contextmanager
def deaf_to_term() -> Iterator[None]:
    """Start Java with SIGTERM ignored: service managers send it to all processes at once, and Java must live until the
    batch is finished. It ends with this process in any case."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def asked_to_stop() -> Iterator[Flag]:
    """Yield a flag that SIGINT or SIGTERM sets. The second signal has its usual effect."""
    asked = Flag()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        os.write(2, b"mqlake: stopping after the current batch\n")  # a stream may be in the middle of a write
        asked.set()

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell(batch: Batch, notes: Notes) -> None:
    """Print one line for each batch, and for each store that fails, to standard error."""
    for store, reason in batch.failed.items():
        click.echo(f"left out: {store}: {reason}", err=True)
    if not batch.bytes:
        return
    lag = notes.stages["archive"].lag_bytes
    rate = show.size(batch.bytes / batch.seconds)
    wrong = f", {show.counted(batch.findings, 'finding')}" if batch.findings else ""
    took = f"{show.size(batch.bytes)} in {batch.seconds:.1f} s ({rate}/s)"
    click.echo(
        f"batch {batch.number}: {show.counted(batch.rows, 'message')}, {took}, {show.counted(batch.files, 'file')}"
        f"{wrong}; behind by {show.size(lag)}",
        err=True,
    )


@pipeline.command()
@lake_option
@json_option
def status(lake: str, as_json: bool) -> None:
    """Show position, lag, speed and last error of each stage.

    Reads the files of the lake only: neither Spark nor the stores are needed. Lag is as of the last batch.
    """
    from mqlake.lake import Lake
    from mqlake.lake.notes import Notes

    opened = Lake.open(lake)
    notes = Notes.load(opened)
    if notes is None:
        notes = Notes(state="never run", pid=0, host="")
    notes.settle(opened.snapshot())
    state = notes.state_now
    if as_json:
        show.print_json({**asdict(notes), "state": state})
        return
    facts = [("state", state)]
    if notes.started:
        facts += [
            ("process", f"{notes.pid} on {notes.host}"),
            ("interval", notes.every),
            ("started", show.moment(notes.started)),
            ("last update", show.moment(notes.at)),
            ("batches", show.count(notes.batches)),
            ("last error", notes.last_error or "none"),
        ]
    show.console().print(show.facts(facts))
    print_notes(opened, notes)


def print_notes(lake: Lake, notes: Notes) -> None:
    """Print each stage, and each store in it."""
    stages = show.table("stage", "messages>", "log>", "speed per worker>", "behind by>", "last error")
    for name, stage in notes.stages.items():
        speed = "" if stage.bytes_per_s is None else f"{show.size(stage.bytes_per_s)}/s"
        told = [show.count(stage.rows), show.size(stage.bytes), speed, show.size(stage.lag_bytes)]
        stages.add_row(name, *told, stage.last_error or "")
    positions = show.table("store", "from>", *(f"{name}>" for name in notes.stages), "log ended at>")
    for name, state in lake.snapshot().stores.items():
        reached = [show.count(stage.position.get(name, state.start)) for stage in notes.stages.values()]
        latest = notes.latest.get(name)
        positions.add_row(name, show.count(state.start), *reached, "" if latest is None else show.count(latest))
    show.console().print(stages)
    show.console().print(positions)
    for store, reason in notes.failed_stores.items():
        click.echo(f"left out: {store}: {reason}")
