"""Damage of the log is undone from another copy, byte for byte, and only by bytes that are proven."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake import MessageStore, NotAStore, ReadOnlyStore, SealConfig, StoreConfig, check
from mqlake.codec.seal_file import BLOCK_BYTES
from mqlake.errors import SourceFailed
from mqlake.files.layout import Layout
from mqlake.files.names import file_name
from mqlake.inspect.heal_source import FolderSource
from mqlake.inspect.repair import repair
from mqlake.logs.seals import Seals
from mqlake.logs.seals import fill as fill_block
from mqlake.replication import follow
from mqlake.replication.fetch import MasterSource
from mqlake.replication.frames import ReportReader, heartbeat_frame, transfer_header
from mqlake.replication.master import Master as RealMaster
from tests.helpers import LOG_FILE, SMALL_FILES, message, open_bare, writer_of

COUNT = 600


def fill(path: Path, count: int = COUNT, first: int = 0) -> list[int]:
    with open_bare(path) as store:
        made = [store.put(message(n, queue_id=0, body=b"%08d" % n * 50)) for n in range(first, first + count)]
        return [receipt.physical_offset for receipt in made]


def flip(path: Path, offset: int, bit: int = 0) -> None:
    with (path / "commitlog" / file_name(offset - offset % LOG_FILE)).open("r+b") as file:
        file.seek(offset % LOG_FILE)
        byte = file.read(1)[0]
        file.seek(offset % LOG_FILE)
        file.write(bytes([byte ^ 1 << bit]))


def log_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))


def served(store: MessageStore) -> list[int]:
    return [m.queue_offset for m in store.read("orders", queue_id=0, limit=COUNT, max_bytes=1 << 30)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    path = tmp_path_factory.mktemp("heal") / "whole"
    return path, fill(path)


@pytest.fixture
def pair(made: tuple[Path, list[int]], tmp_path: Path) -> tuple[Path, Path, list[int]]:
    """Return a store, a copy of it, and the physical offsets of their messages."""
    for name in ("s", "copy"):
        shutil.copytree(made[0], tmp_path / name)
    return tmp_path / "s", tmp_path / "copy", made[1]


# ---- an open store


def test_healing_restores_every_byte_in_headers_and_bodies_and_the_end_of_a_file(
    pair: tuple[Path, Path, list[int]],
) -> None:
    store_path, copy, offsets = pair
    for at in (offsets[3] + 45, offsets[200] + 100, offsets[300] + 5, 2 * LOG_FILE - 1, offsets[-1] + 50):
        flip(store_path, at)
    with open_bare(store_path) as store:
        report = store.heal(copy)
        assert report.left == () and report.written_bytes > 0 and report.backup is not None
        assert store.stats().damage == () and store.stats().seals.broken == ()
        assert served(store) == list(range(COUNT))
    assert log_of(store_path) == log_of(copy)
    assert check(store_path).findings == ()


def test_what_was_there_before_is_kept(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, offsets = pair
    flip(store_path, offsets[3] + 45)
    damaged = log_of(store_path)
    with open_bare(store_path) as store:
        backup = store.heal(copy).backup
    assert backup is not None
    page = offsets[3] + 45 - (offsets[3] + 45) % 4096
    assert (backup / "ranges").read_bytes() == damaged[page : page + 4096]


def test_a_reader_in_another_process_sees_the_healed_message(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, offsets = pair
    flip(store_path, offsets[5] + 100)
    with open_bare(store_path) as store, open_bare(store_path, read_only=True) as reader:
        assert 5 not in served(reader)
        store.heal(copy)
        assert served(reader) == list(range(COUNT))


def test_messages_of_a_scar_that_queues_and_index_never_knew_come_back(pair: tuple[Path, Path, list[int]]) -> None:
    """The scar was there when they were built: a filler holds its queue offset, and its key is in no index."""
    store_path, copy, offsets = pair
    flip(store_path, offsets[7] + 5)
    shutil.rmtree(store_path / "consumequeue")
    shutil.rmtree(store_path / "index")
    with open_bare(store_path) as store:
        assert 7 not in served(store) and store.find("orders", "key-7") == []
        report = store.heal(copy)
        assert report.left == () and report.rebuilds_index and report.message_count == 1
        assert served(store) == list(range(COUNT))
    with open_bare(store_path) as store:
        assert store.recovery is not None and store.recovery.reason == "rebuild"
        assert [m.queue_offset for m in store.find("orders", "key-7")] == [7]
    assert check(store_path).findings == ()


@pytest.mark.parametrize("first_lost", [3, 400], ids=["in the first file", "in a later one"])
def test_healed_messages_that_rebuilt_queues_lack_get_their_entries_back(
    pair: tuple[Path, Path, list[int]], first_lost: int
) -> None:
    """In the first file the entry of a lost message names the next one that is left."""
    store_path, copy, offsets = pair
    for number in range(first_lost, first_lost + 3):
        flip(store_path, offsets[number] + 5)
    shutil.rmtree(store_path / "consumequeue")
    kept = [number for number in range(COUNT) if not first_lost <= number <= first_lost + 2]
    with open_bare(store_path) as store:
        store.wait_dispatched()
        assert served(store) == kept
    queues = [file for file in (store_path / "consumequeue/orders/0").iterdir() if file.read_bytes().strip(b"\0")]
    healed = {file.name: (copy / file.relative_to(store_path)).read_bytes() for file in queues}
    assert {file.name: file.read_bytes() for file in queues} != healed
    with open_bare(store_path) as store:
        assert store.heal(copy).left == ()
        assert served(store) == list(range(COUNT))
    assert {file.name: file.read_bytes() for file in queues} == healed
    open_bare(store_path).close()  # the index is built anew
    assert check(store_path).findings == ()


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("count", [20, 600], ids=["in the first file", "in a later one"])
def test_healed_messages_at_the_end_of_a_rebuilt_queue_are_served_at_once(
    count: int, lost: int, tmp_path: Path
) -> None:
    """Until then the last entry of the queue names the last message that is left."""
    store_path, copy = tmp_path / "s", tmp_path / "copy"
    offsets = fill(store_path, count)
    with open_bare(store_path) as store:
        store.put(message(0, "others"))
    shutil.copytree(store_path, copy)
    for offset in offsets[-lost:]:
        flip(store_path, offset + 5)
    shutil.rmtree(store_path / "consumequeue")
    shutil.rmtree(store_path / "mqlake/seals")
    with open_bare(store_path) as store:
        store.wait_dispatched()
        assert served(store) == list(range(count - lost))
        assert store.heal(copy).left == ()
        assert served(store) == list(range(count))


@pytest.mark.parametrize("lost", [(2,), (1, 2, 3), (4,)], ids=str)
def test_a_scar_that_fills_its_file_is_healed_between_equal_bytes_of_other_files(
    lost: tuple[int, ...], tmp_path: Path
) -> None:
    store_path, copy = tmp_path / "s", tmp_path / "copy"
    with open_bare(store_path) as store:  # one message in each file
        made = [store.put(message(n, queue_id=0, body=bytes([n]) * (LOG_FILE - 9000))) for n in range(5)]
    shutil.copytree(store_path, copy)
    shutil.rmtree(store_path / "mqlake/seals")
    for number in lost:
        flip(store_path, made[number].physical_offset + 5)
    with open_bare(store_path) as store:
        report = store.heal(copy)
        assert report.left == () and report.message_count == len(lost)
        assert served(store) == list(range(5))
    assert log_of(store_path) == log_of(copy)


def test_a_scar_without_a_seal_is_healed_by_whole_records_between_equal_bytes(
    pair: tuple[Path, Path, list[int]],
) -> None:
    store_path, copy, offsets = pair
    shutil.rmtree(store_path / "mqlake/seals")
    flip(store_path, offsets[7] + 100)
    flip(store_path, offsets[8] + 100)
    with open_bare(store_path) as store:
        report = store.heal(copy)
        assert report.left == ()
        assert report.healed == ((offsets[7], offsets[9]),)
        assert served(store) == list(range(COUNT))
    assert log_of(store_path) == log_of(copy)
    assert check(store_path).findings == ()


def test_a_source_of_another_log_heals_nothing_and_the_report_says_why(
    pair: tuple[Path, Path, list[int]], tmp_path: Path
) -> None:
    store_path, _, offsets = pair
    fill(tmp_path / "other", 600)
    flip(store_path, offsets[3] + 45)
    shutil.rmtree(store_path / "mqlake/seals" / file_name(2 * LOG_FILE), ignore_errors=True)
    (store_path / "mqlake/seals" / file_name(2 * LOG_FILE)).unlink()
    unsealed = next(offset for offset in offsets if offset > 2 * LOG_FILE + 5000)
    flip(store_path, unsealed + 100)
    damaged = log_of(store_path)
    with open_bare(store_path) as store:
        report = store.heal(tmp_path / "other")
    assert report.healed == () and len(report.left) == 2
    assert "do not fit the seal" in report.left[0].reason
    assert "has other bytes" in report.left[1].reason
    assert log_of(store_path) == damaged


def test_a_source_that_is_damaged_too_or_too_short_is_told(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, offsets = pair
    flip(store_path, offsets[3] + 45)
    flip(store_path, 3 * LOG_FILE + 45)
    flip(copy, offsets[9] + 50)
    (copy / "commitlog" / file_name(3 * LOG_FILE)).unlink()
    with open_bare(store_path) as store:
        report = store.heal(copy)
    assert [left.start for left in report.left] == [0, 3 * LOG_FILE]
    assert "do not fit the seal" in report.left[0].reason
    assert "does not have the log at" in report.left[1].reason


def test_a_source_with_the_same_damage_is_not_taken_for_one_that_ends_early(
    pair: tuple[Path, Path, list[int]],
) -> None:
    """A file ends in zeros, which are no end of the source. Nor is the end of a block that is full of records."""
    store_path, copy, offsets = pair
    last = max(offset for offset in offsets if offset < 2 * LOG_FILE)
    for path in (store_path, copy):
        flip(path, offsets[3] + 45)  # only the seal shows it
        flip(path, last, bit=6)  # the size: no record follows in the file
    with open_bare(store_path) as store:
        left = store.heal(copy).left
    assert [(each.start, each.end) for each in left] == [(0, LOG_FILE), (LOG_FILE, 2 * LOG_FILE), (last, 2 * LOG_FILE)]
    assert [each.reason.rpartition("it has ")[2] for each in left[:2]] == ["the same damage"] * 2
    assert f"{copy} has no whole records there" in left[2].reason


# ---- a seal that was made of damage


def scrub_on(path: Path) -> None:
    with open_bare(path) as store:
        sealer = writer_of(store).sealer
        with sealer.lock:  # its worker saves too
            sealer.scrub_on(1 << 30)
            sealer.state.save(Layout(path))


def seal_as_it_is(path: Path, offset: int) -> None:
    """Seal the block of an offset whatever it holds, as a version without a walk before sealing did."""
    start = offset - offset % LOG_FILE
    seals = Seals(Layout(path), LOG_FILE, writable=True)
    table = seals.table(start)
    assert table is not None
    pages = (path / "commitlog" / file_name(start)).read_bytes()
    seals.save([fill_block(table, pages, (offset - start) // BLOCK_BYTES)])


@pytest.mark.parametrize("opened", [True, False], ids=["open", "closed"])
def test_damage_that_was_sealed_is_healed_and_its_block_is_sealed_anew(
    pair: tuple[Path, Path, list[int]], opened: bool
) -> None:
    store_path, copy, offsets = pair
    for at in (offsets[3] + 100, offsets[9] + 100, offsets[300] + 5):
        flip(store_path, at)
        seal_as_it_is(store_path, at)
    if opened:
        with open_bare(store_path) as store:
            report = store.heal(copy)
            assert served(store) == list(range(COUNT))
    else:
        told = repair(store_path, source=FolderSource(copy)).healed
        assert told is not None
        report = told
    assert report.left == () and len(report.healed) == 3
    assert log_of(store_path) == log_of(copy)
    assert check(store_path).findings == ()
    for start in (0, 2 * LOG_FILE):
        sealed = [Seals(Layout(path), LOG_FILE, writable=False).table(start) for path in (store_path, copy)]
        assert sealed[0] == sealed[1]


def test_damage_that_was_sealed_and_that_the_source_has_too_is_told(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, offsets = pair
    for path in (store_path, copy):
        flip(path, offsets[3] + 100)
        seal_as_it_is(path, offsets[3])
    report = repair(store_path, source=FolderSource(copy))
    assert report.healed is not None and report.healed.healed == ()
    (left,) = report.healed.left
    assert left[:2] == (offsets[3], offsets[4]) and "has no whole records there" in left.reason


def test_a_right_seal_is_kept_while_one_of_two_damaged_records_of_its_block_is_healed(
    pair: tuple[Path, Path, list[int]],
) -> None:
    """The block does not fit its seal, before and after: the seal still shows the bit that no CRC covers."""
    store_path, copy, offsets = pair
    flip(store_path, offsets[3] + 100)
    for path in (store_path, copy):
        flip(path, offsets[9] + 45)
    scrub_on(store_path)
    with open_bare(store_path) as store:
        assert store.stats().seals.broken == ((0, LOG_FILE),)
        report = store.heal(copy)
        assert report.healed == ((offsets[3], offsets[4]),)
        assert [left[:2] for left in report.left] == [(0, LOG_FILE)]
        assert store.stats().seals.broken == ((0, LOG_FILE),)
    assert {row.what for row in check(store_path).findings} == {"seal-broken"}


def test_a_slave_does_not_seal_its_masters_damage_and_heals_it_from_there(
    pair: tuple[Path, Path, list[int]], tmp_path: Path
) -> None:
    master_path, copy, offsets = pair
    flip(master_path, offsets[3] + 100)
    settings = StoreConfig(**SMALL_FILES, seals=SealConfig(interval_ms=20))
    with open_bare(master_path) as store, RealMaster(store.port, listen_port=0) as master:
        address = "{}:{}".format(*master.address)
        with follow(tmp_path / "slave", address, config=settings, begin_offset=0) as slave:
            assert slave.slave is not None and slave.slave.wait_caught_up(10)
        store.heal(copy)
        table = Seals(Layout(tmp_path / "slave"), LOG_FILE, writable=False).table(0)
        assert table is not None and table.states == b"\0"
        report = repair(tmp_path / "slave", config=settings, source=MasterSource(*master.address))
    assert report.healed is not None and report.healed.healed == ((offsets[3], offsets[4]),)
    assert log_of(tmp_path / "slave") == log_of(copy)


@pytest.mark.parametrize("where", [45, 100], ids=["header", "body"])
@pytest.mark.parametrize("more", [1, 200], ids=["the block grew", "the block is full"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_copy_that_ends_in_a_block_heals_it_whatever_was_appended_since(
    tmp_path: Path, more: int, where: int, when: str
) -> None:
    """The seal covers the bytes of the copy and those that were appended after it, damaged before that or not."""
    store_path, copy = tmp_path / "s", tmp_path / "copy"
    offsets = fill(store_path, 20)
    shutil.copytree(store_path, copy)
    if when == "before":
        flip(store_path, offsets[5] + where)
    offsets += fill(store_path, more, first=20)
    whole = log_of(store_path)
    flip(store_path, offsets[5] + where)
    if when == "before":
        whole, damaged = log_of(store_path), whole
        flip(store_path, offsets[5] + where)
        assert log_of(store_path) == damaged
    report = repair(store_path, source=FolderSource(copy))
    assert report.healed is not None and report.healed.left == ()
    assert log_of(store_path) == whole
    assert report.after.findings == ()
    with open_bare(store_path) as store:
        assert served(store) == list(range(20 + more))


def test_a_lost_last_file_is_healed_from_a_copy_though_messages_were_put_since(
    pair: tuple[Path, Path, list[int]],
) -> None:
    store_path, copy, offsets = pair
    (store_path / "commitlog" / file_name(offsets[-1] - offsets[-1] % LOG_FILE)).unlink()
    fill(store_path, 1, first=COUNT)
    report = repair(store_path, source=FolderSource(copy))
    assert report.healed is not None and report.healed.left == ()
    assert report.after.findings == ()
    with open_bare(store_path) as store:
        assert [m.queue_offset for m in store.read("orders", queue_id=0, limit=9, start=COUNT - 1)] == [
            COUNT - 1,
            COUNT,
        ]


def test_a_scar_without_a_seal_is_healed_from_a_copy_that_ends_soon_after_it(tmp_path: Path) -> None:
    store_path, copy = tmp_path / "s", tmp_path / "copy"
    offsets = fill(store_path, 20)
    shutil.copytree(store_path, copy)
    offsets += fill(store_path, 20, first=20)
    shutil.rmtree(store_path / "mqlake/seals")
    flip(store_path, offsets[18] + 100)
    report = repair(store_path, source=FolderSource(copy))
    assert report.healed is not None and report.healed.healed == ((offsets[18], offsets[19]),)
    assert report.after.findings == ()


@pytest.mark.parametrize("sealed", [True, False])
def test_a_copy_that_ends_before_the_damage_is_told_so(tmp_path: Path, sealed: bool) -> None:
    store_path, copy = tmp_path / "s", tmp_path / "copy"
    fill(store_path, 20)
    shutil.copytree(store_path, copy)
    offsets = fill(store_path, 20, first=20)
    if not sealed:
        shutil.rmtree(store_path / "mqlake/seals")
    flip(store_path, offsets[5] + 100)
    damaged = log_of(store_path)
    report = repair(store_path, source=FolderSource(copy))
    assert report.healed is not None and report.healed.healed == ()
    reasons = [left.reason for left in report.healed.left]
    wanted = ["and the bytes before that are the same here"] * sealed + ["before it"]
    assert [reason.endswith(f"ends at {offsets[0]}, {end}") for reason, end in zip(reasons, wanted, strict=True)]
    assert log_of(store_path) == damaged and report.backup is None


def test_healing_twice_changes_nothing_more(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, offsets = pair
    flip(store_path, offsets[3] + 45)
    with open_bare(store_path) as store:
        assert len(store.heal(copy).healed) == 1
        again = store.heal(copy)
        assert (again.healed, again.left, again.written_bytes) == ((), (), 0)


def test_puts_go_on_while_a_store_is_healed(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, offsets = pair
    for number in range(0, 500, 50):
        flip(store_path, offsets[number] + 100)
    with open_bare(store_path) as store:
        healer = threading.Thread(target=store.heal, args=(copy,))
        healer.start()
        puts = 0
        while healer.is_alive() or not puts:
            store.put(message(COUNT + puts, queue_id=0))
            puts += 1
        healer.join()
        store.wait_dispatched()
        assert store.queues("orders")[0].end_offset == COUNT + puts
        assert store.stats().damage == ()
    assert log_of(store_path)[: offsets[-1]] == log_of(copy)[: offsets[-1]]
    assert check(store_path).holds


def test_a_reader_does_not_heal_and_a_wrong_source_is_refused(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, _ = pair
    with open_bare(store_path, read_only=True) as store, pytest.raises(ReadOnlyStore):
        store.heal(copy)
    with open_bare(store_path) as store, pytest.raises(NotAStore):
        store.heal(store_path / "nothing")


# ---- a closed store


@pytest.mark.parametrize("damage", ["bits", "a missing file", "a short file", "zeros", "the last file"])
def test_repair_from_a_copy_restores_the_log_and_the_store_holds(
    pair: tuple[Path, Path, list[int]], damage: str
) -> None:
    store_path, copy, offsets = pair
    file = store_path / "commitlog" / file_name(LOG_FILE)
    if damage == "bits":
        flip(store_path, offsets[3] + 45)
        flip(store_path, offsets[200] + 100)
    elif damage == "a missing file":
        file.unlink()
    elif damage == "a short file":
        os.truncate(file, 1000)
    elif damage == "zeros":
        with file.open("r+b") as opened:
            opened.seek(8192)
            opened.write(bytes(16384))
    else:
        (store_path / "commitlog" / file_name(offsets[-1] - offsets[-1] % LOG_FILE)).unlink()
    report = repair(store_path, source=FolderSource(copy))
    assert report.healed is not None and report.healed.left == ()
    assert {action.what for action in report.actions} == {"heal"}
    assert log_of(store_path) == log_of(copy)
    assert report.after.findings == ()
    with open_bare(store_path) as store:
        assert served(store) == list(range(COUNT))


def test_repair_from_a_copy_leaves_what_it_cannot_heal(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, offsets = pair
    flip(store_path, offsets[3] + 100)
    flip(store_path, offsets[200] + 100)
    flip(copy, offsets[3] + 101)
    report = repair(store_path, source=FolderSource(copy))
    assert report.healed is not None and {left.start for left in report.healed.left} == {0, offsets[3]}
    assert not report.after.holds
    with open_bare(store_path) as store:
        assert served(store) == [n for n in range(COUNT) if n != 3]


def test_nothing_is_changed_before_it_is_confirmed(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, offsets = pair
    flip(store_path, offsets[3] + 100)
    damaged = log_of(store_path)
    report = repair(store_path, source=FolderSource(copy), confirm=lambda before, actions: False)
    assert not report.done and log_of(store_path) == damaged


def test_kill_during_healing_loses_nothing_and_healing_again_finishes(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, offsets = pair
    for number in range(0, COUNT, 20):
        flip(store_path, offsets[number] + (100 if number % 40 else 45))
    program = textwrap.dedent(f"""
        import os
        from mqlake import MessageStore
        from mqlake.inspect import heal
        real, count = os.pwrite, 0
        def pwrite(descriptor, data, offset):
            global count
            count += 1
            if count == int(os.environ["LAST"]):
                real(descriptor, data[:1000], offset)
                os.kill(os.getpid(), {signal.SIGKILL})
            return real(descriptor, data, offset)
        store = MessageStore.open({str(store_path)!r}, deliver=False)
        heal.os.pwrite = pwrite
        store.heal({str(copy)!r})
    """)
    for last in (1, 7):
        done = subprocess.run([sys.executable, "-c", program], env=os.environ | {"LAST": str(last)}, check=False)
        assert done.returncode == -signal.SIGKILL
    with open_bare(store_path) as store:
        assert store.heal(copy).left == ()
        assert served(store) == list(range(COUNT))
    assert log_of(store_path) == log_of(copy)
    assert check(store_path).holds


# ---- over RocketMQ's replication


class Master:
    """Sends the bytes of a log to whoever connects like a slave, in transfers of any size."""

    def __init__(self, log: bytes, size: int = 10_000) -> None:
        self._log, self._size = log, size
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.requests: list[int] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        (position,) = ReportReader().feed(connection.recv(8))
        self.requests.append(position)
        try:
            connection.sendall(heartbeat_frame(position))
            while position < len(self._log):
                body = self._log[position : position + self._size]
                connection.sendall(transfer_header(position, len(body)) + body)
                position += len(body)
            while True:
                connection.sendall(heartbeat_frame(position))
                time.sleep(0.01)
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def master(pair: tuple[Path, Path, list[int]]) -> Iterator[Master]:
    serving = Master(log_of(pair[1]))
    yield serving
    serving.close()


def test_a_master_heals_a_store_from_its_first_byte_on(pair: tuple[Path, Path, list[int]], master: Master) -> None:
    store_path, copy, offsets = pair
    for at in (45, offsets[200] + 100, offsets[400] + 5):
        flip(store_path, at)
    with open_bare(store_path) as store:
        assert store.heal(f"127.0.0.1:{master.port}").left == ()
    assert log_of(store_path) == log_of(copy)
    assert check(store_path).findings == ()
    assert 0 not in master.requests, "a master takes 0 for its newest file"


def test_a_master_that_lacks_the_range_or_is_away_is_told(pair: tuple[Path, Path, list[int]]) -> None:
    store_path, copy, offsets = pair
    flip(store_path, offsets[-1] + 45)
    short = Master(log_of(copy)[: offsets[-1]])
    with open_bare(store_path) as store:
        (left,) = store.heal(f"127.0.0.1:{short.port}").left
        assert left.reason.endswith(f"ends at {offsets[-1]}, and the bytes before that are the same here")
        short.close()
        (left,) = store.heal("127.0.0.1:1").left
        assert "no answer" in left.reason


def test_a_range_over_many_transfers_arrives_whole(pair: tuple[Path, Path, list[int]], master: Master) -> None:
    log = log_of(pair[1])
    source = MasterSource("127.0.0.1", master.port)
    for start, end in ((0, 5), (0, 65536), (1, 70_001), (9_999, 20_001), (len(log) - 3, len(log))):
        assert source.read(start, end) == log[start:end]
    assert Layout(pair[0]).seals.is_dir()


def test_a_source_that_says_nothing_is_given_up_after_its_first_silence() -> None:
    """Else a repair would wait as long for every damaged range."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = MasterSource("127.0.0.1", server.getsockname()[1], timeout_s=0.2)
        with pytest.raises(SourceFailed, match="no answer about the log at 100"):
            source.read(100, 200)
        with pytest.raises(SourceFailed, match="not asked again: it was silent about the log at 100"):
            source.read(300, 400)
        server.setblocking(False)
        server.accept()[0].close()
        with pytest.raises(BlockingIOError):
            server.accept()


def test_repair_from_a_copy_shows_how_far_it_is(pair: tuple[Path, Path, list[int]]) -> None:
    """It looks at the log twice: for the plan, and when it heals."""
    flip(pair[0], pair[2][3] + 45)
    told: list[tuple[int, int]] = []
    report = repair(pair[0], source=FolderSource(pair[1]), progress=lambda done, total: told.append((done, total)))
    assert report.healed is not None and report.healed.left == ()
    ends = [done for done, total in told if done == total]
    assert len(ends) >= 2
