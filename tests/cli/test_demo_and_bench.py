"""`mqlake demo` and `mqlake bench`."""

from __future__ import annotations

import signal
import tempfile
import time

import pytest

from tests.cli.conftest import Cli
from tests.helpers import eventually


def test_demo_shows_what_it_wrote_and_leaves_nothing_behind(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(cli.folder))
    shown = cli.ok("demo", "--messages", 1000, "--no-report")
    for expected in ("orders", "commitlog", "put_many", "find by key", "find by time"):
        assert expected in shown
    assert [path.name for path in cli.folder.iterdir()] == ["broker.conf"]


def test_demo_keeps_its_store_in_the_given_folder(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(cli.folder))
    named = cli.folder / "named"
    cli.ok("demo", "--messages", 10, "--dir", named, "--no-report")
    assert sum(line["messageCount"] for line in cli.json("topics", named)) == 10
    shown = cli.ok("demo", "--messages", 10, "--keep", "--no-report")
    (kept,) = cli.folder.glob("mqlake-demo-*")
    assert str(kept) in shown


def test_demo_does_not_touch_a_folder_that_is_not_empty(cli: Cli) -> None:
    (cli.folder / "mine").mkdir()
    (cli.folder / "mine" / "file").write_text("mine")
    result = cli.run("demo", "--dir", cli.folder / "mine")
    assert result.exit_code == 2
    assert "not empty; expected a new folder" in result.stderr


def test_demo_works_without_java_and_says_what_is_left_out(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in its own process: in this one, Spark may be running already."""
    monkeypatch.setenv("TMPDIR", str(cli.folder))
    monkeypatch.setenv("JAVA_HOME", str(cli.folder / "nowhere"))
    process = cli.process("demo", "--messages", 10, "--report", cli.folder / "page.html")
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "No pipeline and no report page: Spark needs Java 17" in shown
    assert [path.name for path in cli.folder.iterdir()] == ["broker.conf"]


@pytest.mark.parametrize("options", [[], ["--sync", "--threads", "2"]])
def test_bench_store_measures_every_operation(cli: Cli, options: list[str]) -> None:
    results = cli.json("bench", "store", "--seconds", 0.05, "--body", "1k", "--dir", cli.folder, *options)
    assert [result["operation"].split()[0] for result in results] == ["put", "put_many", "read", "find", "seek_time"]
    assert all(result["messagesPerSecond"] > 0 for result in results)
    assert [path.name for path in cli.folder.iterdir()] == ["broker.conf"]


def test_bench_store_shows_a_table_with_the_machine(cli: Cli) -> None:
    shown = cli.ok("bench", "store", "--seconds", 0.05, "--dir", cli.folder)
    assert "kernel)" in shown
    assert "messages/s" in shown


@pytest.mark.parametrize("pauses_s", [(), (0.0, 0.02, 0.05, 0.1)])
def test_an_interrupted_bench_ends_quietly_and_leaves_nothing_behind(cli: Cli, pauses_s: tuple[float, ...]) -> None:
    """Also if people press Ctrl-C more than once."""
    process = cli.process("bench", "store", "--seconds", 30, "--threads", 2, "--dir", cli.folder)
    assert eventually(lambda: any(cli.folder.glob("mqlake-bench-*/store/consumequeue/bench")))
    time.sleep(0.5)  # it has warmed up, and the threads put
    process.send_signal(signal.SIGINT)
    for pause_s in pauses_s:
        time.sleep(pause_s)
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "")
    assert [path.name for path in cli.folder.iterdir()] == ["broker.conf"]


@pytest.mark.parametrize("name", ["store", "disk"])
def test_bench_refuses_a_folder_in_which_no_file_can_be_made(cli: Cli, name: str) -> None:
    result = cli.run("bench", name, "--dir", "/proc")
    assert result.exit_code == 2 and "no file can be made in '/proc'" in result.stderr
