"""Retention: which files are deleted, when, and what holds them back."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from mqlake import (
    DiskAboveLimit,
    DiskFull,
    InvalidConfig,
    MessageStore,
    OffsetOutOfRange,
    RetentionConfig,
    StoreConfig,
    StoreFailed,
)
from mqlake.store.gates import Gates
from mqlake.store.retention import disk_used_percent
from tests.helpers import LOG_FILE, contents_of, covers, eventually, message, open_small, writer_of
from tests.store.retention import BODY, DAY_HOURS, HOUR, Cleaner, fill, log_files, open_filled, queue_files, read_all

# ---- by age


@covers("O1", "O3")
@pytest.mark.parametrize(
    ("delete_when", "hour", "goes"), [("04", 4, 3), ("04", 5, 0), ("04;16", 16, 3), ("04;16", 3, 0)]
)
def test_files_older_than_72_hours_are_deleted_at_the_configured_hours(
    tmp_path: Path, delete_when: str, hour: int, goes: int
) -> None:
    with open_filled(tmp_path / "store", 4) as store:
        cleaner = Cleaner(store, delete_hours=delete_when)
        cleaner.at_hour(hour)
        assert cleaner.clean() == goes
        assert store.first_offset == goes * LOG_FILE


@covers("O1")
def test_a_file_is_as_old_as_its_newest_message_whatever_the_file_system_says(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 1) as store:
        for files in (2, 3, 4):
            time.sleep(0.02)
            fill(store, files)
        newest_ms = store.get(2 * LOG_FILE).store_timestamp  # the first of file 2, right after the last of file 1
        for path in (store.path / "commitlog").iterdir():
            path.touch()
        cleaner = Cleaner(store, delete_hours=DAY_HOURS)
        cleaner.now = newest_ms / 1000 + 72 * HOUR - 0.002
        assert cleaner.clean() == 1
        cleaner.now += 0.004
        assert cleaner.clean() == 1


def test_without_a_readable_message_after_it_a_file_is_as_old_as_the_file_system_says(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 3) as store:
        file = contents_of(store).log_files.file_at(LOG_FILE)
        assert file is not None
        file.pages[:8] = bytes(8)
        cleaner = Cleaner(store, delete_hours=DAY_HOURS)
        cleaner.now = time.time() + 71 * HOUR
        assert cleaner.clean() == 0
        cleaner.now = time.time() + 73 * HOUR
        assert cleaner.clean() == 2


@covers("O1")
def test_the_file_being_written_is_never_deleted(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 3) as store:
        cleaner = Cleaner(store, reserved_hours=0, delete_hours=DAY_HOURS, batch_files=1000)
        cleaner.used = 100
        cleaner.now += 1
        assert cleaner.clean() == 2
        assert cleaner.clean() == 0
        assert log_files(store) == [f"{2 * LOG_FILE:020d}"]


# ---- by disk use


@covers("O3")
@pytest.mark.parametrize(
    ("used", "old", "young", "puts_taken"),
    [(75, 0, 0, True), (76, 3, 0, True), (85, 3, 0, True), (86, 3, 3, True), (90, 3, 3, True), (91, 3, 3, False)],
)
def test_each_stage_of_disk_use_deletes_what_it_promises(
    tmp_path: Path, used: int, old: int, young: int, puts_taken: bool
) -> None:
    """Above 75 % old files are deleted at any hour, above 85 % young ones too, above 90 % puts are refused."""
    for age_days, goes in ((10, old), (0, young)):
        with open_filled(tmp_path / f"store-{age_days}", 4) as store:
            cleaner = Cleaner(store, delete_hours="04")
            cleaner.at_hour(5, age_days)
            cleaner.used = used
            assert cleaner.clean() == goes
            if puts_taken:
                store.put(message(0))
            else:
                with pytest.raises(DiskAboveLimit, match=r"91 % full; .* above 90 % .* falls to 85 %"):
                    store.put(message(0))


def test_young_files_are_deleted_only_until_the_disk_has_space(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 6) as store:
        cleaner = Cleaner(store)
        cleaner.used = [88, 88, 87, 85]
        assert cleaner.clean() == 2


def test_young_files_are_kept_if_force_is_off(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 3) as store:
        cleaner = Cleaner(store, force=False, delete_hours="04")
        cleaner.at_hour(5, 0)
        cleaner.used = 95
        assert cleaner.clean() == 0


@covers("O3")
def test_a_round_deletes_ten_files_with_a_pause_between_them(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 14) as store:
        cleaner = Cleaner(store, pause_ms=20)
        cleaner.used = 86
        began = time.monotonic()
        assert cleaner.clean() == 10
        assert time.monotonic() - began >= 9 * 0.020
        assert cleaner.clean() == 3


@covers("O3")
def test_puts_are_refused_above_90_percent_until_85(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 1) as store:
        cleaner = Cleaner(store)
        for used, taken in ((90, True), (91, False), (86, False), (85, True), (90, True)):
            cleaner.used = used
            cleaner.clean()
            if taken:
                store.put(message(used))
                store.put_many([message(used)])
            else:
                for put in (store.put, lambda m: store.put_many([m])):
                    with pytest.raises(DiskFull):
                        put(message(used))
        assert len(store.read("orders", start=0, limit=1)) == 1


def test_free_disk_space_does_not_clear_a_failed_sync(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 1) as store:
        cleaner = Cleaner(store)
        cleaner.used = 95
        cleaner.clean()
        writer_of(store).flusher.fail(OSError(5, "Input/output error"))
        cleaner.used = 10
        cleaner.clean()
        with pytest.raises(StoreFailed):
            store.put(message(1))
        cleaner.used = 95
        cleaner.clean()
        with pytest.raises(StoreFailed):
            store.put(message(1))


def test_disk_use_is_the_used_part_of_what_we_may_use_rounded_up(tmp_path: Path) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    assert abs(disk_used_percent(tmp_path) - 100 * usage.used / (usage.used + usage.free)) < 1.1


# ---- the cleaner's thread


@covers("O2")
def test_the_cleaner_runs_by_itself_and_reports_its_next_run(tmp_path: Path) -> None:
    assert RetentionConfig().interval_ms == 10_000
    config = RetentionConfig(interval_ms=50, pause_ms=0, reserved_hours=0, delete_hours=DAY_HOURS, full_percent=100)
    open_filled(tmp_path / "store", 4).close()
    with open_small(tmp_path / "store", retention=config) as store:
        assert eventually(lambda: store.first_offset == 3 * LOG_FILE)
        assert eventually(lambda: 0 <= store.stats().retention.next_run_ms / 1000 - time.time() <= 0.051)
        with MessageStore.open(store.path, read_only=True) as reader:
            assert reader.stats().retention.next_run_ms > 0
    with MessageStore.open(store.path, read_only=True) as reader:
        assert reader.stats().retention.next_run_ms == 0


def test_a_store_with_retention_off_deletes_nothing_by_itself(tmp_path: Path) -> None:
    config = RetentionConfig(enabled=False, interval_ms=10, reserved_hours=0, delete_hours=DAY_HOURS)
    with open_filled(tmp_path / "store", 3, retention=config) as store:
        time.sleep(0.2)
        assert len(log_files(store)) == 3
        assert store.stats().retention.next_run_ms == 0


def test_a_failed_round_is_logged_and_the_next_one_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = RetentionConfig(interval_ms=20, pause_ms=0, reserved_hours=0, delete_hours=DAY_HOURS, full_percent=100)
    with open_small(tmp_path / "store", retention=RetentionConfig(enabled=False)) as store:
        fill(store, 3)
    gates = tmp_path / "store" / "mqlake" / "gates"
    (tmp_path / "held").mkdir()
    gates.symlink_to(tmp_path / "held")
    Gates(gates).hold("all", 0)
    with open_small(tmp_path / "store", retention=config) as store:
        (tmp_path / "file").touch()
        (tmp_path / "file").replace(gates)  # at once: no round finds no gates at all
        assert eventually(lambda: "gates: found no folder; expected the folder of the gates" in caplog.text)
        assert len(log_files(store)) == 3
        gates.unlink()
        assert eventually(lambda: store.first_offset == 2 * LOG_FILE)


# ---- what must not be deleted


@covers("O1")
def test_nothing_is_deleted_that_no_checkpoint_covers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Queues that are not synced get their queue offsets from the log alone."""
    with open_filled(tmp_path / "store", 4) as store:
        cleaner = Cleaner(store)
        cleaner.used = 100
        cleaner.retention._checkpoint = lambda: LOG_FILE
        assert cleaner.clean() == 1
        assert "no checkpoint covers it yet" in caplog.text
        cleaner.retention._checkpoint = writer_of(store).checkpoint_now if writer_of(store) else None  # type: ignore[assignment]
        assert cleaner.clean() == 2


