"""A slave's store becomes a master's: an explicit step of an operator, once the old master is gone.

Whoever promotes must be sure that the old master takes no more messages: what it takes afterwards is lost when it comes
back as a slave. So every address at which it was reached is tried first. Then the store is opened once as a master:
what is left of a record that was cut is removed, all whole records are in their queues, and delayed messages that are
due move. `mqlake/epoch` notes where the new master's own part of the log begins.

There is no election. Two stores that were both promoted have different logs, and a slave that compares finds it out.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from mqlake.config import Role, StoreConfig, parse_address
from mqlake.errors import InvalidConfig, MasterAlive, MasterUnknown, StoreError
from mqlake.files.layout import Layout
from mqlake.files.small_files import read_small_file, replace_file
from mqlake.message_store import MessageStore

PATIENCE_S: Final = 3.0
MAX_SIZE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Promotion:
    """What `mqlake/epoch` holds: when a store was promoted, and where its own part of the log begins."""

    epoch: int
    """How often the stores of this log were promoted, as far as this one knows."""
    start_offset: int
    promoted_ms: int
    masters: tuple[str, ...] = ()
    """The old master's addresses, none of which answered."""


def promote(
    path: str | os.PathLike[str],
    masters: Sequence[str],
    config: StoreConfig | None = None,
    *,
    is_gone: bool = False,
) -> Promotion:
    """Make a slave's store a master's. MasterAlive if one of the old master's addresses answers; MasterUnknown if one
    cannot be asked; StoreLocked while the slave still runs. A second call is harmless.

    `masters`: HOST:PORT of the old master's replication and of its broker; at least one. `is_gone`: the caller has made
    sure that the old master takes no more messages; then addresses that cannot be asked, or none, will do.
    """
    if not masters and not is_gone:
        raise InvalidConfig("master", None, "name an address of the old master, so that it can be seen to be gone")
    layout = Layout(Path(path))
    for each in masters:
        try:
            answers = _answers(each)
        except (OSError, UnicodeError) as error:  # a label of more than 63 letters is a UnicodeError
            if not is_gone:
                raise MasterUnknown(layout.root, each, getattr(error, "strerror", None) or str(error)) from error
            continue
        if answers:
            raise MasterAlive(layout.root, each)
    settings = config or StoreConfig()
    replication = replace(settings.replication, role=Role.ASYNC_MASTER, master_address=None)
    with MessageStore.open(path, create=False, config=replace(settings, replication=replication)) as store:
        store.wait_dispatched(60)
        before = read_epoch(layout)
        now_ms = time.time_ns() // 1_000_000
        made = Promotion(before.epoch + 1 if before else 1, store.port.ends.appended, now_ms, tuple(masters))
        replace_file(layout.epoch, json.dumps(asdict(made)).encode(), layout.scratch)
    return made


def read_epoch(layout: Layout) -> Promotion | None:
    """Return the last promotion of a store; None if there was none, or if its note cannot be read."""
    try:
        content = json.loads(read_small_file(layout.epoch, MAX_SIZE))
        epoch, start, at_ms = numbers = content["epoch"], content["start_offset"], content["promoted_ms"]
        masters = tuple(content["masters"])
    except (OSError, StoreError, ValueError, TypeError, KeyError):
        return None
    is_sound = all(type(number) is int and number >= 0 for number in numbers)
    return (
        Promotion(epoch, start, at_ms, masters) if is_sound and all(isinstance(each, str) for each in masters) else None
    )


def _answers(address: str) -> bool:
    """Return whether something listens at an address, at any of those that its name stands for.

    False only if each refused: the machine is there and says that nobody listens. OSError if that cannot be found out
    from here. Silence is no proof either: a master that is paused, or cut off from this machine, may go on later.
    """
    host, port = parse_address("master", address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    unclear: OSError | None = None
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(PATIENCE_S)
                connection.connect(target)
            return True
        except ConnectionRefusedError:
            continue
        except OSError as error:
            unclear = error
    if unclear is not None:
        raise unclear
    return False
