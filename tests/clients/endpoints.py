"""What the clients talk to: ``mqlake serve``, or a real RocketMQ name server and broker, in a process of its own.

Both get the same settings and say the same line when clients may connect, so one can take the other's place on
the same disk and the same ports.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.artefacts import java_command, maven
from tests.ports import free_port

READY_TIMEOUT = 120.0
STOP_TIMEOUT = 60.0
KINDS = ("mqlake", "rocketmq-4.9", "rocketmq-5.5")
SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    "messageDelayLevel": "1s 1s 1s 1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 20s 30s 1m 2m 1h",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "200",
    "timerPrecisionMs": "100",
    "reviveInterval": "500",
    "recallMessageEnable": "true",
    "mappedFileSizeCommitLog": "67108864",
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    "mappedFileSizeTimerLog": "1048576",
    # A machine under load is slow, not broken.
    "diskMaxUsedSpaceRatio": "98",
    "waitTimeMillsInSendQueue": "15000",
    "waitTimeMillsInPullQueue": "15000",
    "waitTimeMillsInHeartbeatQueue": "31000",
    "waitTimeMillsInTransactionQueue": "15000",
    "osPageCacheBusyTimeOutMills": "15000",
}


class EndpointFailed(Exception):
    """A server did not start, or did not stop, in time."""


@dataclass(frozen=True)
class Ports:
    """The ports of an endpoint, all on loopback."""

    name_server: int
    broker: int
    replication: int

    @classmethod
    def free(cls) -> Ports:
        broker = free_port(also_below=2)  # RocketMQ's broker takes that one too
        while len({name_server := free_port(), replication := free_port(), broker, broker - 2}) < 4:
            pass
        return cls(name_server, broker, replication)


@dataclass
class Endpoint:
    """A running name server and broker."""

    kind: str
    ports: Ports
    process: subprocess.Popen[bytes]
    log: Path
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self.ports.name_server}"

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self.ports.broker}"

    def stop(self) -> None:
        """Stop in order: what was accepted is on disk afterwards."""
        if self.process.poll() is None:
            if self.kind == "mqlake":
                self.process.send_signal(signal.SIGTERM)
            else:
                assert self.process.stdin is not None
                self.process.stdin.close()
        try:
            status = self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise EndpointFailed(f"{self.kind} did not stop within {STOP_TIMEOUT:.0f} s{self._said()}") from error
        if status != 0:
            raise EndpointFailed(f"{self.kind} stopped with status {status}{self._said()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _said(self) -> str:
        return f"; it said:\n{self.log.read_text('utf-8', errors='replace')[-3000:]}"


def start(kind: str, directory: Path, ports: Ports | None = None, **settings: str) -> Endpoint:
    """Start an endpoint of a kind on a store directory; return when clients may connect."""
    ports = ports or Ports.free()
    directory.mkdir(parents=True, exist_ok=True)
    scratch = directory.parent / f"{directory.name}-{kind}-{time.monotonic_ns()}"
    scratch.mkdir()
    merged = {**SETTINGS, **settings}
    conf = scratch / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in merged.items()), "utf-8")
    log = scratch / "log.txt"
    command = _mqlake(directory, ports, conf) if kind == "mqlake" else _rocketmq(kind, directory, ports, conf, scratch)
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
    endpoint = Endpoint(kind, ports, process, log, merged)
    try:
        _until_ready(endpoint)
    except BaseException:
        endpoint.kill()
        raise
    return endpoint


def _mqlake(directory: Path, ports: Ports, conf: Path) -> list[str]:
    command = [sys.executable, "-m", "mqlake", "serve", str(directory), "--listen", f"127.0.0.1:{ports.name_server}"]
    return [*command, "--broker-listen", f"127.0.0.1:{ports.broker}", "--config", str(conf)]


def _rocketmq(kind: str, directory: Path, ports: Ports, conf: Path, scratch: Path) -> list[str]:
    options = ["-Xmx768m", "-Dtls.server.mode=disabled", f"-Duser.home={scratch}", f"-Djava.io.tmpdir={scratch}"]
    command = java_command(maven("server", kind.removeprefix("rocketmq-")), "Server", *options)
    numbers = (ports.name_server, ports.broker, ports.replication)
    return [*command, str(directory), *map(str, numbers), str(conf)]


def _until_ready(endpoint: Endpoint) -> None:
    """Wait for the line; what follows on the output is thrown away by a child that reads it."""
    assert endpoint.process.stdout is not None
    end = time.monotonic() + READY_TIMEOUT
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(endpoint.process.stdout, selectors.EVENT_READ)
        while b"ready " not in said or not said.endswith(b"\n"):
            if not selector.select(max(0.0, end - time.monotonic())):
                raise EndpointFailed(f"{endpoint.kind} was not ready in {READY_TIMEOUT:.0f} s{endpoint._said()}")
            part = os.read(endpoint.process.stdout.fileno(), 65536)
            if not part:
                raise EndpointFailed(f"{endpoint.kind} ended before it was ready{endpoint._said()}")
            said += part
