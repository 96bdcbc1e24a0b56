"""The log is sealed in the background: any changed bit is found, and no rightful change of the log counts as damage."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from mqlake import CommitLogConfig, MessageStore, SealConfig, check
from mqlake.codec.seal_file import BLOCK_BYTES, decode_seals
from mqlake.files.layout import Layout
from mqlake.files.names import file_name
from mqlake.inspect.repair import repair
from mqlake.kernel import StoredRecord, survey_records
from mqlake.logs.seals import Seals
from mqlake.runtime.workers import State
from mqlake.store.sealing import HOUR_MS, ScrubState
from tests.golden.stores import NAMES, GoldenStore
from tests.helpers import LOG_FILE, eventually, message, open_bare, writer_of

FAST = SealConfig(interval_ms=20, scrub_bytes_per_s=0)
LARGE = CommitLogConfig(file_size_bytes=4 * BLOCK_BYTES)


def fill(path: Path, count: int = 600, first: int = 0, **settings: object) -> list[int]:
    """Put messages and close the store; return their physical offsets."""
    with open_bare(path, **settings) as store:
        made = [store.put(message(n, queue_id=0, body=b"%08d" % n * 50)) for n in range(first, first + count)]
        return [receipt.physical_offset for receipt in made]


def seals_of(path: Path, file_size: int = LOG_FILE) -> Seals:
    return Seals(Layout(path), file_size, writable=False)


def flip(path: Path, offset: int, file_size: int = LOG_FILE, bit: int = 0) -> None:
    with (path / "commitlog" / file_name(offset - offset % file_size)).open("r+b") as file:
        file.seek(offset % file_size)
        byte = file.read(1)[0]
        file.seek(offset % file_size)
        file.write(bytes([byte ^ 1 << bit]))


def broken(path: Path) -> list[int]:
    """Return the physical offsets of the blocks that check reports as changed."""
    return [int(Path(row.file).name) + (row.offset or 0) for row in check(path).findings if row.what == "seal-broken"]


def what(path: Path) -> set[str]:
    return {row.what for row in check(path).findings}


# ---- what is sealed, and what is found


def test_a_closed_store_is_sealed_to_its_last_byte(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    with open_bare(tmp_path / "s", read_only=True) as store:
        assert store.stats().seals.sealed_end == store.end_offset
    assert check(tmp_path / "s").findings == ()


PLACES = {"queue id": 15, "flag": 19, "born time": 43, "born host": 50, "store host": 65, "reconsume times": 75}


@pytest.mark.parametrize("place", [*PLACES, "property", "topic", "padding"])
def test_a_changed_bit_that_no_crc_covers_is_found_and_placed(tmp_path: Path, place: str) -> None:
    offsets = fill(tmp_path / "s")
    file = (tmp_path / "s" / "commitlog" / file_name(0)).read_bytes()
    record = StoredRecord(file[offsets[7] : offsets[8]])
    at = offsets[7] + PLACES.get(place, 0)
    if place == "property":
        at = offsets[7] + record.record.rindex(b"tag1") + 3
    elif place == "topic":
        at = offsets[7] + record.record.rindex(b"orders") + 2
    elif place == "padding":
        at = LOG_FILE - 1
    flip(tmp_path / "s", at)
    assert broken(tmp_path / "s") == [0]
    (row,) = [row for row in check(tmp_path / "s").findings if row.what == "seal-broken"]
    assert "mqlake repair --from" in row.remedy and "records: 0 to" in row.found


def test_sealing_runs_in_the_background_and_health_shows_how_far_it_lags(tmp_path: Path) -> None:
    with open_bare(tmp_path / "s", commit_log=LARGE, seals=FAST) as store:
        for n in range(1000):
            store.put(message(n, body=bytes(500)))
        store.flush()
        end = store.end_offset // BLOCK_BYTES * BLOCK_BYTES
        assert end >= 2 * BLOCK_BYTES
        assert eventually(lambda: store.stats().seals.sealed_end >= end)
        (worker,) = [worker for worker in store.health().workers if worker.name == "seals"]
        assert worker.state == State.RUNNING and worker.behind_bytes is not None and worker.behind_bytes < BLOCK_BYTES


def test_what_is_not_durable_is_not_sealed(tmp_path: Path) -> None:
    with open_bare(tmp_path / "s", commit_log=LARGE, seals=FAST) as store:
        writer = writer_of(store)
        ends = writer.ends
        for n in range(2000):
            store.put(message(n, body=bytes(500)))
            assert writer.sealer.sealed_end <= min(ends.durable, ends.dispatched)


@pytest.mark.parametrize("name", NAMES)
def test_a_store_that_rocketmq_wrote_is_sealed_and_checked_clean(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    with MessageStore.open(golden.path, config=golden.config, seals=FAST) as store:
        end = store.end_offset
        assert eventually(lambda: store.stats().seals.sealed_end >= end - BLOCK_BYTES)
    after = check(golden.path, config=golden.config)
    assert not {row.what for row in after.findings if row.what.startswith("seal")}
    assert not [row for row in after.findings if row.file.startswith("commitlog")]
    with MessageStore.open(golden.path, config=golden.config, read_only=True) as store:
        assert store.stats().seals.sealed_end == store.end_offset


def test_damage_that_was_there_before_is_not_sealed_as_if_it_were_right(tmp_path: Path) -> None:
    offsets = fill(tmp_path / "s")
    shutil.rmtree(tmp_path / "s/mqlake/seals")
    flip(tmp_path / "s", offsets[3] + 100)
    with open_bare(tmp_path / "s", seals=FAST) as store:
        assert eventually(lambda: store.stats().seals.sealed_end >= LOG_FILE)
        assert store.stats().damage == ((offsets[3], offsets[4]),)
    table = seals_of(tmp_path / "s").table(0)
    assert table is not None and table.states == b"\0"


@pytest.mark.parametrize("place", [100, 3], ids=["a body", "a size"])
@pytest.mark.parametrize("closing", [True, False], ids=["closing", "a round"])
def test_damage_since_the_put_is_not_sealed_as_if_it_were_right(tmp_path: Path, closing: bool, place: int) -> None:
    fill(tmp_path / "s", 20)
    with open_bare(tmp_path / "s", seals=SealConfig(interval_ms=60_000 if closing else 500)) as store:
        made = [store.put(message(n, body=b"%08d" % n * 50)).physical_offset for n in range(600)]
        at = next(offset for offset in made if offset > LOG_FILE)
        flip(tmp_path / "s", at + place)
        if not closing:
            store.flush()
            assert eventually(lambda: store.stats().seals.sealed_end >= 2 * LOG_FILE)
            assert [start for start, _ in store.stats().damage] == [at]
    table = seals_of(tmp_path / "s").table(LOG_FILE)
    assert table is not None and table.states == b"\0"
    assert not [row for row in check(tmp_path / "s").findings if row.what.startswith("seal")]


def test_a_walk_before_sealing_begins_where_the_sealed_log_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a store does not read its last file again."""
    end = fill(tmp_path / "s", 20)[-1]
    walked: list[int] = []

    def survey(pages: memoryview, position: int, *rest: int) -> object:
        walked.append(position)
        return survey_records(pages, position, *rest)

    monkeypatch.setattr("mqlake.store.sealing.survey_records", survey)
    fill(tmp_path / "s", 20, first=20)
    assert walked and walked[0] > end


