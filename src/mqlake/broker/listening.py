"""From a folder and two addresses to a running broker, and back.

The sockets are bound before the store is opened, because records and message ids hold the broker's port; they listen
after it, because a client that connects must be served.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mqlake.broker.access import Access
from mqlake.broker.door import Door
from mqlake.broker.server import Broker
from mqlake.broker.settings import BrokerSettings
from mqlake.broker.tls import Tls
from mqlake.config import StoreConfig, is_port
from mqlake.delivery.transactions.transaction import Undecided
from mqlake.errors import InvalidConfig
from mqlake.message_store import MessageStore
from mqlake.runtime.forks import close_in_child

BACKLOG: Final = 1024
FAST_PORT_BELOW: Final = 2
"""RocketMQ's brokers listen at the port so many below their own too: clients with VIP channel call it, and slaves."""
WITHOUT_SECOND: Final = "clients with VIP channel are not served: %s"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int) -> Address:
        """Read `HOST:PORT`, `HOST` or `:PORT`; brackets around an IPv6 address."""
        host, separator, port = text.rpartition(":")
        if not separator or (":" in host and not host.endswith("]")):
            host, port = text, str(default_port)
        if not is_port(port):
            raise InvalidConfig("address", text, "must be HOST:PORT, with a port up to 65535")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class Served:
    """A broker that listens."""

    broker: Broker
    name_server: Address
    address: Address
    doors: list[Door]
    replication: Address | None = None
    """Where slaves are served."""

    async def close(self) -> None:
        """Take no more connections, finish what runs, close the store."""
        for door in self.doors:
            door.close()
        await self.broker.close()


async def serve(
    path: str | Path,
    name_server: Address,
    broker: Address,
    *,
    config: StoreConfig | None = None,
    settings: BrokerSettings | None = None,
    advertised: str | None = None,
    access: Access | None = None,
    tls: Tls | None = None,
    replication: Address | None = None,
    master_broker: str | None = None,
) -> Served:
    """Open the store at a path and serve it. `advertised` is the broker's host as clients must call it.

    Clients are served at the port two below the broker's too: those with a VIP channel call it. With `replication`,
    slaves are served there, and that second port must be free, because slaves of RocketMQ ask for topics at it.
    `master_broker` is where a slave copies topics, groups and progress from.
    """
    is_second_needed = replication is not None
    sockets = [_bind(name_server)]
    try:
        sockets += _bind_pair(broker, is_second_needed=is_second_needed)
        bound = [
            Address(at.host, each.getsockname()[1]) for at, each in zip((name_server, broker), sockets[:2], strict=True)
        ]
        called = Address(advertised or _reachable(broker.host), bound[1].port)
        made = await _start(path, called, config or StoreConfig(), settings or BrokerSettings(), access)
        if tls is not None:
            made.watch(tls)
        served = Served(made, bound[0], bound[1], [])
        try:
            if master_broker is not None:
                from mqlake.replication.metadata import MetadataSync  # needs the client: a tenth of the time to start

                MetadataSync(made.store, master_broker).start()  # a worker of the store: it ends with it
            if replication is not None:
                served.replication = _serve_slaves(made, replication, called)
            served.doors += (Door(made, each, tls) for each in _listen(sockets, is_second_needed=is_second_needed))
        except BaseException:
            await served.close()
            raise
        return served
    except BaseException:
        for each in sockets:
            each.close()
        raise


async def _start(
    path: str | Path, called: Address, config: StoreConfig, settings: BrokerSettings, access: Access | None
) -> Broker:
    asking: list[Broker] = []

    def ask(undecided: Undecided) -> None:
        for each in asking:
            each.parts.transactions.ask(undecided)

    config = replace(
        config,
        commit_log=replace(config.commit_log, store_host=str(called)),
        transactions=replace(config.transactions, ask=ask),
    )
    store = await asyncio.to_thread(MessageStore.open, path, config=config)
    try:
        made = Broker(store, settings, str(called), access)
    except BaseException:
        store.close()
        raise
    asking.append(made)
    return made


def _serve_slaves(broker: Broker, at: Address, called: Address) -> Address:
    """Start the master, which the store closes before it is closed itself. Return where it listens."""
    from mqlake.replication.master import Master

    host, port = Master(broker.port, at.host, at.port).address
    reachable = called.host if at.host in ("0.0.0.0", "::") else host
    broker.replication_address = str(Address(reachable, port))
    return Address(host, port)


def require_safety(
    addresses: Iterable[Address], access: Access | None, tls: Tls | None, *, is_insecure: bool = False
) -> None:
    """Refuse to listen beyond this machine without access control or enforced TLS, unless told to."""
    if is_insecure or access is not None or (tls is not None and tls.is_enforced):
        return
    for at in addresses:
        if not at.is_loopback:
            raise InvalidConfig(
                "address",
                str(at),
                "can be reached from other machines, and neither access control nor enforced TLS is configured: "
                "listen on 127.0.0.1, say --acl FILE, say --tls-mode enforcing with a certificate, or say --insecure",
            )


def _bind(at: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    made = close_in_child(socket.socket(family, socket.SOCK_STREAM))
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((at.host, at.port))
    except OSError as error:
        made.close()
        raise taken(at, error) from error
    return made


def _bind_pair(at: Address, *, is_second_needed: bool) -> list[socket.socket]:
    """Bind a port and the one two below it, which may be missing unless it is needed.

    If the system chooses the port, it is asked until both are free.
    """
    while True:
        first = _bind(at)
        port = first.getsockname()[1]
        try:
            return [first, _bind(Address(at.host, port - FAST_PORT_BELOW))]
        except InvalidConfig as error:
            if not is_second_needed:
                _log.info(WITHOUT_SECOND, error)
                return [first]
            first.close()
            if at.port != 0:
                raise


def _listen(sockets: list[socket.socket], *, is_second_needed: bool) -> list[socket.socket]:
    """Listen at the name server's port, the broker's and the one below it; return the sockets that do.

    A bound port is not yet this program's alone: another one can bind it too, and listen first.
    """
    listening = []
    for number, each in enumerate(sockets):
        try:
            each.listen(BACKLOG)
            listening.append(each)
        except OSError as error:
            refused = taken(Address(*each.getsockname()[:2]), error)
            if number < 2 or is_second_needed:
                raise refused from error
            each.close()
            _log.info(WITHOUT_SECOND, refused)
    return listening


def taken(at: Address, error: OSError) -> InvalidConfig:
    """Return the error for an address at which the system does not let this program listen."""
    return InvalidConfig("address", str(at), f"cannot listen there: {error.strerror}; choose another")


def _reachable(host: str) -> str:
    """Return an address that clients can call: for a wildcard, one of this machine's."""
    if host == "localhost":
        return "127.0.0.1"
    if host not in ("0.0.0.0", "::"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses the address that packets would come from
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
