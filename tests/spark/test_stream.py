"""A stream gives every record once: whatever the limits, over restarts, and while stores come, go and are cleaned."""

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
from mqlake.spark.offsets import places_told
from mqlake.spark.options import parse_options, parse_stream_options
from mqlake.spark.ways import Snapshot
from mqlake.store import follower, recovery, side
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
    assert first == [], "it only says where the stream begins"
    assert [row["physical_offset"] for rows in batches for row in rows] == all_records(store)
    for rows in batches:
        assert sum(row["size"] for row in rows) <= limit or len(rows) == 1, "one record, where none fits"


@pytest.mark.parametrize("limit", [1, 7, 100, 599, 10_000])
def test_batches_by_rows_have_exactly_so_many_records(store: Path, limit: int) -> None:
    engine = Engine(store, maxRowsPerTrigger=limit, includeInternal="true")
    counts = [len(rows) for rows in engine.batches()][1:]
    assert sum(counts) == len(all_records(store))
    assert all(count == limit for count in counts[:-1])


def test_rows_are_counted_before_the_selection(store: Path) -> None:
    engine = Engine(store, maxRowsPerTrigger=100, topics="topic-1")
    batches = engine.batches()[1:]
    assert places([row for rows in batches for row in rows]) == places(rows_of(store, topics="topic-1"))
    assert len(batches) == 6


def test_a_trigger_that_asks_for_everything_gets_it_whatever_the_options_say(store: Path) -> None:
    engine = Engine(store, maxRowsPerTrigger=5, includeInternal="true")
    assert engine.batch(ReadAllAvailable()) == []
    assert len(engine.batch(ReadAllAvailable())) == len(all_records(store))
    assert engine.batch() == []


def test_stores_share_a_limit_and_each_moves_on(tmp_path: Path) -> None:
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


# ---- where it starts


def test_the_initial_position_does_not_look_at_the_log(tmp_path: Path) -> None:
    for options in (
        {"startingOffsets": "latest"},
        {"startingTimestamp": "2026-01-01"},
        {"startingOffsets": "earliest"},
    ):
        reader = Engine(tmp_path / "nothing", **options).reader
        assert reader.initialOffset() == reader.initialOffset()
        assert reader.partitions(reader.initialOffset(), {"v": 1, "stores": {"/gone": 7}}) == []


def test_a_stream_starts_where_it_is_told(tmp_path: Path) -> None:
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


def test_an_offset_that_cannot_be_a_start_is_named(store: Path) -> None:
    def start(offset: object) -> Engine:
        return Engine(store, startingOffsets=json.dumps(offset))

    boundary = all_records(store)[1]
    with pytest.raises(InvalidConfig, match=f"no record of {store} begins there; one at {boundary}"):
        start({str(store): boundary - 1}).batch()
    with pytest.raises(InvalidConfig, match="'/elsewhere': this stream reads"):
        start({"/elsewhere": 0}).batch()
    with pytest.raises(PositionLost, match="the stream stands at 99999999, and the log is"):
        start({str(store): 99_999_999}).batch()
    for wrong in (["a"], {"a": "b"}, {"a": -3}, {"a": True}, 7):
        with pytest.raises(InvalidConfig, match=r'JSON like {"/data/store": 4096}'):
            start(wrong)


def test_options_are_told_apart_in_reads_and_streams(store: Path) -> None:
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
    with pytest.raises(InvalidConfig, match="option maxRowsPerTrigger = '1': an option of readStream"):
        parse_options({"path": str(store), "maxRowsPerTrigger": "1"})


# ---- again


def test_a_batch_that_is_run_again_reads_the_same_bytes(tmp_path: Path) -> None:
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


def test_a_restart_goes_on_where_the_last_batch_ended_with_other_limits_and_more_messages(tmp_path: Path) -> None:
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
def test_the_selection_of_a_read_is_that_of_a_stream(store: Path, options: dict[str, str]) -> None:
    engine = Engine(store, maxBytesPerTrigger=50_000, **options)
    expected = rows_of(store, None, **options)
    assert sorted(engine.all(), key=lambda row: row["physical_offset"]) == expected
    assert expected


def test_damage_is_passed_over_reported_or_an_error_as_in_a_read(tmp_path: Path) -> None:
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


# ---- stores that come and go


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
    assert caplog.text.count("it is passed over until it is a store") == 1
    write_store(tmp_path / "b", 40)
    assert engine.batch() == [], "first the checkpoint learns where it begins"
    assert [row["store"] for row in engine.all()] == [str(tmp_path / "b")] * 40


