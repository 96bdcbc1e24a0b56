"""Replication over RocketMQ's HA wire: a master sends its commit log, slaves keep it byte for byte.

with follow("replica", "10.0.0.7:10912") as store:
    store.slave.wait_caught_up(60)
    print(store.slave.status())
"""

from __future__ import annotations

import os
from dataclasses import replace

from mqlake.config import Role, StoreConfig
from mqlake.message_store import MessageStore
from mqlake.store.recovery import Progress


def follow(
    path: str | os.PathLike[str],
    master: str,
    *,
    begin_offset: int | None = None,
    config: StoreConfig | None = None,
    progress: Progress | None = None,
) -> MessageStore:
    """Open a store as the slave of a master, creating it if there is none, and follow until it is closed.

    `master` is HOST:PORT of the master's replication (haListenPort). An empty store begins at the master's newest log
    file, as RocketMQ's slaves do, or at `begin_offset`. Its log files must have the master's size
    (mappedFileSizeCommitLog, in `config`). `MessageStore.slave` says how far it is.
    """
    settings = config or StoreConfig()
    replication = replace(
        settings.replication,
        role=Role.SLAVE,
        master_address=master,
        begin_offset=settings.replication.begin_offset if begin_offset is None else begin_offset,
    )
    return MessageStore.open(path, config=replace(settings, replication=replication), progress=progress)
