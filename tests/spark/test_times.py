"""A selection by time is exact, although store times run back along the log when a clock is set back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from mqlake.errors import CorruptRecord
from mqlake.files.layout import Layout
from mqlake.logs import file_times
from mqlake.logs.file_times import keep_times
from mqlake.spark import windows
from mqlake.spark.boundaries import CLOCK_STEP_MS, Boundaries
from mqlake.spark.plan import take_snapshot
from mqlake.torture.faults.shim import NoShim
from mqlake.torture.faults.wrongclock import WrongClock
from tests.hostile.programs import run
from tests.kernel.records import Parts, blank_marker
from tests.spark.tables import offsets_of, plan_of, rows_of, splits_of


def log_of_times(path: Path, stamps: list[int]) -> int:
    """Write a log of one file, of messages with these store times; return its length."""
    log = bytearray()
    for number, stamp in enumerate(stamps):
        log += Parts(b"orders", b"%d" % number, b"", timestamp=stamp - 1).record(len(log))
    (path / "commitlog").mkdir(parents=True)
    (path / "commitlog" / f"{0:020d}").write_bytes(log + bytes((8 << 20) - len(log)))
    (path / "abort").touch()
    return len(log)


NOON = 1_700_000_000_000
HOUR = 3_600_000
CLOCKS = {
    "set back by a day": lambda number: NOON + number * 1000 - (86_400_000 if number > 3_000 else 0),
    "a day ahead for a while": lambda number: NOON + number * 1000 + (86_400_000 if 2_000 < number < 2_500 else 0),
    "back every now and then": lambda number: NOON + number * 1000 - number // 700 * HOUR,
    "running backwards": lambda number: NOON - number * 1000,
}


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("split", ["1g", "50k"])
def test_times_select_exactly_whatever_the_clock_did(tmp_path: Path, clock: str, split: str) -> None:
    stamps = [CLOCKS[clock](number) for number in range(6_000)]
    log_of_times(tmp_path / "store", stamps)
    for start in range(min(stamps) - HOUR, max(stamps) + HOUR, (max(stamps) - min(stamps)) // 7):
        for end in (start, start + 90_000, start + 7 * HOUR):
            found = rows_of(tmp_path / "store", startTime=max(0, start), endTime=end, columns="body", splitSize=split)
            assert [int(row["body"]) for row in found] == [i for i, stamp in enumerate(stamps) if start <= stamp < end]


def test_damage_costs_its_own_records_only_whatever_times_are_selected(tmp_path: Path) -> None:
    path = tmp_path / "store"
    stamps = [CLOCKS["back every now and then"](number) for number in range(3_000)]
    log_of_times(path, stamps)
    places, splits = offsets_of(path, columns="physical_offset"), splits_of(path)
    hit = {700: 4, 701: 0, 1_500: 90, 2_900: 12}  # magic number, size, body, queue id: all but the last show
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        for number, place in hit.items():
            file.seek(places[number] + place)
            file.write(b"??")
    whole = {row["body"] for row in rows_of(path, splits, columns="body")}
    assert len(stamps) - len(whole) == 3
    for start, end in ((NOON - HOUR, NOON), (NOON, NOON + HOUR), (stamps[701], stamps[701] + 1), (0, NOON + 9 * HOUR)):
        selected: dict[str, Any] = {"startTime": start, "endTime": end, "columns": "body"}
        found = {row["body"] for row in rows_of(path, splits, **selected)}
        assert found == {b"%d" % i for i, stamp in enumerate(stamps) if start <= stamp < end} & whole
        damaged = [row["damage"] for row in rows_of(path, splits, onDamage="rows", **selected) if row["damage"]]
        assert len(damaged) == 2, "all of it: damage has no time"
        with pytest.raises(CorruptRecord):
            rows_of(path, splits, onDamage="fail", **selected)


def require_first_since(path: Path, stamps: list[int]) -> None:
    """Ask a log for the first record since many times, and compare with all its records."""
    places = offsets_of(path, columns="physical_offset")
    snapshot = take_snapshot(path)
    boundaries = Boundaries(snapshot.follower.log, snapshot.first, snapshot.end)
    for time in range(min(stamps) - HOUR, max(stamps) + HOUR, (max(stamps) - min(stamps)) // 7):
        expected = next((place for place, stamp in zip(places, stamps, strict=True) if stamp >= time), snapshot.end)
        assert boundaries.first_since(time) == expected
    snapshot.follower.close()


@pytest.mark.parametrize("clock", CLOCKS)
def test_the_first_record_since_a_time_is_the_first_whatever_the_clock_did(tmp_path: Path, clock: str) -> None:
    stamps = [CLOCKS[clock](number) for number in range(6_000)]
    log_of_times(tmp_path / "store", stamps)
    require_first_since(tmp_path / "store", stamps)


def test_rising_times_are_searched_and_may_step_back_by_less_than_two_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clock steps within the plan's allowance lose no row. Everything that the search skips is far outside."""
    stamps = [NOON + i * 1000 - (CLOCK_STEP_MS - 1000 if i % 1000 > 900 else 0) for i in range(30_000)]
    path = tmp_path / "store"
    size = log_of_times(path, stamps)
    monkeypatch.setattr("mqlake.spark.boundaries.GRAIN", 256)

    for first in range(1_830, 28_000, 1_003):  # both ends are where the clock was set back
        start, end = NOON + first * 1000, NOON + (first + 1000) * 1000
        found = rows_of(path, startTime=start, endTime=end, risingTimes="true", columns="body")
        assert [int(row["body"]) for row in found] == [i for i, stamp in enumerate(stamps) if start <= stamp < end]
    plan = plan_of(path, startTime=start, endTime=end, risingTimes="true")
    assert plan.stop - plan.start < size / 8


