"""Opening after a crash walks, cuts and dispatches what was written since the checkpoint, no more and no less."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake import BadFile, FlushConfig, IndexConfig, InvalidConfig, MessageStore, NotAStore
from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.files.layout import Layout
from mqlake.inspect.check import check
from mqlake.store.checkpoint import Checkpoint, IndexMark, decode_checkpoint, read_checkpoint
from mqlake.store.writer import Writer
from tests.helpers import LOG_FILE, QUEUE_FILE, bodies, covers, eventually, message, open_small, writer_of
from tests.kernel.records import Parts

LAZY = FlushConfig(interval_ms=60_000, thorough_interval_ms=60_000)
"""Nothing is synced unless a test does it: then nothing is below the watermark."""
LOG = f"commitlog/{0:020d}"
QUEUE = f"consumequeue/orders/0/{0:020d}"


def crash(store: MessageStore, copy: Path) -> Path:
    """Copy the store as a kill would leave it now."""
    assert store.wait_dispatched()
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store.path, copy, ignore=shutil.ignore_patterns("scratch", "spare"))  # short-lived files
    return copy


def checkpoint(store: MessageStore) -> None:
    assert writer_of(store).write_checkpoint()


def fill(path: Path, count: int, *, behind: int = 0, **fields: int) -> Path:
    """Make a crashed store: `count` messages, a checkpoint, and `behind` more."""
    with open_small(path / "live", flush=LAZY) as store:
        for number in range(count):
            store.put(message(number, queue_id=0))
        assert store.wait_dispatched()
        checkpoint(store)
        for number in range(count, count + behind):
            store.put(message(number, queue_id=0))
        return crash(store, path / "store")


def require(path: Path, count: int, reason: str | None = None) -> None:
    """Require all messages, each found by its key, and the right next queue offset; twice, over a reopening."""
    for _ in range(2):
        with open_small(path) as store:
            assert store.recovery is not None
            assert reason is None or store.recovery.reason == reason, store.recovery
            assert bodies(store)[:count] == [b"body %d" % number for number in range(count)]
            for number in (0, count // 2, count - 1):
                assert [m.body for m in store.find("orders", f"key-{number}")] == [b"body %d" % number]
            assert store.put(message(count, queue_id=0)).queue_offset == count
        reason, count = None, count + 1


# ---- what recovery costs


@covers("N1", "N5", "N6", "M3")
def test_recovery_walks_only_what_was_written_since_the_checkpoint(tmp_path: Path) -> None:
    path = fill(tmp_path, 3000, behind=50)
    with open_small(path) as store:
        found = store.recovery
        assert found is not None
        assert (found.reason, found.walked_count, found.dispatched_count) == ("checkpoint", 50, 50)
        assert len(bodies(store)) == 3050
        assert found == store.stats().recovery
    with open_small(path, read_only=True) as reader:
        assert reader.recovery == found, "the report of the last writer's opening"


def test_every_checkpoint_describes_one_moment(tmp_path: Path) -> None:
    """Queue ends after `dispatched` would name messages that a power cut may lose."""
    with open_small(tmp_path, flush=FlushConfig(queue_interval_ms=1, queue_thorough_interval_ms=1)) as store:
        seen: set[int] = set()
        deadline = time.monotonic() + 60
        number = 0
        while len(seen) < 20 and time.monotonic() < deadline:
            for _ in range(50):
                store.put(message(number, queue_id=number % 5))
                number += 1
            found = read_checkpoint(Layout(tmp_path).own_checkpoint)
            assert found is not None
            ends = found.queue_ends.get("orders", {})
            records = sum(batch.num_rows for batch in store.scan(end=found.dispatched, columns=["size"]))
            assert sum(ends.values()) == records
            assert found.durable >= found.dispatched
            seen.add(found.dispatched)
        assert len(seen) == 20


def test_a_checkpoint_of_80000_queues_is_small_and_fast_to_read() -> None:
    ends = {f"topic-{number:05d}": dict.fromkeys(range(8), 123_456) for number in range(10_000)}
    data = Checkpoint(queue_ends=ends, index=IndexMark(files=("2",), header=bytes(40))).encode()
    assert len(data) < 4 << 20
    began = time.process_time()
    found = decode_checkpoint(data)
    assert time.process_time() - began < 1
    assert found is not None
    assert found.queue_ends == ends


@covers("M2", "N1")
def test_queues_that_are_not_used_keep_their_ends_over_many_openings(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(40):
            store.put(message(number, topic=f"t{number % 20}", queue_id=0))
    for life in range(5):
        with open_small(tmp_path / "s") as store:
            store.put(message(life, topic="t3", queue_id=0))
        crashed = shutil.copytree(tmp_path / "s", tmp_path / f"crashed-{life}")
        (crashed / "abort").touch()
    ends = read_checkpoint(Layout(tmp_path / "s").own_checkpoint)
    assert ends is not None
    assert {topic: of[0] for topic, of in ends.queue_ends.items()} == {f"t{n}": 7 if n == 3 else 2 for n in range(20)}


def test_progress_is_reported(tmp_path: Path) -> None:
    path = fill(tmp_path, 500, behind=700)
    told: list[tuple[str, int, int]] = []
    with open_small(path, progress=lambda *step: told.append(step)):
        pass
    assert {what for what, _, _ in told} == {"walking", "dispatching"}
    assert all(0 <= done <= total for _, done, total in told)


# ---- torn tails


@covers("N4", "N5", "D5")
def test_a_last_record_that_ends_at_any_byte_is_cut_exactly_there(tmp_path: Path) -> None:
    path = fill(tmp_path, 5, behind=3)
    with open_small(tmp_path / "live", read_only=True) as store:
        last = store.read("orders", start=7)[0]
    whole = (path / LOG).read_bytes()
    start, end = last.physical_offset, last.physical_offset + last.size
    for cut in range(start, end):
        state = tmp_path / "state"
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(path, state)
        (state / LOG).write_bytes(whole[:cut].ljust(LOG_FILE, b"\0"))
        with open_small(state) as store:
            assert store.recovery is not None
            assert store.recovery.end == start
            assert len(bodies(store)) == 7
            assert store.find("orders", "key-7") == []
            assert store.put(message(7, queue_id=0)).queue_offset == 7
            assert (state / LOG).read_bytes()[:start] == whole[:start]
        assert not store.recovery.scars


@pytest.mark.parametrize("shortened", [False, True], ids=["zeroed", "shortened"])
@pytest.mark.parametrize("which", ["queue", "index"])
def test_queue_and_index_that_end_at_any_byte_are_completed_from_the_log(
    tmp_path: Path, which: str, shortened: bool
) -> None:
    path = fill(tmp_path, 5, behind=3)
    file = path / QUEUE if which == "queue" else next((path / "index").iterdir())
    whole = file.read_bytes()
    end = 8 * ENTRY_SIZE if which == "queue" else 40 + 400 + 17 * 20
    assert whole[end:] == bytes(len(whole) - end)
    for cut in range(end - ENTRY_SIZE, end):
        state = tmp_path / "state"
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(path, state)
        (state / file.relative_to(path)).write_bytes(whole[:cut] if shortened else whole[:cut].ljust(len(whole), b"\0"))
        require(state, 8)


def test_index_slots_that_name_lost_entries_are_relinked(tmp_path: Path) -> None:
    """A power cut may keep the slots and lose the entries: older keys of the same slots must still be found."""
    path = fill(tmp_path, 60, behind=60)
    file = next((path / "index").iterdir())
    data = file.read_bytes()
    kept = 40 + 400 + 20 * (1 + 2 * 60)  # a key and a tag each
    file.write_bytes(data[:kept].ljust(len(data), b"\0"))
    with open_small(path) as store:
        for number in range(120):
            assert len(store.find("orders", f"key-{number}")) == 1, number


def test_index_entries_of_lost_records_are_gone_after_recovery(tmp_path: Path) -> None:
    """A power cut may keep a page of the index and lose the page of the log whose keys it holds."""
    path = fill(tmp_path, 10, behind=10)
    with open_small(tmp_path / "live", read_only=True) as store:
        lost = store.read("orders", start=13, limit=1)[0].physical_offset
    with (path / LOG).open("r+b") as file:
        file.truncate(lost)
        file.truncate(LOG_FILE)
    with open_small(path) as store:
        assert len(bodies(store)) == 13
    assert check(path).findings == ()


def test_a_log_that_ends_with_a_full_file_is_whole(tmp_path: Path) -> None:
    """The next file was created but lost its contents: recovery deletes it."""
    with open_small(tmp_path / "live", flush=LAZY) as store:
        while store.put(message(0, queue_id=0, body=bytes(500))).physical_offset < LOG_FILE:
            pass
        path = crash(store, tmp_path / "store")
    (path / f"commitlog/{LOG_FILE:020d}").write_bytes(bytes(LOG_FILE))
    with open_small(path) as store:
        assert store.end_offset == LOG_FILE
    assert check(path).findings == ()


def test_queue_entries_after_the_end_are_gone_after_recovery(tmp_path: Path) -> None:
    """RocketMQ and readers would take entries of lost messages for messages."""
    path = fill(tmp_path, 5, behind=100)
    with (path / LOG).open("r+b") as file:
        file.truncate(5 * 130)  # the messages before the checkpoint, and part of the next
        file.truncate(LOG_FILE)
    with open_small(path) as store:
        assert store.recovery is not None
        assert store.recovery.cut_queue_count == 1
        assert 0 < len(bodies(store)) < 10
        count = len(bodies(store))
    assert (path / QUEUE).read_bytes()[count * ENTRY_SIZE :] == bytes(QUEUE_FILE - count * ENTRY_SIZE)
    assert not (path / f"consumequeue/orders/0/{QUEUE_FILE:020d}").exists()


def test_whole_records_after_a_torn_one_are_not_taken_into_the_log(tmp_path: Path) -> None:
    """After the watermark the log ends at the first broken record, and stale bytes after it are zeroed."""
    path = fill(tmp_path, 5, behind=10)
    with open_small(tmp_path / "live", read_only=True) as store:
        torn = store.read("orders", start=7, limit=1)[0]
        end = store.end_offset
    data = bytearray((path / LOG).read_bytes())
    data[torn.physical_offset + 92] ^= 1
    (path / LOG).write_bytes(data)
    with open_small(path) as store:
        assert store.recovery is not None
        assert (store.recovery.end, store.recovery.scars) == (torn.physical_offset, ())
        assert store.recovery.cut_bytes == end - torn.physical_offset
        assert (path / LOG).read_bytes()[torn.physical_offset :] == bytes(LOG_FILE - torn.physical_offset)
    require(path, 7)


def test_damage_before_the_watermark_is_a_scar_and_cuts_nothing(tmp_path: Path) -> None:
    with open_small(tmp_path / "live", flush=LAZY) as store:
        receipts = [store.put(message(number, queue_id=0)) for number in range(10)]
        store.flush()  # the positions file has this sync, no checkpoint does
        path = crash(store, tmp_path / "store")
    data = bytearray((path / LOG).read_bytes())
    data[receipts[4].physical_offset + 5] ^= 1
    data[receipts[9].physical_offset + 5] ^= 1
    (path / LOG).write_bytes(data)
    for _ in range(2):
        with open_small(path) as store:
            expected = [(receipts[4].physical_offset, receipts[4].end), (receipts[9].physical_offset, receipts[9].end)]
            assert store.stats().damage == tuple(expected)
            assert store.stats().scar_count == 2
            assert [m.queue_offset for m in store.read("orders", queue_id=0)] == [0, 1, 2, 3, 5, 6, 7, 8]
            assert store.end_offset == receipts[9].end


# ---- what is not trusted


def test_a_checkpoint_with_any_flipped_byte_is_ignored(tmp_path: Path) -> None:
    path = fill(tmp_path, 5, behind=5)
    file = Layout(path).own_checkpoint
    data = file.read_bytes()
    for at in range(len(data)):
        assert decode_checkpoint(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]) is None
    for at in (0, 9, 40, len(data) - 1):
        state = shutil.copytree(path, tmp_path / f"flipped-{at}")
        Layout(state).own_checkpoint.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        require(state, 10, "unclean stop")
    Layout(path).own_checkpoint.write_bytes(data[: len(data) // 2])
    require(path, 10, "unclean stop")


def test_a_checkpoint_from_before_rocketmq_wrote_the_store_is_not_trusted(tmp_path: Path) -> None:
    """RocketMQ may have cut and overwritten the log: our offsets would name what is no longer there."""
    path = fill(tmp_path, 5, behind=5)
    rocketmqs = bytearray(Layout(path).checkpoint.read_bytes())
    rocketmqs[7] ^= 1
    Layout(path).checkpoint.write_bytes(rocketmqs)
    require(path, 10, "unclean stop")


def test_a_checkpoint_that_contradicts_the_log_is_deleted_before_anything_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise new records of the same size could make it look valid again."""
    path = fill(tmp_path, 20)
    with open_small(tmp_path / "other") as store:
        for number in range(8):
            store.put(message(number, queue_id=0, body=b"another body %d" % number))
    monkeypatch.setattr(
        Writer, "write_checkpoint", lambda self, clean=False: False
    )  # it dies before the next checkpoint
    shutil.copy(tmp_path / "other" / LOG, path / LOG)
    with open_small(path, flush=LAZY) as store:
        assert store.recovery is not None
        assert store.recovery.reason == "unclean stop"
        assert not Layout(path).own_checkpoint.exists()
        left = len(bodies(store))
        for number in range(left, 20):
            store.put(message(number, topic="others", queue_id=0))
        state = crash(store, tmp_path / "again")
    with open_small(state) as store:
        assert len(bodies(store)) == left
        assert len(bodies(store, topic="others")) == 20 - left


