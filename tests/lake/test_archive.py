"""The archive: every record once, every byte accounted for, whatever the log holds and whichever process is killed."""

from __future__ import annotations

import importlib
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from mqlake import Message, MessageStore
from mqlake.errors import ChangedUnderRead, LakeGap, LakeInUse, NotAStore, WrongLake
from mqlake.files.names import file_name
from mqlake.ingest.pack import Packer
from mqlake.lake import MARKER, Lake, identity_of
from mqlake.lake import messages_file as writing
from mqlake.lake.find import find
from mqlake.lake.gate import release
from mqlake.lake.messages import rows_between
from mqlake.lake.parquet import DICTIONARIES
from mqlake.lake.storage import storage_at
from mqlake.lake.stores import Member
from mqlake.lake.tables import MESSAGES
from mqlake.lake.vacuum import vacuum
from mqlake.lake.verify import verify
from mqlake.spark.jobs import archive_split as splitting
from mqlake.spark.jobs.archive import archive, plan_splits
from mqlake.spark.jobs.archive_split import archive_split
from mqlake.spark.jobs.compact import compact
from mqlake.spark.schema import DEFAULT_COLUMNS, arrow_schema
from mqlake.store.gates import Gates
from tests.helpers import LOG_FILE, message, open_small
from tests.lake.jobs import NO_SPARK, assert_holds, here, rows_in
from tests.spark.tables import put_messages, rows_of, write_store

pytestmark = pytest.mark.usefixtures("here")
__all__ = ["here"]
NUMBERS = {field.name for field in MESSAGES if str(field.type).startswith(("int", "timestamp"))}


def run(store: Path | list[str], lake: Path, **options: Any) -> list[Any]:
    options.setdefault("split_size", "100k")
    return archive(NO_SPARK, store if isinstance(store, list) else str(store), str(lake), **options)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    write_store(path)
    return path


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def flip(store: Path, offset: int) -> None:
    start = offset - offset % LOG_FILE
    with (store / "commitlog" / file_name(start)).open("r+b") as file:
        file.seek(offset - start)
        byte = file.read(1)[0]
        file.seek(offset - start)
        file.write(bytes([byte ^ 0xFF]))


def test_the_archive_has_every_row_of_the_table_with_its_names_and_types(store: Path, lake: Path) -> None:
    (done,) = run(store, lake)
    expected = rows_of(store, includeInternal="true")
    assert rows_in(lake) == expected
    assert (done.rows, done.start) == (len(expected), 0)
    assert MESSAGES.equals(arrow_schema(DEFAULT_COLUMNS))
    for file in Lake.open(lake).snapshot().files("messages"):
        assert pq.read_schema(lake / file.path).equals(MESSAGES)
        rows = pq.read_table(lake / file.path).to_pylist()
        places = [(row["topic"], row["physical_offset"]) for row in rows]
        assert places == sorted(places), "by topic, then in log order"
        topics, offsets = sorted({topic for topic, _ in places}), [offset for _, offset in places]
        assert (file.topics, file.min_topic, file.max_topic) == (tuple(topics), topics[0], topics[-1])
        times = [int(row["store_timestamp"].timestamp() * 1000) for row in rows]
        assert (file.rows, file.min_time, file.max_time) == (len(rows), min(times), max(times))
        assert (file.first, file.last) == (min(offsets), max(offsets))
    assert_holds(lake)


def test_a_second_run_continues_where_the_first_ended_and_one_without_new_messages_writes_nothing(
    store: Path, lake: Path
) -> None:
    run(store, lake, step_bytes=1)
    version = Lake.open(lake).snapshot().version
    assert version > 1, "a step is a commit"
    (done,) = run(store, lake)
    assert (done.rows, done.start) == (0, done.end) and Lake.open(lake).snapshot().version == version
    with MessageStore.open(store) as opened:
        put_messages(opened, 600, 300)
    (done,) = run(store, lake)
    assert done.rows == 300
    assert rows_in(lake) == rows_of(store, includeInternal="true")
    assert_holds(lake)