def test_a_name_that_cannot_be_removed_stops_the_round_and_no_later_file_is_deleted(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 4) as store:
        first = store.path / "commitlog" / f"{0:020d}"
        first.rename(tmp_path / "aside")
        first.mkdir()
        cleaner = Cleaner(store)
        cleaner.used = 100
        with pytest.raises(OSError):
            cleaner.clean()
        assert store.first_offset == 0
        first.rmdir()
        (tmp_path / "aside").rename(first)
        assert cleaner.clean() == 3


def test_nothing_more_is_deleted_after_a_failed_sync_of_the_folder(tmp_path: Path) -> None:
    """The removed name may come back: if the next file were deleted there would be a gap."""
    with open_filled(tmp_path / "store", 5) as store:
        assert store.retain(before_offset=LOG_FILE).file_count == 1
        files = contents_of(store).log_files
        there, files.directory = files.directory, tmp_path / "nowhere"  # nothing to remove, no folder to sync
        with pytest.raises(FileNotFoundError):
            store.retain(before_offset=3 * LOG_FILE)
        files.directory = there
        assert store.retain(before_offset=3 * LOG_FILE).file_count == 0
        assert store.first_offset == 2 * LOG_FILE
        assert "nowhere" in (store.stats().failure or "")
    with open_small(tmp_path / "store") as store:  # the name came back, and so does the file
        assert store.first_offset == LOG_FILE
        start = store.queues("orders")[0].first_offset
        assert store.read("orders", start=start, limit=1)[0].physical_offset == LOG_FILE