@covers("M2")
def test_an_abort_file_left_by_a_writer_that_closed_the_store_costs_nothing(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(20):
            store.put(message(number, queue_id=0))
        abort = Layout(store.path).abort.read_text()
    Layout(tmp_path / "s").abort.write_text(abort)
    with open_small(tmp_path / "s") as store:
        assert store.recovery is not None
        assert (store.recovery.reason, store.recovery.walked_count) == ("checkpoint", 0)
    Layout(tmp_path / "s").abort.write_text("4711")  # RocketMQ's, killed before it wrote anything else
    require(tmp_path / "s", 20, "unclean stop")


def without_own_files(path: Path) -> None:
    shutil.rmtree(path / "mqlake")


def closed(tmp_path: Path, count: int = 250) -> Path:
    with open_small(tmp_path / "store") as store:
        for number in range(count):
            store.put(message(number, queue_id=0))
            store.put(message(number, topic="other", queue_id=1))
    return tmp_path / "store"


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a queue's folder lost": lambda p: shutil.rmtree(p / "consumequeue/orders/0"),
    "all queues lost": lambda p: shutil.rmtree(p / "consumequeue"),
    "a queue's first file lost": lambda p: (p / QUEUE).unlink(),
    "a queue's last file lost": lambda p: (p / f"consumequeue/orders/0/{2 * QUEUE_FILE:020d}").unlink(),
    "a queue's file short": lambda p: os.truncate(p / QUEUE, 1000),
    "a queue's file long": lambda p: os.truncate(p / QUEUE, 3000),
    "a queue's last file empty": lambda p: os.truncate(p / f"consumequeue/orders/0/{2 * QUEUE_FILE:020d}", 0),
    "a queue's file misnamed": lambda p: (p / QUEUE).rename(p / f"consumequeue/orders/0/{40:020d}"),
    "a stranger in a queue": lambda p: (p / "consumequeue/orders/0/notes.txt").write_text("mine"),
    "a stranger among the queues": lambda p: (p / "consumequeue/notes.txt").write_text("mine"),
    "the index lost": lambda p: shutil.rmtree(p / "index"),
    "an index file lost": lambda p: min((p / "index").iterdir()).unlink(),
    "the newest index file lost": lambda p: max((p / "index").iterdir()).unlink(),
    "an index file short": lambda p: os.truncate(max((p / "index").iterdir()), 8000),
    "an index file empty": lambda p: os.truncate(max((p / "index").iterdir()), 0),
    "a surplus index file": lambda p: (p / "index/20990101000000000").write_bytes(b"x"),
    "rocketmq's checkpoint lost": lambda p: (p / "checkpoint").rename(p / "old"),
    "our checkpoint lost": lambda p: (p / "mqlake/checkpoint").rename(p / "old"),
    "rocketmq's checkpoint zeroed": lambda p: (p / "checkpoint").write_bytes(bytes(4096)),
    "half the settings": lambda p: (p / "mqlake/settings.json").write_text('{"maxHash'),
    "the positions short": lambda p: os.truncate(p / "mqlake/positions", 100),
    "all of our own lost": without_own_files,
    "the lock lost": lambda p: (p / "lock").unlink(),
}


