"""A store whose files are not what they should be: the error names the file, what was found and what was expected."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake import (
    BadFile,
    CommitLogConfig,
    ConsumeQueueConfig,
    CorruptBody,
    CorruptRecord,
    IndexConfig,
    InvalidConfig,
    MessageStore,
    NoSuchMessage,
    StoreError,
)
from mqlake.inspect.check import check
from mqlake.inspect.repair import repair
from mqlake.kernel import java_hash
from tests.helpers import LOG_FILE, QUEUE_FILE, bodies, covers, message, open_small
from tests.kernel.records import Parts

LOG = f"commitlog/{0:020d}"
NEXT_LOG = f"commitlog/{LOG_FILE:020d}"
QUEUE = f"consumequeue/orders/0/{0:020d}"
NEXT_QUEUE = f"consumequeue/orders/0/{QUEUE_FILE:020d}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store of two log files, two queue files and one index file."""
    with open_small(tmp_path / "store") as store:
        for number in range(150):
            store.put(message(number, queue_id=0, body=b"%03d" % number * 160))
        assert store.wait_dispatched()
    assert (tmp_path / "store" / NEXT_LOG).exists()
    assert (tmp_path / "store" / NEXT_QUEUE).exists()
    return tmp_path / "store"


def set_size(file: Path, size: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size)


def read_all(root: Path) -> None:
    with open_small(root) as store:
        bodies(store)


# ---- names and sizes


@pytest.mark.parametrize("name", ["notes.txt", "0", "00000000000000000000.bak", "-0000000000000000001"])
def test_a_log_file_whose_name_is_no_offset_is_named_with_the_command_that_helps(root: Path, name: str) -> None:
    (root / "commitlog" / name).write_bytes(b"mine")
    with pytest.raises(BadFile) as caught:
        read_all(root)
    assert caught.value.file == root / "commitlog" / name
    assert "found a name that is not an offset; expected only files named by 20 digits here; move it away" in str(
        caught.value
    )
    assert str(caught.value).endswith(f"; run: mqlake repair {root}")
    assert (root / "commitlog" / name).read_bytes() == b"mine"


@pytest.mark.parametrize("difference", [-20, 20])
def test_a_log_file_in_the_middle_with_another_size_is_named(root: Path, difference: int) -> None:
    set_size(root / LOG, LOG_FILE + difference)
    with pytest.raises(BadFile) as caught:
        read_all(root)
    assert caught.value.file == root / LOG
    assert f"found {LOG_FILE + difference} bytes; expected {LOG_FILE} bytes, the file size of this store" in str(
        caught.value
    )
    assert str(caught.value).endswith(f"; run: mqlake repair {root}")


def test_a_missing_log_file_in_the_middle_is_named(root: Path) -> None:
    (root / NEXT_LOG).rename((root / NEXT_LOG).with_name(f"{2 * LOG_FILE:020d}"))
    with pytest.raises(BadFile) as caught:
        read_all(root)
    expected = f"found a file that starts at {2 * LOG_FILE}; expected one that starts at {LOG_FILE}: files are missing"
    assert expected in str(caught.value)


def test_a_log_file_that_starts_between_two_others_is_named(root: Path) -> None:
    (root / NEXT_LOG).rename((root / NEXT_LOG).with_name(f"{40:020d}"))
    with pytest.raises(BadFile, match="found a start of 40; expected a multiple of the file size"):
        read_all(root)


def test_other_names_among_the_index_files_are_ignored_as_rocketmq_does(root: Path) -> None:
    (root / "index" / "notes.txt").write_text("mine")
    with open_small(root) as store:
        assert [m.body[:3] for m in store.find("orders", "key-7")] == [b"007"]


def test_an_empty_last_log_file_is_ignored(root: Path) -> None:
    """A crash can come between creating a file and setting its size."""
    (root / f"commitlog/{2 * LOG_FILE:020d}").write_bytes(b"")
    with open_small(root) as store:
        assert len(bodies(store)) == 150


# ---- a configuration that contradicts the files


