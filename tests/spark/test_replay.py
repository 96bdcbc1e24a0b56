"""Archive -> store: the same messages in the same order, with or without their queue offsets, all or nothing."""

from __future__ import annotations

import importlib
import random
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqlake import CommitLogConfig, Message, MessageStore, QueueRange, StoreConfig, check
from mqlake.errors import InvalidConfig, InvalidMessage, NotAStore
from mqlake.spark import archive, replay
from mqlake.spark.jobs.replay_place import making
from tests.helpers import bodies, open_small
from tests.lake.jobs import NO_SPARK, run_here, run_jobs_here
from tests.spark.replaying import CONFIG
from tests.spark.tables import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

PLACE = {"store", "physical_offset", "size", "store_host"}
NEW = {"store_timestamp", "sys_flag", "body_crc", "queue_offset"}


def write_store(path: Path, count: int = 700) -> None:
    """Write many shapes: compressed bodies, transactions, hosts, light queues, queues chosen in turn and by id."""
    draw = random.Random(3)
    with open_small(path) as store:
        for number in range(count):
            body = draw.randbytes(5000 if number == 650 else draw.choice([0, 7, 300, 900]))
            compressed = number % 11 == 0
            topic = draw.choice(["orders", "payments", "%RETRY%group"])
            lit = number % 23 == 0 and number % 17 and topic != "%RETRY%group"  # retry topics have no light queues
            store.put(
                Message(
                    topic,
                    zlib.compress(body) if compressed else body,
                    tags=draw.choice([None, "TagA", "标签"]),
                    keys=[f"key-{number}"] if number % 3 else (),
                    properties={"number": str(number)} | ({"INNER_MULTI_DISPATCH": "%LMQ%one"} if lit else {}),
                    queue_id=draw.choice([None, 0, 5]),
                    flag=number,
                    sys_flag=(0x301 if compressed else 0) | (0x4 if number % 17 == 0 else 0),
                    born_timestamp=1_700_000_000_000 + number,
                    born_host=draw.choice([None, "10.1.2.3:40000", "[fd00::7]:1"]),
                    reconsume_times=number % 4,
                    prepared_offset=number % 3,
                )
            )
        store.retain(before_offset=70_000)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run replays in this process."""
    monkeypatch.setattr(importlib.import_module("mqlake.spark.jobs.replay"), "run_tasks", run_here)


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store whose first file is deleted, and a lake with the rest."""
    folder = tmp_path_factory.mktemp("archived")
    write_store(folder / "store")
    assert check(folder / "store").holds
    with pytest.MonkeyPatch.context() as patched:
        run_jobs_here(patched)
        archive(NO_SPARK, str(folder / "store"), str(folder / "lake"), split_size="40k")
    return folder / "store", folder / "lake"


def all_rows(path: Path) -> list[dict[str, Any]]:
    return rows_of(path, includeInternal="true", via="scan")


def without(rows: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def test_a_replayed_store_has_the_same_messages_in_the_same_order(
    spark: SparkSession, archived: tuple[Path, Path], tmp_path: Path
) -> None:
    """Queues count from 0. Bodies are no longer compressed, and their flag says so."""
    store, lake = archived
    to = tmp_path / "new"
    done = replay(spark, str(lake), str(to), config=CONFIG)
    old, new = all_rows(store), all_rows(to)
    assert done.rows == len(old) == len(new) > 500
    assert without(new, PLACE | NEW) == without(old, PLACE | NEW)
    assert [row["sys_flag"] for row in new] == [row["sys_flag"] & ~0x701 for row in old]
    assert all(row["body_crc"] == zlib.crc32(row["body"]) & 0x7FFFFFFF for row in new)
    counted: dict[tuple[str, int], int] = {}
    for row in new:
        if not row["sys_flag"] & 0x4:
            queue = row["topic"], row["queue_id"]
            assert row["queue_offset"] == counted.get(queue, 0)
            counted[queue] = row["queue_offset"] + 1
    report = check(to)
    assert report.holds, list(report.findings)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]
    assert not (to / "mqlake" / "staging").exists()
    with MessageStore.open(to) as opened:
        assert opened.recovery is not None and opened.recovery.reason == "checkpoint"
        row = next(row for row in old if row["keys"] and row["topic"] == "orders" and not row["sys_flag"] & 0x4)
        assert [message.flag for message in opened.find("orders", row["keys"][0])] == [row["flag"]]


