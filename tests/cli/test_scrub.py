"""`mqlake scrub` and `mqlake repair --from`: what changed since it was sealed is named, and healed from a copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from mqlake import Message
from tests.cli.conftest import Cli


def flip(store: Path, offset: int) -> None:
    file = next(iter(sorted((store / "commitlog").iterdir())))
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def fill(cli: Cli) -> None:
    with cli.open() as store:
        for number in range(300):
            store.put(Message("orders", b"%d" % number * 100, keys=f"k{number}"))


def test_a_scrub_names_the_block_that_changed_and_repair_heals_it(cli: Cli, tmp_path: Path) -> None:
    fill(cli)
    done = cli.run("scrub", cli.store)
    assert done.exit_code == 0 and "all are as they were sealed" in done.output
    copy = tmp_path / "copy"
    shutil.copytree(cli.store, copy)
    flip(cli.store, 45)
    done = cli.run("scrub", cli.store, "--json", "--rate", "100m")
    assert done.exit_code == 2
    assert json.loads(done.output)["broken"] == [[0, 65536]]
    assert f"mqlake repair {cli.store} --from" in cli.run("scrub", cli.store).output
    done = cli.run("repair", cli.store, "--from", copy, "--yes")
    assert done.exit_code == 0 and "healed from" in done.output
    assert cli.run("scrub", cli.store).exit_code == 0


def test_check_says_to_heal_before_it_says_to_repair_and_only_what_helps(cli: Cli) -> None:
    """A range that a repair has filled, or a block that it has accepted, can no longer be healed."""
    fill(cli)
    flip(cli.store, 45)  # the born time: nothing but the seal covers it
    told = [line.strip() for line in cli.run("check", cli.store).output.splitlines() if "mqlake repair" in line]
    assert told == [
        f"mqlake repair {cli.store} --from COPY, a backup or a replica of this log",
        f"mqlake repair {cli.store}, if there is no copy: it accepts the blocks as they are",
    ]
    flip(cli.store, 90)  # the body of the first message
    told = [line.strip() for line in cli.run("check", cli.store).output.splitlines() if "mqlake repair" in line]
    assert [line.split(",")[0] for line in told] == [
        f"mqlake repair {cli.store} --from COPY",
        f"mqlake repair {cli.store}",
    ]


def test_repair_says_which_records_it_accepts_unproven_and_how_many(cli: Cli) -> None:
    fill(cli)
    flip(cli.store, 45)
    refused = cli.run("repair", cli.store, input="n\n")
    assert refused.exit_code == 4 and "accept" in refused.output and "unproven: heal them first" in refused.output
    assert cli.run("check", cli.store).exit_code == 2
    done = cli.run("repair", cli.store, "--yes")
    assert done.exit_code == 0 and "records accepted unproven" in done.output
    assert cli.run("check", cli.store).exit_code == cli.run("scrub", cli.store).exit_code == 0


def test_scrub_seals_a_store_that_has_no_seals(cli: Cli) -> None:
    fill(cli)
    shutil.rmtree(cli.store / "mqlake/seals")
    assert json.loads(cli.run("scrub", cli.store, "--json").output)["sealedBytes"] == 0
    found = json.loads(cli.run("scrub", cli.store, "--seal", "--json").output)
    assert found["sealedBytes"] > 30_000 and found["broken"] == []


def test_info_shows_how_far_the_log_is_sealed(cli: Cli) -> None:
    fill(cli)
    assert "sealed to" in cli.run("info", cli.store).output
    shown = json.loads(cli.run("info", cli.store, "--json").output)
    assert shown["seals"]["sealed_end"] == shown["endOffset"]