def test_a_short_block_is_continued_from_its_seal_and_not_sealed_anew(tmp_path: Path) -> None:
    """A bit that flips while the store is closed stays a finding when the block grows."""
    offsets = fill(tmp_path / "s", 20)
    flip(tmp_path / "s", offsets[3] + 45)
    fill(tmp_path / "s", 20, first=20)
    assert broken(tmp_path / "s") == [0]


# ---- rightful changes


def test_seals_of_a_tail_that_recovery_cuts_are_dropped(tmp_path: Path) -> None:
    offsets = fill(tmp_path / "s", 100)
    Layout(tmp_path / "s").own_checkpoint.unlink()
    Layout(tmp_path / "s").positions.unlink()
    (tmp_path / "s" / "abort").touch()
    for at in range(offsets[90], offsets[99] + 200):  # the power cut took the tail, and what says that it was durable
        flip(tmp_path / "s", at)
    fill(tmp_path / "s", 100, first=500)
    assert broken(tmp_path / "s") == []
    assert check(tmp_path / "s").holds


def test_seals_after_the_place_where_rocketmq_cut_the_log_are_dropped_and_those_before_it_hold(tmp_path: Path) -> None:
    """RocketMQ cuts the log at damage in its middle and writes other records from there on."""
    fill(tmp_path / "s", 600)
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "s", other)
    time.sleep(0.002)
    cut = 3 * LOG_FILE
    for file in (other / "commitlog").iterdir():  # what RocketMQ would leave, made by a store without seals
        if int(file.name) >= cut:
            file.unlink()
    for name in ("consumequeue", "index", "mqlake"):
        shutil.rmtree(other / name)
    (other / "checkpoint").unlink()
    (other / "abort").touch()
    fill(other, 300, first=5000, seals=SealConfig(enabled=False))
    for name in ("commitlog", "consumequeue", "index", "checkpoint"):
        shutil.rmtree(tmp_path / "s" / name) if (tmp_path / "s" / name).is_dir() else (tmp_path / "s" / name).unlink()
        copy = shutil.copytree if (other / name).is_dir() else shutil.copy
        copy(other / name, tmp_path / "s" / name)
    assert broken(tmp_path / "s") == [] and "seal-stale" in what(tmp_path / "s")
    with open_bare(tmp_path / "s", seals=SealConfig(enabled=False)) as store:  # else what follows is sealed at once
        assert store.stats().seals.sealed_end == cut
    assert broken(tmp_path / "s") == []
    flip(tmp_path / "s", LOG_FILE + 45)
    assert broken(tmp_path / "s") == [LOG_FILE]