def offsets_and_flags(store: MessageStore, queue: QueueRange) -> list[tuple[int, int]]:
    found = store.read(queue.topic, queue_id=queue.queue_id, start=queue.first_offset, limit=1000)
    return [(message.queue_offset, message.flag) for message in found]


def test_queue_offsets_and_times_are_kept_on_request(here: None, archived: tuple[Path, Path], tmp_path: Path) -> None:
    """Queues begin at the first replayed queue offset, as after retention, and the store can be appended to."""
    store, lake = archived
    to = tmp_path / "new"
    replay(NO_SPARK, str(lake), str(to), config=CONFIG, keep_queue_offsets=True, keep_store_times=True)
    old, new = all_rows(store), all_rows(to)
    assert without(new, PLACE | {"sys_flag", "body_crc"}) == without(old, PLACE | {"sys_flag", "body_crc"})
    with MessageStore.open(store, read_only=True) as before, MessageStore.open(to) as after:
        assert after.recovery is not None and after.recovery.reason == "checkpoint", "its queues are not trusted"
        assert after.topics() == before.topics()
        for topic in before.topics():
            assert after.queues(topic) == before.queues(topic)
            for queue in before.queues(topic):
                if queue.end_offset > queue.first_offset:
                    assert offsets_and_flags(after, queue) == offsets_and_flags(before, queue)
        ends = {queue.queue_id: queue.end_offset for queue in after.queues("orders")}
        assert after.put(Message("orders", b"next", queue_id=5)).queue_offset == ends[5]
    assert check(to).holds


def test_a_selection_keeps_its_queue_offsets_with_gaps_between(
    here: None, archived: tuple[Path, Path], tmp_path: Path
) -> None:
    store, lake = archived
    to = tmp_path / "new"
    done = replay(NO_SPARK, str(lake), str(to), config=CONFIG, keep_queue_offsets=True, topics=["orders"], tags="TagA")
    wanted = [row for row in all_rows(store) if row["topic"] == "orders" and row["tags"] == "TagA"]
    assert done.rows > len(wanted) > 50, "fillers for what was left out count too"
    found = [row for row in all_rows(to) if row["topic"] != "MQLAKE_SCAR"]
    assert [(row["queue_id"], row["queue_offset"], row["flag"]) for row in found] == [
        (row["queue_id"], row["queue_offset"], row["flag"]) for row in wanted
    ]
    with MessageStore.open(to) as opened:
        numbered = [row for row in wanted if not row["sys_flag"] & 0x4]
        for row in numbered[:20]:
            [message] = opened.read("orders", queue_id=row["queue_id"], start=row["queue_offset"], limit=1)
            assert message.flag == row["flag"]
    assert not check(to).findings, "fillers explain the missing queue offsets, with entries that RocketMQ reads over"


