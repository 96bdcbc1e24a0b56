"""Shared by tests of the command line: a folder with a configuration of small files, and ways to run commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mqlake import Message, MessageStore, StoreConfig
from mqlake.cli.main import mqlake
from tests.plain_locks import plain_locks

SMALL_FILES = """\
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=20000
maxHashSlotNum=1000
maxIndexNum=4000
"""


class Cli:
    """The command line on one store, `store`, in the test's own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.config = folder / "broker.conf"
        self.config.write_text(SMALL_FILES)
        self._processes: list[subprocess.Popen[str]] = []

    def run(self, *arguments: object, input: str | bytes | None = None, width: int = 200) -> Result:
        """Run a command in this process; the result has its exit code and output."""
        runner = CliRunner(env={"COLUMNS": str(width)})
        return runner.invoke(mqlake, [str(argument) for argument in arguments], input=input, prog_name="mqlake")

    def ok(self, *arguments: object, input: str | bytes | None = None) -> str:
        """Run a command that must succeed and return its output."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: object, input: str | bytes | None = None) -> list[dict[str, Any]]:
        """Run a command with --json and return the objects that it wrote."""
        return [json.loads(line) for line in self.ok(*arguments, "--json", input=input).splitlines()]

    def process(self, *arguments: object, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start a command in its own process, which may be interrupted."""
        process = subprocess.Popen(
            [sys.executable, "-m", "mqlake", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**plain_locks(), "PYTHONUNBUFFERED": ""},
        )
        self._processes.append(process)
        return process

    def open(self) -> MessageStore:
        """Open the store itself, to write it while commands read it."""
        return MessageStore.open(self.store, config=StoreConfig.load(self.config))

    def put(self, *messages: Message) -> None:
        with self.open() as store:
            for message in messages:
                store.put(message)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    made.close()


@pytest.fixture
def orders(cli: Cli) -> Cli:
    """A store with six orders in two queues, and one click."""
    for number in range(6):
        tag = "created" if number % 2 == 0 else "paid"
        cli.put(Message("orders", b"order %d" % number, tags=tag, keys=[f"o{number}", "all"], queue_id=number % 2))
    cli.put(Message("clicks", b"\xff\xfe\x00", queue_id=0))
    return cli
