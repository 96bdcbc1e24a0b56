"""A stream notices that the log at its path is not the one it has read, and never skips over its messages."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from mqlake import CommitLogConfig, MessageStore
from mqlake.errors import InvalidConfig, PositionLost
from mqlake.files.names import file_name
from mqlake.lake.identity import make_identity
from mqlake.spark.boundaries import Boundaries
from mqlake.spark.offsets import offset_of, positions_of, seams_of
from mqlake.spark.plan import take_snapshot
from mqlake.torture.faults.damage import damage
from tests.helpers import LOG_FILE, message, open_small
from tests.spark.streams import Engine, as_json
from tests.spark.tables import offsets_of, put_messages, write_store

Replace = Callable[[Path, Path], None]


def all_records(path: Path) -> list[int]:
    return offsets_of(path, includeInternal="true", via="scan")


def engine_at_the_end(path: Path, **options: object) -> Engine:
    engine = Engine(path, includeInternal="true", **options)
    engine.batches()
    return engine


def found_in(engine: Engine) -> list[int]:
    return [row["physical_offset"] for row in engine.all()]


def by_another_folder(old: Path, new: Path) -> None:
    shutil.rmtree(old)
    new.rename(old)


def by_other_files(old: Path, new: Path) -> None:
    """Inside of the folder, as a restore does: the folder itself stays."""
    for entry in old.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(new, old, dirs_exist_ok=True)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("replace", [by_another_folder, by_other_files])
@pytest.mark.parametrize("with_identities", [False, True])
def test_a_store_that_was_replaced_is_reported_and_then_read_from_its_first_record_if_wanted(
    tmp_path: Path, with_identities: bool, replace: Replace, restarted: bool
) -> None:
    """The other store has records of the same sizes, so that the position is between two of its records."""
    path, other = tmp_path / "store", tmp_path / "other"
    write_store(path, 300)
    write_store(other, 800)
    if with_identities:
        make_identity(path)
        make_identity(other)
    engine = engine_at_the_end(path)
    position = engine.offsets[-1]["stores"][str(path)]
    assert position in all_records(other)
    replace(path, other)
    if restarted:
        engine.restart(path, includeInternal="true")
    expected = "another store is here now" if with_identities else "was rewritten, .* or is that of another store"
    with pytest.raises(PositionLost, match=f"{path}: the stream is at {position}, and .*{expected}"):
        engine.batch()
    engine.restart(path, includeInternal="true", failOnDataLoss="false")
    assert found_in(engine) == all_records(path)
    assert len(all_records(path)) == 800
    engine.restart(path, includeInternal="true")
    assert engine.all() == [], "the new position is one of the new store"


@pytest.mark.parametrize("with_identity", [False, True])
def test_a_store_restored_from_a_backup_and_written_again_is_reported(tmp_path: Path, with_identity: bool) -> None:
    path, backup = tmp_path / "store", tmp_path / "backup"
    write_store(path, 200)
    if with_identity:
        make_identity(path)
    shutil.copytree(path, backup)
    with open_small(path) as store:
        put_messages(store, 200, 100)
    engine = engine_at_the_end(path)
    position = engine.offsets[-1]["stores"][str(path)]
    by_other_files(path, backup)
    with pytest.raises(PositionLost, match="it lost its last"):
        engine.batch()
    with open_small(path) as store:
        put_messages(store, 200, 200)
    with pytest.raises(PositionLost) as raised:
        engine.batch()
    text = str(raised.value)
    assert f"{path}: the stream is at {position}, and the log before it was rewritten" in text
    assert "bytes at" in text and "have the CRC 0x" in text and "expected 0x" in text
    assert "new checkpoint folder" in text and "failOnDataLoss=false" in text
    engine.restart(path, includeInternal="true", failOnDataLoss="false")
    records = all_records(path)
    assert found_in(engine) == ([at for at in records if at >= position] if with_identity else records)


def test_a_planned_batch_of_a_replaced_store_is_not_read_from_the_other_one(tmp_path: Path) -> None:
    path, other = tmp_path / "store", tmp_path / "other"
    write_store(path, 300)
    write_store(other, 300)
    engine = Engine(path, includeInternal="true", maxRowsPerTrigger=50)
    engine.batch()
    engine.batch()
    planned = engine.next_offset()
    by_another_folder(path, other)
    for fails in ("true", "false"):
        engine.restart(path, includeInternal="true", failOnDataLoss=fails)
        if fails == "true":
            with pytest.raises(PositionLost):
                engine.rows(engine.offsets[-1], planned)
        else:
            assert engine.rows(engine.offsets[-1], planned) == [], "nothing is left of this batch"
            engine.offsets.append(planned)
            assert found_in(engine) == all_records(path)


def test_a_copy_with_the_same_bytes_continues_where_the_stream_was(tmp_path: Path) -> None:
    """A store that moved to another disk, or lost its identity with the rest of its folder `mqlake`."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    write_store(path, 200)
    make_identity(path)
    engine = engine_at_the_end(path)
    shutil.copytree(path, copy)
    by_another_folder(path, copy)
    shutil.rmtree(path / "mqlake")
    with open_small(path) as store:
        put_messages(store, 200, 50)
    make_identity(path)
    assert found_in(engine) == all_records(path)[200:]


