"""A stream returns every record once: with any limit, over restarts, and while stores appear, vanish or are cleaned."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from mqlake.errors import InvalidConfig, NotAStore, PositionLost
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.names import file_name
from mqlake.spark import plan, tails
from mqlake.spark.offsets import reported_positions
from mqlake.spark.options import parse_options, parse_stream_options
from mqlake.spark.ways import Snapshot
from mqlake.store import contents, follower, recovery
from mqlake.store.recovery import LogEnd, Reporter, Trust
from tests.helpers import LOG_FILE, message, open_small
from tests.spark.streams import Engine, as_json, places
from tests.spark.tables import offsets_of, put_messages, rows_of, write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stream") / "store"
    write_store(path)
    return path


def all_records(path: Path) -> list[int]:
    return offsets_of(path, includeInternal="true", via="scan")


# ---- limits


@pytest.mark.parametrize("limit", [1, 700, 5000, LOG_FILE - 3, 3 * LOG_FILE, 1 << 30])
def test_batches_by_bytes_have_every_record_once_and_stay_within_the_limit(store: Path, limit: int) -> None:
    engine = Engine(store, maxBytesPerTrigger=limit, includeInternal="true", columns="physical_offset,size,store")
    first, *batches = engine.batches()
    assert first == [], "the first batch only fixes where the stream begins"
    assert [row["physical_offset"] for rows in batches for row in rows] == all_records(store)
    for rows in batches:
        assert sum(row["size"] for row in rows) <= limit or len(rows) == 1, "one record may exceed the limit"


@pytest.mark.parametrize("limit", [1, 7, 100, 599, 10_000])
def test_batches_by_rows_have_exactly_that_many_records(store: Path, limit: int) -> None:
    engine = Engine(store, maxRowsPerTrigger=limit, includeInternal="true")
    counts = [len(rows) for rows in engine.batches()][1:]
    assert sum(counts) == len(all_records(store))
    assert all(count == limit for count in counts[:-1])


def test_the_row_limit_counts_records_before_the_selection(store: Path) -> None:
    engine = Engine(store, maxRowsPerTrigger=100, topics="topic-1")
    batches = engine.batches()[1:]
    assert places([row for rows in batches for row in rows]) == places(rows_of(store, topics="topic-1"))
    assert len(batches) == 6


def test_a_trigger_for_all_available_data_overrides_the_limits(store: Path) -> None:
    engine = Engine(store, maxRowsPerTrigger=5, includeInternal="true")
    assert engine.batch(ReadAllAvailable()) == []
    assert len(engine.batch(ReadAllAvailable())) == len(all_records(store))
    assert engine.batch() == []


def test_stores_share_a_limit_and_each_advances(tmp_path: Path) -> None:
    write_store(tmp_path / "large", 500)
    write_store(tmp_path / "small", 20)
    engine = Engine(tmp_path / "*", maxRowsPerTrigger=50, includeInternal="true")
    engine.batch()
    first = engine.batch()
    assert len(first) == 50
    assert {row["store"] for row in first} == {str(tmp_path / "large"), str(tmp_path / "small")}
    rest = engine.all()
    expected = [
        (str(tmp_path / name), offset) for name in ("large", "small") for offset in all_records(tmp_path / name)
    ]
    assert sorted(places(first + rest)) == sorted(expected)
    tight = Engine(tmp_path / "*", maxRowsPerTrigger=1, includeInternal="true")
    tight.batch()
    assert {row["store"] for row in tight.batch()} == {str(tmp_path / "large"), str(tmp_path / "small")}


# ---- start


def test_the_initial_position_does_not_depend_on_the_log(tmp_path: Path) -> None:
    for options in (
        {"startingOffsets": "latest"},
        {"startingTimestamp": "2026-01-01"},
        {"startingOffsets": "earliest"},
    ):
        reader = Engine(tmp_path / "nothing", **options).reader
        assert reader.initialOffset() == reader.initialOffset()
        assert reader.partitions(reader.initialOffset(), {"v": 1, "stores": {"/gone": 7}}) == []


def test_a_stream_starts_where_its_options_say(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path)
    everything = rows_of(path, includeInternal="true")
    latest = Engine(path, startingOffsets="latest", includeInternal="true")
    assert latest.batches() == [[]]
    middle = everything[300]
    by_time = Engine(path, startingTimestamp=int(middle["store_timestamp"].timestamp() * 1000), includeInternal="true")
    first = next(row for row in everything if row["store_timestamp"] >= middle["store_timestamp"])
    assert places(by_time.all()) == places([r for r in everything if r["physical_offset"] >= first["physical_offset"]])
    future = Engine(path, startingTimestamp="2999-01-01", includeInternal="true")
    assert future.batches() == [[]]
    named = json.dumps({f"{path}/../store": middle["physical_offset"]})
    by_offset = Engine(path, startingOffsets=named, includeInternal="true")
    assert places(by_offset.all()) == places(everything[300:])
    with open_small(path) as opened:
        put_messages(opened, 600, 10)
    added = rows_of(path, includeInternal="true")[600:]
    for engine in (latest, future, by_offset):
        assert places(engine.all()) == places(added)
    for number, count in ((-2, 610), (-1, 0)):
        assert len(Engine(path, startingOffsets=json.dumps({str(path): number}), includeInternal="true").all()) == count


def test_an_invalid_start_offset_is_refused_and_the_next_valid_one_named(store: Path) -> None:
    def start(offset: object) -> Engine:
        return Engine(store, startingOffsets=json.dumps(offset))

    boundary = all_records(store)[1]
    with pytest.raises(InvalidConfig, match=f"no record of {store} begins there; the next is at {boundary}"):
        start({str(store): boundary - 1}).batch()
    with pytest.raises(InvalidConfig, match="'/elsewhere': this stream reads"):
        start({"/elsewhere": 0}).batch()
    with pytest.raises(PositionLost, match="the stream is at 99999999, and the log is"):
        start({str(store): 99_999_999}).batch()
    for wrong in (["a"], {"a": "b"}, {"a": -3}, {"a": True}, 7):
        with pytest.raises(InvalidConfig, match=r'JSON like {"/data/store": 4096}'):
            start(wrong)


def test_options_of_reads_and_streams_are_kept_apart(store: Path) -> None:
    def stream(**options: str) -> None:
        parse_stream_options({"path": str(store), **options})

    for name, hint in {
        "startOffset": "startingOffsets",
        "endOffset": "no end",
        "startTime": "startingTimestamp",
    }.items():
        with pytest.raises(InvalidConfig, match=f"option {name} = '1': not in a stream: .*{hint}"):
            stream(**{name.upper(): "1"})
    with pytest.raises(InvalidConfig, match="give startingOffsets or startingTimestamp, not both"):
        stream(startingOffsets="latest", startingTimestamp="0")
    with pytest.raises(InvalidConfig, match="give maxBytesPerTrigger or maxRowsPerTrigger, not both"):
        stream(maxBytesPerTrigger="1m", maxRowsPerTrigger="1")
    for wrong in ({"startingOffsets": "newest"}, {"maxBytesPerTrigger": "0"}, {"maxRowsPerTrigger": "few"}):
        with pytest.raises(InvalidConfig, match=f"option {next(iter(wrong))} = "):
            stream(**wrong)
    with pytest.raises(InvalidConfig, match=r"there is no such option; .* also startingOffsets, startingTimestamp"):
        stream(topicz="a")
    with pytest.raises(InvalidConfig, match="option maxRowsPerTrigger = '1': only for readStream"):
        parse_options({"path": str(store), "maxRowsPerTrigger": "1"})


# ---- repeated batches and restarts


def test_a_repeated_batch_reads_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path)
    engine = Engine(path, maxBytesPerTrigger=40_000)
    batches = engine.batches()
    with open_small(path) as opened:
        put_messages(opened, 600, 200)
    engine.restart(path, maxRowsPerTrigger=1, splitSize=3000)
    start = as_json(engine.reader.initialOffset())
    for end, rows in zip(list(engine.offsets), batches, strict=True):
        assert engine.rows(start, end) == rows
        start = end


def test_a_restart_resumes_where_the_last_batch_ended_with_other_limits_and_more_messages(tmp_path: Path) -> None:
    path = tmp_path / "store"
    engine, found = None, []
    for number, limit in enumerate(({"maxRowsPerTrigger": 7}, {"maxBytesPerTrigger": 9000}, {})):
        with open_small(path) as opened:
            put_messages(opened, number * 90, 90)
            if engine is None:
                engine = Engine(path, includeInternal="true", **limit)
            engine.restart(path, includeInternal="true", **limit)
            found += [row for _ in range(3) for row in engine.batch()]
    assert engine is not None
    found += engine.all()
    assert [row["physical_offset"] for row in found] == all_records(path)


@pytest.mark.parametrize(
    "options",
    [
        {"topics": "topic-1,topic-2"},
        {"topics": "topic-1", "via": "queue"},
        {"topics": "topic-1", "keys": "group-1,key-6", "via": "index"},
        {"keys": "group-1,group-2"},
        {"tags": "tag1", "queues": "0,1", "columns": "store,physical_offset,body"},
        {"topicsPattern": "topic-[34]"},
        {"includeInternal": "true"},
    ],
)
def test_a_stream_selects_like_a_read(store: Path, options: dict[str, str]) -> None:
    engine = Engine(store, maxBytesPerTrigger=50_000, **options)
    expected = rows_of(store, None, **options)
    assert sorted(engine.all(), key=lambda row: row["physical_offset"]) == expected
    assert expected


def test_damage_is_skipped_or_reported_as_in_a_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path)
    hit = all_records(path)[200]
    with (path / "commitlog" / file_name(hit - hit % LOG_FILE)).open("r+b") as file:
        file.seek(hit % LOG_FILE + 4)
        file.write(b"????")
    for limit in (5000, 1 << 20):
        engine = Engine(path, maxBytesPerTrigger=limit, onDamage="rows", includeInternal="true")
        rows = engine.all()
        assert [row["physical_offset"] for row in rows if row["damage"]] == [hit]
        assert len(rows) == 600
        engine = Engine(path, maxBytesPerTrigger=limit, includeInternal="true")
        assert len(engine.all()) == 599
        engine.restart(path, onDamage="rows", includeInternal="true")
        assert engine.all() == []


# ---- stores that appear and vanish


def test_a_store_that_appears_later_is_read_from_its_first_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_store(tmp_path / "a", 30)
    engine = Engine(tmp_path / "*", startingOffsets="latest", includeInternal="true")
    assert engine.batches() == [[]]
    (tmp_path / "b").mkdir()
    with caplog.at_level(logging.WARNING):
        assert engine.batches() == []
        assert engine.batches() == []
    assert caplog.text.count("it is skipped until it is a store") == 1
    write_store(tmp_path / "b", 40)
    assert engine.batch() == [], "this batch only fixes where the store begins"
    assert [row["store"] for row in engine.all()] == [str(tmp_path / "b")] * 40


def test_a_folder_that_is_not_a_store_is_an_error_when_a_stream_begins(tmp_path: Path) -> None:
    write_store(tmp_path / "a", 3)
    (tmp_path / "b").mkdir()
    with pytest.raises(NotAStore):
        Engine(tmp_path / "*").batch()
    with pytest.raises(NotAStore):
        Engine(tmp_path / "c").batch()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_store_that_vanishes_is_an_error_or_is_left_out(tmp_path: Path, restarted: bool) -> None:
    for name in ("a", "b"):
        write_store(tmp_path / name, 30)
    engine = Engine(tmp_path / "*")
    engine.batch()
    shutil.rmtree(tmp_path / "b")
    if restarted:
        engine.restart(tmp_path / "*")
    with pytest.raises(PositionLost, match=f"{tmp_path}/b: the stream is at 0, and this store is gone"):
        engine.batch()
    engine.restart(tmp_path / "*", failOnDataLoss="false")
    assert {row["store"] for row in engine.all()} == {str(tmp_path / "a")}
    assert engine.offsets[-1]["stores"][str(tmp_path / "b")] == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_a_named_store_that_vanishes_is_an_error_or_is_left_out_too(tmp_path: Path, restarted: bool) -> None:
    paths = json.dumps([str(tmp_path / "b")])
    for name in ("a", "b"):
        write_store(tmp_path / name, 30)
    engine = Engine(tmp_path / "a", paths=paths)
    first = engine.all()
    shutil.rmtree(tmp_path / "b")
    if restarted:
        engine.restart(tmp_path / "a", paths=paths)
    with pytest.raises(PositionLost, match=f"{tmp_path}/b: .* and this store is gone"):
        engine.batch()
    engine.restart(tmp_path / "a", paths=paths, failOnDataLoss="false")
    with open_small(tmp_path / "a") as opened:
        put_messages(opened, 30, 3)
    assert [row["store"] for row in engine.all()] == [str(tmp_path / "a")] * 3
    assert engine.reader.reportLatestOffset()["stores"].keys() == {str(tmp_path / "a")}
    assert {row["store"] for row in first} == {str(tmp_path / name) for name in ("a", "b")}


def test_the_last_store_of_a_pattern_that_vanishes_is_a_loss(tmp_path: Path) -> None:
    write_store(tmp_path / "a", 30)
    engine = Engine(tmp_path / "*")
    engine.batch()
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(PositionLost, match="this store is gone"):
        engine.batch()


def test_a_link_to_a_store_does_not_take_over_its_name(tmp_path: Path) -> None:
    write_store(tmp_path / "b", 30)
    engine = Engine(tmp_path / "*")
    count = len(engine.all())
    (tmp_path / "a").symlink_to(tmp_path / "b")
    with open_small(tmp_path / "b") as opened:
        put_messages(opened, 30, 3)
    rows = engine.all()
    assert count and {row["store"] for row in rows} == {str(tmp_path / "b")} and len(rows) == 3


def test_another_store_at_the_same_path_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path, 300)
    engine = Engine(path)
    engine.batches()
    shutil.rmtree(path)
    write_store(path, 100)
    with pytest.raises(PositionLost, match="it lost its last"):
        engine.batch()
    with open_small(path) as opened:
        for number in range(500):
            opened.put(message(number, body=b"y" * (number % 411)))
    with pytest.raises(PositionLost, match="the log before it was rewritten"):
        engine.batch()


# ---- retention


def delete_files(path: Path, count: int) -> int:
    for start in range(0, count * LOG_FILE, LOG_FILE):
        (path / "commitlog" / file_name(start)).unlink()
    return count * LOG_FILE


def test_retention_past_the_position_is_an_error_that_names_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path)
    engine = Engine(path, maxBytesPerTrigger=10_000, includeInternal="true")
    engine.batch()
    engine.batch()
    position = engine.offsets[-1]["stores"][str(path)]
    first = delete_files(path, 2)
    end = all_records(path)[-1]
    engine.restart(path, includeInternal="true")
    with pytest.raises(PositionLost) as raised:
        engine.batch()
    text = str(raised.value)
    assert f"the stream is at {position}, and the log is [{first}, " in text
    assert f"{first - position} bytes were deleted" in text
    assert "failOnDataLoss=false" in text and "gate" in text
    with pytest.raises(PositionLost):
        engine.reader.partitions(engine.offsets[-1], {"v": 1, "stores": {str(path): end}})


def test_without_fail_on_data_loss_the_stream_continues_at_the_first_record_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    write_store(path)
    engine = Engine(path, maxBytesPerTrigger=10_000, includeInternal="true", failOnDataLoss="false")
    engine.batch()
    engine.batch()
    planned = engine.next_offset()
    first = delete_files(path, 2)
    engine.restart(path, includeInternal="true", failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert engine.rows(engine.offsets[-1], planned) == [], "nothing is left of this batch"
        found = engine.all()
    assert [row["physical_offset"] for row in found] == all_records(path)
    assert found[0]["physical_offset"] == first
    assert "bytes were deleted before they were read; restore the log" in caplog.text
    assert f"continuing at {first}" in caplog.text


# ---- following


def test_a_store_is_opened_once_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    original = plan.take_snapshot

    def take_snapshot(path: Path) -> Snapshot:
        opened.append(path)
        return original(path)

    monkeypatch.setattr(tails, "take_snapshot", take_snapshot)
    path = tmp_path / "store"
    with open_small(path) as store:
        engine = Engine(path, includeInternal="true")
        found = []
        for number in range(8):
            put_messages(store, number * 40, 40)
            store.wait_dispatched()
            found += engine.all()
            assert len(found) == (number + 1) * 40
    assert opened == [path]


def make_foreign(path: Path) -> None:
    """Make a store look like one of RocketMQ: without our files, and with the abort file of a running broker."""
    shutil.rmtree(path / "mqlake")
    (path / "abort").touch()


def test_a_store_that_rocketmq_writes_is_walked_once_and_then_only_its_new_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ keeps no positions file: whole records in the log are visible before any queue has their entries."""
    source, path = tmp_path / "source", tmp_path / "live"
    write_store(source, 300)
    logs = sorted((source / "commitlog").iterdir())
    records = all_records(source)
    shutil.copytree(source, path)
    make_foreign(path)
    walked: list[int] = []

    def find_end(log: MappedFileQueue, trust: Trust, reporter: Reporter) -> LogEnd:
        walked.append(trust.offset)
        return recovery.find_end(log, trust, reporter)

    for module in (contents, follower):
        monkeypatch.setattr(module, "find_end", find_end)

    def show(end: int) -> None:
        """Make the log look as if it was written up to `end`."""
        for file in logs:
            start = int(file.name)
            target = path / "commitlog" / file.name
            if start >= end:
                target.unlink(missing_ok=True)
            else:
                content = file.read_bytes()[: max(0, end - start)].ljust(LOG_FILE, b"\0")
                if not target.exists():
                    target.write_bytes(content)
                with target.open("r+b") as opened:
                    opened.write(content)

    show(records[50])
    engine = Engine(path, includeInternal="true", topics="topic-1,topic-2,topic-3,topic-4,topic-0", via="scan")
    found = engine.all()
    assert [row["physical_offset"] for row in found] == records[:50]
    for number in (51, 120, 121, 250):
        show(records[number] + 40)  # the next record is incomplete
        found += engine.all()
        assert [row["physical_offset"] for row in found] == records[:number]
    assert walked[0] == 0 and min(walked[1:]) == records[50]
    assert walked == sorted(walked)