@pytest.mark.parametrize("count", [600, 300], ids=["as long", "of fewer files"])
def test_a_log_of_another_store_drops_all_seals(tmp_path: Path, count: int) -> None:
    """Records of the same size at the same places: only their times differ."""
    fill(tmp_path / "s", 600)
    time.sleep(0.002)
    fill(tmp_path / "other", count)
    shutil.rmtree(tmp_path / "s/commitlog")
    shutil.copytree(tmp_path / "other/commitlog", tmp_path / "s/commitlog")
    assert broken(tmp_path / "s") == []
    fill(tmp_path / "s", 1)
    assert broken(tmp_path / "s") == []


def test_an_older_copy_of_the_log_keeps_the_seals_that_fit(tmp_path: Path) -> None:
    fill(tmp_path / "s", 300)
    shutil.copytree(tmp_path / "s", tmp_path / "old")
    fill(tmp_path / "s", 300, first=300)
    shutil.rmtree(tmp_path / "old/mqlake/seals")
    shutil.copytree(tmp_path / "s/mqlake/seals", tmp_path / "old/mqlake/seals")
    assert broken(tmp_path / "old") == []
    fill(tmp_path / "old", 300, first=900)
    assert broken(tmp_path / "old") == []


def test_seals_of_deleted_files_are_deleted(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    with open_bare(tmp_path / "s", seals=FAST) as store:
        store.retain(keep_bytes=LOG_FILE)
        first = store.first_offset
        assert first > 0
        assert eventually(lambda: seals_of(tmp_path / "s").starts()[0] == first)
    assert check(tmp_path / "s").findings == ()


@pytest.mark.parametrize("body_too", [False, True], ids=["only a header", "a body too"])
def test_repair_accepts_a_block_that_differs_from_its_seal_only_as_a_step_of_the_plan(
    tmp_path: Path, body_too: bool
) -> None:
    offsets = fill(tmp_path / "s")
    flip(tmp_path / "s", offsets[5] + 45)  # a born time: only a copy can heal it
    flip(tmp_path / "s", 2 * LOG_FILE + 45)
    if body_too:  # a filler is written into the block
        flip(tmp_path / "s", offsets[3] + 100)
    seals = {file.name: file.read_bytes() for file in (tmp_path / "s/mqlake/seals").iterdir()}
    refused = repair(tmp_path / "s", confirm=lambda before, actions: False)
    accepted = [action for action in refused.actions if action.what == "accept"]
    assert [(Path(action.file).name, action.offset) for action in accepted] == [
        (f"{0:020d}", 0),
        (f"{2 * LOG_FILE:020d}", 0),
    ]
    assert f"{offsets[0]} to" in accepted[0].why and "unproven" in accepted[0].why
    assert broken(tmp_path / "s") == [0, 2 * LOG_FILE]
    report = repair(tmp_path / "s")
    assert report.after.holds and report.accepted_count > 200
    assert report.backup is not None
    kept = (report.backup / "ranges").read_bytes()  # the seals that show the damage
    assert all(seals[f"{start:020d}"] in kept for start in (0, 2 * LOG_FILE))
    assert broken(tmp_path / "s") == [] and repair(tmp_path / "s").actions == ()
    flip(tmp_path / "s", offsets[5] + 45)  # sealed as it was accepted
    assert broken(tmp_path / "s") == [0]


def test_a_repair_that_makes_a_block_fit_its_seal_again_accepts_nothing(tmp_path: Path) -> None:
    offsets = fill(tmp_path / "s")
    flip(tmp_path / "s", offsets[5] + 27)  # the queue offset, which its neighbours prove
    report = repair(tmp_path / "s")
    assert {action.what for action in report.actions} == {"mend-header", "mend-entry", "rebuild"}
    assert report.accepted_count == 0 and report.after.holds


def test_times_of_files_do_not_matter(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    for file in (tmp_path / "s/commitlog").iterdir():
        os.utime(file, (0, 0))
    assert check(tmp_path / "s").findings == ()


def test_a_backup_has_seals_and_they_hold(tmp_path: Path) -> None:
    with open_bare(tmp_path / "s", seals=FAST) as store:
        for n in range(600):
            store.put(message(n, body=bytes(400)))
        assert eventually(lambda: store.stats().seals.sealed_end > LOG_FILE)
        store.backup(tmp_path / "b")
        store.put(message(600))
    assert check(tmp_path / "b").findings == ()
    with open_bare(tmp_path / "b", read_only=True) as store:
        assert store.stats().seals.sealed_end == store.end_offset
    fill(tmp_path / "b", 300, first=5000)  # goes its own way
    fill(tmp_path / "s", 300, first=7000)
    assert check(tmp_path / "b").holds and check(tmp_path / "s").holds


# ---- seal files themselves


@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "another file's"])
def test_a_wrong_seal_file_costs_a_new_sealing_and_nothing_else(tmp_path: Path, damage: str) -> None:
    fill(tmp_path / "s")
    file = tmp_path / "s/mqlake/seals" / file_name(LOG_FILE)
    data = bytearray(file.read_bytes())
    if damage == "a bit":
        data[-1] ^= 1
    other = (tmp_path / "s/mqlake/seals" / file_name(0)).read_bytes()
    file.write_bytes({"a bit": bytes(data), "cut": bytes(data[:20]), "empty": b"", "another file's": other}[damage])
    assert what(tmp_path / "s") == {"seal-file"}
    with open_bare(tmp_path / "s", seals=FAST) as store:
        sealed = seals_of(tmp_path / "s")
        assert eventually(lambda: sealed.table(LOG_FILE) is not None)
        assert store.stats().damage == ()
    assert check(tmp_path / "s").findings == ()


