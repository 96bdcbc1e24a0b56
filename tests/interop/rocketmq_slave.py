"""A real RocketMQ slave in a Java process, with a real name server or its master's: see ``tests/clients/server``."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.clients.artefacts import java_command, maven
from tests.clients.endpoints import SETTINGS, Ports

START_S = 120.0


class RocketMQSlave:
    """Started with the ports that it shall have: the master registers at its name server before it is ready."""

    def __init__(self, release: str, directory: Path, ports: Ports, **settings: str) -> None:
        """With `namesrvAddr` among the settings that name server runs already, else one is started."""
        directory.mkdir(parents=True)
        scratch = directory.parent / f"{directory.name}-scratch"
        scratch.mkdir()
        conf = scratch / "broker.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in {**SETTINGS, **settings}.items()), "utf-8")
        self._log = scratch / "log.txt"
        options = ["-Xmx768m", "-Dtls.server.mode=disabled", f"-Duser.home={scratch}", f"-Djava.io.tmpdir={scratch}"]
        command = java_command(maven("server", release), "SlaveServer", *options)
        numbers = (ports.name_server, ports.broker, ports.replication)
        with self._log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*command, str(directory), *map(str, numbers), str(conf), *["outside"] * ("namesrvAddr" in settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def until(self, said: str) -> str:
        """Return the line with which it says something."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            line = self._process.stdout.readline()
            assert line, f"the slave ended: {self._log.read_text('utf-8', 'replace')[-3000:]}"
            if said in line:
                return line
        raise AssertionError(f"the slave did not say {said} in {START_S:.0f} s")

    def sync(self) -> str:
        """Have it copy topics, groups and progress; return what it says."""
        assert self._process.stdin is not None
        self._process.stdin.write("sync\n")
        self._process.stdin.flush()
        return self.until("synced")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