def test_what_a_killed_writer_had_not_dispatched_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path, 50)
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom tests.helpers import open_small\n"
        "from tests.spark.tables import put_messages\nstore = open_small(Path(sys.argv[1]))\n"
        "put_messages(store, 50, 30)\nstore.wait_dispatched()\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        "store._writing.dispatcher.close()\nput_messages(store, 80, 20)\nos.kill(os.getpid(), 9)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert writer.stdout is not None and writer.stdin is not None
    writer.stdout.readline()
    engine = Engine(path, includeInternal="true", topicsPattern="topic-.*")
    through_queues = Engine(path, topics="topic-1", via="queue")
    found = engine.all()
    assert len(found) == 80
    assert places(through_queues.all()) == places(rows_of(path, topics="topic-1"))
    writer.stdin.write("\n")
    writer.stdin.flush()
    writer.wait()
    found += engine.all()
    assert len(found) == 100
    with pytest.raises(InvalidConfig, match="queues cannot be trusted"):
        through_queues.batch()
    with open_small(path) as opened:
        put_messages(opened, 100, 25)
        opened.wait_dispatched()
        found += engine.all()
    assert [row["physical_offset"] for row in found] == all_records(path)
    assert len(found) == 125


# ---- available now


def test_available_now_ends_at_what_existed_when_it_started(tmp_path: Path) -> None:
    write_store(tmp_path / "a", 100)
    with open_small(tmp_path / "a") as opened:
        engine = Engine(tmp_path / "*", maxRowsPerTrigger=30, includeInternal="true")
        engine.reader.prepareForTriggerAvailableNow()
        found = engine.batch()
        put_messages(opened, 100, 50)
        opened.wait_dispatched()
        write_store(tmp_path / "b", 10)
        found += engine.all()
        assert len(found) == 100
        assert engine.reader.reportLatestOffset()["stores"][str(tmp_path / "a")] == opened.end_offset
        engine.restart(tmp_path / "*", includeInternal="true")
        engine.reader.prepareForTriggerAvailableNow()
        assert len(engine.all()) == 60


def test_a_checkpoint_of_another_version_is_refused(store: Path) -> None:
    engine = Engine(store)
    with pytest.raises(InvalidConfig, match="a position of version 1"):
        engine.reader.latestOffset({"v": 2, "stores": {}}, ReadMaxRows(1))


def test_a_progress_report_may_have_no_position(store: Path) -> None:
    """Spark does not ask for the end of the log when it repeats a batch."""
    for text in (None, "null", '{"v": 1, "from": "latest"}', "7"):
        assert reported_positions(text) == {}
    assert reported_positions(json.dumps(Engine(store).next_offset())) == {str(store): 0}


def test_stop_closes_open_stores(store: Path) -> None:
    engine = Engine(store)
    engine.batch()
    engine.reader.stop()
    engine.reader.stop()
    assert len(engine.all()) == len(rows_of(store))


def test_looking_for_new_records_of_a_live_store_costs_little(tmp_path: Path) -> None:
    """Spark asks every few milliseconds, so the cost must not grow with the store."""
    path = tmp_path / "store"
    write_store(path)
    with open_small(path):
        engine = Engine(path)
        engine.batches()
        began = time.process_time()
        for _ in range(100):
            engine.next_offset()
        assert time.process_time() - began < 1.0
