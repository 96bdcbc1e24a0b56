"""Rows of a broker as clients see it: the same Java client on ``mqlake serve`` and on a real RocketMQ 5.5 broker.

Each measurement starts the server afresh on an empty store and the client in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import resident_mb
from benchmarks.row import Bench, Measure, Row
from mqlake.remoting.command import request
from tests.broker.wire import Wire, pull_fields
from tests.clients.artefacts import java_command, maven
from tests.clients.endpoints import Endpoint, start
from tests.clients.wire import create_topic

SETTINGS = {"mappedFileSizeCommitLog": "1073741824", "mappedFileSizeConsumeQueue": "6000000"}


@contextlib.contextmanager
def _server(bench: Bench, kind: str, **settings: str) -> Iterator[Endpoint]:
    """Run a fresh server on an empty store; its scratch folder is the one above the store."""
    scratch = Path(tempfile.mkdtemp(prefix="broker-", dir=bench.directory))
    endpoint = start(kind, scratch / "store", None, **SETTINGS, **settings)
    try:
        create_topic(endpoint.broker, "bench")
        create_topic(endpoint.broker, "%RETRY%bench-bench", queues=1)
        yield endpoint
    finally:
        endpoint.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def client(endpoint: Endpoint, workload: str, count: int, threads: int) -> dict[str, Any]:
    """Return what the Java client measured."""
    command = java_command(maven("java", "5.5"), "Bench", "-Xmx768m", f"-Duser.home={endpoint.log.parent}")
    command = [part for part in command if part != "-XX:TieredStopAtLevel=1"]  # the client is measured compiled
    done = subprocess.run(
        [*command, endpoint.name_server, "bench", workload, str(count), str(threads)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0 or not done.stdout.strip():
        raise RuntimeError(f"{workload} on {endpoint.kind} failed: {done.stdout[-500:]}{done.stderr[-1500:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _run(bench: Bench, kind: str, workload: str, count: int, threads: int, **settings: str) -> dict[str, Any]:
    """Return what the client measured on a fresh server."""
    with _server(bench, kind, **settings) as endpoint:
        return client(endpoint, workload, count, threads)


def _processor_seconds(endpoint: Endpoint) -> float:
    """Return the processor time that a server has taken so far."""
    fields = Path(f"/proc/{endpoint.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor(kind: str, workload: str, count: int, threads: int, extra: float) -> Measure:
    """Return a measure of a warm server's processor time, in ms per 1,000 messages; `extra`: the client's warm-up."""

    def measured(bench: Bench) -> float:
        with _server(bench, kind) as endpoint:
            client(endpoint, workload, bench.count(count), threads)  # the JVM compiles what it needs
            before = _processor_seconds(endpoint)
            client(endpoint, workload, bench.count(count), threads)
            return 1e6 * (_processor_seconds(endpoint) - before) / (bench.count(count) * (1 + extra))

    return measured


def memory(kind: str) -> Measure:
    """Return a measure of the memory of a server with 1,000 topics and 100 connections, without pages of files."""

    def measured(bench: Bench) -> float:
        with _server(bench, kind) as endpoint, contextlib.ExitStack() as wires:
            for number in range(1000):
                create_topic(endpoint.broker, f"topic-{number:04d}")
            for number in range(100):
                wire = wires.enter_context(Wire(endpoint.broker))
                wire.beat(f"client-{number}", f"group-{number}", f"topic-{number:04d}", producer=f"producer-{number}")
                assert wire.put(f"topic-{number:04d}", bytes(1024)).code == 0
            return resident_mb(endpoint.process.pid)

    return measured


def idle(kind: str) -> Measure:
    """Return a measure of the share of one core that 1,000 consumers take which wait for a message, in percent."""

    def measured(bench: Bench) -> float:
        with _server(bench, kind) as endpoint, contextlib.ExitStack() as wires:
            for number in range(1000):
                wire = wires.enter_context(Wire(endpoint.broker))
                wire.beat(f"client-{number}", f"group-{number}", "bench")
                fields = pull_fields(f"group-{number}", "bench", sysFlag="6", suspendTimeoutMillis="60000")
                wire.send(request(11, fields))
            time.sleep(3)
            before, began = _processor_seconds(endpoint), time.monotonic()
            time.sleep(12)
            return 100 * (_processor_seconds(endpoint) - before) / (time.monotonic() - began)

    return measured


def _pair(name: str, title: str, goal: str, unit: str, measure: Callable[[str], Measure]) -> Row:
    return Row(name, title, goal, measure("mqlake"), measure("rocketmq-5.5"), unit)


def _row(
    name: str, title: str, goal: str, workload: str, count: int, threads: int = 1, figure: str = "perSecond",
    unit: str = "/s", **settings: str,
) -> Row:  # fmt: skip
    def measure(kind: str, side: str) -> Measure:
        def measured(bench: Bench) -> float:
            result = _run(bench, kind, workload, bench.count(count), threads, **settings)
            for other in ("p50Ms", "p99Ms"):
                if other in result:
                    bench.notes[f"{side} {other}"] = result[other]
            return float(result[figure])

        return measured

    return Row(name, title, goal, measure("mqlake", "our"), measure("rocketmq-5.5", "their"), unit)


def started(kind: str) -> Measure:
    """Return a measure of the seconds from the start of a server to its first accepted request."""

    def measured(bench: Bench) -> float:
        maven("server", "5.5")
        scratch = Path(tempfile.mkdtemp(prefix="broker-", dir=bench.directory))
        before = time.perf_counter()
        endpoint = start(kind, scratch / "store", None, **SETTINGS)
        create_topic(endpoint.broker, "bench")
        seconds = time.perf_counter() - before
        endpoint.stop()
        shutil.rmtree(scratch, ignore_errors=True)
        return seconds

    return measured


def broker_rows() -> list[Row]:
    """Return the rows; the Java client and RocketMQ's server are built from their registry on first use."""
    sync_flush = {"flushDiskType": "SYNC_FLUSH"}
    return [
        _row("broker_p50", "broker: sync send 1 KiB, 1 thread, p50", "≤ 1 ×", "sync", 4_000, 1, "p50Ms", "ms"),
        _row("broker_sync1", "broker: sync send 1 KiB, 1 thread", "", "sync", 4_000, 1),
        _row("broker_sync16", "broker: sync send 1 KiB, 16 threads", "1.0 ×", "sync", 30_000, 16),
        _row("broker_sync64", "broker: sync send 1 KiB, 64 threads", "1.0 ×", "sync", 60_000, 64),
        _row("broker_async", "broker: async send, window of 256", "0.8 ×", "async", 80_000),
        _row("broker_batch", "broker: batches of 32", "0.8 ×", "batch", 160_000),
        _row("broker_drain", "broker: push consumer draining a backlog", "1.0 ×", "drain", 200_000),
        _row("broker_flush64", "broker: sync send, SYNC_FLUSH, 64 threads", "1.2 ×", "sync", 20_000, 64, **sync_flush),
        _row("broker_latency", "broker: arrival to delivery, idle, p99", "5 ms", "latency", 500, 1, "p99Ms", "ms"),
        _pair("broker_start", "broker: start to first request", "0.5 s", "s", started),
        _pair("broker_memory", "broker: memory, 100 connections, 1,000 topics", "150 MB", "MB", memory),
        _pair("broker_idle", "broker: processor, 1,000 idle consumers", "5 %", "%", idle),
        _pair(
            "broker_cpu_send",
            "broker: processor per 1,000 sync sends",
            "≤ 1 ×",
            "ms",
            lambda kind: processor(kind, "sync", 30_000, 16, 0.25),
        ),
        _pair(
            "broker_cpu_drain",
            "broker: processor per 1,000 messages sent and consumed",
            "≤ 1 ×",
            "ms",
            lambda kind: processor(kind, "drain", 200_000, 1, 0),
        ),
    ]
