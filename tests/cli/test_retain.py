"""`mqlake retain`, and what `mqlake info` shows about retention."""

from __future__ import annotations

import os

import pytest

from mqlake import Message
from mqlake.store.gates import Gates
from tests.cli.conftest import Cli
from tests.helpers import covers

MIB = 1 << 20


@pytest.fixture
def full(cli: Cli) -> Cli:
    """A store of five log files of one mebibyte each."""
    with cli.open() as store:
        while store.end_offset < 4 * MIB + 1000:
            store.put(Message("orders", bytes(60_000), queue_id=0))
    return cli


@covers("O3")
def test_retain_deletes_what_every_condition_allows(full: Cli) -> None:
    assert full.json("retain", full.store, "--yes")[0]["fileCount"] == 0  # nothing is 72 h old
    (planned,) = full.json("retain", full.store, "--keep-bytes", "2m", "--before-offset", 4 * MIB, "--dry-run")
    assert planned == {
        "dryRun": True,
        "fileCount": 2,
        "sizeBytes": 2 * MIB,
        "firstOffset": 2 * MIB,
        "heldBy": [],
    }
    (done,) = full.json("retain", full.store, "--keep-bytes", "2m", "--before-offset", 4 * MIB, "--yes")
    assert done == {**planned, "dryRun": False}
    shown = full.ok("retain", full.store, "--older-than", "0s", "--yes")
    assert shown == f"2 files, 2.0 MiB, deleted; the log begins at {4 * MIB}\n"
    (info,) = full.json("info", full.store)
    assert (info["deletedFileCount"], info["deletedBytes"], info["firstOffset"]) == (4, 4 * MIB, 4 * MIB)
    assert info["logFileCount"] == 1


def test_retain_asks_first(full: Cli) -> None:
    refused = full.run("retain", full.store, "--keep-bytes", "1m", input="n\n")
    assert refused.exit_code == 1
    assert "Delete 3 files, 3.0 MiB, from" in refused.stderr
    assert full.json("info", full.store)[0]["deletedFileCount"] == 0
    assert full.run("retain", full.store, "--keep-bytes", "1m", input="y\n").exit_code == 0
    assert full.json("info", full.store)[0]["deletedFileCount"] == 3


def test_a_store_with_a_live_writer_is_not_cleaned_by_another_process(full: Cli) -> None:
    with full.open() as store:
        dry = full.process("retain", full.store, "--keep-bytes", "1m", "--dry-run")
        assert "3 files" in dry.communicate(timeout=20)[0]
        process = full.process("retain", full.store, "--keep-bytes", "1m", "--yes")
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 3
        assert errors.startswith(
            f"mqlake: StoreLocked: {full.store}: process {os.getpid()} writes this store, and only it"
        )
        assert errors.count("\n") == 1
        assert store.first_offset == 0


def test_gates_are_named_if_they_hold_something_back(full: Cli) -> None:
    Gates(full.store / "mqlake" / "gates").hold("archive", MIB + 1)
    shown = full.ok("retain", full.store, "--older-than", "0s", "--yes")
    assert shown.endswith(f"the log begins at {MIB}\ngates hold more: archive\n")
    (info,) = full.json("info", full.store)
    assert info["gates"] == {"archive": {"offset": MIB + 1, "heldBytes": 3 * MIB, "lostBytes": 0}}
    assert 0 < info["diskUsedPercent"] <= 100
    assert info["nextCleaning"] is None
    text = full.ok("info", full.store)
    assert "archive: needs the log from 1048577 and holds 3.0 MiB of old files" in text
    assert "no process deletes old files now" in text


@pytest.mark.parametrize(
    "arguments", [["--older-than", "72"], ["--keep-bytes", "0"], ["--before-offset", "-1"], ["--older-than", "x"]]
)
def test_an_invalid_condition_is_a_wrong_command_line(full: Cli, arguments: list[str]) -> None:
    assert full.run("retain", full.store, *arguments, "--yes").exit_code == 2
    assert full.json("info", full.store)[0]["deletedFileCount"] == 0
