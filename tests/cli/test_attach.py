"""`mqlake attach`: a folder that follows a master, with lines for people and exit codes for scripts."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mqlake import MessageStore, StoreConfig
from mqlake.broker.in_thread import BrokerThread
from mqlake.client import Consumer, Producer
from mqlake.message import Message
from tests.cli.conftest import SMALL_FILES, Cli
from tests.helpers import message
from tests.replication.masters import SendingMaster, same_log


def small_config(folder: Path) -> StoreConfig:
    (folder / "small.conf").write_text(SMALL_FILES)
    return StoreConfig.load(folder / "small.conf")


def test_once_catches_up_says_so_and_stops(cli: Cli) -> None:
    with MessageStore.open(cli.folder / "master", config=small_config(cli.folder), deliver=False) as master:
        for number in range(50):
            master.put(message(number))
        with SendingMaster(master) as sender:
            said = cli.ok("attach", sender.address, cli.store, "--once", "--from", "first", "--config", cli.config)
            assert f"end {master.end_offset:,}" in said
            assert "caught up" in said
            master.put(message(50))
            cli.ok("attach", sender.address, cli.store, "--once", "--config", cli.config)
        with MessageStore.open(cli.store, deliver=False) as slave:
            same_log(master, slave)


def test_once_ends_with_an_error_where_nobody_listens(cli: Cli) -> None:
    result = cli.run("attach", "127.0.0.1:1", cli.store, "--once", "--patience", "0.5", "--config", cli.config)
    assert result.exit_code == 3
    assert "127.0.0.1:1: no master has sent its log for" in result.output
    assert "Connection refused" in result.output


def test_once_ends_with_an_error_at_a_port_that_does_not_replicate(cli: Cli) -> None:
    """A broker's listenPort accepts the connection and never sends a log."""
    with BrokerThread(cli.folder / "other") as broker:
        options = ("--once", "--patience", "0.5", "--config", cli.config)
        result = cli.run("attach", broker.address, cli.store, *options)
    assert result.exit_code == 3
    assert "is this its replication port (haListenPort" in result.output


def test_it_follows_until_it_is_told_to_stop(cli: Cli) -> None:
    with MessageStore.open(cli.folder / "master", config=small_config(cli.folder), deliver=False) as master:
        master.put(message(1))
        with SendingMaster(master) as sender:
            options = ("--config", cli.config, "--interval", "0.1")
            process = cli.process("attach", sender.address, cli.store, *options)
            assert process.stdout is not None
            while "caught up" not in (line := process.stdout.readline()):
                assert line, "it ended"
            assert line.startswith(f"following {sender.address}, end {master.end_offset:,}, ")
            end = master.put(message(2)).end
            while f"end {end:,}" not in (line := process.stdout.readline()):
                assert line, "it ended"
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 0


def test_logs_that_part_are_an_error_with_the_offset(cli: Cli) -> None:
    config = small_config(cli.folder)
    with MessageStore.open(cli.folder / "master", config=config, deliver=False) as master:
        same = master.put(message(1))
        with SendingMaster(master) as sender:
            cli.ok("attach", sender.address, cli.store, "--once", "--config", cli.config)
            with MessageStore.open(cli.store, config=config, deliver=False) as promoted:
                promoted.put(message(2))
            master.put(message(3))
            result = cli.run("attach", sender.address, cli.store, "--once", "--config", cli.config)
    assert result.exit_code == 3
    assert f"part at offset {same.end}" in result.output


def test_once_is_an_error_for_a_log_that_parts_from_a_shorter_one(cli: Cli) -> None:
    """The master's end, which its broker names, is behind the end of this log: that proves nothing."""
    with BrokerThread(cli.folder / "master", config=small_config(cli.folder)) as broker:
        with SendingMaster(broker.store) as sender:
            arguments = ("attach", sender.address, cli.store, "--once", "--remoting", broker.address)
            broker.store.put(message(1))
            cli.ok(*arguments)
            with MessageStore.open(cli.store, deliver=False) as promoted:
                parted = promoted.put(message(2, body=bytes(1000))).physical_offset
            broker.store.put(message(3))
            result = cli.run(*arguments)
    assert result.exit_code == 3
    assert f"part at offset {parted}" in result.output


@pytest.mark.parametrize("address", ["nowhere", "host:", "host:x", ":1", "host:70000"])
def test_an_address_must_name_host_and_port(cli: Cli, address: str) -> None:
    result = cli.run("attach", address, cli.store)
    assert result.exit_code == 2
    assert "expected HOST:PORT" in result.output


def test_with_remoting_topics_groups_and_progress_come_from_the_masters_broker(cli: Cli) -> None:
    config = small_config(cli.folder)
    with BrokerThread(cli.folder / "master", config=config) as broker:
        with Producer(broker.name_server) as producer:
            producer.send_many([Message("orders", b"%d" % number, queue_id=0) for number in range(20)])
        with Consumer(broker.name_server, "readers", "orders") as consumer:
            for _ in zip(range(20), consumer, strict=False):
                pass
            consumer.commit()
        with SendingMaster(broker.store) as sender:
            arguments = ("attach", sender.address, cli.store, "--once", "--from", "first")
            cli.ok(*arguments, "--remoting", broker.address)
    with MessageStore.open(cli.store, read_only=True) as slave:
        assert slave.stats().file_size_bytes == 1 << 20, "the size of the log's files came from the broker"
        assert "readers" in slave.groups()
        assert slave.topic("orders").read_queue_count == 4
        assert sum(lag.offset for lag in slave.lag("readers", "orders")) == 20