def test_a_position_without_a_seam_still_works(tmp_path: Path) -> None:
    """Positions of older versions have none."""
    path = tmp_path / "store"
    write_store(path, 200)
    engine = engine_at_the_end(path)
    engine.offsets[-1] = {name: engine.offsets[-1][name] for name in ("v", "stores")}
    engine.restart(path, includeInternal="true")
    assert engine.next_offset() == engine.offsets[-1], "a position does not change by itself"
    assert json.dumps(engine.next_offset()) == json.dumps(engine.offsets[-1])
    with open_small(path) as store:
        put_messages(store, 200, 50)
    assert found_in(engine) == all_records(path)[200:]
    assert str(path) in engine.offsets[-1]["seams"]


def test_a_position_stays_the_same_text_when_a_store_gets_its_identity(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path, 100)
    engine = engine_at_the_end(path)
    before = json.dumps(engine.offsets[-1])
    assert engine.offsets[-1]["seams"][str(path)][0] is None
    identity = make_identity(path)
    assert json.dumps(engine.next_offset()) == before
    with open_small(path) as store:
        put_messages(store, 100, 1)
    assert len(engine.all()) == 1
    assert engine.offsets[-1]["seams"][str(path)][0] == identity


def test_retention_may_delete_the_record_before_the_position(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path)
    records = all_records(path)
    at = next(number for number, offset in enumerate(records) if offset == 2 * LOG_FILE)
    engine = Engine(path, includeInternal="true", startingOffsets=json.dumps({str(path): 2 * LOG_FILE}))
    engine.batch()
    seam = seams_of(engine.offsets[-1])[str(path)]
    assert seam.offset == records[at - 1]
    for start in (0, LOG_FILE):
        (path / "commitlog" / file_name(start)).unlink()
    engine.restart(path, includeInternal="true")
    assert found_in(engine) == records[at:]


def test_another_store_is_noticed_even_if_nothing_was_read_yet(tmp_path: Path) -> None:
    path, other = tmp_path / "store", tmp_path / "other"
    for folder in (path, other):
        write_store(folder, 20)
        make_identity(folder)
    engine = Engine(path, includeInternal="true")
    assert engine.batch() == []
    by_another_folder(path, other)
    with pytest.raises(PositionLost, match=r"another store is here now \(its identity is [0-9a-f]{32}, expected"):
        engine.batch()


def test_a_damaged_record_before_the_position_is_not_its_seam(tmp_path: Path) -> None:
    """The seam is the last whole record, so that a repair of the damage does not look like another log."""
    path = tmp_path / "store"
    write_store(path, 100)
    records = all_records(path)
    with (path / "commitlog" / file_name(0)).open("r+b") as file:
        file.seek(records[-1] + 95)
        file.write(b"\xff\xff\xff\xff")
    engine = engine_at_the_end(path)
    assert seams_of(engine.offsets[-1])[str(path)].offset == records[-2]


def test_a_last_record_is_found_before_any_boundary_whatever_lies_between(tmp_path: Path) -> None:
    """Large bodies, the empty end of a file, damage."""
    path, file_size = tmp_path / "store", 8 << 20
    with MessageStore.open(path, commit_log=CommitLogConfig(file_size_bytes=file_size)) as store:
        for number in range(30):
            store.put(message(number, body=b"x" * (3_000_000 if number < 6 else 200 * number)))
    records = all_records(path)
    snapshot = take_snapshot(path)
    boundaries = Boundaries(snapshot.follower.log, snapshot.first, snapshot.end)
    for begin, end in itertools.pairwise([*records, snapshot.end]):
        offset, size = boundaries.last_record(end) or (-1, -1)
        assert offset == begin and (offset + size == end or end % file_size == 0)
    assert file_size in records and boundaries.last_record(0) is None
    with (path / "commitlog" / file_name(0)).open("r+b") as file:
        file.seek(records[1])
        file.write(bytes(file_size - records[1]))
    assert boundaries.last_record(file_size) == (0, records[1])
    snapshot.follower.close()


def test_the_warning_names_what_was_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, other = tmp_path / "store", tmp_path / "other"
    write_store(path, 100)
    write_store(other, 200)
    engine = engine_at_the_end(path)
    by_another_folder(path, other)
    engine.restart(path, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        engine.all()
    assert caplog.text.count("continuing at 0") == 1


def test_seams_travel_through_the_checkpoint() -> None:
    offset = as_json(offset_of({"/b": 7, "/a": 0}, seams_of({"seams": {"/b": ["id", 3, 4, 99]}})))
    assert offset == {"v": 1, "stores": {"/a": 0, "/b": 7}, "seams": {"/b": ["id", 3, 4, 99]}}
    assert positions_of(offset) == {"/a": 0, "/b": 7}
    assert seams_of(offset)["/b"].crc == 99
    for wrong in ({"/b": [1]}, {"/b": 7}, [1]):
        with pytest.raises(InvalidConfig, match="checkpoint"):
            seams_of({"v": 1, "stores": {}, "seams": wrong})


def test_damage_and_its_repair_elsewhere_in_the_log_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path)
    engine = engine_at_the_end(path)
    damage(path, 3, files=f"commitlog/{file_name(0)}", kind="flip_bit")
    with open_small(path) as store:
        put_messages(store, 600, 10)
    assert len(engine.all()) == 10