@covers("N8", "N7", "J6")
@pytest.mark.parametrize("unclean", [False, True], ids=["clean", "unclean"])
@pytest.mark.parametrize("what", DAMAGE)
def test_derived_files_that_are_lost_or_wrong_are_rebuilt(tmp_path: Path, what: str, unclean: bool) -> None:
    path = closed(tmp_path)
    DAMAGE[what](path)
    if unclean:
        (path / "abort").touch()
    with open_small(path, read_only=True) as reader:
        assert len(bodies(reader)) == 250
        assert len(bodies(reader, topic="other", queue_id=1)) == 250
    require(path, 250)
    with open_small(path) as store:
        assert bodies(store, topic="other", queue_id=1) == [b"body %d" % number for number in range(250)]
        for number in range(250):
            found = {m.topic for topic in ("orders", "other") for m in store.find(topic, f"key-{number}")}
            assert found == {"orders", "other"}
    if what == "a stranger in a queue":
        assert [p.read_text() for p in path.rglob("notes.txt")] == ["mine"]


@covers("N2")
def test_a_lost_queue_folder_is_also_noticed_after_a_clean_stop_by_rocketmq(tmp_path: Path) -> None:
    path = closed(tmp_path)
    without_own_files(path)
    with open_small(path, read_only=True):
        pass
    shutil.rmtree(path / "consumequeue" / "orders")
    require(path, 250, "rebuild")