def test_a_replayed_store_does_not_deliver_messages_again(here: None, tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        with store.transaction() as transaction:
            transaction.put(Message("orders", b"committed", queue_id=0))
        late = [
            store.put(Message("orders", b"level", queue_id=0, delay_level=1)),
            store.put(Message("orders", b"timed", queue_id=0, delay_s=3600)),
        ]
        scheduler = store.delivery.require_scheduler()
        while scheduler.step(late[0].store_timestamp + 7_200_000) < late[0].store_timestamp + 7_200_000:
            pass
        wanted = bodies(store)
    assert sorted(wanted) == [b"committed", b"level", b"timed"]
    with pytest.MonkeyPatch.context() as patched:
        run_jobs_here(patched)
        archive(NO_SPARK, str(tmp_path / "store"), str(tmp_path / "lake"))
    replay(NO_SPARK, str(tmp_path / "lake"), str(tmp_path / "new"), config=CONFIG, keep_queue_offsets=True)
    with MessageStore.open(tmp_path / "new") as store:
        assert store.waiting() == [] and store.topics() == ["orders"]
        assert bodies(store) == wanted
    with pytest.raises(InvalidConfig, match=r"SCHEDULE_TOPIC_XXXX.*would be delivered again"):
        replay(NO_SPARK, str(tmp_path / "lake"), str(tmp_path / "more"), topics="SCHEDULE_TOPIC_XXXX")


def test_a_time_range_is_replayed(
    here: None, archived: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, lake = archived
    rows = all_rows(store)
    start = rows[200]["store_timestamp"]
    wanted = [row["flag"] for row in rows if row["store_timestamp"] >= start]
    replay(NO_SPARK, str(lake), str(tmp_path / "new"), config=CONFIG, startTime=start.isoformat())
    assert [row["flag"] for row in all_rows(tmp_path / "new")] == wanted
    assert "do not agree" not in caplog.text, "there is nothing to warn about"


def test_a_failed_replay_leaves_nothing(here: None, archived: tuple[Path, Path], tmp_path: Path) -> None:
    _, lake = archived
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    with pytest.raises(NotAStore, match="name a new or an empty folder"):
        replay(NO_SPARK, str(lake), str(tmp_path / "taken"))
    with pytest.raises(InvalidConfig, match="a selection has topics, topicsPattern"):
        replay(NO_SPARK, str(lake), str(tmp_path / "new"), topic="orders")
    with pytest.raises(InvalidConfig, match="one of those in"):
        replay(NO_SPARK, str(lake), str(tmp_path / "new"), store="another")
    with pytest.raises(InvalidMessage, match=r"\[\d+, \d+\) of the archived log, row \d+, message: found \d+ bytes"):
        replay(
            NO_SPARK,
            str(lake),
            str(tmp_path / "new"),
            config=StoreConfig(commit_log=CommitLogConfig(file_size_bytes=4096)),
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


def test_the_second_of_two_replays_to_one_place_is_refused(
    here: None, archived: tuple[Path, Path], tmp_path: Path
) -> None:
    _, lake = archived
    with making(tmp_path / "new"):
        with pytest.raises(NotAStore, match=r"\.new\.replay: another replay is writing it"):
            replay(NO_SPARK, str(lake), str(tmp_path / "new"))
        assert sorted(path.name for path in tmp_path.iterdir()) == [".new.replay"], "the first one was disturbed"
    (tmp_path / ".other.replay").mkdir()
    (tmp_path / ".other.replay" / "file").write_text("mine")
    with pytest.raises(NotAStore, match=r"something that no replay left \(file\)"):
        replay(NO_SPARK, str(lake), str(tmp_path / "other"))
    assert (tmp_path / ".other.replay" / "file").read_text() == "mine"


def calls_until_killed(call: int, lake: Path, to: Path) -> int | None:
    """Replay in a process that dies at that call. Return the number of calls if it ended before that."""
    command = [sys.executable, "-m", "tests.spark.replaying", str(lake), str(to), str(call)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return int(done.stdout) if done.returncode == 0 else None


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_a_replay_after_a_kill_at_any_point_makes_the_whole_store(
    here: None, archived: tuple[Path, Path], tmp_path: Path, kills: int
) -> None:
    store, lake = archived
    wanted = without(all_rows(store), PLACE | NEW)
    to, whole = tmp_path / "new", tmp_path / "whole"
    calls = calls_until_killed(0, lake, whole)
    assert calls is not None and without(all_rows(whole), PLACE | NEW) == wanted
    begun = 0
    for number in range(kills):
        call = calls * (2 * number + 1) // (2 * kills)
        while calls_until_killed(call, lake, to) is not None:  # the exact number of calls may vary
            shutil.rmtree(to)
            call = call * 9 // 10
        begun += (tmp_path / ".new.replay").exists()
        if not to.exists():  # it was killed before the store was complete
            replay(NO_SPARK, str(lake), str(to), config=CONFIG)
        assert without(all_rows(to), PLACE | NEW) == wanted, f"killed at call {call}"
        assert check(to).holds
        assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "whole"]
        shutil.rmtree(to)
    assert begun >= kills // 2, "too few kills left files behind"
