"""mqadmin in a process that stays: each command is a line to it, and what it prints comes back."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tests.clients.artefacts import java_command, maven
from tests.clients.endpoints import Endpoint


class Tool:
    """A running mqadmin of a release, and clients of the same release to have something to look at."""

    def __init__(self, endpoint: Endpoint, release: str) -> None:
        self.endpoint = endpoint
        self.release = release
        self._home = tempfile.TemporaryDirectory(prefix="mqlake-mqadmin-")
        options = ["-Xmx384m", f"-Duser.home={self._home.name}", "-Drocketmq.client.rebalance.waitInterval=1000"]
        command = [*java_command(maven("java", release), "Admin", *options), endpoint.name_server]
        self._process = subprocess.Popen(
            command,
            cwd=self._home.name,  # some commands write files where they are started
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Tool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._home.cleanup()

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, f"{command}: {answer['error']}"
        return answer

    def mqadmin(self, *arguments: str) -> str:
        """Return what a command of mqadmin prints."""
        return str(self.ask(mqadmin=arguments)["said"])

    def table(self, *arguments: str) -> list[dict[str, str]]:
        """Return the rows that a command prints under a line of column names that begins with #."""
        lines = self.mqadmin(*arguments).splitlines()
        heads = [number for number, line in enumerate(lines) if line.startswith("#")]
        assert heads, "\n".join(lines)
        names = [name.strip() for name in lines[heads[0]].split("#")[1:]]
        rows = [line.split() for line in lines[heads[0] + 1 :] if line.strip()]
        return [dict(zip(names, row, strict=False)) for row in rows]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for what the broker tells its name server, or clients tell the broker, a little later."""
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end, f"not within 60 s: {what}"
            time.sleep(0.3)