def test_every_way_finds_the_messages_of_a_time_although_the_writers_clock_was_set_back(tmp_path: Path) -> None:
    try:
        env = WrongClock(tmp_path / "clock").env()
    except NoShim as missing:
        pytest.skip(str(missing))
    run(
        """
from mqlake.torture.faults.wrongclock import WrongClock
clock = WrongClock(path.with_name("clock"))
with open_small(path) as store:
    for turn, ahead in enumerate((0, 864_000, 0, -7_200, 3_600, 0)):
        clock.set(ahead)
        for number in range(60):
            store.put(message(turn * 60 + number, ("orders", "rare")[number % 10 == 0]))
        time.sleep(0.01)
""",
        tmp_path / "store",
        env=env,
    )
    rows = rows_of(tmp_path / "store")
    stamps = [round(row["store_timestamp"].timestamp() * 1000) for row in rows]
    assert len(rows) == 360 and min(stamps) < stamps[0] < stamps[60] and stamps[120] < stamps[60]
    bounds = sorted({stamps[number] + by for number in range(0, 360, 30) for by in (0, 1)})
    for start in bounds:
        for options in ({"topics": "rare"}, {"keys": ",".join(f"key-{number}" for number in range(0, 360, 7))}):
            selected: dict[str, Any] = {**options, "startTime": start, "endTime": start + 3_000_000}
            found = [offsets_of(tmp_path / "store", via=via, **selected) for via in ("scan", "auto")]
            found.append(offsets_of(tmp_path / "store", via="queue" if "topics" in options else "index", **selected))
            expected = [
                row["physical_offset"]
                for row, stamp in zip(rows, stamps, strict=True)
                if start <= stamp < start + 3_000_000
                and (row["topic"] == "rare" if "topics" in options else int(row["keys"][0].split("-")[1]) % 7 == 0)
            ]
            assert found == [expected] * 3, (options, start)


BLOCK, FILE = 4096, 1 << 18


def files_of_times(path: Path, stamps: list[int]) -> int:
    """Write a log of several files, and keep the times of all but the last."""
    log = bytearray()
    for number, stamp in enumerate(stamps):
        record = Parts(b"orders", b"%d" % number, b"", timestamp=stamp - 1).record(len(log))
        left = FILE - len(log) % FILE
        if len(record) + 8 > left:
            log += blank_marker(left) + bytes(left - len(blank_marker(left)))
            record = Parts(b"orders", b"%d" % number, b"", timestamp=stamp - 1).record(len(log))
        log += record
    (path / "commitlog").mkdir(parents=True)
    (path / "mqlake").mkdir()
    size = len(log)
    log += bytes(-len(log) % FILE)
    for start in range(0, len(log), FILE):
        (path / "commitlog" / f"{start:020d}").write_bytes(log[start : start + FILE])
    (path / "abort").touch()
    assert keep_times(Layout(path), FILE, size) >= 2
    return size


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_times, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(windows, "NEAR_BYTES", 1)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("split", ["1g", "50k"])
def test_known_times_select_exactly_whatever_the_clock_did(tmp_path: Path, clock: str, split: str) -> None:
    stamps = [CLOCKS[clock](number) for number in range(6_000)]
    size = files_of_times(tmp_path / "store", stamps)
    skipped = 0
    for start in range(min(stamps) - HOUR, max(stamps) + HOUR, (max(stamps) - min(stamps)) // 7):
        for end in (start, start + 90_000, start + 7 * HOUR):
            selected: dict[str, Any] = {"startTime": max(0, start), "endTime": end, "splitSize": split}
            found = rows_of(tmp_path / "store", columns="body", **selected)
            assert [int(row["body"]) for row in found] == [i for i, stamp in enumerate(stamps) if start <= stamp < end]
            skipped += plan_of(tmp_path / "store", **selected).way.cost < size // 2
    assert skipped > 5, "most windows are short"


@pytest.mark.usefixtures("small_blocks")
def test_a_window_reads_its_share_of_the_log(tmp_path: Path) -> None:
    stamps = [NOON + number * 1000 for number in range(6_000)]
    size = files_of_times(tmp_path / "store", stamps)
    plan = plan_of(tmp_path / "store", startTime=stamps[1_000], endTime=stamps[1_300])
    open_file = size % FILE
    assert plan.way.cost <= 0.05 * size * 1.5 + 2 * BLOCK + open_file
    assert "the others have no record in time" in str(plan)


@pytest.mark.usefixtures("small_blocks")
def test_times_known_of_another_content_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "store"
    files_of_times(path, [NOON + number * 1000 for number in range(6_000)])
    later = [NOON + 86_400_000 + number * 1000 for number in range(6_000)]
    files_of_times(tmp_path / "other", later)
    for file in (tmp_path / "other" / "commitlog").iterdir():
        (path / "commitlog" / file.name).write_bytes(file.read_bytes())
    found = rows_of(path, startTime=later[100], endTime=later[200], columns="body")
    assert [int(row["body"]) for row in found] == list(range(100, 200))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("how", ["fail", "rows"])
def test_all_of_the_log_is_read_where_damage_is_reported(tmp_path: Path, how: str) -> None:
    size = files_of_times(tmp_path / "store", [NOON + number * 1000 for number in range(6_000)])
    plan = plan_of(tmp_path / "store", startTime=NOON, endTime=NOON + 1000, onDamage=how)
    assert plan.way.cost == size


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("clock", CLOCKS)
def test_the_first_record_since_a_time_is_found_by_known_times(tmp_path: Path, clock: str) -> None:
    stamps = [CLOCKS[clock](number) for number in range(6_000)]
    files_of_times(tmp_path / "store", stamps)
    require_first_since(tmp_path / "store", stamps)
