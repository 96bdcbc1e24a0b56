"""`mqlake attach`: follow the replication of a running master, and keep its log in a folder."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from mqlake import MessageStore, StoreConfig
from mqlake.cli import show
from mqlake.cli.options import settings_of
from mqlake.config import parse_address
from mqlake.errors import ControllerMode, InvalidConfig
from mqlake.files.layout import Layout
from mqlake.replication import follow
from mqlake.replication.metadata import MasterFacts, MetadataSync, ask_facts
from mqlake.replication.slave import State
from mqlake.runtime.flag import Flag

TICK_S = 0.25


def address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check HOST:PORT before anything is opened."""
    if value is not None:
        try:
            parse_address("address", value)
        except InvalidConfig:
            raise click.BadParameter(f"{value!r}; expected HOST:PORT, such as 10.0.0.7:10912") from None
    return value


@click.command()
@click.argument("master", callback=address, metavar="HOST:HA_PORT")
@click.argument("store", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--remoting",
    callback=address,
    metavar="HOST:PORT",
    help="The master's broker (listenPort): fetch topics, groups, progress and delay progress from it every minute, "
    "the size of its log files, and its end, which shows the lag.",
)
@click.option("--once", is_flag=True, help="Stop when the log has all that the master has.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0.1),
    default=15.0,
    show_default=True,
    help="With --once: seconds without an answer of the master after which it is an error.",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["newest-file", "first"]),
    default="newest-file",
    show_default=True,
    help="Where an empty DIR begins: at the master's newest log file, as RocketMQ's slaves do, or at its first byte.",
)
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between two lines."
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file with RocketMQ's property names; mappedFileSizeCommitLog must be the master's.",
)
def attach(
    master: str,
    store: Path,
    remoting: str | None,
    once: bool,
    patience: float,
    start: str,
    interval: float,
    config: Path | None,
) -> None:
    """Follow a running master, RocketMQ 4.9, 5.x or mqlake, and keep its log in DIR, byte for byte.

    HOST:HA_PORT is the master's replication port (haListenPort, 10912 unless it is set). DIR is a new folder, or one
    that was attached before: then it continues at its end. While this runs, any process can read DIR: mqlake tail,
    mqlake sql, a pipeline, a program with MessageStore.open(DIR, read_only=True).

    It runs until Ctrl-C or SIGTERM; a cut connection is opened again. With --once it stops as soon as the master has
    nothing more: without --remoting that shows only after 5 seconds without a new message.

    If DIR holds something that the master does not have, nothing is written: the error says at which offset the logs
    part (exit code 3).
    """
    facts = None if remoting is None else ask_facts(remoting)
    if facts is not None and facts.in_controller_mode:
        raise ControllerMode(f"the master at {remoting}")
    settings = _settings(store, settings_of(config), facts)
    begin_offset = None if start == "newest-file" else facts.first_offset if facts is not None else 0
    with _stop_flag() as stop, follow(store, master, begin_offset=begin_offset, config=settings) as opened:
        metadata = None if remoting is None else MetadataSync(opened, remoting)
        if metadata is not None:
            metadata.step()
            metadata.start()
        try:
            _watch(opened, metadata, stop, interval, patience_s=patience if once else None)
        finally:
            if metadata is not None:
                metadata.stop()


def _settings(store: Path, settings: StoreConfig, facts: MasterFacts | None) -> StoreConfig:
    """Give a new store log files of the master's size, unless the settings name one."""
    log = settings.commit_log
    if facts is None or log.file_size_bytes is not None or Layout(store).looks_like_a_store():
        return settings
    return replace(settings, commit_log=replace(log, file_size_bytes=facts.file_size_bytes))


def _watch(
    store: MessageStore, metadata: MetadataSync | None, stop: Flag, interval_s: float, *, patience_s: float | None
) -> None:
    """Print a line now and then until it is time to stop; raise what stopped the slave.

    `patience_s`: stop when it has caught up, and wait no longer than this for a master that is silent.
    """
    once = patience_s is not None
    slave = store.slave
    assert slave is not None, "the store follows a master"
    goal = metadata.facts.end_offset if once and metadata is not None and metadata.facts is not None else None
    began_at = shown_at = time.monotonic()
    shown_end = slave.status().end_offset
    while not stop.is_set():
        is_done = slave.wait_caught_up(TICK_S, end_offset=goal, since=began_at) if once else False
        status, now = slave.status(), time.monotonic()
        if status.state is State.FAILED:
            slave.wait_caught_up(0)  # raises the reason
        if patience_s is None:
            stop.wait(TICK_S)
        elif not is_done:
            slave.raise_if_silent(patience_s)
        if is_done or now - shown_at >= interval_s:
            rate = (status.end_offset - shown_end) / max(now - shown_at, 0.001)
            click.echo(_line(store, metadata, rate))
            shown_at, shown_end = now, status.end_offset
        if is_done:
            return


def _line(store: MessageStore, metadata: MetadataSync | None, rate: float) -> str:
    assert store.slave is not None, "the store follows a master"
    status = store.slave.status()
    parts = [f"{status.state} {status.master}", f"end {status.end_offset:,}", f"{show.size(int(rate))}/s"]
    if status.is_caught_up:
        parts.append("caught up")
    elif metadata is not None and metadata.facts is not None:
        parts.append(f"lag {show.size(max(0, metadata.facts.end_offset - status.end_offset))}")
    if status.is_missing:
        parts.append("the master has nothing at the offset that was asked for: it is empty, or its log begins later")
    if status.error is not None:
        parts.append(status.error)
    return ", ".join(parts)


@contextmanager
def _stop_flag() -> Iterator[Flag]:
    """Yield a flag that SIGINT or SIGTERM sets."""
    stop = Flag()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
