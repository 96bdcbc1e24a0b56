"""The network of a torture run: cables that can be cut in every way, and nothing that stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mqlake.torture.faults.network import CUTS, PREFIX, Network, NotPermitted, remove_leftovers

MACHINES, CABLE = ("one", "two"), ("one", "two")
CONNECT = "import socket; socket.create_connection(({!r}, 1), timeout=0.3)"
WAIT = f"""
import sys, time
from mqlake.torture.faults.network import Network
Network.build({MACHINES!r}, [{CABLE!r}])
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        made = Network.build(MACHINES, [CABLE])
    except NotPermitted as refusal:
        pytest.skip(str(refusal))
    with made:
        yield made


def answer(network: Network, machine: str, other: str) -> str:
    """Return how an attempt to connect to another machine ends: nothing listens there."""
    code = CONNECT.format(network.address(other, machine))
    done = subprocess.run(network.inside(machine, [sys.executable, "-c", code]), capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1].split(":")[0]


def spaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines()]


@pytest.mark.parametrize("how", CUTS)
def test_a_cut_cable_carries_nothing_until_it_is_joined(network: Network, how: str) -> None:
    assert answer(network, "one", "two") == "ConnectionRefusedError", "the other machine answers"
    network.cut(*CABLE, how)
    assert {answer(network, "one", "two"), answer(network, "two", "one")} <= {"TimeoutError", "OSError"}
    network.join(*CABLE)
    assert answer(network, "one", "two") == answer(network, "two", "one") == "ConnectionRefusedError"


def test_the_network_is_gone_after_its_block_and_so_are_those_of_killed_programs(network: Network) -> None:
    with subprocess.Popen([sys.executable, "-c", WAIT], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        left = [space for space in spaces() if space.startswith(f"{PREFIX}-{other.pid}-")]
        assert len(left) == 2
        remove_leftovers()
        assert set(left) <= set(spaces()), "a program that runs keeps its own"
        other.send_signal(signal.SIGKILL)
    remove_leftovers()
    assert not set(left) & set(spaces())
    network.remove()
    assert not [space for space in spaces() if space.startswith(f"{PREFIX}-{os.getpid()}-")]
