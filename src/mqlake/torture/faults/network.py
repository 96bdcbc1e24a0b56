"""A small network of its own: a namespace for each machine, a cable between two of them, and ways to break the cable.

    with Network.build(["master", "slave"], [("master", "slave")]) as network:   # NotPermitted: skip, and say why
        subprocess.Popen(network.inside("master", ["python3", "server.py", network.address("master", "slave")]))
        network.cut("master", "slave", "silent")
        network.join("master", "slave")

It needs root and `ip` of iproute2. All addresses are inside the namespaces, so nothing outside can be reached or
disturbed. The end of the block removes everything. What a killed program left is recognised by its name, which holds
the program's process id and when it started, and the next `build` removes it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Self

PREFIX: Final = "mqlake-lab"
NOWHERE: Final = "02:00:00:00:00:99"
"""An address that no end of a cable has: whoever gets a packet for it drops it."""
CUTS: Final = ("down here", "down there", "silent", "one way", "other way")
"""How a cable can be cut. Down: one end is switched off, and its machine knows. The others are noticed by nobody:
packets disappear, in both directions or in one."""


class NotPermitted(RuntimeError):
    """This machine does not permit network namespaces. A test should skip and say so."""


class Network:
    """Machines and the cables between them. A cable is named by its two machines, in the order of `build`."""

    def __init__(self, machines: Sequence[str], cables: Sequence[tuple[str, str]]) -> None:
        owner = os.getpid()
        self._spaces = {each: f"{PREFIX}-{owner}-{_started(owner)}-{each}" for each in machines}
        self._numbers = {cable: number for number, cable in enumerate(cables, 1)}

    @classmethod
    def build(cls, machines: Sequence[str], cables: Sequence[tuple[str, str]]) -> Self:
        """Make the namespaces and connect them."""
        if os.geteuid() != 0:
            raise NotPermitted("network namespaces need root")
        remove_leftovers()
        network = cls(machines, cables)
        try:
            network._make()
        except BaseException:
            network.remove()
            raise
        return network

    def _make(self) -> None:
        for space in self._spaces.values():
            _call("ip", "netns", "add", space)
            _call("ip", "-n", space, "link", "set", "lo", "up")
        for a, b in self._numbers:
            ends = ["netns", self._spaces[a], "type", "veth", "peer", "name", _port(a), "netns", self._spaces[b]]
            _call("ip", "link", "add", _port(b), *ends)
            for here, there in ((a, b), (b, a)):
                _call(*self._ip(here), "addr", "add", f"{self.address(here, there)}/24", "dev", _port(there))
                _call(*self._ip(here), "link", "set", _port(there), "up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    # ---- machines

    def address(self, machine: str, towards: str) -> str:
        """Return the address of a machine on its cable to another."""
        if (machine, towards) in self._numbers:
            return f"10.77.{self._numbers[machine, towards]}.1"
        return f"10.77.{self._numbers[towards, machine]}.2"

    def inside(self, machine: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs another on a machine. It becomes that command: the process id is the same."""
        return ["ip", "netns", "exec", self._spaces[machine], *command]

    # ---- faults

    def cut(self, a: str, b: str, how: str) -> None:
        """Cut a cable in one of the `CUTS`; here is `a`, there is `b`, and one way loses what `a` sends."""
        if how == "down here":
            _call(*self._ip(a), "link", "set", _port(b), "down")
        elif how == "down there":
            _call(*self._ip(b), "link", "set", _port(a), "down")
        else:
            for here, there in {"silent": [(a, b), (b, a)], "one way": [(a, b)], "other way": [(b, a)]}[how]:
                nobody = ["lladdr", NOWHERE, "dev", _port(there), "nud", "permanent"]
                _call(*self._ip(here), "neigh", "replace", self.address(there, here), *nobody)

    def join(self, a: str, b: str) -> None:
        """Undo whatever was done to a cable."""
        for here, there in ((a, b), (b, a)):
            _call(*self._ip(here), "link", "set", _port(there), "up")
            if NOWHERE in _call(*self._ip(here), "neigh", "show", "dev", _port(there)):
                _call(*self._ip(here), "neigh", "del", self.address(there, here), "dev", _port(there))
            with contextlib.suppress(NotPermitted):  # nothing was slow
                _call("tc", "-n", self._spaces[here], "qdisc", "del", "dev", _port(there), "root")

    def slow(self, a: str, b: str, delay_ms: int, loss_percent: int) -> bool:
        """Delay and lose packets in both directions. Return False if this kernel cannot (netem)."""
        for here, there in ((a, b), (b, a)):
            netem = ["netem", "delay", f"{delay_ms}ms", f"{delay_ms // 2}ms", "loss", f"{loss_percent}%"]
            try:
                _call("tc", "-n", self._spaces[here], "qdisc", "add", "dev", _port(there), "root", *netem)
            except NotPermitted:
                return False
        return True

    def abort(self, a: str, b: str) -> bool:
        """Reset every connection over a cable, whatever it is transferring. Return whether there was one."""
        try:
            found = _call(*self.inside(a, ["ss", "-K", "-H", "state", "established", "dst", self.address(b, a)]))
        except NotPermitted:  # ss is not installed
            return False
        return bool(found.strip())

    # ---- the end

    def remove(self) -> None:
        """Remove the namespaces; the cables go with them. Processes inside must have ended."""
        _remove(self._spaces.values())

    def _ip(self, machine: str) -> tuple[str, ...]:
        return "ip", "-n", self._spaces[machine]


def remove_leftovers() -> None:
    """Remove what programs left that are gone, with the processes inside."""
    found = [line.split()[0] for line in _call("ip", "netns", "list").splitlines() if line.startswith(f"{PREFIX}-")]
    for space in (each for each in found if not _is_owned(each)):
        with contextlib.suppress(NotPermitted):  # another program removes it at the same time
            for process in _call("ip", "netns", "pids", space).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            _remove([space])


def _is_owned(space: str) -> bool:
    """Return whether the program that made a namespace still runs."""
    owner, started, _ = space.removeprefix(f"{PREFIX}-").split("-", 2)
    return _started(int(owner)) == int(started)


def _started(process: int) -> int:
    """Return when a process started, in ticks since boot; -1 if there is none with this id."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return -1


def _remove(spaces: Collection[str]) -> None:
    known = {line.split()[0] for line in _call("ip", "netns", "list").splitlines()}
    for space in spaces:
        if space in known:
            _call("ip", "netns", "del", space)


def _port(towards: str) -> str:
    """Return the name of a machine's end of the cable to another."""
    return f"to-{towards}"


def _call(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise NotPermitted(f"{command[0]} is not installed") from None
    if done.returncode:
        raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
