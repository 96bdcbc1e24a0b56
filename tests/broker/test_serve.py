"""`mqlake serve`, the pytest fixture, and addresses."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from mqlake.broker.in_thread import BrokerThread
from mqlake.broker.listening import Address
from mqlake.broker.settings import BrokerSettings
from mqlake.errors import InvalidConfig
from tests.broker.wire import Wire

SERVE = (sys.executable, "-m", "mqlake", "serve")


def start(path: Path, *more: str, stderr: IO[bytes] | None = None) -> tuple[subprocess.Popen[str], str, str]:
    at = ("--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0")
    process = subprocess.Popen([*SERVE, str(path), *at, *more], stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"ready name-server=(\S+) broker=(\S+)\n", line)
    assert found, line
    return process, found[1], found[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_when_it_is_ready_and_stops_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    process, name_server, address = start(tmp_path / "store")
    try:
        with Wire(name_server) as wire:
            assert wire.call(106).code == 0
        with Wire(address) as wire:
            assert wire.put("T", b"x").code == 0
            process.send_signal(number)
            assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "store" / "abort").exists(), "the mark of an unclean stop"


def test_serve_takes_rocketmqs_settings(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerName=b-7\nbrokerClusterName=C\nflushDiskType=SYNC_FLUSH\nautoCreateTopicEnable=false\n")
    process, name_server, _ = start(tmp_path / "store", "--config", str(config))
    try:
        with Wire(name_server) as wire:
            assert b'"clusterAddrTable":{"C":["b-7"]}' in wire.call(106).body
            assert wire.put("T", b"x").code == 17
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_serve_listens_beyond_this_machine_only_if_told_to(tmp_path: Path) -> None:
    done = subprocess.run([*SERVE, str(tmp_path / "s"), "--listen", "0.0.0.0:0"], capture_output=True, text=True)
    assert done.returncode == 3 and "--insecure" in done.stderr
    assert not (tmp_path / "s").exists()


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    process, _, address = start(tmp_path / "store")
    with Wire(address) as wire:
        ids = [wire.put("T", b"%d" % i, queue_id=i % 4).fields["msgId"] for i in range(100)]
    process.kill()
    process.wait()
    with BrokerThread(tmp_path / "store") as again:
        assert [again.store.get(int(each[-16:], 16)).body for each in ids] == [b"%d" % i for i in range(100)]


def test_the_fixture_is_ready_at_once(mq_broker: BrokerThread) -> None:
    with Wire(mq_broker.address) as wire:
        assert wire.put("T", b"x").code == 0
    before = time.monotonic()
    assert [message.body for message in mq_broker.store.read("T", wait_s=20)] == [b"x"]
    assert time.monotonic() - before < 20


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("127.0.0.1", Address("127.0.0.1", 9876)),
        (":5", Address("127.0.0.1", 5)),
        ("[::1]:7", Address("::1", 7)),
        ("localhost:7", Address("localhost", 7)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert Address.parse(text, 9876) == address
    assert address.is_loopback


@pytest.mark.parametrize("text", ["a:b", "127.0.0.1:99999", "x:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        Address.parse(text, 1)


def test_settings_name_the_one_that_is_wrong() -> None:
    assert BrokerSettings.from_properties({"brokerName": "x", "traceOn": "false"}).trace_on is False
    with pytest.raises(InvalidConfig, match="traceOn"):
        BrokerSettings.from_properties({"traceOn": "maybe"})


def test_a_port_that_is_taken_is_named(tmp_path: Path, broker: BrokerThread) -> None:
    done = subprocess.run(
        [*SERVE, str(tmp_path / "s"), "--listen", broker.address], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3 and broker.address in done.stderr
