"""A stream over a pattern reads the store of a real RocketMQ that starts under it, from its first record."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.rocketmq import RocketMQ
from tests.interop.rocketmq_broker import run_broker
from tests.interop.test_shared_stores import SETTINGS, plain_lines
from tests.spark.streams import Engine
from tests.spark.tables import offsets_of, write_store

pytestmark = WITH_ROCKETMQ
WAIT_S = 60.0


class Running(threading.Thread):
    """Run RocketMQ in the background, and keep its error."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        self._start_it = start
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._start_it()
        except BaseException as error:
            self.error = error


def read_while(engine: Engine, path: Path, running: Running, known: int = 0) -> tuple[list[int], int]:
    """Return what a query finds that looks all the time while RocketMQ runs, and after it, and how much came before."""
    running.start()
    found: list[int] = []
    early, deadline = 0, time.monotonic() + WAIT_S
    while running.is_alive() or (time.monotonic() < deadline and known + len(found) < len(records(path))):
        rows = engine.all()
        assert {row["store"] for row in rows} <= {str(path)}
        found += [row["physical_offset"] for row in rows]
        if running.is_alive():
            early, deadline = len(found), time.monotonic() + WAIT_S
        time.sleep(0.002)
    assert running.error is None
    return found, early


def records(path: Path) -> list[int]:
    return offsets_of(path, includeInternal="true", via="scan")


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    write_store(tmp_path / "data" / "a", 10)
    engine = Engine(tmp_path / "data" / "*", includeInternal="true")
    assert len(engine.all()) == 10
    return engine


@pytest.mark.parametrize("version", ["5.5.1", pytest.param("4.9.8", marks=pytest.mark.long)])
def test_a_store_that_rocketmq_creates_with_small_files_is_read(version: str, tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "data" / "b"
    found, _ = read_while(
        engine, path, Running(lambda: RocketMQ(version).write(path, SETTINGS, plain_lines(1, 400), halt=True))
    )
    assert found == records(path) and len(found) == 400
    again = Running(lambda: RocketMQ(version).write(path, SETTINGS, plain_lines(2, 100)))
    found, _ = read_while(engine, path, again, known=400)
    assert found == records(path)[400:] and len(found) == 100


def test_the_store_of_a_broker_that_starts_is_read_while_it_runs(tmp_path: Path, engine: Engine) -> None:
    """The broker waits for a delayed message, so it runs for some seconds after its first put."""
    path = tmp_path / "data" / "b"
    puts = [
        {"put": {"topic": "orders", "queueId": 0, "body": f"{number}", "properties": {"n": "1"}}}
        for number in range(50)
    ]
    late = {"put": {"topic": "orders", "queueId": 0, "body": "late", "properties": {"DELAY": "2"}}}
    commands = [*puts, late, {"until": {"topic": "orders", "count": 51}}]
    found, early = read_while(engine, path, Running(lambda: run_broker(path, commands)))
    assert found == records(path) and len(found) >= 52
    assert early >= 50, "the running query read them while the broker ran"
