"""`mqlake serve`: a RocketMQ name server and broker over a store."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from mqlake.broker.listening import Address

FILE = click.Path(dir_okay=False, path_type=Path)


class Plan(NamedTuple):
    """What to serve, and where."""

    store: Path
    name_server: Address
    broker: Address
    options: dict[str, Any]
    """Of `broker.listening.serve`."""
    outside: list[Address]
    metrics: Address | None


@click.command()
@click.argument("store", type=click.Path(file_okay=False, path_type=Path, readable=False))
@click.option(
    "--listen", default="127.0.0.1:9876", show_default=True, metavar="HOST:PORT", help="The name server's address."
)
@click.option(
    "--broker-listen", metavar="HOST:PORT", help="The broker's address. [default: the name server's host, port 10911]"
)
@click.option("--config", type=FILE, help="A broker.conf of RocketMQ.")
@click.option(
    "--role",
    type=click.Choice(["async-master", "sync-master", "slave"]),
    help="Serve slaves, or be one; a sync master answers sends once slaves have them. [default: brokerRole]",
)
@click.option(
    "--master",
    metavar="HOST:HA_PORT",
    help="The replication of a slave's master. [default: haMasterAddress of --config]",
)
@click.option(
    "--master-broker",
    metavar="HOST:PORT",
    help="The broker of a slave's master: topics, groups and progress are copied from it every minute.",
)
@click.option(
    "--ha-listen",
    metavar="HOST:PORT",
    help="Where slaves are served. [default: for a master, the broker's host, haListenPort or 10912; a slave serves "
    "its log to others only if this is given]",
)
@click.option(
    "--name-server",
    "outside",
    metavar="HOST:PORT[;...]",
    help="Register with these name servers too, every 30 s. [default: namesrvAddr of --config]",
)
@click.option(
    "--acl", type=FILE, metavar="FILE", help="Access control: a plain_acl.yml of RocketMQ, or a JSON file of users."
)
@click.option("--tls-cert", type=FILE, metavar="FILE", help="The certificate chain (PEM): clients may use TLS.")
@click.option("--tls-key", type=FILE, metavar="FILE", help="The certificate's key (PEM).")
@click.option("--tls-ca", type=FILE, metavar="FILE", help="Ask clients for certificates that this authority signed.")
@click.option(
    "--tls-mode",
    type=click.Choice(["permissive", "enforcing", "disabled"]),
    help="Whether plain clients are taken too. [default: permissive with a certificate]",
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve /metrics for Prometheus, /health and /ready there.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log lines on standard error for people, or JSON.",
)
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without TLS and access control.")
def serve(
    store: Path,
    listen: str,
    broker_listen: str | None,
    config: Path | None,
    role: str | None,
    master: str | None,
    master_broker: str | None,
    ha_listen: str | None,
    outside: str | None,
    acl: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    tls_mode: str | None,
    metrics: str | None,
    log_format: str,
    insecure: bool,
) -> None:
    """Serve STORE to RocketMQ clients: name server and broker in one process.

    Prints one line when clients may connect, and runs until SIGTERM or Ctrl-C. Port 0 takes a free one.
    """
    from mqlake.broker.access import PROPERTIES, Access
    from mqlake.broker.listening import Address, require_safety
    from mqlake.broker.registration import parse_name_servers
    from mqlake.broker.settings import (
        DEFAULT_BROKER_PORT,
        DEFAULT_METRICS_PORT,
        DEFAULT_NAME_SERVER_PORT,
        NAMES,
        BrokerSettings,
    )
    from mqlake.broker.tls import Tls, TlsSettings
    from mqlake.cli.log_format import set_log_format
    from mqlake.config import StoreConfig, read_properties

    set_log_format(log_format)
    properties = read_properties(config) if config is not None else {}
    name_server = Address.parse(listen, DEFAULT_NAME_SERVER_PORT)
    port = _port(properties, "listenPort", DEFAULT_BROKER_PORT)
    broker = Address.parse(broker_listen, port) if broker_listen else Address(name_server.host, port)
    measured = Address.parse(metrics, DEFAULT_METRICS_PORT) if metrics else None
    access = Access.from_properties(properties, acl, config.parent if config is not None else Path())
    tls_settings = TlsSettings.from_properties(properties | _tls_options(tls_cert, tls_key, tls_ca, tls_mode))
    tls = Tls(tls_settings) if tls_settings is not None else None
    require_safety((name_server, broker), access, tls, is_insecure=insecure)
    if role is not None:
        properties["brokerRole"] = role.upper().replace("-", "_")
    if master is not None:
        properties["haMasterAddress"] = master
    if properties.get("brokerRole") == "SLAVE":
        _require_slave(properties)
    slaves = _slaves_address(ha_listen, broker.host, properties)
    for open_to_all in filter(None, (measured, slaves)):
        require_safety((open_to_all,), None, None, is_insecure=insecure)  # metrics and slaves have neither
    of_store = {name: value for name, value in properties.items() if name not in NAMES and name not in PROPERTIES}
    options = {
        "config": StoreConfig.from_properties(of_store),
        "settings": BrokerSettings.from_properties(properties),
        "advertised": properties.get("brokerIP1"),
        "access": access,
        "tls": tls,
        "replication": slaves,
        "master_broker": master_broker,
    }
    outside_servers = parse_name_servers(outside or properties.get("namesrvAddr", ""))
    plan = Plan(store, name_server, broker, options, outside_servers, measured)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(plan))


def _require_slave(properties: dict[str, str]) -> None:
    """A slave has a master, and an id other than the master's 0."""
    from mqlake.errors import InvalidConfig

    if "haMasterAddress" not in properties:
        raise InvalidConfig("haMasterAddress", None, "a slave needs its master's: say --master HOST:HA_PORT")
    if properties.setdefault("brokerId", "1") == "0":
        raise InvalidConfig("brokerId", "0", "a slave's id is 1 or more: 0 is the master's")


