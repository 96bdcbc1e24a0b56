"""A check reports every broken promise and where it is, and nothing else; it never writes."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mqlake
from mqlake import MessageStore, RetentionConfig, Severity
from mqlake.codec.queue_entry import ENTRY, FILLER
from mqlake.errors import NotAStore
from mqlake.inspect.check_queues import QueueCheck
from mqlake.inspect.check_seals import SealCheck
from mqlake.inspect.findings import PROMISES, Finding
from mqlake.inspect.log_map import LogMap
from mqlake.inspect.repair import repair
from mqlake.inspect.scrub import scrub
from mqlake.kernel import encode_record
from mqlake.kernel.hosts import pack_host
from tests.golden.stores import NAMES, GoldenStore
from tests.helpers import LOG_FILE, QUEUE_FILE, eventually, message, open_small

CLEAN_GOLDENS = [name for name in NAMES if "crash" not in name and "empty" not in name]
QUEUE = f"consumequeue/orders/0/{0:020d}"


def log_file(number: int) -> str:
    return f"commitlog/{number * LOG_FILE:020d}"


class Broken:
    """A copy of a whole store, and ways to break it; records of queue 0 by their queue offset."""

    def __init__(self, path: Path, records: list[tuple[int, int]]) -> None:
        self.path = path
        self.records = records

    def write(self, file: str, offset: int, data: bytes) -> None:
        with (self.path / file).open("r+b") as opened:
            opened.seek(offset)
            opened.write(data)

    def flip(self, file: str, offset: int, mask: int = 1) -> None:
        self.write(file, offset, bytes([(self.path / file).read_bytes()[offset] ^ mask]))

    def record(self, number: int) -> tuple[str, int]:
        """Return the file of a record and its position in it."""
        offset = self.records[number][0]
        return log_file(offset // LOG_FILE), offset % LOG_FILE

    def flip_record(self, number: int, at: int, mask: int = 1) -> tuple[str, int]:
        file, offset = self.record(number)
        self.flip(file, offset + at, mask)
        return file, offset

    def zero_record(self, number: int) -> tuple[str, int]:
        file, offset = self.record(number)
        self.write(file, offset, bytes(self.records[number][1]))
        return file, offset

    def marker(self) -> int:
        """Return the position of the first file's marker."""
        return (self.path / log_file(0)).read_bytes().rindex(b"\xcb\xd4\x31\x94") - 4

    def index(self) -> str:
        return sorted(path.relative_to(self.path).as_posix() for path in (self.path / "index").iterdir())[0]

    def forget(self) -> None:
        """Remove our own files: as RocketMQ leaves a store, except for the sizes of index files."""
        for name in ("checkpoint", "positions"):
            (self.path / "mqlake" / name).unlink()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Broken:
    path = tmp_path_factory.mktemp("whole") / "store"
    records = []
    with open_small(path) as store:
        for number in range(600):
            receipt = store.put(message(number, queue_id=number % 2, body=b"%d" % number * 100))
            if number % 2 == 0:
                records.append((receipt.physical_offset, receipt.size))
    (path / "config").mkdir(exist_ok=True)
    (path / "config" / "topics.json").write_text('{"offsets":{0:5,\n1:7},"text":"{0:"}')
    return Broken(path, records)


@pytest.fixture
def broken(whole: Broken, tmp_path: Path) -> Broken:
    shutil.copytree(whole.path, tmp_path / "store")
    return Broken(tmp_path / "store", whole.records)


# ---- each damage, and the row that reports it

Place = tuple[str, int | None]


def crc(b: Broken) -> Place:
    return b.flip_record(3, 90)


def host(b: Broken) -> Place:
    return b.flip_record(3, 53, 0x10)  # the port's upper half


def magic(b: Broken) -> Place:
    return b.flip_record(3, 4)


def size(b: Broken) -> Place:
    return b.flip_record(3, 0, 0x40)


def lengths(b: Broken) -> Place:
    return b.flip_record(3, 87)