def test_a_split_becomes_one_file_a_table_whatever_its_topics_and_days(tmp_path: Path, lake: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as opened:
        packer = Packer(opened.config.commit_log, "here")
        for number in range(60):
            topic = f"%RETRY%group|{number % 30}"
            row = pa.record_batch({"topic": [topic], "body": [b"body %d" % number], "keys": [f"key-{number}"]})
            opened.put_packed(packer.pack(row), timestamp=86_400_000 * (30_000 + number))
    run(path, lake, split_size="10m")
    names = [file.path for file in Lake.open(lake).snapshot().by_path.values()]
    splits = len(Lake.open(lake).snapshot().files("messages"))
    assert splits <= (os.cpu_count() or 1) and len(names) == 2 * splits
    assert all(re.fullmatch(r"(messages|index)/[0-9a-f]{12}-\d{20}-\d{20}\.parquet", name) for name in names)
    assert rows_in(lake) == rows_of(path, includeInternal="true")
    assert [row["body"] for row in find(Lake.open(lake), "%RETRY%group|7", "key-7").to_pylist()] == [b"body 7"]
    assert_holds(lake)


def test_large_topics_have_their_own_row_groups_and_small_ones_share_some(
    tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splitting, "GROUP_BYTES", 20_000)
    monkeypatch.setattr(writing, "GROUP_BYTES", 20_000)
    path = tmp_path / "store"
    with open_small(path) as opened:
        for number in range(1200):
            opened.put(message(number, topic=f"large-{number % 3}" if number % 2 else f"small-{number:04d}"))
    run(path, lake, split_size="10m", index=False)
    [file, *_] = Lake.open(lake).snapshot().files("messages")
    assert file.topics is None and file.may_have("large-1") and not file.may_have("tiny")
    groups = topics_of_groups(lake / file.path)
    assert sum("large-1" in topics for topics in groups) == sum(topics == {"large-1"} for topics in groups) >= 1
    assert any(len(topics) > 5 for topics in groups) and len(groups) < 30
    assert rows_in(lake) == rows_of(path, includeInternal="true")
    assert_holds(lake)
    read = list(rows_between(Lake.open(lake).storage, file, 0, 10**9, ["topic"], ["large-1"]))
    assert {row["topic"] for table in read for row in table.to_pylist()} == {"large-1"}, "other groups were read"


def topics_of_groups(path: Path) -> list[set[str]]:
    with pq.ParquetFile(path) as file:
        read = [file.read_row_group(number, ["topic"]) for number in range(file.num_row_groups)]
    return [set(table.column("topic").to_pylist()) for table in read]


def test_row_groups_are_written_before_the_split_ends_to_bound_memory(
    store: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MAX_GROUP_BYTES", 10_000)
    monkeypatch.setattr("mqlake.spark.read_split.BATCH_BYTES", 10_000)
    run(store, lake, split_size="10m")
    groups = [pq.read_metadata(lake / f.path).num_row_groups for f in Lake.open(lake).snapshot().files("messages")]
    assert max(groups) > 3
    assert rows_in(lake) == rows_of(store, includeInternal="true")
    assert_holds(lake)


def test_files_declare_their_order_and_have_a_page_index_and_bloom_filters(store: Path, lake: Path) -> None:
    run(store, lake)
    [file, *_] = Lake.open(lake).snapshot().files("messages")
    group = pq.read_metadata(lake / file.path).row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    order = [group.column(column.column_index).path_in_schema for column in group.sorting_columns]
    assert order == ["topic", "physical_offset"]
    assert columns["topic"].has_column_index and columns["physical_offset"].has_offset_index
    assert columns["topic"].bloom_filter_length and columns["keys.list.element"].bloom_filter_length


@pytest.mark.parametrize("body", ["random", "plain"])
def test_each_column_has_one_encoding_and_incompressible_bodies_stay_uncompressed(
    tmp_path: Path, lake: Path, body: str
) -> None:
    with open_small(tmp_path / "store") as opened:
        for number in range(40):
            content = os.urandom(500) if body == "random" else b"a body like the one before it " * 15
            opened.put(message(number, topic=f"t{number % 2}", body=content))
    run(tmp_path / "store", lake, split_size="10k")

    def check() -> None:
        for file in Lake.open(lake).snapshot().files("messages"):
            group = pq.read_metadata(lake / file.path).row_group(0)
            columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
            compressed = {name for name, column in columns.items() if column.compression == "ZSTD"}
            texts = {"keys.list.element", "properties.key_value.key", "properties.key_value.value"}
            assert compressed == texts | ({"body"} if body == "plain" else set())
            for name, column in columns.items():
                way = "DELTA_BINARY_PACKED" if name in NUMBERS else "PLAIN"
                assert ("RLE_DICTIONARY" if name in DICTIONARIES else way) in column.encodings, name
        assert rows_in(lake) == rows_of(tmp_path / "store", includeInternal="true")

    check()
    done = compact(NO_SPARK, str(lake))
    assert done.files_after < done.files_before
    check()


def test_damage_and_markers_are_listed_gaps_and_the_rest_is_archived(store: Path, lake: Path) -> None:
    whole = rows_of(store, includeInternal="true")
    hit = [whole[50], whole[51], whole[200]]
    for row in hit:
        flip(store, row["physical_offset"] + 90)  # in the body
    run(store, lake)
    lost = {row["physical_offset"] for row in hit}
    assert rows_in(lake) == [row for row in whole if row["physical_offset"] not in lost]
    (state,) = Lake.open(lake).snapshot().stores.values()
    damage = [gap for gap in state.gaps if gap.reason != MARKER]
    assert sum(gap.end - gap.start for gap in damage) == sum(row["size"] for row in hit)
    markers = [gap for gap in state.gaps if gap.reason == MARKER]
    assert [gap.end % LOG_FILE for gap in markers] == [0] * (state.end // LOG_FILE)
    assert_holds(lake)


def test_damage_at_the_end_of_the_lake_is_a_gap_of_the_next_run(store: Path, lake: Path) -> None:
    run(store, lake)
    end = Lake.open(lake).snapshot().stores[str(store)].end
    with MessageStore.open(store) as opened:
        put_messages(opened, 600, 50)
    flip(store, end + 6)  # the magic number of the first new record
    run(store, lake)
    gaps = Lake.open(lake).snapshot().stores[str(store)].gaps
    assert end in {gap.start for gap in gaps}
    assert rows_in(lake) == rows_of(store, includeInternal="true")
    assert_holds(lake)


def test_a_moved_store_is_known_by_its_identity(store: Path, lake: Path, tmp_path: Path) -> None:
    run(store, lake)
    moved = tmp_path / "moved"
    store.rename(moved)
    with MessageStore.open(moved) as opened:
        put_messages(opened, 600, 10)
    (done,) = run(moved, lake)
    assert done.rows == 10
    (state,) = Lake.open(lake).snapshot().stores.values()
    assert (state.name, state.path) == (str(store), str(moved))
    assert {row["store"] for row in rows_in(lake)} == {str(store)}


def test_a_lake_of_another_store_is_refused_until_the_store_is_added(store: Path, lake: Path, tmp_path: Path) -> None:
    run(store, lake)
    other = tmp_path / "other"
    write_store(other, 50)
    with pytest.raises(WrongLake, match="--add-store"):
        run(other, lake)
    run([str(store), str(other)], lake)
    assert {row["store"] for row in rows_in(lake)} == {str(store), str(other)}
    assert_holds(lake)


def test_another_store_at_the_path_of_a_known_one_is_refused(store: Path, lake: Path) -> None:
    run(store, lake)
    shutil.rmtree(store)
    write_store(store, 50)
    with pytest.raises(WrongLake, match="another identity"):
        run(store, lake, add_store=True)


def test_a_copy_next_to_its_original_is_refused(store: Path, lake: Path, tmp_path: Path) -> None:
    run(store, lake)
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    with pytest.raises(WrongLake, match="the same store is at"):
        run(copy, lake)
    with pytest.raises(WrongLake, match="it is a copy of"):
        run([str(store), str(copy)], lake)


def test_a_log_that_was_truncated_and_rewritten_is_refused(store: Path, lake: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(store, older)
    with MessageStore.open(store) as opened:
        put_messages(opened, 600, 20)
    run(store, lake)
    shutil.rmtree(store)
    shutil.copytree(older, store)
    (store / "mqlake" / "identity").write_text(Lake.open(lake).snapshot().stores[str(store)].identity)
    with pytest.raises(WrongLake, match="last record"):
        run(store, lake)
    with MessageStore.open(store) as opened:
        put_messages(opened, 900, 50)
    with pytest.raises(WrongLake, match="last record"):
        run(store, lake)


def test_retention_never_deletes_past_the_archived_end(store: Path, lake: Path) -> None:
    run(store, lake)
    end = Lake.open(lake).snapshot().stores[str(store)].end
    with MessageStore.open(store) as opened:
        put_messages(opened, 600, 600)
        kept = opened.retain(keep_bytes=0)
        assert opened.first_offset == end - end % LOG_FILE and kept.held_by
        assert next(iter(kept.held_by)) == f"lake-{Lake.open(lake).identity}"
    run(store, lake)
    end = Lake.open(lake).snapshot().stores[str(store)].end
    with MessageStore.open(store) as opened:
        opened.retain(keep_bytes=0)
        assert opened.first_offset == end - end % LOG_FILE
    assert len(rows_in(lake)) == 1200
    assert_holds(lake)


def test_the_gate_exists_before_anything_is_archived_and_release_removes_it(
    store: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("mqlake.spark.jobs.archive"), "run_tasks", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(store, lake)
    gates = Gates(store / "mqlake" / "gates")
    assert gates.offsets() == {f"lake-{Lake.open(lake).identity}": 0}
    assert release(store, "another") == []
    assert release(store) == [f"lake-{Lake.open(lake).identity}"] and gates.offsets() == {}


def test_bytes_deleted_before_they_were_archived_are_an_error_or_a_listed_gap(store: Path, lake: Path) -> None:
    run(store, lake)
    end = Lake.open(lake).snapshot().stores[str(store)].end
    release(store)
    with MessageStore.open(store) as opened:
        put_messages(opened, 600, 900)
        opened.retain(keep_bytes=0)
        first = opened.first_offset
    with pytest.raises(LakeGap, match=f"ends at {end}, the log begins at {first}"):
        run(store, lake)
    run(store, lake, accept_gap=True)
    (state,) = Lake.open(lake).snapshot().stores.values()
    assert (end, first) in {gap[:2] for gap in state.gaps}
    assert_holds(lake)


def test_a_second_archiver_is_refused(store: Path, lake: Path) -> None:
    with Lake.open(lake, create=True).lock(), pytest.raises(LakeInUse, match=f"process {os.getpid()}"):
        run(store, lake)
    with pytest.raises(NotAStore):
        run(lake, lake)


def test_a_task_whose_log_file_is_deleted_fails_and_leaves_no_file(store: Path, lake: Path) -> None:
    opened = Lake.open(lake, create=True)
    member = Member(str(store), "ab" * 16, store, 0)
    splits = plan_splits(opened, member, "100k")
    (store / "commitlog" / file_name(LOG_FILE)).unlink()
    with pytest.raises(ChangedUnderRead, match="deleted"):
        for split in splits:
            archive_split(str(lake), member, split)
    assert not list(lake.rglob("*.new"))


def test_a_failed_task_leaves_nothing_and_the_next_run_is_exact(store: Path, lake: Path) -> None:
    """Stands for a full disk: no file may grow beyond a limit."""
    Lake.open(lake, create=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            run(store, lake)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Lake.open(lake).snapshot().version == 0 and not list(lake.rglob("*.new"))
    run(store, lake)
    assert rows_in(lake) == rows_of(store, includeInternal="true")


def test_files_that_no_commit_names_are_deleted_after_the_grace_time(store: Path, lake: Path) -> None:
    run(store, lake)
    orphan = lake / "messages" / "_orphan.parquet.1.2.new"
    orphan.touch()
    opened = Lake.open(lake)
    with opened.lock():
        assert vacuum(opened) == []
        os.utime(orphan, (0, 0))
        assert vacuum(opened) == ["messages/_orphan.parquet.1.2.new"]
    assert_holds(lake)


def test_compaction_keeps_all_rows_and_readers_of_the_old_files(store: Path, lake: Path) -> None:
    run(store, lake, split_size="20k", step_bytes=1)
    before = Lake.open(lake).snapshot()
    rows = rows_in(lake)
    done = compact(NO_SPARK, str(lake))
    after = Lake.open(lake).snapshot()
    assert (done.files_after, len(after.files("messages")), len(after.files("index"))) == (2, 1, 1)
    assert done.files_before == len(before.by_path)
    [file] = after.files("messages")
    places = [(row["topic"], row["physical_offset"]) for row in pq.read_table(lake / file.path).to_pylist()]
    assert places == sorted(places) and file.topics == tuple(sorted({topic for topic, _ in places}))
    assert rows_in(lake) == rows
    assert_holds(lake)
    assert all((lake / path).exists() for path in before.by_path), "readers of the old version can continue"
    assert compact(NO_SPARK, str(lake)).files_before == 0
    assert compact(NO_SPARK, str(lake), grace_s=0).deleted == len(before.by_path)
    assert {str(p.relative_to(lake)) for p in lake.rglob("*.parquet")} == set(after.by_path)
    assert_holds(lake)


def test_compaction_refuses_a_file_that_changed_since_it_was_committed(store: Path, lake: Path) -> None:
    run(store, lake, split_size="20k", step_bytes=1)
    file = Lake.open(lake).snapshot().files("messages")[3]
    content = bytearray((lake / file.path).read_bytes())
    content[100] ^= 1
    (lake / file.path).write_bytes(content)
    from mqlake.errors import BadFile

    with pytest.raises(BadFile, match="CRC"):
        compact(NO_SPARK, str(lake))
    findings = verify(Lake.open(lake))
    assert ("file", file.path) in {(finding.what, finding.where) for finding in findings}
    assert "coverage" in {finding.what for finding in findings}


@pytest.mark.parametrize("kind", ["twice", "missing"])
def test_verify_finds_a_row_that_is_duplicated_or_missing(store: Path, lake: Path, kind: str) -> None:
    run(store, lake)
    opened = Lake.open(lake)
    file = opened.snapshot().files("messages")[0]
    table = pq.read_table(lake / file.path)
    import pyarrow as pa

    changed = pa.concat_tables([table, table.slice(3, 1)]) if kind == "twice" else table.slice(1)
    from mqlake.lake import LakeFile
    from mqlake.lake.parquet import write_table

    path = file.path.replace(".parquet", "-other.parquet")
    written = write_table(storage_at(lake), path, changed)
    other = LakeFile("messages", path, file.store, file.start, file.end, *written)
    opened.commit([], [other], [file.path])
    (finding,) = verify(opened)
    row = table.slice(3 if kind == "twice" else 0, 1).to_pylist()[0]
    place = f"[{row['physical_offset']}, {row['physical_offset'] + row['size']})"
    assert finding.what == "coverage" and finding.found == f"{place} in {'two rows' if kind == 'twice' else 'no row'}"


def test_look_ups_by_key_and_client_id_find_what_the_store_finds(tmp_path: Path, lake: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as opened:
        for number in range(300):
            keys = [f"k{number % 7}", f"own-{number}"]
            properties = {"UNIQ_KEY": f"ID{number}"}
            opened.put(Message(f"t{number % 2}", b"%d" % number, keys=keys, properties=properties))
        opened.wait_dispatched()
        expected = {key: [m.physical_offset for m in opened.find("t1", key, limit=1000)] for key in ("k3", "own-17")}
    run(path, lake, split_size="20k", step_bytes=1)
    for _ in range(2):
        looked = Lake.open(lake)
        for key, offsets in expected.items():
            found = find(looked, "t1", key).column("physical_offset").to_pylist()
            assert found == sorted(offsets) and found
        assert find(looked, "t1", "ID17").column("body").to_pylist() == [b"17"]
        assert find(looked, "t0", "ID17").num_rows == find(looked, "t1", "nothing").num_rows == 0
        compact(NO_SPARK, str(lake))


def test_messages_archived_without_an_index_are_still_found(store: Path, lake: Path) -> None:
    run(store, lake, index=False)
    with MessageStore.open(store) as opened:
        put_messages(opened, 600, 100)
    run(store, lake)
    rows = rows_of(store, includeInternal="true")
    for row in (rows[3], rows[-1]):
        for key in row["keys"]:
            found = find(Lake.open(lake), row["topic"], key).to_pylist(maps_as_pydicts="strict")
            same = [r for r in rows if key in r["keys"] and r["topic"] == row["topic"]]
            assert found == [r for r in same if r["sys_flag"] & 0xC != 0xC], "rolled-back messages are in no index"


def test_archiving_adds_only_an_identity_and_a_gate_to_a_rocketmq_store(store: Path, lake: Path) -> None:
    shutil.rmtree(store / "mqlake")
    run(store, lake)
    assert identity_of(store) is not None
    assert {entry.name for entry in (store / "mqlake").iterdir()} <= {"identity", "gates", "scratch"}
    assert rows_in(lake) == rows_of(store, includeInternal="true")