def _slaves_address(given: str | None, host: str, properties: dict[str, str]) -> Address | None:
    """Return where slaves are served: only if an option or the configuration speaks of it; by a slave only if an option
    does, because its broker.conf is often a copy of its master's.
    """
    from mqlake.broker.listening import Address
    from mqlake.config import ReplicationConfig

    is_master = properties.get("brokerRole") != "SLAVE" and properties.keys() & {"brokerRole", "haListenPort"}
    if not given and not is_master:
        return None
    port = _port(properties, "haListenPort", ReplicationConfig().listen_port)
    return Address.parse(given, port) if given else Address(host, port)


def _port(properties: dict[str, str], name: str, default: int) -> int:
    from mqlake.config import is_port
    from mqlake.errors import InvalidConfig

    text = properties.get(name, str(default))
    if not is_port(text):
        raise InvalidConfig(name, text, "must be a port up to 65535")
    return int(text)


def _tls_options(cert: Path | None, key: Path | None, ca: Path | None, mode: str | None) -> dict[str, str]:
    """Return options under RocketMQ's names; they win over a broker.conf."""
    given = {"mode": mode, "certPath": cert, "keyPath": key, "trustCertPath": ca}
    given["need.client.auth"] = None if ca is None else "require"
    return {f"tls.server.{name}": str(value) for name, value in given.items() if value is not None}


def _loop_factory() -> Any:
    """Return uvloop's loop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(plan: Plan) -> None:
    from mqlake.broker.listening import serve as start

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    served = await start(plan.store, plan.name_server, plan.broker, **plan.options)
    beside = await _beside(plan, served)
    slaves = f" slaves={served.replication}" if served.replication is not None else ""
    click.echo(f"ready name-server={served.name_server} broker={served.address}{slaves}")
    if sys.stderr.isatty():
        from mqlake.cli.connecting import how_to_connect

        click.echo(how_to_connect(str(served.name_server)), err=True)
    await stopping.wait()
    for each in beside:
        await each.close()
    await served.close()


async def _beside(plan: Plan, served: Any) -> list[Any]:
    """Start what was asked for besides the broker; return it in the order of closing."""
    started: list[Any] = []
    try:
        registration = None
        if plan.outside:
            from mqlake.broker.registration import Registration

            registration = Registration(served.broker, plan.outside)
            started.append(registration)
        if plan.metrics is not None:
            from mqlake.broker.metrics import MetricsServer

            server = MetricsServer(served.broker, registration)
            await server.start(plan.metrics)
            started.append(server)
            click.echo(f"metrics http://{server.address}/metrics", err=True)
    except BaseException:
        for each in started:
            await each.close()
        await served.close()
        raise
    return started
