"""Addresses in commands, files and options: one that cannot be is refused before anything is connected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqlake import InvalidConfig
from mqlake.broker.listening import Address
from mqlake.broker.settings import BrokerSettings
from mqlake.cli.main import mqlake
from mqlake.cli.metrics_client import fetch_metrics
from mqlake.config import ReplicationConfig
from mqlake.replication.fetch import source_of
from mqlake.replication.promotion import promote
from mqlake.spark.options import parse_options

PLACES: list[Callable[[str], object]] = [
    lambda address: Address.parse(address, 9876),
    fetch_metrics,
    lambda address: ReplicationConfig(master_address=address),
    lambda address: promote("nowhere", [address]),
    lambda address: parse_options({"endpoint": address}),
]


@pytest.mark.parametrize("port", ["65536", "99999", "9" * 5000, "-1", "\u00b2"])
@pytest.mark.parametrize("place", PLACES)
def test_a_port_that_cannot_be_is_refused(place: Callable[[str], object], port: str) -> None:
    with pytest.raises(InvalidConfig):
        place(f"127.0.0.1:{port}")


def test_a_port_above_the_last_one_is_no_copy_to_heal_from() -> None:
    with pytest.raises(InvalidConfig, match="a port from 1 to 65535"):
        source_of("127.0.0.1:65536")


@pytest.mark.parametrize(
    ("name", "value"), [("listenPort", "65536"), ("listenPort", "x"), ("haListenPort", "9" * 5000)]
)
def test_a_port_in_a_broker_conf_that_cannot_be_is_refused_by_name(name: str, value: str, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerRole=ASYNC_MASTER\n{name}={value}\n")
    run = CliRunner().invoke(
        mqlake, ["serve", str(tmp_path / "store"), "--config", str(conf), "--listen", "127.0.0.1:0"]
    )
    assert run.exit_code != 0 and name in str(run.exception or run.output) + run.output
    assert isinstance(run.exception, (InvalidConfig, SystemExit))


def test_a_number_of_thousands_of_digits_in_a_setting_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="whole number"):
        BrokerSettings.from_properties({"serverSocketMaxConnections": "9" * 5000})
