"""What holds for all commands: help, version, exit codes, interrupts, pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import mqlake
from mqlake import Message
from mqlake.cli.main import COMMANDS
from mqlake.cli.main import mqlake as root
from mqlake.kernel import KERNEL
from tests.cli.conftest import Cli
from tests.plain_locks import plain_locks

NAMES = [name for section in COMMANDS.values() for name in section]
STORE_COMMANDS = {
    "read": ["orders"],
    "tail": ["orders"],
    "get": ["0"],
    "find": ["orders", "k"],
    "scan": [],
    "dump": [],
    "topics": [],
    "info": [],
}


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_listed_and_explains_itself(cli: Cli, name: str) -> None:
    assert name in cli.ok("--help")
    assert "Usage: mqlake" in cli.ok(name, "--help")


def test_help_names_the_exit_codes(cli: Cli) -> None:
    shown = cli.ok("--help")
    for code in ("0  success", "1  nothing was found", "2  the command line", "3  a store", "130  interrupted"):
        assert code in shown


def test_version_names_the_kernel_in_use(cli: Cli) -> None:
    assert f"mqlake {mqlake.__version__} ({KERNEL} kernel" in cli.ok("--version")


def test_an_unknown_command_is_a_wrong_command_line(cli: Cli) -> None:
    assert cli.run("nix").exit_code == 2


@pytest.mark.parametrize("name", ["bench", "delay", "dlq", "group", "lake", "pipeline", "topic"])
def test_the_commands_of_a_command_are_summed_up_in_whole_sentences(cli: Cli, name: str) -> None:
    listed = cli.ok(name, "--help").split("Commands:\n")[1]
    assert "..." not in listed
    assert listed.rstrip().endswith(".")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_standard_stream_neither_ends_a_command_nor_takes_its_files(cli: Cli, closed: str) -> None:
    """Otherwise the log gets the number of standard output, and what is printed is written over it."""
    command = '"$0" -m mqlake put "$1" orders x --config "$2" '
    done = subprocess.run(
        ["sh", "-c", command + closed, sys.executable, cli.store, cli.config], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert cli.run("check", cli.store).exit_code == 0
    assert "x" in cli.ok("read", cli.store, "orders")


def test_help_loads_neither_rich_nor_pyarrow_and_the_package_not_even_click() -> None:
    loaded = "import sys; print([name for name in ('click', 'rich', 'pyarrow') if name in sys.modules])"
    package = subprocess.run([sys.executable, "-c", f"import mqlake; {loaded}"], capture_output=True, text=True)
    assert package.stdout.strip() == "[]"
    command = subprocess.run(
        [sys.executable, "-c", f"import mqlake.cli.main; {loaded}"], capture_output=True, text=True
    )
    assert command.stdout.strip() == "['click']"


@pytest.mark.parametrize(("name", "arguments"), STORE_COMMANDS.items())
def test_a_store_error_prints_one_line_with_its_name_and_exits_with_3(
    cli: Cli, name: str, arguments: list[str]
) -> None:
    process = cli.process(name, cli.store, *arguments)
    shown, errors = process.communicate(timeout=20)
    assert (process.returncode, shown) == (3, "")
    assert errors.startswith("mqlake: NotAStore: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(("name", "arguments"), STORE_COMMANDS.items())
def test_reading_commands_write_nothing(orders: Cli, name: str, arguments: list[str]) -> None:
    before = {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in orders.store.rglob("*")}
    orders.run(name, orders.store, *arguments)
    assert {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in orders.store.rglob("*")} == before


def test_every_command_on_a_store_takes_a_configuration() -> None:
    context = click.Context(root)
    for name in (*STORE_COMMANDS, "put", "load"):
        command = root.get_command(context, name)
        assert command is not None
        assert "--config" in [option for parameter in command.params for option in parameter.opts]


def test_a_configuration_that_cannot_be_used_is_a_store_error(orders: Cli) -> None:
    orders.config.write_text("mappedFileSizeComitLog=1\n")
    result = orders.run("info", orders.store, "--config", orders.config)
    assert result.exit_code == 3
    assert "InvalidConfig: mappedFileSizeComitLog" in result.stderr
    missing = orders.run("info", orders.store, "--config", orders.folder / "nix.conf")
    assert (missing.exit_code, "nix.conf" in missing.stderr) == (3, True)


def test_a_second_writer_gets_an_error_that_names_the_first(orders: Cli) -> None:
    with orders.open():
        process = orders.process("put", orders.store, "orders", "x")
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "StoreLocked" in errors


def test_an_interrupt_while_the_command_line_is_read_exits_quietly(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mqlake.cli.main.Commands.parse_args", interrupt)
    result = cli.run("topics", cli.store)
    assert (result.exit_code, result.output) == (130, "")


def test_an_interrupt_exits_with_130_and_closes_the_store_cleanly(cli: Cli) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mqlake", "put", str(cli.store), "orders", "--config", str(cli.config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain_locks(),
    )
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    stored = _wait_for(cli, process, 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, b"")
    assert not (cli.store / "abort").exists()
    assert stored == ["one", "two"]


def _wait_for(cli: Cli, process: subprocess.Popen[bytes], count: int) -> list[str]:
    """Wait until the store has `count` messages and return them."""
    for _ in range(400):
        result = cli.run("tail", cli.store, "orders")
        lines = result.stdout.splitlines()
        if result.exit_code == 0 and len(lines) == count:
            return [line.split("  ")[-1] for line in lines]
        assert process.poll() is None
        time.sleep(0.02)
    raise AssertionError("the messages did not come")


def test_a_broken_pipe_ends_quietly(cli: Cli) -> None:
    cli.put(*(Message("orders", bytes(2000)) for _ in range(300)))
    for arguments in (
        ["dump", cli.store],
        ["scan", cli.store, "--json"],
        ["tail", cli.store, "orders", "--lines", 300],
    ):
        process = cli.process(*arguments)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert (process.wait(timeout=20), process.stderr.read()) == (141, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(cli: Cli, shell: str) -> None:
    assert "_MQLAKE_COMPLETE" in cli.ok("completion", shell)


def test_completion_offers_the_commands_with_that_prefix() -> None:
    asked = {"_MQLAKE_COMPLETE": "bash_complete", "COMP_WORDS": "mqlake t", "COMP_CWORD": "1"}
    answer = subprocess.run([sys.executable, "-m", "mqlake"], env=asked, capture_output=True, text=True)
    assert answer.stdout.split() == [
        "plain,tail",
        "plain,trace",
        "plain,topics",
        "plain,top",
        "plain,topic",
        "plain,times",
        "plain,torture",
    ]


def test_tables_fit_a_terminal_of_100_columns(orders: Cli) -> None:
    orders.put(Message("orders", b"long " * 200, tags="tag", keys=["key"]))
    for command in (["read", "orders"], ["scan"], ["topics"], ["info"], ["get", "0"], ["find", "orders", "all"]):
        runner = CliRunner(env={"COLUMNS": "100", "TTY_COMPATIBLE": "1", "NO_COLOR": "1", "TERM": "dumb"})
        result = runner.invoke(root, [command[0], str(orders.store), *command[1:]])
        assert max(map(len, result.stdout.splitlines())) <= 100


def test_help_and_version_end_with_141_if_their_reader_has_left() -> None:
    for option in ("--help", "--version"):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "mqlake", option]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, "")


def test_a_page_for_a_folder_that_is_missing_is_refused_before_it_is_counted(orders: Cli) -> None:
    result = orders.run("report", orders.store, "--out", orders.folder / "nodir" / "x.html")
    assert result.exit_code == 2 and "there is no folder" in result.stderr


def test_a_group_without_dead_letters_is_told_so(orders: Cli) -> None:
    assert orders.ok("dlq", "show", orders.store, "workers") == "group workers has no dead letters\n"
    assert orders.ok("dlq", "show", orders.store, "workers", "--json") == ""


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_that_cannot_be_written_end_with_3_and_one_line(option: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "mqlake", option]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.splitlines() == ["mqlake: OSError: [Errno 28] No space left on device"]
