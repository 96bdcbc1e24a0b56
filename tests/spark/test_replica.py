"""Spark on the replica of a running RocketMQ: it counts what has arrived, and in the end all of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from mqlake.replication.metadata import ask_facts
from mqlake.spark import pipeline, union
from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.test_replication import running_master, send

pytestmark = [*WITH_ROCKETMQ, pytest.mark.long]
COUNT = 20_000
WAIT_S = 120.0


def test_source_and_pipeline_on_a_live_replica_count_every_message(spark: SparkSession, tmp_path: Path) -> None:
    replica, lake = tmp_path / "replica", tmp_path / "lake"
    with running_master("rocketmq-5.5", tmp_path / "master") as endpoint:
        send(endpoint, 100, seed=0)
        command = [sys.executable, "-m", "mqlake", "attach", f"127.0.0.1:{endpoint.ports.replication}", str(replica)]
        command += ["--remoting", endpoint.broker, "--from", "first", "--interval", "0.2"]
        attached = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert attached.stdout is not None
            until_line(attached, "following")
            sender = threading.Thread(target=send, args=(endpoint, COUNT, 1))
            sender.start()
            counts = [messages(spark, replica)]
            while sender.is_alive():
                pipeline(spark, str(replica), str(lake), once=True)
                counts.append(messages(spark, replica))
            assert counts == sorted(counts)
            assert 100 <= counts[0] <= counts[-1] <= COUNT + 100
            until_line(attached, f"end {ask_facts(endpoint.broker).end_offset:,}")
            pipeline(spark, str(replica), str(lake), once=True)
            assert messages(spark, replica) == COUNT + 100
            assert union(spark, str(replica), str(lake)).filter("topic = 'orders'").count() == COUNT + 100
            attached.send_signal(signal.SIGTERM)
            attached.communicate(timeout=WAIT_S)
            assert attached.returncode == 0
        finally:
            attached.kill()
            attached.wait()


def messages(spark: SparkSession, path: Path) -> int:
    return spark.read.format("mqlake").option("topics", "orders").load(str(path)).count()


def until_line(process: subprocess.Popen[str], wanted: str) -> None:
    """Read what a program prints until a line has the wanted text."""
    assert process.stdout is not None
    deadline = time.monotonic() + WAIT_S
    while wanted not in (line := process.stdout.readline()):
        assert line, f"it ended before it printed {wanted!r}"
        assert time.monotonic() < deadline, f"no line with {wanted!r}"
