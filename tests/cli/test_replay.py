"""`mqlake replay`, without a JVM: the jobs run in this process."""

from __future__ import annotations

import contextlib
import importlib

import pytest

pytest.importorskip("pyspark")

from mqlake import MessageStore
from tests.cli.conftest import Cli
from tests.helpers import message
from tests.lake.jobs import here, run_here

pytestmark = pytest.mark.usefixtures("here")
__all__ = ["here"]


@pytest.fixture
def archived(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in ("archive", "replay"):
        module = importlib.import_module(f"mqlake.cli.{name}")
        monkeypatch.setattr(module, "spark_session", lambda master: contextlib.nullcontext())
    monkeypatch.setattr(importlib.import_module("mqlake.spark.jobs.replay"), "run_tasks", run_here)
    cli.put(*(message(number, ("orders", "payments")[number % 2]) for number in range(100)))
    cli.ok("archive", cli.store, "--lake", cli.folder / "lake")
    (cli.folder / "small.conf").write_text("mappedFileSizeCommitLog=65536\nmaxHashSlotNum=100\nmaxIndexNum=400\n")
    return cli


def test_replay_makes_a_store_and_says_what_is_in_it(archived: Cli) -> None:
    lake, config = archived.folder / "lake", ("--config", archived.folder / "small.conf")
    assert "100 messages" in archived.ok("replay", lake, archived.folder / "all", *config)
    (done,) = archived.json("replay", lake, archived.folder / "some", "--topic", "orders", *config)
    assert (done["rows"], done["path"]) == (50, str(archived.folder / "some"))
    with MessageStore.open(archived.folder / "some") as store:
        assert store.topics() == ["orders"]
        assert [found.body for found in store.find("orders", "key-42")] == [b"body 42"]


def test_replay_into_an_existing_store_is_a_one_line_error(archived: Cli) -> None:
    done = archived.run("replay", archived.folder / "lake", archived.store)
    assert done.exit_code == 3
    assert "a replay makes a new store" in done.stderr and len(done.stderr.splitlines()) == 1