def test_a_queue_whose_messages_are_all_gone_from_the_log_keeps_its_next_queue_offset(tmp_path: Path) -> None:
    """Its entries are lost with its folder; only the checkpoint still knows that it had 30 messages."""
    with open_small(tmp_path / "s") as store:
        for number in range(30):
            store.put(message(number, topic="old", queue_id=0))
        for number in range(1500):
            store.put(message(number, queue_id=0))
    (tmp_path / "s" / LOG).unlink()
    assert len(list((tmp_path / "s" / "commitlog").iterdir())) > 1
    shutil.rmtree(tmp_path / "s" / "consumequeue" / "old")
    with open_small(tmp_path / "s") as store:
        assert store.recovery is not None
        assert store.recovery.reason == "rebuild"
        assert store.put(message(30, topic="old", queue_id=0)).queue_offset == 30
        assert [m.queue_offset for m in store.read("old", start=30)] == [30]
        assert store.queues("old")[0].first_offset == 30


def test_an_index_with_other_sizes_than_configured_is_an_error_and_is_kept(tmp_path: Path) -> None:
    path = closed(tmp_path)
    before = [file.read_bytes() for file in sorted((path / "index").iterdir())]
    with pytest.raises(BadFile, match="configure the numbers it was made with"):
        open_small(path, index=IndexConfig(slot_count=200, entry_count=400))
    assert [file.read_bytes() for file in sorted((path / "index").iterdir())] == before


