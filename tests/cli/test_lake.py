"""`mqlake archive`, `compact` and `lake`, without a JVM: the jobs run in this process."""

from __future__ import annotations

import contextlib
import importlib

import pytest

pytest.importorskip("pyspark")

from mqlake.lake import Lake
from tests.cli.conftest import Cli
from tests.helpers import message
from tests.lake.jobs import here

pytestmark = pytest.mark.usefixtures("here")
__all__ = ["here"]


@pytest.fixture
def archived(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in ("archive", "compact"):
        module = importlib.import_module(f"mqlake.cli.{name}")
        monkeypatch.setattr(module, "spark_session", lambda master: contextlib.nullcontext())
    cli.put(*(message(number) for number in range(100)))
    cli.ok("archive", cli.store, "--lake", cli.folder / "lake")
    return cli


def test_archive_reports_what_it_did_and_lake_info_shows_what_exists(archived: Cli) -> None:
    archived.put(*(message(number) for number in range(20)))
    (done,) = archived.json("archive", archived.store, "--lake", archived.folder / "lake")
    assert done["rows"] == 20 and done["end"] > done["start"] > 0
    (told,) = archived.json("lake", "info", archived.folder / "lake")
    (state,) = told["stores"]
    assert (state["rows"], state["start"], state["end"], state["gaps"]) == (120, 0, done["end"], [])
    assert "120" in archived.ok("lake", "info", archived.folder / "lake")
    assert archived.ok("lake", "check", archived.folder / "lake") == "all promises hold\n"


def test_compact_merges_and_keeps_the_old_files_for_the_grace_time(archived: Cli) -> None:
    archived.put(*(message(number) for number in range(20)))
    archived.ok("archive", archived.store, "--lake", archived.folder / "lake")
    assert "4 files" in archived.ok("compact", archived.folder / "lake")
    (done,) = archived.json("compact", archived.folder / "lake", "--grace", "0s")
    assert (done["files_before"], done["deleted"]) == (0, 4)
    assert archived.ok("lake", "check", archived.folder / "lake") == "all promises hold\n"


def test_lake_find_prints_the_message_with_a_key_or_nothing(archived: Cli) -> None:
    assert '"queue_id"' in archived.ok("lake", "find", archived.folder / "lake", "orders", "key-17")
    assert archived.run("lake", "find", archived.folder / "lake", "orders", "nothing").exit_code == 1


def test_lake_check_exits_with_1_if_a_file_is_missing(archived: Cli) -> None:
    lake = archived.folder / "lake"
    (lake / Lake.open(lake).snapshot().files("messages")[0].path).unlink()
    result = archived.run("lake", "check", lake)
    assert result.exit_code == 1 and "in no row" in result.stdout


def test_errors_are_one_line_and_a_released_store_is_reported(archived: Cli) -> None:
    other = Cli(archived.folder / "lake")
    assert "NotALake" in archived.run("lake", "info", archived.store).stderr
    assert "NotAStore" in archived.run("archive", other.folder, "--lake", archived.folder / "lake").stderr
    assert archived.ok("lake", "release", archived.store).startswith("released: lake-")
    assert "no lake holds" in archived.ok("lake", "release", archived.store)


def test_release_refuses_what_is_no_store(cli: Cli) -> None:
    (cli.folder / "empty").mkdir()
    for place in (cli.folder / "empty", cli.config):
        result = cli.run("lake", "release", place)
        assert result.exit_code == 3 and "NotAStore" in result.stderr