@pytest.mark.parametrize(
    ("name", "settings", "said", "found"),
    [
        ("mappedFileSizeCommitLog", {"commit_log": CommitLogConfig(file_size_bytes=131072)}, 131072, LOG_FILE),
        ("mappedFileSizeConsumeQueue", {"consume_queue": ConsumeQueueConfig(file_size_bytes=4000)}, 4000, QUEUE_FILE),
    ],
)
def test_a_file_size_that_contradicts_the_files_names_both(
    root: Path, name: str, settings: dict[str, Any], said: int, found: int
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        open_small(root, **settings)
    text = str(caught.value)
    assert text.startswith(f"{name} = {said}: the files in {root}")
    assert text.endswith(f"have {found} bytes; leave it out or say so")
    with MessageStore.open(root) as store:  # without the setting, it opens
        assert len(bodies(store)) == 150


def test_index_sizes_that_contradict_the_files_name_both(root: Path) -> None:
    with pytest.raises(BadFile, match="found 8440 bytes; expected 8444 bytes, for 101 slots and 400 entries"):
        open_small(root, index=IndexConfig(slot_count=101, entry_count=400))


def test_a_queue_file_size_that_splits_an_entry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="mappedFileSizeConsumeQueue = 2010: must be a multiple of 20, the size of"):
        open_small(tmp_path / "other", consume_queue=ConsumeQueueConfig(file_size_bytes=2010))


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    ("folder", "size", "expected"),
    [("commitlog", 1000, "4096 to 2147483647 bytes"), ("consumequeue/orders/0", 7, "a multiple of 20 bytes")],
)
def test_files_too_short_for_any_store_are_damage_and_not_a_setting(
    tmp_path: Path, folder: str, size: int, expected: str, read_only: bool
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / f"{0:020d}").write_bytes(bytes(size))
    with pytest.raises(BadFile) as caught:
        MessageStore.open(tmp_path, read_only=read_only)
    assert str(caught.value) == (
        f"{tmp_path / folder.split('/')[0]}: found files of {size} bytes; expected {expected} each: "
        f"the store is incomplete or damaged; run: mqlake repair {tmp_path}"
    )
    assert not repair(tmp_path).after.findings
    MessageStore.open(tmp_path, read_only=read_only).close()


# ---- records with false fields

LIES = [
    ("the size", 0, struct.pack(">i", 400)),
    ("a size beyond the file", 0, struct.pack(">i", 1 << 30)),
    ("a negative size", 0, struct.pack(">i", -1)),
    ("the magic", 4, b"\xde\xad\xbe\xef"),
    ("the body's length", 84, struct.pack(">i", 1 << 30)),
    ("a negative body length", 84, struct.pack(">i", -1)),
    ("the offset", 28, struct.pack(">q", 12345)),
    ("the topic's length", 88 + 480, b"\x7f"),
    ("the body", 100, b"!"),
]