# ---- queues and index follow


@covers("O1", "O3")
def test_queues_index_and_offsets_are_right_after_a_cleaning(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 8) as store:
        store.put(message(0, "idle", queue_id=0))
        end = store.queues("orders")[0].end_offset
        index_files = store.stats().index_file_count
        assert store.retain(before_offset=6 * LOG_FILE).file_count == 6
        first = store.first_offset
        assert first == 6 * LOG_FILE
        assert log_files(store) == [f"{number * LOG_FILE:020d}" for number in (6, 7)]
        (queue,) = store.queues("orders")
        assert queue.end_offset == end
        oldest = store.read("orders", start=queue.first_offset, limit=1)[0]
        assert oldest.physical_offset == first
        assert int(queue_files(store)[0]) == queue.first_offset * 20 // 2000 * 2000
        with pytest.raises(OffsetOutOfRange) as caught:
            store.read("orders", start=queue.first_offset - 1)
        assert (caught.value.first_offset, caught.value.end_offset) == (queue.first_offset, end)
        assert store.seek_time("orders", 0) == queue.first_offset
        with pytest.raises(OffsetOutOfRange):
            store.get(first - LOG_FILE)
        assert store.find("orders", "key-0") == []
        assert len(store.find("orders", f"key-{queue.first_offset}")) == 1
        assert sum(batch.num_rows for batch in store.scan()) == end - queue.first_offset + 1
        assert store.stats().index_file_count < index_files
        assert len(list((store.path / "index").iterdir())) == store.stats().index_file_count
        assert store.put(message(1, queue_id=0)).queue_offset == end


def test_the_last_file_of_a_queue_is_kept_though_its_messages_are_gone(tmp_path: Path) -> None:
    with open_small(tmp_path / "store", retention=RetentionConfig(enabled=False, pause_ms=0)) as store:
        for number in range(5):
            store.put(message(number, "idle", queue_id=0))
        fill(store, 4)
        store.retain(before_offset=store.end_offset)
        assert queue_files(store, "idle") == [f"{0:020d}"]
        (idle,) = store.queues("idle")
        assert (idle.first_offset, idle.end_offset) == (5, 5)
        assert store.put(message(5, "idle", queue_id=0)).queue_offset == 5


@covers("N4")
@pytest.mark.parametrize("stop", ["clean", "unclean", "queues lost"])
def test_a_cleaned_store_reopens_with_the_same_messages(tmp_path: Path, stop: str) -> None:
    import shutil

    with open_filled(tmp_path / "store", 8) as store:
        store.retain(before_offset=5 * LOG_FILE)
        (before,) = store.queues("orders")
        bodies = [m.physical_offset for m in read_all(store, before.first_offset)]
    if stop != "clean":
        (tmp_path / "store" / "abort").write_text("1")
    if stop == "queues lost":
        shutil.rmtree(tmp_path / "store" / "consumequeue")
        (tmp_path / "store" / "mqlake" / "checkpoint").unlink()
    with open_small(tmp_path / "store") as store:
        assert store.first_offset == 5 * LOG_FILE
        assert store.queues("orders") == [before]
        assert [m.physical_offset for m in read_all(store, before.first_offset)] == bodies
        assert len(store.find("orders", f"key-{before.first_offset}")) == 1
        assert store.put(message(1, queue_id=0)).queue_offset == before.end_offset


