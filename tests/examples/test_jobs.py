"""The example of a web service with worker processes does what its README says."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mqlake.broker.in_thread import BrokerThread
from mqlake.client import AsyncProducer
from tests.helpers import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def database(mq_broker: BrokerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's modules, with a database and a broker of the test's own."""
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.sqlite"))
    monkeypatch.setenv("SHOP_NAME_SERVER", mq_broker.name_server)
    monkeypatch.setenv("SHOP_RETRY_LEVEL", "1")
    monkeypatch.setenv("SHOP_TRIES", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    found = importlib.import_module("examples.jobs.database")
    monkeypatch.setattr(found, "PATH", str(tmp_path / "shop.sqlite"))
    return found


@pytest.fixture
def workers(database: ModuleType) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "examples.jobs.worker"]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    yield started
    for worker in started:
        worker.kill()
        worker.wait()


def handles_sigterm(pid: int) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def stop(workers: list[subprocess.Popen[str]]) -> str:
    """Stop the workers as a service manager does; return what they logged."""
    for worker in workers:
        assert eventually(lambda: handles_sigterm(worker.pid), 30)  # noqa: B023  # on a busy machine it may just begin
        worker.send_signal(signal.SIGTERM)
    said = ""
    for worker in workers:
        said += worker.communicate(timeout=20)[1]
        assert worker.returncode == 0, said
    return said


def test_two_worker_processes_bill_every_order_once_and_bury_the_bad_one(
    database: ModuleType, workers: list[subprocess.Popen[str]], mq_broker: BrokerThread
) -> None:
    from examples.jobs.outbox import send_outbox

    good = [database.place_order("tea", 12) for _ in range(20)]
    bad = database.place_order("gold", -1)

    async def send() -> None:
        async with AsyncProducer(mq_broker.name_server, "shop") as producer:
            assert await send_outbox(producer) == 21
            assert await send_outbox(producer) == 0

    asyncio.run(send())
    store = mq_broker.store
    assert eventually(lambda: "%DLQ%billing" in store.topics(), 30)
    assert eventually(lambda: all(database.find_order(number)["state"] == "billed" for number in good), 20)
    assert [dead.keys for dead in store.read("%DLQ%billing", wait_s=5)] == [[str(bad)]]
    said = stop(workers)
    assert sorted(map(int, re.findall(r"billed order (\d+)", said))) == good
    assert said.count("try 1") == said.count("try 2") == 1


def test_the_web_service_answers_at_once_and_its_jobs_are_done_later(
    database: ModuleType, workers: list[subprocess.Popen[str]], mq_broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    testclient: Any = importlib.import_module("fastapi.testclient")
    app = importlib.import_module("examples.jobs.app")
    monkeypatch.setattr(app, "NAME_SERVER", mq_broker.name_server)
    with testclient.TestClient(app.app) as client:
        answer = client.post("/orders", json={"item": "tea", "amount": 12})
        assert answer.status_code == 202
        number = answer.json()["id"]
        assert client.get(f"/orders/{number}").json()["item"] == "tea"
        assert eventually(lambda: client.get(f"/orders/{number}").json()["state"] == "billed", 30)
        assert client.get("/orders/999").status_code == 404
        assert client.post(f"/orders/{number}/remind", json={"delay_s": 0.5}).status_code == 202
        assert eventually(lambda: client.get(f"/orders/{number}").json()["reminders"] == 1, 20)
        assert client.get("/dead").json() == []
        client.post("/orders", json={"item": "gold", "amount": -1})
        assert eventually(lambda: len(client.get("/dead").json()) == 1, 30)
        assert client.get("/dead").json()[0]["keys"] == [str(number + 1)]
    stop(workers)
