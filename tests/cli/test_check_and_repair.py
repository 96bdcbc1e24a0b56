"""`mqlake check` and `mqlake repair`: tables, JSON, questions and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import mqlake
from mqlake import MessageStore
from mqlake.cli import show
from tests.cli.conftest import Cli


def fill(cli: Cli, count: int = 200) -> None:
    cli.ok("put", cli.store, "orders", "-", "--config", cli.config, input="".join(f"line {i}\n" for i in range(count)))


def damage_log(cli: Cli) -> None:
    """Flip one bit of the third record's body."""
    file = cli.store / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[data.index(b"line 2")] ^= 1
    file.write_bytes(data)


def damage_queue(cli: Cli) -> None:
    file = cli.store / "consumequeue" / "orders" / "0" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[11] ^= 1
    file.write_bytes(data)


def test_the_exit_code_is_that_of_the_worst_finding(cli: Cli) -> None:
    fill(cli)
    assert cli.run("check", cli.store).exit_code == 0
    (cli.store / "README").touch()
    assert cli.run("check", cli.store).exit_code == 0  # a note
    damage_queue(cli)
    assert cli.run("check", cli.store).exit_code == 1
    damage_log(cli)
    assert cli.run("check", cli.store).exit_code == 2


@pytest.mark.parametrize("command", ["check", "repair"])
def test_a_wrong_command_line_and_a_path_without_a_store_do_not_look_like_a_verdict(command: str, cli: Cli) -> None:
    assert cli.run(command, cli.store, "--nonsense").exit_code == 64
    assert cli.run(command).exit_code == 64
    result = cli.run(command, cli.store)
    assert result.exit_code == 3 and "NotAStore" in result.stderr
    assert "64" in cli.ok(command, "--help")


def test_the_table_names_file_and_offset_and_the_repair_command(cli: Cli) -> None:
    fill(cli)
    damage_log(cli)
    shown = cli.run("check", cli.store).stdout
    assert "record-crc" in shown and f"commitlog/{0:020d}" in shown
    assert f"mqlake repair {cli.store}" in shown


def test_healing_is_named_first_for_a_lost_record_whose_block_has_no_seal(cli: Cli) -> None:
    """A repair without a copy makes a filler of it."""
    fill(cli)
    shutil.rmtree(cli.store / "mqlake/seals")
    damage_log(cli)
    shown = cli.run("check", cli.store).stdout
    assert f"mqlake repair {cli.store} --from COPY" in shown
    assert f"mqlake repair {cli.store}\n" in shown.partition("--from COPY")[2]


def test_json_has_a_line_for_each_finding_and_the_verdict(cli: Cli) -> None:
    fill(cli)
    damage_log(cli)
    lines = [json.loads(line) for line in cli.run("check", cli.store, "--json").stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["finding", "finding", "verdict"]
    assert [line["what"] for line in lines[:2]] == ["seal-broken", "record-crc"] and lines[1]["severity"] == "error"
    assert lines[1].keys() >= {"file", "offset", "found", "expected", "cost", "remedy"}
    assert lines[2]["holds"] is False


def test_repair_asks_before_it_changes_anything(cli: Cli) -> None:
    fill(cli)
    damage_log(cli)
    result = cli.run("repair", cli.store, input="n\n")
    assert result.exit_code == 4 and "nothing was changed" in result.stdout
    assert not mqlake.check(cli.store).holds
    result = cli.run("repair", cli.store, input="y\n")
    assert result.exit_code == 0, result.output
    assert "plan" in result.stdout and "fill" in result.stdout and "all promises hold" in result.stdout
    assert mqlake.check(cli.store).holds


def test_repair_in_a_script_needs_yes_or_a_copy(cli: Cli, tmp_path: Path) -> None:
    fill(cli)
    damage_log(cli)
    assert cli.run("repair", cli.store, "--json").exit_code == 4
    assert cli.run("repair", cli.store, input="").exit_code == 4, "nobody can answer"
    assert cli.run("repair", cli.store, "--to", tmp_path / "copy", "--json").exit_code == 0
    assert not mqlake.check(cli.store).holds and mqlake.check(tmp_path / "copy").holds
    lines = [json.loads(line) for line in cli.run("repair", cli.store, "--yes", "--json").stdout.splitlines()]
    assert {line["kind"] for line in lines} == {"finding", "action", "repair"}
    assert lines[-1]["done"] and lines[-1]["holds"] and Path(lines[-1]["backup"]).is_dir()


def test_a_live_store_can_be_checked_but_not_repaired(cli: Cli) -> None:
    fill(cli)
    with MessageStore.open(cli.store):
        assert "while it is written" in cli.ok("check", cli.store)
        result = cli.run("repair", cli.store, "--yes")
        assert result.exit_code == 3 and "StoreLocked" in result.stderr


def test_the_verdict_says_in_words_what_was_found(cli: Cli) -> None:
    fill(cli)
    assert "all promises hold in " in cli.run("check", cli.store).stdout
    (cli.store / "README").touch()
    assert "1 note, all promises hold in " in cli.run("check", cli.store).stdout
    damage_queue(cli)
    assert "1 warning, 1 note, no data lost in " in cli.run("check", cli.store).stdout
    damage_log(cli)
    assert "2 errors, 1 warning, 1 note in " in cli.run("check", cli.store).stdout


@pytest.mark.parametrize(
    ("number", "noun", "told"),
    [(0, "error", "0 errors"), (1, "entry", "1 entry"), (1200, "entry", "1,200 entries"), (2, "batch", "2 batches")],
)
def test_numbers_and_their_nouns_agree(number: int, noun: str, told: str) -> None:
    assert show.counted(number, noun) == told


def test_a_store_with_an_unreadable_index_can_be_shown_and_read_and_the_remedy_is_named(cli: Cli) -> None:
    fill(cli)
    cli.ok("put", cli.store, "orders", "one with a key", "--key", "k")
    (cli.store / "mqlake" / "settings.json").unlink()
    (index,) = (cli.store / "index").iterdir()
    with index.open("r+b") as file:
        file.seek(24)
        file.write(bytes(8))
    for command in (["info"], ["topics"], ["read", "orders"], ["groups"], ["scan"]):
        cli.ok(command[0], cli.store, *command[1:])
    assert "--config broker.conf" in cli.ok("info", cli.store)
    result = cli.run("find", cli.store, "orders", "k")
    assert result.exit_code == 3 and "--config broker.conf" in result.stderr
    cli.run("find", cli.store, "orders", "k", "--config", cli.config)
    checked = cli.run("check", cli.store)
    assert checked.exit_code == 1 and "give the sizes of index files: --config broker.conf" in checked.stdout
    result = cli.run("repair", cli.store, "--yes")
    assert result.exit_code == 3 and "maxHashSlotNum, maxIndexNum" in result.stderr
    assert cli.run("repair", cli.store, "--yes", "--config", cli.config).exit_code == 0