def test_queues_and_index_that_a_crash_left_untrimmed_are_trimmed_after_opening(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 6) as store:
        writer_of(store).retention._trim_derived = lambda: None  # type: ignore[method-assign]
        store.retain(before_offset=4 * LOG_FILE)
        assert queue_files(store)[0] == f"{0:020d}"
    with open_small(tmp_path / "store") as store:
        Cleaner(store).clean()
        assert int(queue_files(store)[0]) > 0
        assert store.read("orders", start=store.queues("orders")[0].first_offset)


@covers("O4")
def test_files_are_deleted_while_four_writers_write_and_readers_read(tmp_path: Path) -> None:
    """Queue offsets have no gap, and no reader ever gets a message of another queue offset."""
    config = RetentionConfig(enabled=False, pause_ms=0, queue_pause_ms=0)
    with open_small(tmp_path / "store", retention=config) as store:
        store.put(message(0, queue_id=0, body=BODY))
        stop = threading.Event()
        failures: list[BaseException] = []

        def guarded(work: object) -> threading.Thread:
            def run() -> None:
                try:
                    while not stop.is_set():
                        work()  # type: ignore[operator]
                except BaseException as error:
                    failures.append(error)

            return threading.Thread(target=run)

        def write() -> None:
            store.put(message(0, queue_id=0, body=BODY))
            time.sleep(0.0005)

        def read() -> None:
            time.sleep(0.002)
            (queue,) = store.queues("orders")
            try:
                messages = store.read("orders", start=queue.first_offset, limit=64)
            except OffsetOutOfRange:
                return  # cleaned meanwhile
            assert [m.queue_offset for m in messages] == list(
                range(queue.first_offset, queue.first_offset + len(messages))
            )
            assert messages or queue.first_offset == queue.end_offset

        def clean() -> None:
            store.retain(keep_bytes=3 * LOG_FILE)

        threads = [guarded(work) for work in (write, write, write, write, read, read, clean)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: bool(failures) or store.first_offset > 8 * LOG_FILE, 20)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        (queue,) = store.queues("orders")
        assert [m.queue_offset for m in read_all(store, queue.first_offset)] == list(
            range(queue.first_offset, queue.end_offset)
        )
        put = store.stats().topics["orders"].put_count
        assert queue.end_offset == put


# ---- gates


def test_a_gate_survives_reopening_and_keeps_files_until_it_is_released(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 6) as store:
        assert store.retention.hold("archive", 2 * LOG_FILE + 5) == 2 * LOG_FILE + 5
        store.retention.hold("later", 4 * LOG_FILE)
    with open_small(tmp_path / "store", retention=RetentionConfig(enabled=False, pause_ms=0)) as store:
        cleaner = Cleaner(store)
        cleaner.used = 90
        assert cleaner.clean() == 2
        retained = store.retain(before_offset=store.end_offset)
        assert (retained.file_count, retained.held_by) == (0, ("archive",))
        state = store.stats().retention.gates["archive"]
        assert (state.offset, state.held_bytes, state.lost_bytes) == (2 * LOG_FILE + 5, 3 * LOG_FILE, 0)
        store.retention.hold("archive", 3 * LOG_FILE)
        assert cleaner.clean() == 1
        store.retention.release("archive")
        assert cleaner.clean() == 1
        assert cleaner.retention.clean().held_by == ("later",)


def test_a_gate_of_another_process_counts_as_soon_as_it_is_set(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 4) as store:
        Gates(store.path / "mqlake" / "gates").hold("archive", LOG_FILE)
        cleaner = Cleaner(store)
        cleaner.used = 90
        assert cleaner.clean() == 1


def test_above_the_hard_limit_gates_are_overruled_loudly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_filled(tmp_path / "store", 4) as store:
        store.retention.hold("archive", LOG_FILE + 100)
        cleaner = Cleaner(store, hard_limit_percent=88)
        cleaner.used = [89, 89, 89, 88]
        with caplog.at_level(logging.ERROR):
            assert cleaner.clean() == 2
        assert f"gate 'archive' is overruled and loses [{LOG_FILE + 100}, {2 * LOG_FILE})" in caplog.text
        state = store.stats().retention.gates["archive"]
        assert (state.held_bytes, state.lost_bytes) == (LOG_FILE, LOG_FILE - 100)
        assert store.retention.hold("archive", 0) == 2 * LOG_FILE  # what really exists


