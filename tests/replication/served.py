"""`mqlake serve` with a role, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.clients.endpoints import SETTINGS, Ports


class ServedBroker:
    """A broker process; `ready` waits until it serves. Killed at the end of its block if it still runs."""

    def __init__(self, directory: Path, *options: str, ports: Ports | None = None, **settings: str) -> None:
        self.directory = directory
        ports = ports or Ports.free()
        scratch = directory.parent / f"{directory.name}-served-{os.urandom(3).hex()}"
        scratch.mkdir(parents=True)
        conf = scratch / "broker.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in {**SETTINGS, **settings}.items()), "utf-8")
        self.log = scratch / "log.txt"
        command = [sys.executable, "-m", "mqlake", "serve", str(directory), "--config", str(conf)]
        command += ["--listen", f"127.0.0.1:{ports.name_server}", "--broker-listen", f"127.0.0.1:{ports.broker}"]
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.addresses: dict[str, str] = {}

    def ready(self) -> Self:
        """Wait for the line with its addresses."""
        output: IO[str] | None = self.process.stdout
        assert output is not None
        line = output.readline()
        assert line.startswith("ready "), f"{line}{self.log.read_text('utf-8', 'replace')[-3000:]}"
        self.addresses = dict(part.split("=", 1) for part in line.split()[1:])
        return self

    @property
    def name_server(self) -> str:
        return self.addresses["name-server"]

    @property
    def slaves(self) -> tuple[str, int]:
        host, _, port = self.addresses["slaves"].rpartition(":")
        return host, int(port)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text("utf-8", "replace")[-3000:]

    def kill(self) -> None:
        """As a crash does: nothing more is written."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
