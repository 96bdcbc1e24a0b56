"""The rows of replication: how fast a slave takes a master's log, and how soon it confirms.

`pair_client16` runs a master and a slave of mqlake, and a pair of real RocketMQ 5.5, each with the same Java client.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.broker_rows import SETTINGS, client
from benchmarks.row import Bench, Measure, Row, rate_of
from tests.broker.wire import Wire
from tests.clients.endpoints import Endpoint, Ports, start
from tests.clients.wire import create_topic
from tests.interop.rocketmq_slave import RocketMQSlave

MIB = 1024
ATTACHED_S = 60.0
PAIR = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
"""RocketMQ 5 counts the master among its replicas: with its default, 1, it waits for no slave."""


def replica_rows() -> list[Row]:
    return [
        Row("replica", "a slave catches up over loopback", "300 MB/s", caught_up, None, "MB/s"),
        Row("pair_sync16", "16 threads, each put confirmed by disk and slave", "", confirmed, None),
        Row(
            "pair_client16",
            "SYNC_MASTER with a slave, SYNC_FLUSH: sends of 16 threads of a Java client",
            "1.0 ×",
            by_client("mqlake", 16, 20_000, "SYNC_FLUSH"),
            by_client("rocketmq-5.5", 16, 20_000, "SYNC_FLUSH"),
        ),
        Row(
            "pair_async16",
            "the same with ASYNC_FLUSH, where mqlake waits for its disk all the same",
            "",
            by_client("mqlake", 16, 20_000, "ASYNC_FLUSH"),
            by_client("rocketmq-5.5", 16, 20_000, "ASYNC_FLUSH"),
        ),
        Row("pair_lag20k", "p99 until a slave confirmed, at 20,000 messages/s", "", lagging, None, "ms"),
    ]


def caught_up(bench: Bench) -> float:
    name = "replica-master"
    if not (bench.directory / name).exists():
        bench.run("replica", "fill", name, mib=max(64, int(MIB * bench.scale)))
    result = bench.run("replica", "catch_up", name)
    bench.notes["MB/s until dispatched"] = result["dispatchedRate"]
    return rate_of(result)


def confirmed(bench: Bench) -> float:
    return rate_of(bench.run("pair", "sync", "", producers=16, seconds=max(3, int(20 * bench.scale))))


def lagging(bench: Bench) -> float:
    result = bench.run("pair", "lag", "", rate=20_000, seconds=max(3, int(20 * bench.scale)))
    bench.notes["p50 of the lag, ms"] = result["p50"]
    bench.notes["messages/s put"] = result["rate"]
    return float(result["p99"])


def by_client(kind: str, threads: int, count: int, flush: str) -> Measure:
    """Return a measure of sends through a master, each answered OK once its slave has it too."""

    def measured(bench: Bench) -> float:
        with served_pair(bench, kind, flush) as master:
            result = client(master, "sync", bench.count(count), threads)
            bench.notes[f"{kind}, p50 in ms"], bench.notes[f"{kind}, p99 in ms"] = result["p50Ms"], result["p99Ms"]
            return float(result["perSecond"])

    return measured


@contextlib.contextmanager
def served_pair(bench: Bench, kind: str, flush: str) -> Iterator[Endpoint]:
    """Run a master on an empty store whose slave has confirmed a message, each in a process."""
    scratch, ports = Path(tempfile.mkdtemp(prefix="pair-", dir=bench.directory)), Ports.free()
    role = {**PAIR, "flushDiskType": flush, "haListenPort": str(ports.replication)}
    master = start(kind, scratch / "store", ports, **SETTINGS, **role)
    try:
        create_topic(master.broker, "bench")
        with slave_of(master, scratch / "slave"), Wire(master.broker) as wire:
            deadline = time.monotonic() + ATTACHED_S
            while wire.put("bench", b"attached?").code:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no slave confirmed a message of {kind} in {ATTACHED_S:.0f} s")
                time.sleep(0.1)
            yield master
    finally:
        master.stop()
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def slave_of(master: Endpoint, path: Path) -> Iterator[None]:
    """Run a slave of the master's kind."""
    address = f"127.0.0.1:{master.ports.replication}"
    if master.kind == "mqlake":
        command = [sys.executable, "-m", "mqlake", "attach", address, str(path)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)
        return
    settings = {**SETTINGS, "namesrvAddr": master.name_server, "haMasterAddress": address}
    with RocketMQSlave(master.kind.removeprefix("rocketmq-"), path, Ports.free(), **settings) as slave:
        slave.until("ready")
        yield