def test_repair_moves_a_wrong_seal_file_away(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    (tmp_path / "s/mqlake/seals" / file_name(0)).write_bytes(b"?")
    report = repair(tmp_path / "s")
    assert report.done and report.after.findings == ()


def test_any_bit_of_a_seal_file_matters(tmp_path: Path) -> None:
    fill(tmp_path / "s", 5)
    data = (tmp_path / "s/mqlake/seals" / file_name(0)).read_bytes()
    assert decode_seals(data, 0, LOG_FILE) is not None
    for bit in range(len(data) * 8):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        assert decode_seals(bytes(wrong), 0, LOG_FILE) is None, bit


# ---- scrubbing


def test_the_scrubber_finds_a_changed_bit_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    flip(tmp_path / "s", LOG_FILE + 45)
    layout = Layout(tmp_path / "s")
    now_ms = time.time_ns() // 1_000_000
    ScrubState(position=LOG_FILE, started_ms=now_ms, known_ms=now_ms - 200 * HOUR_MS, broken=[]).save(layout)
    with open_bare(tmp_path / "s", seals=SealConfig(interval_ms=20, scrub_bytes_per_s=2 * LOG_FILE)) as store:
        assert eventually(lambda: store.stats().seals.broken == ((LOG_FILE, 2 * LOG_FILE),))
        position = store.stats().seals.scrub_position
        assert position is None or position >= 2 * LOG_FILE
        assert eventually(lambda: store.stats().seals.scrub_finished_ms > 0)
    with open_bare(tmp_path / "s", read_only=True) as store:
        assert store.stats().seals.broken == ((LOG_FILE, 2 * LOG_FILE),)


def test_a_scrub_is_not_due_before_its_time(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    with open_bare(tmp_path / "s", seals=FAST) as store:
        time.sleep(0.1)
        assert store.stats().seals.scrub_started_ms == 0


# ---- crashes


def test_kill_during_sealing_leaves_seals_that_fit(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from mqlake import CommitLogConfig, MessageStore, Message, SealConfig, RetentionConfig
        log = CommitLogConfig(file_size_bytes={4 * BLOCK_BYTES})
        store = MessageStore.open({str(tmp_path / "s")!r}, commit_log=log,
            seals=SealConfig(interval_ms=1), retention=RetentionConfig(enabled=False), deliver=False)
        print("open", flush=True)
        n = 0
        while True:
            store.put_many([Message("t", b"%d" % (n + i) * 30) for i in range(50)])
            n += 50
            store.flush()
    """)
    for round_ in range(2):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline()
            time.sleep(0.15 + 0.1 * round_)
            writer.send_signal(signal.SIGKILL)
        assert broken(tmp_path / "s") == []
        assert not {name for name in what(tmp_path / "s") if name.startswith("seal")}
    with MessageStore.open(tmp_path / "s", deliver=False) as store:
        assert store.stats().seals.sealed_end > 0
    assert check(tmp_path / "s").holds