@pytest.mark.parametrize(("at", "lie"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
@covers("N3")
def test_a_record_with_false_fields_is_skipped_and_never_returned(root: Path, at: int, lie: bytes) -> None:
    with open_small(root) as store:
        offset = store.read("orders", start=5, limit=1)[0].physical_offset
        with (root / LOG).open("r+b") as file:
            file.seek(offset + at)
            file.write(lie)
        behind = store.read("orders", start=6, limit=1)[0].physical_offset
        read = store.read("orders", start=0, limit=32)
        assert [m.queue_offset for m in read] == [*range(5), *range(6, 32)]
        assert store.stats().damage == ((offset, behind),)
        assert store.read("orders", start=5, limit=1)[0].body.startswith(b"006")
        with pytest.raises((CorruptRecord, NoSuchMessage), match=str(offset)):
            store.get(offset)
        assert store.read("orders", start=6, limit=1)[0].body.startswith(b"006")  # and the one after it
        assert store.find("orders", "key-5") == []


def hand_made(root: Path, *records: bytes) -> Path:
    """Make a killed store with nothing but its log."""
    (root / "commitlog").mkdir(parents=True)
    (root / LOG).write_bytes(b"".join(records).ljust(LOG_FILE, b"\0"))
    (root / "abort").write_text("1")
    return root


def at_queue_offset(record: bytes, queue_offset: int) -> bytes:
    return record[:20] + struct.pack(">q", queue_offset) + record[28:]


SOUND = Parts(topic=b"orders", body=b"sound", properties=b"")


@pytest.mark.parametrize(
    "topic", [b"../../escaped", b"..", b".", b"", b"/", b"a/b", b"a\0b", b"t" * 300, b"\xff\xfe"], ids=ascii
)
def test_a_topic_in_the_log_that_cannot_be_a_folder_never_leaves_the_store(tmp_path: Path, topic: bytes) -> None:
    """One flipped bit turns `orders` into `/rders`: the body's CRC does not cover topics."""
    first = at_queue_offset(SOUND.record(0), 0)
    root = hand_made(tmp_path / "in" / "store", first, Parts(topic=topic, body=b"", properties=b"").record(len(first)))
    with open_small(root) as store:
        assert bodies(store) == [b"sound"]
        assert store.put(message(1, queue_id=0)).queue_offset == 1
        assert store.stats().failure is None
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and root not in path.parents]
    assert outside == []
    beside = {
        "abort",
        "batchconsumequeue",
        "checkpoint",
        "commitlog",
        "config",
        "consumequeue",
        "index",
        "lock",
        "mqlake",
    }
    assert {path.name for path in root.iterdir()} <= beside


@pytest.mark.timeout(60)
@pytest.mark.parametrize("queue_offset", [-5, 1 << 20, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("is_first", [False, True], ids=["behind others", "first"])
def test_an_impossible_queue_offset_in_the_log_costs_only_its_own_message(
    tmp_path: Path, queue_offset: int, is_first: bool
) -> None:
    """The body's CRC does not cover queue offsets either: a flipped bit must not fill the disk with fillers."""
    first = at_queue_offset(SOUND.record(0), 0)
    damaged = SOUND._replace(topic=b"others" if is_first else b"orders").record(len(first))
    root = hand_made(tmp_path / "store", first, at_queue_offset(damaged, queue_offset))
    with open_small(root, consume_queue=ConsumeQueueConfig(file_size_bytes=6_000_000)) as store:
        assert store.read("orders", limit=1)[0].body == b"sound"
        for topic in ("orders", "others"):
            receipt = store.put(message(1, topic=topic, queue_id=0))
            assert store.wait_dispatched()
            assert store.read(topic, start=receipt.queue_offset)[0].physical_offset == receipt.physical_offset
        assert store.stats().failure is None
    assert sum(path.stat().st_blocks * 512 for path in root.rglob("*")) < 64 << 20


# ---- bodies whose compression is damaged


def lz4_of(body: bytes) -> bytes:
    return bytes(pytest.importorskip("lz4.frame").compress(body, content_checksum=True))


def zstd_of(body: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True).compress(body))


CODECS: list[tuple[int, Callable[[bytes], bytes]]] = [
    (0x001, zlib.compress),
    (0x301, zlib.compress),
    (0x101, lz4_of),
    (0x201, zstd_of),
]
codecs = pytest.mark.parametrize(("flag", "compress"), CODECS, ids=["old zlib", "zlib", "lz4", "zstd"])
BODY = b"".join(b"%d," % number for number in range(2000))


def damage(kind: str, body: bytes) -> bytes:
    if kind == "cut":
        return body[: len(body) // 2]
    if kind == "nothing":
        return b""
    if kind == "random":
        return bytes(range(64))
    middle = bytearray(body)
    middle[len(middle) // 2] ^= 0x55
    return bytes(middle)


@codecs
@pytest.mark.parametrize("kind", ["cut", "nothing", "random", "flipped"])
def test_a_damaged_compressed_body_is_an_error_and_never_half_a_body(
    tmp_path: Path, flag: int, compress: Callable[[bytes], bytes], kind: str
) -> None:
    with open_small(tmp_path / "store") as store:
        whole = store.put(message(0, body=compress(BODY), sys_flag=flag))
        receipt = store.put(message(1, body=damage(kind, compress(BODY)), sys_flag=flag))
        assert store.get(whole.physical_offset).body == BODY
        stored = store.get(receipt.physical_offset)
        assert stored.raw_body == damage(kind, compress(BODY))  # the record itself is sound
        with pytest.raises(CorruptBody, match="compress"):
            _ = stored.body


@codecs
def test_a_body_that_inflates_without_bound_is_refused(
    tmp_path: Path, flag: int, compress: Callable[[bytes], bytes]
) -> None:
    with open_small(tmp_path / "store", commit_log=CommitLogConfig(file_size_bytes=4 << 20)) as store:
        receipt = store.put(message(0, body=compress(bytes(65 << 20)), sys_flag=flag))
        with pytest.raises(CorruptBody, match="it inflates beyond 67108864 bytes"):
            _ = store.get(receipt.physical_offset).body


def test_an_old_index_hash_is_no_proof_that_a_message_has_a_key(root: Path) -> None:
    """With two keys of one hash, the index names both and the answer holds the one requested."""
    assert java_hash("orders#Aa") == java_hash("orders#BB")
    with open_small(root) as store:
        store.put(message(0, keys="Aa", body=b"asked for"))
        store.put(message(1, keys="BB", body=b"other"))
        assert [m.body for m in store.find("orders", "Aa")] == [b"asked for"]


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("names", [(0, 1), (1, 2), (0, -1)], ids=["first two", "in the middle", "first and last"])
def test_log_files_with_swapped_names_are_refused_and_repair_restores_the_names(
    tmp_path: Path, names: tuple[int, int], read_only: bool
) -> None:
    path = tmp_path / "s"
    with open_small(path) as store:
        for number in range(2000):
            store.put(message(number, queue_id=0))
    files = sorted((path / "commitlog").iterdir())
    one, other = files[names[0]], files[names[1]]
    one.rename(path / "one")
    other.rename(one)
    (path / "one").rename(other)
    with pytest.raises(BadFile, match=r"records of the file \d{20}; expected .* run: mqlake repair"):
        open_small(path, read_only=read_only)
    assert {row.what for row in check(path).findings} >= {"file-misnamed"}
    assert repair(path).after.holds
    with open_small(path, read_only=read_only) as store:
        assert len(bodies(store)) == 2000
        assert store.stats().damage == ()


def test_a_damaged_offset_in_a_files_first_record_is_a_scar_and_not_a_wrong_name(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_small(path) as store:
        for number in range(2000):
            store.put(message(number, queue_id=0))
    file = sorted((path / "commitlog").iterdir())[1]
    with file.open("r+b") as opened:
        opened.seek(28)
        opened.write((3 * LOG_FILE).to_bytes(8, "big"))
    with open_small(path) as store:
        assert len(list(store.dump({}, walk=True, keys=False))) > 0
        assert sum(batch.num_rows for batch in store.scan(columns=["body"])) == 1999


# ---- while the store is open


def replace_with(path: Path, kind: str) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    make: dict[str, Callable[[Path], object]] = {"folder": Path.mkdir, "file": Path.touch, "FIFO": os.mkfifo}
    make[kind](path)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "folder") for name in ("abort", "mqlake/deleted-topics", "mqlake/health.json", "mqlake/clock.json")),
        *((name, "folder") for name in ("mqlake/timer", "config/timercheck", "checkpoint", "mqlake/checkpoint")),
        *((name, "FIFO") for name in ("timerlog", "mqlake/clock.json", "mqlake/health.json", "config/timercheck")),
        *((name, kind) for name in ("mqlake/gates", "mqlake/spare", "mqlake", "config") for kind in ("file", "FIFO")),
    ],
)
def test_what_replaces_a_file_of_an_open_store_raises_typed_errors_only_and_the_store_closes(
    tmp_path: Path, name: str, kind: str
) -> None:
    store = open_small(tmp_path / "store")
    store.put(message(0, queue_id=0))
    store.put(message(1, "gone", queue_id=0))
    store.put(message(2, queue_id=0, delay_s=3600))
    assert store.wait_dispatched()
    replace_with(tmp_path / "store" / name, kind)
    calls: list[Callable[[], object]] = [
        lambda: store.delete_topic("gone"),
        lambda: store.create_topic("new"),
        store.waiting,
        store.stats,
        store.retain,
    ]
    for call in calls:
        with contextlib.suppress(StoreError):
            call()
    assert bodies(store)[0] == b"body 0"
    store.close()
    assert repair(tmp_path / "store").after.holds
    with open_small(tmp_path / "store") as opened:
        assert bodies(opened)[0] == b"body 0"
