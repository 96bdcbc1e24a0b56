"""A real RocketMQ 5.5 name server in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.rocketmq import _BUILD_TIMEOUT, _OPENED_PACKAGES, _SMALL_JVM, RocketMQError, _run
from tests.ports import free_port

_PROJECT = Path(__file__).resolve().parent / "name_server_project"
_CLASSPATH = _PROJECT / "target" / "classpath.txt"
_QUIET = '<configuration><root level="OFF"/></configuration>\n'
_START_S = 120.0


@contextmanager
def run_name_server(home: Path) -> Iterator[str]:
    """Run a name server on a free port until the block ends; yields its address."""
    if not _CLASSPATH.exists():
        _run(["mvn", "-q", "-B", "-f", str(_PROJECT / "pom.xml"), "compile"], _BUILD_TIMEOUT)
    port = free_port()
    (home / "namesrv.conf").write_text(f"listenPort={port}\n")
    (home / "quiet.xml").write_text(_QUIET)
    command = ["java", *_SMALL_JVM, "-Dtls.server.mode=disabled", f"-Duser.home={home}"]
    command += [f"-Drmq.logback.configurationFile={home / 'quiet.xml'}"]
    command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES]
    command += ["-cp", _CLASSPATH.read_text("utf-8").strip(), "org.apache.rocketmq.namesrv.NamesrvStartup"]
    command += ["-c", str(home / "namesrv.conf")]
    with (home / "namesrv.out").open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"ROCKETMQ_HOME": str(home)}
        )
    try:
        _wait_for(port, process, home / "namesrv.out")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RocketMQError(f"the name server did not start: {output.read_text('utf-8', 'replace')}") from None
            time.sleep(0.1)