# ---- the log itself


@covers("N8")
@pytest.mark.parametrize("size", [0, 1, 4096, LOG_FILE - 1, LOG_FILE + 1, 2 * LOG_FILE])
@pytest.mark.parametrize("unclean", [False, True], ids=["clean", "unclean"])
def test_a_last_log_file_that_lost_its_size_opens(tmp_path: Path, size: int, unclean: bool) -> None:
    path = closed(tmp_path, 20)
    used = (path / LOG).read_bytes().rstrip(b"\0")
    next_file = path / f"commitlog/{LOG_FILE:020d}"
    next_file.write_bytes(bytes(size))  # its name survived, its size did not
    if unclean:
        (path / "abort").touch()
    require(path, 20)
    assert (path / LOG).read_bytes().startswith(used)


@pytest.mark.parametrize("difference", [-1000, 4096])
def test_the_only_log_file_opens_when_it_is_short_or_long(tmp_path: Path, difference: int) -> None:
    path = closed(tmp_path, 20)
    os.truncate(path / LOG, LOG_FILE + difference)
    require(path, 20)


@covers("N7")
def test_a_lost_log_leaves_an_empty_store_that_reuses_no_queue_offset(tmp_path: Path) -> None:
    path = closed(tmp_path, 20)
    with open_small(path, read_only=True) as store:
        end = store.end_offset
    shutil.rmtree(path / "commitlog")
    with open_small(path) as store:
        assert store.end_offset == end
        assert store.read("orders", queue_id=0) == []
        assert store.put(message(20, queue_id=0)).queue_offset == 20
        assert bodies(store, start=20) == [b"body 20"]


def test_a_lost_log_without_a_checkpoint_leaves_an_empty_store(tmp_path: Path) -> None:
    """Queues without a log name nothing: they are emptied, and queue offsets restart at zero."""
    path = closed(tmp_path)
    shutil.rmtree(path / "commitlog")
    Layout(path).own_checkpoint.unlink()
    with open_small(path) as store:
        assert store.end_offset == 0
        assert store.put(message(0, queue_id=0)).queue_offset == 0
        assert bodies(store) == [b"body 0"]


