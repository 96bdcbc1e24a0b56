"""`mqlake promote`: a slave's store becomes a master's."""

from __future__ import annotations

from pathlib import Path

import click

from mqlake.cli.options import settings_of
from mqlake.replication.promotion import promote as make_master


@click.command()
@click.argument("store", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.option(
    "--master",
    "masters",
    multiple=True,
    metavar="HOST:PORT",
    help="An address of the old master, its replication or its broker; may be given more than once. If one of them "
    "answers, nothing is done.",
)
@click.option(
    "--gone",
    is_flag=True,
    help="You have made sure that the old master takes no more messages, and it cannot be asked: its name is unknown "
    "here, its network out of reach, or it is silent. One that answers is refused all the same.",
)
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="Settings file with RocketMQ's property names."
)
def promote(store: Path, masters: tuple[str, ...], gone: bool, config: Path | None) -> None:
    """Make a slave's store a master's, once the old master is gone and the slave is stopped.

    Afterwards serve it with --role sync-master or async-master. The old master's store can follow the new master only
    if it has nothing that this one lacks: else replicate into an empty folder.
    """
    if not masters and not gone:
        raise click.UsageError("Missing option '--master': an address of the old master.")
    done = make_master(store, masters, settings_of(config), is_gone=gone)
    click.echo(f"promoted: epoch {done.epoch}, its own log begins at offset {done.start_offset:,}")
    click.echo(f"next: mqlake serve {store} --role sync-master")