def own_offset(b: Broken) -> Place:
    return b.flip_record(3, 28)


def zeroes(b: Broken) -> Place:
    return b.zero_record(3)


def header(b: Broken) -> Place:
    return b.flip_record(3, 15)


def number_gap(b: Broken) -> Place:
    """Flip three bits of a queue id: no neighbour proves what it was."""
    b.flip_record(3, 15, 0x0E)
    return b.record(4)


def number_repeat(b: Broken) -> Place:
    file, offset = b.record(9)
    b.write(file, offset + 20, struct.pack(">q", 0))
    return file, offset


def tail_lost(b: Broken) -> Place:
    b.forget()
    last = b.records[-1][0] + b.records[-1][1]
    b.write(log_file(last // LOG_FILE), last % LOG_FILE, bytes(500))
    return log_file(last // LOG_FILE), last % LOG_FILE


def missing(b: Broken) -> Place:
    (b.path / log_file(1)).unlink()
    return log_file(1), LOG_FILE


def misnamed(b: Broken) -> Place:
    (b.path / log_file(1)).rename(b.path / "commitlog" / "aside")
    return "commitlog/aside", None


def apart(b: Broken) -> Place:
    (b.path / log_file(0)).rename(b.path / "commitlog" / "aside")
    (b.path / log_file(1)).unlink()
    return "commitlog/aside", None


def short(b: Broken) -> Place:
    os.truncate(b.path / log_file(1), LOG_FILE - 1)
    return log_file(1), None


def long(b: Broken) -> Place:
    os.truncate(b.path / log_file(1), LOG_FILE + 1)
    return log_file(1), None


def empty(b: Broken) -> Place:
    count = len(list((b.path / "commitlog").iterdir()))
    (b.path / log_file(count)).touch()
    return log_file(count), None


def surplus(b: Broken) -> Place:
    count = len(list((b.path / "commitlog").iterdir()))
    shutil.copyfile(b.path / log_file(1), b.path / log_file(count))
    return log_file(count), None


def foreign_log_file(b: Broken) -> Place:
    (b.path / "commitlog" / "notes.txt").write_text("hello")
    return "commitlog/notes.txt", None


def ahead(b: Broken) -> Place:
    count = len(list((b.path / "commitlog").iterdir()))
    (b.path / log_file(count)).touch()
    os.truncate(b.path / log_file(count), LOG_FILE)
    last = b.records[-1][0] // LOG_FILE
    end = (b.path / log_file(last)).read_bytes().rstrip(b"\0")
    b.write(log_file(last), len(end) + 8, struct.pack(">iI", LOG_FILE - len(end) - 8, 0xCBD43194))
    return log_file(count), None


def marker_length(b: Broken) -> Place:
    at = b.marker()
    b.flip(log_file(0), at + 3, 0x10)
    return log_file(0), at


def dirty_tail(b: Broken) -> Place:
    end = mqlake.check(b.path).end_offset
    b.write(log_file(end // LOG_FILE), end % LOG_FILE + 1000, b"remains")
    return log_file(end // LOG_FILE), end % LOG_FILE


def torn_tail(b: Broken) -> Place:
    (b.path / "abort").touch()
    return dirty_tail(b)


def time_order(b: Broken) -> Place:
    b.flip_record(3, 60)
    return log_file(0), 0


def queue_missing(b: Broken) -> Place:
    shutil.rmtree(b.path / "consumequeue/orders/1")
    return "consumequeue/orders/1", None


def queue_file_size(b: Broken) -> Place:
    os.truncate(b.path / QUEUE, QUEUE_FILE - 20)
    return QUEUE, None


def queue_file_name(b: Broken) -> Place:
    (b.path / "consumequeue/orders/0/notes").touch()
    return "consumequeue/orders/0/notes", None


def queue_file_missing(b: Broken) -> Place:
    (b.path / f"consumequeue/orders/0/{QUEUE_FILE:020d}").unlink()
    return f"consumequeue/orders/0/{2 * QUEUE_FILE:020d}", None


def queue_entry(b: Broken) -> Place:
    b.flip(QUEUE, 5 * 20 + 15)
    return QUEUE, 100


def queue_hole(b: Broken) -> Place:
    """Lose a record in the second file; its entry is a filler, as opening writes it."""
    number = next(n for n, (offset, _) in enumerate(b.records) if offset > LOG_FILE + 1000)
    b.zero_record(number)
    place = number * 20
    file = f"consumequeue/orders/0/{place - place % QUEUE_FILE:020d}"
    b.write(file, place % QUEUE_FILE, ENTRY.pack(b.records[number + 1][0], *ENTRY.unpack(FILLER)[1:]))
    return file, place % QUEUE_FILE


def queue_tail(b: Broken) -> Place:
    files = sorted((b.path / "consumequeue/orders/0").iterdir())
    end = len(b.records) * 20 - int(files[-1].name)
    if end == QUEUE_FILE:  # the last file is full: the remains are in the next
        shutil.copyfile(b.path / QUEUE, files[-1].with_name(f"{int(files[-1].name) + QUEUE_FILE:020d}"))
        return f"consumequeue/orders/0/{int(files[-1].name) + QUEUE_FILE:020d}", 0
    name = files[-1].relative_to(b.path).as_posix()
    b.write(name, end + 40, b"remains")
    return name, end + 40


def index_file_size(b: Broken) -> Place:
    os.truncate(b.path / b.index(), 100)
    return b.index(), None


def index_header(b: Broken) -> Place:
    b.flip(b.index(), 31)
    return b.index(), 24


def index_chain(b: Broken) -> Place:
    b.flip(b.index(), 40 + 400 + 20 * 7 + 19)
    return b.index(), 40 + 400 + 20 * 7 + 16


def index_entry(b: Broken) -> Place:
    b.flip(b.index(), 40 + 400 + 20 * 7 + 8)
    return b.index(), 40 + 400 + 20 * 7


def index_missing(b: Broken) -> Place:
    (b.path / b.index()).unlink()
    return "index", None


def index_double(b: Broken) -> Place:
    """Enter the last entry twice, as 4.9 does."""
    file = sorted((b.path / "index").iterdir())[-1]
    data = bytearray(file.read_bytes())
    (count,) = struct.unpack_from(">i", data, 36)
    at = 440 + 20 * count
    data[at : at + 20] = data[at - 20 : at - 4] + struct.pack(">i", count - 1)
    (key_hash,) = struct.unpack_from(">i", data, at)
    struct.pack_into(">i", data, 40 + 4 * (key_hash % 100), count)
    struct.pack_into(">i", data, 36, count + 1)
    file.write_bytes(data)
    return f"index/{file.name}", at


def checkpoint_size(b: Broken) -> Place:
    os.truncate(b.path / "checkpoint", 100)
    return "checkpoint", None


def checkpoint_ahead(b: Broken) -> Place:
    b.flip("checkpoint", 9, 0x20)
    return "checkpoint", 8


def own_checkpoint(b: Broken) -> Place:
    (b.path / "mqlake/checkpoint").write_bytes(bytes(8192))
    return "mqlake/checkpoint", None


def positions(b: Broken) -> Place:
    b.flip("mqlake/positions", 8 * 3)
    return "mqlake/positions", 8 * 3


def settings(b: Broken) -> Place:
    (b.path / "mqlake/settings.json").write_text("{")
    return "mqlake/settings.json", None


def scars(b: Broken) -> Place:
    (b.path / "mqlake/scars").write_text('{"start": 1}\n')
    return "mqlake/scars", None


def irregular(b: Broken) -> Place:
    (b.path / "mqlake" / "settings.json").unlink()
    os.mkfifo(b.path / "mqlake" / "settings.json")
    return "mqlake/settings.json", None


def abort(b: Broken) -> Place:
    (b.path / "abort").touch()
    return "abort", None


def config_json(b: Broken) -> Place:
    os.truncate(b.path / "config/topics.json", 9)
    return "config/topics.json", None


def config_absent(b: Broken) -> Place:
    (b.path / "config" / "topics.json").rename(b.path / "config" / "topics.json.bak")
    return "config/topics.json", None


def config_lost(b: Broken) -> Place:
    (b.path / "config/topics.json.bak").unlink()
    return config_json(b)


def leftover(b: Broken) -> Place:
    (b.path / "mqlake/scratch").mkdir(exist_ok=True)
    (b.path / "mqlake/scratch/7").touch()
    return "mqlake/scratch/7", None


def foreign(b: Broken) -> Place:
    (b.path / "README").touch()
    return "README", None


DAMAGES: dict[str, Callable[[Broken], Place]] = {
    "record-crc": crc,
    "record-magic": magic,
    "record-size": size,
    "record-lengths": lengths,
    "record-offset": own_offset,
    "record-zero": zeroes,
    "record-header": header,
    "record-host": host,
    "number-gap": number_gap,
    "number-repeat": number_repeat,
    "tail-lost": tail_lost,
    "file-missing": missing,
    "file-misnamed": misnamed,
    "file-apart": apart,
    "file-short": short,
    "file-long": long,
    "file-empty": empty,
    "file-surplus": surplus,
    "file-foreign": foreign_log_file,
    "file-irregular": irregular,
    "file-ahead": ahead,
    "marker": marker_length,
    "torn-tail": torn_tail,
    "tail-dirty": dirty_tail,
    "time-order": time_order,
    "queue-missing": queue_missing,
    "queue-file-size": queue_file_size,
    "queue-file-name": queue_file_name,
    "queue-file-missing": queue_file_missing,
    "queue-entry": queue_entry,
    "queue-hole": queue_hole,
    "queue-tail": queue_tail,
    "index-file-size": index_file_size,
    "index-header": index_header,
    "index-chain": index_chain,
    "index-entry": index_entry,
    "index-missing": index_missing,
    "index-double": index_double,
    "checkpoint-size": checkpoint_size,
    "checkpoint-ahead": checkpoint_ahead,
    "own-checkpoint": own_checkpoint,
    "positions": positions,
    "settings": settings,
    "scars": scars,
    "abort": abort,
    "config-json": config_json,
    "config-absent": config_absent,
    "config-lost": config_lost,
    "leftover": leftover,
    "foreign": foreign,
}
ELSEWHERE = {
    "seal-broken",
    "seal-file",
    "seal-stale",
    "index-fewer",
    "index-numbers",
    "own-checkpoint-behind",
    "deleted-topics",
    "deleted-topics-lost",
}
"""Told of stores that RocketMQ wrote, that lost what we noted, or that had a topic deleted: tests of their own."""


@pytest.mark.parametrize("what", DAMAGES)
def test_each_damage_is_reported_by_name_with_file_and_offset(what: str, broken: Broken) -> None:
    file, offset = DAMAGES[what](broken)
    report = mqlake.check(broken.path)
    row = next((row for row in report.findings if row.what == what), None)
    assert row is not None, report.findings
    assert (row.file, row.offset) == (file, offset)
    assert row.severity == PROMISES[what].severity
    assert row.found and row.expected and row.cost and row.remedy
    assert report.holds == (report.severity == Severity.NOTE)


def test_every_name_has_its_test() -> None:
    assert {*DAMAGES, *ELSEWHERE} == set(PROMISES)


def test_a_whole_store_has_no_findings(whole: Broken) -> None:
    report = mqlake.check(whole.path)
    assert report.findings == ()
    assert report.holds and not report.live


@pytest.mark.parametrize("name", CLEAN_GOLDENS)
def test_stores_that_rocketmq_closed_keep_all_promises(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    report = mqlake.check(golden.path, config=golden.config)
    assert report.holds, report.findings
    assert report.end_offset == golden.expected("store")[0]["maxPhyOffset"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("crash", {"abort"}),
        ("crash-torn-tail", {"abort", "torn-tail", "queue-tail"}),
        ("crash-no-queues", {"abort", "queue-missing"}),
        ("crash-exact-fit", {"abort"}),
        ("empty-next-file", {"file-empty"}),
    ],
)
@pytest.mark.parametrize("release", ["v4", "v5"])
def test_stores_from_a_crashed_rocketmq_are_reported_as_such(
    release: str, name: str, expected: set[str], tmp_path: Path
) -> None:
    golden = GoldenStore(f"{release}-{name}", tmp_path)
    found = {row.what for row in mqlake.check(golden.path, config=golden.config).findings}
    assert found - {"file-ahead", "index-entry", "index-fewer"} == expected


def test_keys_that_rocketmqs_index_lacks_are_a_note(tmp_path: Path) -> None:
    golden = GoldenStore("v5-index", tmp_path)
    sorted((golden.path / "index").iterdir())[0].unlink()
    report = mqlake.check(golden.path, config=golden.config)
    assert report.holds
    assert report.findings[0].what == "index-fewer"


@pytest.mark.parametrize("name", ["v4-mixed", "v4-delay", "v4-transactions"])
def test_an_index_that_rocketmq_4_began_without_tags_and_we_continued_keeps_its_promises(
    name: str, tmp_path: Path
) -> None:
    golden = GoldenStore(name, tmp_path)
    kept = RetentionConfig(enabled=False)
    MessageStore.open(golden.path, config=golden.config, retention=kept).close()
    assert mqlake.check(golden.path).findings == ()
    for _ in range(2):
        with MessageStore.open(golden.path, config=golden.config, retention=kept) as store:
            receipt = store.put(message(1, "extra", tags="new"))
        assert mqlake.check(golden.path).findings == ()
    index = sorted((golden.path / "index").iterdir())[-1]
    data = bytearray(index.read_bytes())
    offset = receipt.physical_offset.to_bytes(8, "big")
    data[data.rindex(offset, 0, data.rindex(offset)) - 4] ^= 1  # the hash of our last key; the tag's entry follows it
    index.write_bytes(data)
    assert {"index-missing", "index-entry"} <= {row.what for row in mqlake.check(golden.path).findings}


def test_an_own_checkpoint_older_than_the_log_is_a_note(broken: Broken) -> None:
    before = (broken.path / "mqlake/checkpoint").read_bytes(), (broken.path / "mqlake/positions").read_bytes()
    with MessageStore.open(broken.path) as store:
        store.put(message(1, queue_id=0))
    (broken.path / "mqlake/checkpoint").write_bytes(before[0])
    (broken.path / "mqlake/positions").write_bytes(before[1])
    report = mqlake.check(broken.path)
    assert [row.what for row in report.findings] == ["own-checkpoint-behind"]


def test_queues_that_name_records_after_the_log_prove_a_loss(tmp_path: Path) -> None:
    """RocketMQ closed the store, and its last log file is gone."""
    golden = GoldenStore("v4-mixed", tmp_path)
    sorted((golden.path / "commitlog").iterdir())[-1].unlink()
    report = mqlake.check(golden.path, config=golden.config)
    assert [row.what for row in report.findings if row.severity == Severity.ERROR] == ["tail-lost"]
    repair(golden.path, config=golden.config)
    assert mqlake.check(golden.path, config=golden.config).holds


def test_a_broken_marker_is_not_a_lost_record(broken: Broken) -> None:
    at = broken.marker()
    broken.flip(log_file(0), at + 5)
    assert [(row.what, row.offset) for row in mqlake.check(broken.path).findings] == [
        ("seal-broken", 0),
        ("marker", at),
    ]


def test_one_bad_bit_is_reported_once_for_its_record_and_once_for_its_block(broken: Broken) -> None:
    broken.flip_record(3, 90)
    assert [row.what for row in mqlake.check(broken.path).findings] == ["seal-broken", "record-crc"]


def test_a_changed_tag_does_not_make_index_entries_look_repeated(broken: Broken) -> None:
    file, offset = broken.record(150)
    data = (broken.path / file).read_bytes()
    at = data.index(b"tag", offset)
    broken.write(file, at, b"t\x61h")
    found = mqlake.check(broken.path).findings
    assert not [row for row in found if row.what == "index-double"]
    assert {row.what for row in found} == {"seal-broken", "queue-entry", "index-missing", "index-entry"}
    assert sum(row.what == "index-entry" for row in found) == 1


def test_remains_of_an_earlier_use_of_a_file_are_not_records(broken: Broken) -> None:
    end = mqlake.check(broken.path).end_offset
    record = encode_record(message(1), 0, 300, end + 200, 1_000_000_000_000, pack_host("127.0.0.1:1"), False)
    broken.write(log_file(end // LOG_FILE), end % LOG_FILE + 200, record)
    report = mqlake.check(broken.path)
    assert report.end_offset == end and [row.what for row in report.findings] == ["tail-dirty"]


def test_files_between_two_names_are_recognised_by_their_records(broken: Broken) -> None:
    """A repair was interrupted while it put swapped files right."""
    for number in (0, 1):
        (broken.path / log_file(number)).rename(broken.path / f"{log_file(number)}.moved")
    found = [(row.what, row.file) for row in mqlake.check(broken.path).findings]
    assert found == [("file-misnamed", f"{log_file(number)}.moved") for number in (0, 1)]


BEYOND = ["18446744073709551616", "09223372036854775808", "99999999999999999999", "09223372036854710272"]


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/orders/0"])
@pytest.mark.parametrize("name", BEYOND)
def test_a_name_beyond_every_offset_is_a_finding_that_repair_mends(name: str, folder: str, broken: Broken) -> None:
    source = sorted((broken.path / folder).iterdir())[0]
    shutil.copyfile(source, broken.path / folder / name)
    report = mqlake.check(broken.path)
    assert f"{folder}/{name}" in {row.file for row in report.findings}
    assert report.severity == mqlake.Severity.WARNING, report.findings
    scrub(broken.path)
    assert repair(broken.path).after.holds
    with open_small(broken.path) as store:
        assert len(store.read("orders", queue_id=0, limit=600)) == 300


@pytest.mark.parametrize("kept", [(0, 2), (1, 3), (2,), (0, 3)])
@pytest.mark.parametrize("cut", [0, 1, 30_000])
def test_the_file_size_is_known_from_few_or_truncated_files(kept: tuple[int, ...], cut: int, broken: Broken) -> None:
    for number, file in enumerate(sorted((broken.path / "commitlog").iterdir())):
        if number not in kept:
            file.unlink()
    first = broken.path / log_file(kept[0])
    os.truncate(first, LOG_FILE - cut)
    found = mqlake.check(broken.path).findings
    assert {row.expected for row in found if row.what == "file-short"} <= {f"{LOG_FILE} bytes, as the others have"}
    missing = {row.file for row in found if row.what == "file-missing"}
    assert {log_file(number) for number in range(kept[0], kept[-1]) if number not in kept} <= missing


# ---- a check never writes


def state_of(path: Path) -> dict[str, tuple[int, int, str]]:
    """Return every file and folder with size, modification time and content."""
    found = {}
    for entry in sorted(path.rglob("*")):
        status = entry.stat()
        content = hashlib.sha256(entry.read_bytes()).hexdigest() if entry.is_file() else ""
        found[str(entry)] = status.st_size, status.st_mtime_ns, content
    return found


@pytest.mark.parametrize("what", [None, "file-missing", "record-zero", "torn-tail", "queue-missing", "config-lost"])
def test_a_check_writes_nothing(what: str | None, broken: Broken) -> None:
    if what is not None:
        DAMAGES[what](broken)
    before = state_of(broken.path)
    mqlake.check(broken.path)
    assert state_of(broken.path) == before


def test_a_read_only_folder_can_be_checked(broken: Broken) -> None:
    subprocess.run(["chmod", "-R", "a-w", broken.path], check=True)
    try:
        assert mqlake.check(broken.path).holds
    finally:
        subprocess.run(["chmod", "-R", "u+w", broken.path], check=True)


@pytest.mark.parametrize("make", ["nothing", "file", "empty"])
def test_a_check_refuses_a_path_without_a_store(make: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    if make == "file":
        path.touch()
    elif make == "empty":
        path.mkdir()
    with pytest.raises(NotAStore):
        mqlake.check(path)


WRITER = """
    import sys
    from pathlib import Path
    from tests.helpers import message, open_small

    with open_small(Path(sys.argv[1])) as store:
        number = 0
        while True:
            store.put(message(number, queue_id=number % 3, body=b"x" * (number % 700)))
            number += 1
"""


def test_a_check_raises_no_false_alarm_while_topics_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "store"
    stop = threading.Event()

    def write(store: MessageStore) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.put(message(number, f"short-{number % 3}", queue_id=number % 2))
            store.put(message(number, queue_id=0))
            if number % 2:
                store.delete_topic(f"short-{number % 3}")

    with open_small(path) as store, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, store)
        try:
            for _ in range(60):
                report = mqlake.check(path)
                assert report.live and report.holds, report.findings
        finally:
            stop.set()
        writing.result()
    assert mqlake.check(path).findings == ()


MOMENTS: dict[str, tuple[type, str]] = {
    "the ends": (SealCheck, "__init__"),
    "the log": (LogMap, "walk"),
    "the queues": (QueueCheck, "finish"),
}


@pytest.mark.parametrize("until", MOMENTS)
def test_a_topic_that_is_deleted_during_a_check_is_no_finding(
    until: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(tmp_path) as store:
        for number in range(250):
            store.put(message(number, "short", queue_id=0))
        store.put(message(1))
        eventually(lambda: store.queues("short")[0].end_offset == 250, 30)

        def deleting(owner: type, name: str) -> None:
            usual = getattr(owner, name)

            def first_delete(*args: Any, **named: Any) -> Any:
                if "short" in store.topics():
                    store.delete_topic("short")
                return usual(*args, **named)

            monkeypatch.setattr(owner, name, first_delete)

        deleting(*MOMENTS[until])
        report = mqlake.check(tmp_path)
        assert "short" not in store.topics()
        assert report.live and report.holds, report.findings


def test_a_check_of_a_live_store_raises_no_false_alarm(tmp_path: Path) -> None:
    path = tmp_path / "store"
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER), str(path)], cwd=Path.cwd())
    try:
        assert eventually(lambda: (path / log_file(3)).exists(), 30)
        ends: list[int] = []
        while len(ends) < 10 or ends[-1] == ends[0]:
            report = mqlake.check(path)
            assert report.live and report.holds, report.findings
            ends.append(report.end_offset)
        assert ends == sorted(ends)
    finally:
        writer.kill()
        writer.wait()


WRONG_TYPES = {
    "topics.json": [
        "[]",
        '{"topicConfigTable":[]}',
        '{"topicConfigTable":{"orders":3}}',
        '{"topicConfigTable":{"orders":{"readQueueNums":"4"}}}',
        '{"dataVersion":7}',
    ],
    "subscriptionGroup.json": [
        '"groups"',
        '{"subscriptionGroupTable":"none"}',
        '{"subscriptionGroupTable":{"g":{"retryMaxTimes":null}}}',
        '{"subscriptionGroupTable":{"g":{"consumeEnable":"yes"}}}',
    ],
    "consumerOffset.json": [
        "3",
        '{"offsetTable":[]}',
        '{"offsetTable":{"orders@g":[1]}}',
        '{"offsetTable":{"orders@g":{"x":1}}}',
        '{"offsetTable":{"orders@g":{0:"1"}}}',
    ],
    "delayOffset.json": ['{"offsetTable":{"orders":1}}', '{"offsetTable":{1:1.5}}'],
    "consumerFilter.json": ['{"filterDataByTopic":[]}', '{"filterDataByTopic":{"orders":{"groupFilterData":3}}}'],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WRONG_TYPES.items() for text in texts])
def test_json_of_a_wrong_type_is_reported_with_its_consequence(name: str, text: str, broken: Broken) -> None:
    path = broken.path / "config" / name
    path.write_text(text)
    path.with_name(f"{name}.bak").write_text("{}")
    (row,) = mqlake.check(broken.path).findings
    assert (row.what, row.file) == ("config-json", f"config/{name}")
    assert re.search("expected.*, found", row.found)
    path.with_name(f"{name}.bak").write_text(text)
    assert [row.what for row in mqlake.check(broken.path).findings] == ["config-lost"]


FIFOS = [
    "checkpoint",
    "abort",
    "lock",
    "mqlake/checkpoint",
    "mqlake/positions",
    "mqlake/settings.json",
    "mqlake/scars",
    "mqlake/deleted-topics",
    "mqlake/deleted-topics.bak",
    "mqlake/recovery.json",
    "mqlake/gates/archive",
    "config/topics.json",
    "config/consumerOffset.json",
    f"commitlog/{0:020d}",
    f"consumequeue/orders/0/{0:020d}",
    "index/20200101000000000",
    "config/timercheck",
    "mqlake/clock.json",
    "mqlake/health.json",
    "mqlake/timer",
    "mqlake/scratch",
    "mqlake/spare",
    "mqlake",
    "timerlog",
    "timerwheel",
    "consumequeue",
    "consumequeue/orders",
    "consumequeue/orders/0",
    "config",
    "index",
]
LOOK = """
import sys, mqlake
report = mqlake.check(sys.argv[1])
print(sorted({row.what for row in report.findings}))
for settings in ({"read_only": True}, {}):
    try:
        with mqlake.MessageStore.open(sys.argv[1], **settings) as store:
            with store.consumer("group", "orders") as consumer:
                print(len(consumer.poll(timeout_s=1)))
    except mqlake.StoreError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("file", FIFOS)
def test_a_fifo_instead_of_any_file_or_folder_of_a_store_blocks_nothing(file: str, broken: Broken) -> None:
    path = broken.path / file
    remove(path)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    looked = subprocess.run(
        [sys.executable, "-c", LOOK, str(broken.path)], check=False, capture_output=True, text=True, timeout=60
    )
    assert looked.returncode == 0, looked.stderr
    assert "file-irregular" in looked.stdout
    assert not [row for row in repair(broken.path).after.findings if row.what == "file-irregular"]


def test_each_entry_of_a_wrong_kind_is_reported_with_what_it_should_be(broken: Broken) -> None:
    for name in ("config/timercheck", "config/topics.json.bak", "mqlake/spare", "consumequeue/orders/0"):
        remove(broken.path / name)
    (broken.path / "abort").mkdir()
    (broken.path / "config/topics.json.bak").mkdir()
    (broken.path / "config/timercheck").symlink_to("nowhere")
    (broken.path / "mqlake/spare").touch()
    (broken.path / "consumequeue/orders/0").touch()
    (broken.path / "mqlake/link").symlink_to("nowhere")  # nobody needs it
    found = {row.file: (row.found, row.expected) for row in irregular_rows(broken)}
    assert found == {
        "abort": ("a folder", "a file"),
        "config/timercheck": ("a link that leads nowhere", "a file"),
        "config/topics.json.bak": ("a folder", "a file"),
        "consumequeue/orders/0": ("a file", "a folder"),
        "mqlake/spare": ("a file", "a folder"),
    }


def test_a_link_counts_as_what_it_leads_to(broken: Broken) -> None:
    (broken.path / "commitlog").rename(broken.path.with_name("log"))
    (broken.path / "commitlog").symlink_to(broken.path.with_name("log"))
    assert not irregular_rows(broken)
    with open_small(broken.path) as store:
        assert store.put(message(0, queue_id=0)).queue_offset == 300


def irregular_rows(broken: Broken) -> list[Finding]:
    return [row for row in mqlake.check(broken.path).findings if row.what == "file-irregular"]


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