@pytest.mark.parametrize(("ahead_ms", "stays"), [(9_000, True), (3_600_000, False)])
def test_store_times_do_not_go_back_with_the_clock_unless_they_were_wrong(
    tmp_path: Path, ahead_ms: int, stays: bool
) -> None:
    """A clock that was an hour ahead must not pin the times of all messages for an hour."""
    ahead = round(time.time() * 1000) + ahead_ms
    record = Parts(topic=b"orders", body=b"ahead", properties=b"", timestamp=ahead).record(0)
    record = record[:20] + struct.pack(">q", 0) + record[28:]
    (tmp_path / "commitlog").mkdir()
    (tmp_path / LOG).write_bytes(record.ljust(LOG_FILE, b"\0"))
    (tmp_path / "abort").touch()
    for number in (1, 2):
        with open_small(tmp_path) as store:
            stored = store.put(message(number, queue_id=0)).store_timestamp
            assert (stored >= ahead) is stays
            assert store.read("orders", queue_id=0)[0].store_timestamp >= ahead


# ---- the file system


def test_a_read_only_file_system_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = closed(tmp_path, 3)

    class ReadOnly:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda _: ReadOnly)
    with pytest.raises(NotAStore, match="its file system is read-only; open it with read_only=True"):
        open_small(path)
    with open_small(path, read_only=True) as reader:
        assert len(bodies(reader)) == 3


def test_recovery_writes_its_report_as_json(tmp_path: Path) -> None:
    path = fill(tmp_path, 3, behind=4)
    with open_small(path) as store:
        noted = json.loads(Layout(path).last_recovery.read_text())
        assert store.recovery is not None
        assert noted == json.loads(json.dumps(dataclasses.asdict(store.recovery)))
        assert (noted["reason"], noted["walked_count"], noted["cut_bytes"]) == ("checkpoint", 4, 0)


def test_a_configured_size_that_contradicts_the_log_is_still_an_error(tmp_path: Path) -> None:
    from mqlake import CommitLogConfig

    path = closed(tmp_path, 3)
    with pytest.raises(InvalidConfig, match="mappedFileSizeCommitLog"):
        open_small(path, commit_log=CommitLogConfig(file_size_bytes=2 * LOG_FILE))


# ---- writing a checkpoint


def test_a_checkpoint_that_cannot_be_written_keeps_the_old_one_and_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqlake.files.small_files import replace_file as real

    full = [False]

    def replace_file(path: Path, content: bytes, scratch: Path) -> None:
        if full[0]:
            raise OSError(28, "No space left on device")
        real(path, content, scratch)

    monkeypatch.setattr("mqlake.store.checkpoint.replace_file", replace_file)
    settings = FlushConfig(queue_interval_ms=5, queue_thorough_interval_ms=10)
    with open_small(tmp_path / "s", flush=settings) as store:
        full[0] = True
        receipt = store.put(message(0, queue_id=0))
        time.sleep(0.1)
        found = read_checkpoint(Layout(tmp_path / "s").own_checkpoint)
        assert found is not None
        assert found.dispatched == 0
        assert store.stats().failure is None
        full[0] = False
        assert eventually(
            lambda: getattr(read_checkpoint(Layout(store.path).own_checkpoint), "dispatched", 0) == receipt.end
        )


def test_an_entry_that_names_an_out_of_order_record_is_replaced_by_the_right_one(tmp_path: Path) -> None:
    """One flipped bit in a record's queue offset must not lose the message that really has that queue offset."""
    for flipped, numbers in ((0, [1, 2, 3, 4, 5, 6, 7]), (5, [0, 1, 2, 3, 4, 6, 7])):
        path = fill(tmp_path / str(flipped), 1, behind=7)
        with open_small(tmp_path / str(flipped) / "live", read_only=True) as store:
            offset = store.read("orders", start=flipped, limit=1)[0].physical_offset
        data = bytearray((path / LOG).read_bytes())
        data[offset + 27] ^= 4  # 0 becomes 4, 5 becomes 1
        (path / LOG).write_bytes(data)
        Layout(path).own_checkpoint.unlink()
        with open_small(path) as store:
            first = store.queues("orders")[0].first_offset
            found = {m.body for m in store.read("orders", queue_id=0, start=first, limit=100)}
            assert {b"body %d" % number for number in numbers} <= found


def test_a_torn_first_record_of_a_store_without_a_checkpoint_does_not_keep_it_from_opening(tmp_path: Path) -> None:
    """Without a store time it counts as torn, although its CRC holds: the search after it must not find it again."""
    path = fill(tmp_path, 30)
    without_own_files(path)
    with (path / LOG).open("r+b") as log:
        log.seek(56)
        log.write(bytes(8))
    with open_small(path) as store:
        assert bodies(store, start=1)[-1] == b"body 29"