def test_a_hard_limit_of_100_is_no_limit(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 3) as store:
        store.retention.hold("archive", 0)
        cleaner = Cleaner(store, hard_limit_percent=100)
        cleaner.used = 100
        assert cleaner.clean() == 0


@pytest.mark.parametrize("content", [b"", b"12x", b"-1", b"9" * 40])
def test_a_gate_that_cannot_be_read_keeps_everything(tmp_path: Path, content: bytes) -> None:
    with open_filled(tmp_path / "store", 3) as store:
        store.retention.hold("archive", 2 * LOG_FILE)
        (store.path / "mqlake" / "gates" / "archive").write_bytes(content)
        assert store.retain(before_offset=store.end_offset).held_by == ("archive",)


@pytest.mark.parametrize(("name", "offset"), [("", 0), ("../up", 0), ("a b", 0), (".new", 0), ("a", -1), ("a", True)])
def test_a_gate_without_a_proper_name_or_offset_is_refused(tmp_path: Path, name: str, offset: int) -> None:
    with open_small(tmp_path / "store") as store, pytest.raises(InvalidConfig, match="gate"):
        store.retention.hold(name, offset)


# ---- manual rounds


@covers("O3")
def test_a_manual_round_deletes_a_file_if_every_condition_allows_it(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 6) as store:
        end = store.end_offset
        assert store.retain().file_count == 0  # none is 72 h old
        assert store.retain(older_than_ms=3_600_000, before_offset=end).file_count == 0
        planned = store.retain(keep_bytes=end - 2 * LOG_FILE, before_offset=4 * LOG_FILE, dry_run=True)
        assert (planned.file_count, planned.first_offset, store.first_offset) == (2, 2 * LOG_FILE, 0)
        with MessageStore.open(store.path, read_only=True) as reader:
            conditions = {"keep_bytes": end - 2 * LOG_FILE, "before_offset": 4 * LOG_FILE}
            assert reader.retain(**conditions, dry_run=True) == planned
        assert store.retain(keep_bytes=end - 2 * LOG_FILE, before_offset=4 * LOG_FILE) == planned
        assert store.retain(before_offset=3 * LOG_FILE - 1).file_count == 0
        assert store.retain(older_than_ms=0).file_count == 3
        assert store.stats().retention.deleted_file_count == 5
        assert store.stats().retention.deleted_bytes == 5 * LOG_FILE


@pytest.mark.parametrize("value", [-1, 1.5, True, "72h"])
def test_a_condition_that_is_not_a_number_is_refused(tmp_path: Path, value: object) -> None:
    with open_small(tmp_path / "store") as store, pytest.raises(InvalidConfig, match="keep_bytes"):
        store.retain(keep_bytes=value)  # type: ignore[arg-type]


# ---- settings


@covers("O1", "O2", "O3")
def test_defaults_and_names_are_rocketmqs() -> None:
    names = {
        "cleanResourceInterval": "10000",
        "fileReservedTime": "72",
        "deleteWhen": "04",
        "diskMaxUsedSpaceRatio": "75",
        "diskSpaceCleanForciblyRatio": "85",
        "diskSpaceWarningLevelRatio": "90",
        "cleanFileForciblyEnable": "true",
        "deleteFileBatchMax": "10",
        "deleteCommitLogFilesInterval": "100",
        "deleteConsumeQueueFilesInterval": "100",
    }
    assert StoreConfig.from_properties(names).retention == RetentionConfig()


def test_broker_ratios_out_of_range_are_clamped() -> None:
    ratios = {"diskMaxUsedSpaceRatio": "99", "diskSpaceCleanForciblyRatio": "3", "diskSpaceWarningLevelRatio": "95"}
    retention = StoreConfig.from_properties(ratios).retention
    assert (retention.used_percent, retention.force_percent, retention.full_percent) == (95, 30, 90)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("interval_ms", 0),
        ("reserved_hours", -1),
        ("delete_hours", ""),
        ("delete_hours", "24"),
        ("delete_hours", "4,16"),
        ("used_percent", 101),
        ("force_percent", 91),
        ("full_percent", 0),
        ("hard_limit_percent", 0),
        ("batch_files", 0),
        ("pause_ms", -1),
        ("queue_pause_ms", 60_001),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(InvalidConfig) as caught:
        RetentionConfig(**{setting: value})  # type: ignore[arg-type]
    assert caught.value.key in (setting, "force_percent")


def test_a_wrong_hour_in_a_broker_conf_is_named_as_written() -> None:
    with pytest.raises(InvalidConfig, match="deleteWhen"):
        StoreConfig.from_properties({"deleteWhen": "4am"})
