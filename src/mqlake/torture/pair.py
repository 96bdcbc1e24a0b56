"""A master, its slave and a client, each a process on a machine of its own (`faults/network.py`).

Master and slave are the commands that operators run: `mqlake serve --role sync-master`, and `mqlake attach` for the
slave. Their settings make everything that happens in minutes happen in seconds: files are small, a put waits a moment
for its slave, and a side that hears nothing gives up soon.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mqlake import Durability, StoreConfig
from mqlake.torture.faults.failsync import failing_env
from mqlake.torture.faults.network import Network
from mqlake.torture.ledger import lines_of

MASTER, SLAVE, CLIENT = "master", "slave", "client"
PARTS = (MASTER, SLAVE, CLIENT)
REPLICATION = (MASTER, SLAVE)
"""The cable of the replication."""
SENDING = (CLIENT, MASTER)
"""The cable of the client."""
CABLES = (REPLICATION, SENDING)
HA_PORT, BROKER_PORT = 10912, 10911
START_S = 30.0
STOP_S = 30.0
DISK_S = 1.0
HUNG = -1
"""Instead of an exit code: the process did not end."""
PR_SET_PDEATHSIG = 1
MILLISECONDS = {
    "slaveTimeout": 250,
    "haSendHeartbeatInterval": 100,
    "haHousekeepingInterval": 1200,
}


@dataclass(frozen=True, slots=True)
class BadDisk:
    """Calls that fail in one process while its disk is broken."""

    calls: tuple[str, ...]
    errno: str = "EIO"
    short: int | None = None
    """Writes write only so many bytes, instead of failing."""
    passes: bool = False
    """The process must get over it by itself once the disk works again; otherwise it is started again."""


SYNCS = ("fdatasync", "fsync", "msync")
BAD_DISKS = {
    MASTER: (
        BadDisk(SYNCS),
        BadDisk(SYNCS, "ENOSPC"),
        BadDisk(("fallocate",), "ENOSPC", passes=True),
        BadDisk(("pwrite",), "ENOSPC", passes=True),
        BadDisk(("pwrite",)),
    ),
    SLAVE: (
        BadDisk(SYNCS),
        BadDisk(("pwrite",)),
        BadDisk(("pwrite",), "ENOSPC", passes=True),
        BadDisk(("fallocate",), "ENOSPC", passes=True),
        BadDisk(("pwrite",), short=7, passes=True),
    ),
}


class Pair:
    """The three processes and their files. All that still run are killed at the end of the block."""

    def __init__(self, folder: Path, network: Network, rng: random.Random) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self.network = network
        self.bad_disks = {part: rng.choice(kinds) for part, kinds in BAD_DISKS.items()}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        log_bytes, flushes = rng.choice((65536, 262144)), ("SYNC_FLUSH", "ASYNC_FLUSH")
        for part in (MASTER, SLAVE):
            self._settings(part).write_text(_settings(log_bytes, rng.choice(flushes)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()

    def store(self, part: str) -> Path:
        return self.folder / part

    def config(self, part: str) -> StoreConfig:
        return StoreConfig.load(self._settings(part))

    def _settings(self, part: str) -> Path:
        return self.folder / f"{part}.conf"

    def said(self, part: str) -> str:
        """Return the end of what a process printed."""
        return (self.folder / f"{part}.txt").read_text(errors="replace")[-2000:].strip()

    # ---- processes

    def start(self, part: str) -> None:
        """Start one of the three, or start it again."""
        network = self.network
        if part == CLIENT:
            broker = f"{network.address(MASTER, CLIENT)}:{BROKER_PORT}"
            self.run(CLIENT, "mqlake.torture.sender", broker, str(self.ledger))
        elif part == MASTER:
            self.serve(MASTER, SLAVE, role="sync-master")
        else:
            self.attach(SLAVE, MASTER, "--from", "first", "--interval", "60")

    def serve(self, part: str, towards: str, role: str) -> None:
        """Run a broker, and wait until it serves. Slaves reach it on the cable `towards` them, clients on every one.

        A slave that is started before would lose time: it waits longer after each vain try.
        """
        slaves = f"{self.network.address(part, towards)}:{HA_PORT}"
        options = ["--config", str(self._settings(part)), "--role", role, "--ha-listen", slaves, "--insecure"]
        listening = ["--listen", "0.0.0.0:9876", "--broker-listen", f"0.0.0.0:{BROKER_PORT}"]
        said = self.folder / f"{part}.txt"
        before = said.stat().st_size if said.exists() else 0
        self.run(part, "mqlake", "serve", str(self.store(part)), *options, *listening)
        until(lambda: b"ready " in said.read_bytes()[before:] or not self.runs(part), START_S)

    def attach(self, part: str, master: str, *options: str) -> None:
        address = f"{self.network.address(master, part)}:{HA_PORT}"
        settings = ["--config", str(self._settings(part))]
        self.run(part, "mqlake", "attach", address, str(self.store(part)), *settings, *options)

    def promote(self, *, is_cut_off: bool) -> int:
        """Promote the slave on its own machine, from where the old master must not answer. Return the exit code.

        If its own network is down, it cannot ask: then the operator has to say that the master is gone.
        """
        master = self.network.address(MASTER, SLAVE)
        words = ["--master", f"{master}:{HA_PORT}", "--master", f"{master}:{BROKER_PORT}"]
        words += ["--config", str(self._settings(SLAVE)), *["--gone"] * is_cut_off]
        self.run(SLAVE, "mqlake", "promote", str(self.store(SLAVE)), *words)
        return self.wait(SLAVE)

    def run(self, part: str, module: str, *words: str) -> None:
        """Start a Python program on the machine of a part. It dies with this process, whatever ends that."""
        env = os.environ if part == CLIENT else self._failing(part)
        command = self.network.inside(part, [sys.executable, "-m", module, *words])
        with (self.folder / f"{part}.txt").open("ab") as said:
            self._running[part] = subprocess.Popen(command, env=env, stdout=said, stderr=said, preexec_fn=_die_too)

    def _failing(self, part: str) -> dict[str, str]:
        bad, path = self.bad_disks[part], f"{self.store(part)}/"
        switch, log = self._switch(part), self._disk_calls(part)
        return failing_env(*bad.calls, path=path, errno=bad.errno, short=bad.short, switch=switch, log=log)

    def _switch(self, part: str) -> Path:
        return self.folder / f"{part}-disk-is-broken"

    def _disk_calls(self, part: str) -> Path:
        return self.folder / f"{part}-disk.txt"

    def break_disk(self, part: str) -> bool:
        """Let calls fail from now on; return whether one has, in a moment."""
        before = self._disk_calls(part).stat().st_size
        self._switch(part).touch()
        return until(lambda: b" FAIL " in self._disk_calls(part).read_bytes()[before:], DISK_S)

    def mend_disk(self, part: str) -> None:
        self._switch(part).unlink(missing_ok=True)

    def kill(self, part: str) -> None:
        """kill -9, if it still runs."""
        self._running[part].kill()
        self._running[part].wait()

    def wait(self, part: str, timeout_s: float = STOP_S) -> int:
        """Return the exit code of a process that ends by itself, or HUNG."""
        try:
            return self._running[part].wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill(part)
            return HUNG

    def runs(self, part: str) -> bool:
        return self._running[part].poll() is None

    # ---- what the client was promised

    def count(self, *levels: Durability) -> int:
        """Return how many messages were acknowledged at these levels so far."""
        wanted = {str(int(level)) for level in levels}
        return sum(line.startswith("A") and line.split()[4] in wanted for line in lines_of(self.ledger))

    def await_more(self, count: int, timeout_s: float, *levels: Durability) -> bool:
        """Wait until so many more messages were acknowledged at these levels; return whether they were."""
        goal = self.count(*levels) + count
        return until(lambda: self.count(*levels) >= goal, timeout_s)


def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def _settings(log_bytes: int, flush: str) -> str:
    lines: Sequence[str] = (
        f"mappedFileSizeCommitLog={log_bytes}",
        "mappedFileSizeConsumeQueue=2000",
        "maxHashSlotNum=1000",
        "maxIndexNum=4000",
        f"flushDiskType={flush}",
        "cleanFileForciblyEnable=false",
        *(f"{name}={value}" for name, value in MILLISECONDS.items()),
    )
    return "\n".join(lines) + "\n"


def _die_too() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
