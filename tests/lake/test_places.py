"""A lake or a store at an unknown kind of storage is refused before anything is written.

Taken as the name of a local folder, such a path became an archive that nobody looks for. The gate moved, and retention
deleted log files whose only copy was there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from click.testing import CliRunner
from pyspark.sql.types import StructType

from mqlake import Message, MessageStore
from mqlake.cli.main import mqlake
from mqlake.errors import InvalidConfig
from mqlake.inspect.repair import repair
from mqlake.lake import Lake
from mqlake.lake.convert import convert
from mqlake.spark.jobs.archive import archive
from mqlake.spark.jobs.compact import compact
from mqlake.spark.jobs.pipeline import pipeline
from mqlake.spark.jobs.rebuild import rebuild
from mqlake.spark.jobs.replay import replay
from mqlake.spark.jobs.union import union
from mqlake.spark.options import parse_options
from mqlake.spark.plan import plan
from mqlake.spark.sink_options import plan_write
from mqlake.store.gates import Gates
from tests.lake.jobs import NO_SPARK, here, rows_in, run_here
from tests.spark.tables import write_store

pytestmark = pytest.mark.usefixtures("here")
__all__ = ["here"]

OF_LAKES: dict[str, Callable[[str, str], Any]] = {
    "open": lambda store, bad: Lake.open(bad, create=True),
    "archive": lambda store, bad: archive(NO_SPARK, store, bad),
    "pipeline": lambda store, bad: pipeline(NO_SPARK, store, bad, once=True),
    "compact": lambda store, bad: compact(NO_SPARK, bad),
    "union": lambda store, bad: union(NO_SPARK, store, bad),
    "replay": lambda store, bad: replay(NO_SPARK, bad, "/nowhere/at/all"),
    "convert": lambda store, bad: convert(store, bad),
    "the source's option": lambda store, bad: parse_options({"path": store, "lake": bad}),
}
OF_STORES: dict[str, Callable[[str, str], Any]] = {
    "archive": lambda lake, bad: archive(NO_SPARK, bad, lake),
    "pipeline": lambda lake, bad: pipeline(NO_SPARK, bad, lake, once=True),
    "the source": lambda lake, bad: plan(parse_options({"path": bad})),
    "the sink": lambda lake, bad: plan_write(
        {"path": bad, "topic": "t"}, StructType().add("body", "binary"), overwrite=False, stream=False
    ),
    "replay": lambda lake, bad: replay(NO_SPARK, lake, bad),
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "store", 20)
    return tmp_path / "store"


@pytest.mark.parametrize("bad", ["hdfs://host/lake", "s3:/bucket/lake", "ftp://host/lake"])
@pytest.mark.parametrize("what", OF_LAKES)
def test_a_lake_at_an_unknown_kind_of_storage_is_refused_before_anything_is_written(
    store: Path, what: str, bad: str
) -> None:
    with pytest.raises(InvalidConfig):
        OF_LAKES[what](str(store), bad)
    assert [path.name for path in store.parent.iterdir()] == ["store"], "no local folder named after the scheme"
    assert Gates(store / "mqlake" / "gates").offsets() == {}, "retention holds no gate for a lake that is not there"


@pytest.mark.parametrize("bad", ["s3a://bucket/store", "hdfs://host/store", "s3://bucket/store"])
@pytest.mark.parametrize("what", OF_STORES)
def test_a_store_or_sink_outside_a_file_system_is_refused_before_anything_is_written(
    store: Path, what: str, bad: str
) -> None:
    if what == "replay":
        archive(NO_SPARK, str(store), str(store.parent / "lake"))
    before = sorted(path.name for path in store.parent.iterdir())
    with pytest.raises(InvalidConfig, match="a folder of a file system"):
        OF_STORES[what](str(store.parent / "lake"), bad)
    assert sorted(path.name for path in store.parent.iterdir()) == before


def test_a_file_address_is_the_folder_it_names(store: Path) -> None:
    archive(NO_SPARK, f"file://{store}", f"file://{store.parent}/lake")
    assert len(rows_in(store.parent / "lake")) == 20
    assert sorted(path.name for path in store.parent.iterdir()) == ["lake", "store"]


def test_a_tilde_is_the_home_folder_in_a_program_too(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("mqlake.spark.jobs.answers.run_tasks", run_here)
    with MessageStore.open("~/store") as opened:
        opened.put(Message("orders", b"1"))
        opened.backup("~/backup")
    archive(NO_SPARK, "~/store", "~/lake")
    assert len(rows_in(home / "lake")) == 1
    rebuild(NO_SPARK, "~/store", "~/built")
    repair("~/store", to="~/repaired")
    assert sorted(path.name for path in home.iterdir()) == ["backup", "built", "lake", "repaired", "store"]
    Lake.open("./~", create=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "store", "~"], "a name with ./ is literal"


def test_the_command_line_says_it_in_one_line(store: Path) -> None:
    result = CliRunner().invoke(mqlake, ["lake", "info", "hdfs://host/lake"])
    assert result.exit_code == 3 and "hdfs://host/lake" in result.stderr and len(result.stderr.splitlines()) == 1