def test_a_folder_that_is_no_store_is_an_error_when_a_stream_begins(tmp_path: Path) -> None:
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
    with pytest.raises(PositionLost, match=f"{tmp_path}/b: the stream stands at 0, and this store is gone"):
        engine.batch()
    engine.restart(tmp_path / "*", failOnDataLoss="false")
    assert {row["store"] for row in engine.all()} == {str(tmp_path / "a")}
    assert engine.offsets[-1]["stores"][str(tmp_path / "b")] == 0


def test_another_store_in_the_place_of_the_old_is_not_read_on(tmp_path: Path) -> None:
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
    with pytest.raises(PositionLost, match="where no record begins"):
        engine.batch()


# ---- retention


def delete_files(path: Path, count: int) -> int:
    for start in range(0, count * LOG_FILE, LOG_FILE):
        (path / "commitlog" / file_name(start)).unlink()
    return count * LOG_FILE


def test_retention_that_passed_the_position_is_an_error_that_names_both_ends(tmp_path: Path) -> None:
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
    told = str(raised.value)
    assert f"stands at {position}, and the log is [{first}, " in told
    assert f"{first - position} bytes were deleted" in told
    assert "failOnDataLoss=false" in told and "gate" in told
    with pytest.raises(PositionLost):
        engine.reader.partitions(engine.offsets[-1], {"v": 1, "stores": {str(path): end}})


def test_without_fail_on_data_loss_the_stream_goes_on_at_the_first_record_and_says_so(
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
        assert engine.rows(engine.offsets[-1], planned) == [], "a batch of which nothing is left"
        found = engine.all()
    assert [row["physical_offset"] for row in found] == all_records(path)
    assert found[0]["physical_offset"] == first
    assert "bytes were deleted before they were read; bring the log back" in caplog.text
    assert f"going on at {first}" in caplog.text


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


def without_notes(path: Path) -> None:
    """As RocketMQ leaves it: nothing of ours, and an abort file as long as it runs."""
    shutil.rmtree(path / "mqlake")
    (path / "abort").touch()


def test_a_store_that_rocketmq_writes_is_walked_once_and_then_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ keeps no positions: its records show in the log, whole ones only, before any queue knows of them."""
    source, path = tmp_path / "source", tmp_path / "live"
    write_store(source, 300)
    logs = sorted((source / "commitlog").iterdir())
    records = all_records(source)
    shutil.copytree(source, path)
    without_notes(path)
    walked: list[int] = []

    def find_end(log: MappedFileQueue, trust: Trust, reporter: Reporter) -> LogEnd:
        walked.append(trust.offset)
        return recovery.find_end(log, trust, reporter)

    for module in (side, follower):
        monkeypatch.setattr(module, "find_end", find_end)

    def show(end: int) -> None:
        """The log as it is when it has been written up to `end`."""
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
        show(records[number] + 40)  # the next record is not whole yet
        found += engine.all()
        assert [row["physical_offset"] for row in found] == records[:number]
    assert walked[0] == 0 and min(walked[1:]) == records[50]
    assert walked == sorted(walked)


def test_what_a_writer_that_died_had_not_dispatched_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path, 50)
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom tests.helpers import open_small\n"
        "from tests.spark.tables import put_messages\nstore = open_small(Path(sys.argv[1]))\n"
        "put_messages(store, 50, 30)\nstore.wait_dispatched()\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        "store._side.dispatcher.visible_end = lambda: 0\nput_messages(store, 80, 20)\nos.kill(os.getpid(), 9)\n"
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
    with pytest.raises(InvalidConfig, match="queues cannot be believed"):
        through_queues.batch()
    with open_small(path) as opened:
        put_messages(opened, 100, 25)
        opened.wait_dispatched()
        found += engine.all()
    assert [row["physical_offset"] for row in found] == all_records(path)
    assert len(found) == 125


# ---- available now


def test_available_now_ends_at_what_was_there_when_it_was_asked_for(tmp_path: Path) -> None:
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


def test_a_progress_report_may_tell_no_position(store: Path) -> None:
    """Of a batch that is run again Spark does not ask where the log ends."""
    assert (
        places_told(None) == places_told("null") == places_told('{"v": 1, "from": "latest"}') == places_told("7") == {}
    )
    assert places_told(json.dumps(Engine(store).next_offset())) == {str(store): 0}


def test_a_reader_with_open_stores_is_closed_by_stop(store: Path) -> None:
    engine = Engine(store)
    engine.batch()
    engine.reader.stop()
    engine.reader.stop()
    assert len(engine.all()) == len(rows_of(store))


def test_a_lookup_of_a_live_store_costs_little(tmp_path: Path) -> None:
    """Spark asks every few milliseconds: nothing that grows with the store may be done then."""
    path = tmp_path / "store"
    write_store(path)
    with open_small(path):
        engine = Engine(path)
        engine.batches()
        began = time.process_time()
        for _ in range(100):
            engine.next_offset()
        assert time.process_time() - began < 1.0
