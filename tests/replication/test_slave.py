"""A slave's log is its master's, byte for byte, whatever is cut, killed or sent in pieces."""

from __future__ import annotations

import errno
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake import FlushConfig, InvalidConfig, Message, MessageStore, NotMaster, ReplicationConfig, Role, check
from mqlake.errors import ControllerMode, DiskFull, Diverged, FilesDiffer, NotOnMaster
from mqlake.files.mapped_file import MappedFile
from mqlake.replication import follow
from mqlake.replication.slave import State
from mqlake.runtime.workers import WorkerHealth
from tests.helpers import LOG_FILE, SMALL_FILES, bodies, covers, message, open_bare, open_small, writer_of
from tests.ports import free_port
from tests.replication.masters import SendingMaster, log_bytes, same_log
from tests.replication.slaves import serving

IN_TIME_S = 30.0


def open_slave(path: Path, master: str | None, begin_offset: int | None = 0, **settings: Any) -> MessageStore:
    config = ReplicationConfig(
        role=Role.SLAVE, master_address=master, begin_offset=begin_offset, heartbeat_interval_ms=300
    )
    return open_small(path, replication=config, **settings)


def until(condition: Callable[[], object], what: str = "it") -> None:
    deadline = time.monotonic() + IN_TIME_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


def worker_of(store: MessageStore, name: str) -> WorkerHealth:
    return next(each for each in store.health().workers if each.name == name)


def caught_up(master: MessageStore, slave: MessageStore) -> None:
    assert slave.slave is not None
    assert slave.slave.wait_caught_up(IN_TIME_S, end_offset=master.port.ends.appended)
    same_log(master, slave)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MessageStore]:
    with open_bare(tmp_path / "master") as store:
        yield store


@covers("P6")
def test_a_slave_has_the_masters_log_byte_for_byte_over_many_files(master: MessageStore, tmp_path: Path) -> None:
    chance = random.Random(1)
    for number in range(600):
        master.put(message(number, body=chance.randbytes(chance.randrange(1, 2000))))
    with SendingMaster(master) as sender, open_slave(tmp_path / "slave", sender.address) as slave:
        caught_up(master, slave)
        assert len(slave.port.log.files.starts) > 5
        for number in range(600, 700):
            master.put(message(number))
        caught_up(master, slave)
        for queue_id in range(4):
            assert bodies(slave, queue_id=queue_id) == bodies(master, queue_id=queue_id)
        assert [found.body for found in slave.find("orders", "key-650")] == [b"body 650"]
    assert check(tmp_path / "slave").holds
    assert check(tmp_path / "master").holds


@covers("P6")
def test_a_slave_refuses_every_write_and_serves_reads(master: MessageStore, tmp_path: Path) -> None:
    master.put(message(1, queue_id=0))
    with SendingMaster(master) as sender, open_slave(tmp_path / "slave", sender.address) as slave:
        caught_up(master, slave)
        writes: list[Callable[[], object]] = [
            lambda: slave.put(message(2)),
            lambda: slave.put(Message("new", b"x", delay_level=3)),
            lambda: slave.put_many([message(2), message(3)]),
            lambda: slave.put_as_is(message(2)),
            lambda: slave.create_topic("new"),
            lambda: slave.update_topic("orders", ordered=True),
            lambda: slave.delete_topic("orders"),
            lambda: slave.create_group("g"),
            lambda: slave.transaction().put(message(2)),
        ]
        for write in writes:
            with pytest.raises(NotMaster, match="this store is a slave"):
                write()
        assert bodies(slave) == [b"body 1"]
        assert [found.body for found in slave.consumer("readers", "orders", idle_s=0)] == [b"body 1"]
        same_log(master, slave)


def test_an_empty_slave_begins_at_the_masters_newest_file_as_those_of_rocketmq_do(
    master: MessageStore, tmp_path: Path
) -> None:
    for number in range(500):
        master.put(message(number, body=bytes(500)))
    with SendingMaster(master) as sender, open_slave(tmp_path / "slave", sender.address, begin_offset=None) as slave:
        caught_up(master, slave)
        assert sender.requests == [0]
        newest = master.port.ends.appended // LOG_FILE * LOG_FILE
        assert slave.first_offset == newest > 0
        slave.wait_dispatched()
        assert slave.stats().dispatched_end == master.port.ends.appended
    with SendingMaster(master) as sender, open_slave(tmp_path / "slave", sender.address, begin_offset=None) as slave:
        master.put(message(500))
        caught_up(master, slave)
        assert sender.requests[0] >= newest, "it resumes at its end"


def test_a_slave_may_begin_at_any_file_of_the_master(master: MessageStore, tmp_path: Path) -> None:
    for number in range(500):
        master.put(message(number, body=bytes(500)))
    with (
        SendingMaster(master) as sender,
        open_slave(tmp_path / "slave", sender.address, begin_offset=2 * LOG_FILE) as slave,
    ):
        caught_up(master, slave)
        assert slave.first_offset == 2 * LOG_FILE


def test_cut_connections_cost_nothing(master: MessageStore, tmp_path: Path) -> None:
    """Cut at any byte: in headers, in the middle of records, in fillers."""
    chance = random.Random(2)
    for number in range(800):
        master.put(message(number, body=chance.randbytes(chance.randrange(1, 900))))
    with SendingMaster(master, batch_bytes=5000) as sender:
        sender.cut_after = lambda: chance.randrange(80_000, 160_000)
        with open_slave(tmp_path / "slave", sender.address) as slave:
            assert slave.slave is not None
            caught_up(master, slave)
            assert slave.slave.status().connection_count >= 5
            assert bodies(slave, queue_id=1) == bodies(master, queue_id=1)


def test_nobody_sees_half_a_record_and_its_bytes_are_gone_when_the_connection_is(
    master: MessageStore, tmp_path: Path
) -> None:
    whole = master.put(message(1, queue_id=0))
    master.put(message(2, queue_id=0, body=b"x" * 5000))
    with SendingMaster(master, batch_bytes=1000) as sender:
        sender.cut_after = lambda: whole.end + 3000
        slave = open_slave(tmp_path / "slave", sender.address)
        try:
            until(lambda: slave.port.ends.appended == whole.end, "the whole record")
            assert bodies(slave) == [b"body 1"]
            assert slave.end_offset == whole.end
        finally:
            slave.close()
    end = whole.end
    rest = (tmp_path / "slave" / "commitlog" / "00000000000000000000").read_bytes()[end:]
    assert not rest.strip(b"\0")


@covers("P6")
def test_a_killed_slave_resumes_without_a_torn_record(master: MessageStore, tmp_path: Path) -> None:
    chance = random.Random(3)
    program = (
        "import sys, time; from pathlib import Path; from tests.replication.test_slave import open_slave\n"
        "store = open_slave(Path(sys.argv[1]), sys.argv[2]); print('open', flush=True); time.sleep(600)"
    )
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            master.put(message(number, body=chance.randbytes(chance.randrange(1, 3000))))
            number += 1
            time.sleep(0.002)

    writer = threading.Thread(target=write)
    with SendingMaster(master, batch_bytes=777) as sender:
        writer.start()
        try:
            for _ in range(2):
                child = subprocess.Popen(
                    [sys.executable, "-c", program, str(tmp_path / "slave"), sender.address], stdout=subprocess.PIPE
                )
                assert child.stdout is not None
                assert child.stdout.readline() == b"open\n"
                count = len(sender.reports)
                until(lambda count=count: len(sender.reports) > count + 10, "progress")  # type: ignore[misc]
                child.send_signal(signal.SIGKILL)
                child.wait()
                child.stdout.close()
        finally:
            stop.set()
            writer.join()
        with open_slave(tmp_path / "slave", sender.address) as slave:
            caught_up(master, slave)
            assert slave.recovery is not None
            assert not slave.recovery.scars
            for queue_id in range(4):
                assert bodies(slave, queue_id=queue_id) == bodies(master, queue_id=queue_id)
    assert check(tmp_path / "slave").holds


def test_a_slave_that_stops_at_the_end_of_a_file_continues_in_the_next(master: MessageStore, tmp_path: Path) -> None:
    master.put(message(1, queue_id=0))
    master.put(message(2, queue_id=0, body=bytes(LOG_FILE - 2000)))
    master.put(message(3, queue_id=0, body=bytes(5000)))
    assert master.port.ends.appended > LOG_FILE
    for stop in ("clean", "unclean"):
        with SendingMaster(master) as sender:
            sender.cut_after = lambda: LOG_FILE - (0 if sender.requests[-1] > 1 else 1)
            slave = open_slave(tmp_path / f"slave-{stop}", sender.address)
            until(lambda slave=slave: slave.port.ends.appended >= LOG_FILE, "the end of the file")  # type: ignore[misc]
            sender.close()
            if stop == "unclean":
                writer_of(slave).layout.abort.touch()
                subprocess.run(["cp", "-r", str(tmp_path / "slave-unclean"), str(tmp_path / "copied")], check=True)
            slave.close()
        path = tmp_path / ("slave-clean" if stop == "clean" else "copied")
        with SendingMaster(master) as sender, open_slave(path, sender.address) as slave:
            caught_up(master, slave)
            assert bodies(slave) == bodies(master)


def test_a_slave_reports_its_end_and_with_sync_flush_only_what_is_on_disk(master: MessageStore, tmp_path: Path) -> None:
    for number in range(50):
        master.put(message(number))
    with (
        SendingMaster(master) as sender,
        open_slave(tmp_path / "slave", sender.address, flush=FlushConfig(sync=True)) as slave,
    ):
        caught_up(master, slave)
        until(lambda: sender.reports[-1] == master.port.ends.appended, "the last report")
        assert slave.port.ends.durable == master.port.ends.appended
        count = len(sender.reports)
        until(lambda: len(sender.reports) > count + 2, "heartbeats")
        assert set(sender.reports[count:]) == {master.port.ends.appended}
        assert sender.reports[0] == 1, "byte 0 cannot be asked for"


def test_a_silent_master_is_left_and_tried_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = ReplicationConfig(
            role=Role.SLAVE, master_address=address, heartbeat_interval_ms=50, silence_limit_ms=200
        )
        with open_small(tmp_path / "slave", replication=config) as slave:
            assert slave.slave is not None
            until(lambda: (slave.slave.status().error or "").find("silent") >= 0, "the silence")  # type: ignore[union-attr]
            assert slave.slave.status().state is not State.FAILED


def test_a_slave_waits_for_a_master_that_is_not_there_yet(master: MessageStore, tmp_path: Path) -> None:
    with open_slave(tmp_path / "slave", f"127.0.0.1:{free_port()}") as slave:
        assert slave.slave is not None
        until(lambda: slave.slave.status().error, "a refused connection")  # type: ignore[union-attr]
        status = slave.slave.status()
        assert status.state is State.CONNECTING
        assert "no replication" in (status.error or "")
        assert not slave.slave.wait_caught_up(0.05)


def test_other_file_sizes_are_refused_by_name(master: MessageStore, tmp_path: Path) -> None:
    for number in range(300):
        master.put(message(number, body=bytes(900)))
    for size in (LOG_FILE // 2, LOG_FILE * 2, LOG_FILE + 4096):
        files = SMALL_FILES["commit_log"].__class__(file_size_bytes=size)
        with (
            SendingMaster(master) as sender,
            open_slave(tmp_path / f"slave-{size}", sender.address, commit_log=files) as slave,
        ):
            assert slave.slave is not None
            with pytest.raises(FilesDiffer, match=f"log files have {size} bytes here.*mappedFileSizeCommitLog"):
                slave.slave.wait_caught_up(IN_TIME_S)
            assert slave.slave.status().state is State.FAILED


def test_an_offset_that_is_no_file_of_the_master_is_refused(master: MessageStore, tmp_path: Path) -> None:
    with SendingMaster(master) as sender, open_slave(tmp_path / "slave", sender.address, begin_offset=1000) as slave:
        assert slave.slave is not None
        with pytest.raises(FilesDiffer, match="at offset 1000"):
            slave.slave.wait_caught_up(IN_TIME_S)


def test_an_offset_that_the_master_does_not_have_is_named(master: MessageStore, tmp_path: Path) -> None:
    master.put(message(1))
    with (
        SendingMaster(master, heartbeat_s=0.6) as sender,
        open_slave(tmp_path / "slave", sender.address, begin_offset=10 * LOG_FILE) as slave,
    ):
        assert slave.slave is not None
        with pytest.raises(NotOnMaster, match=f"has no bytes at offset {10 * LOG_FILE}"):
            slave.slave.wait_caught_up(IN_TIME_S)


def test_bytes_that_are_no_records_are_never_appended(master: MessageStore, tmp_path: Path) -> None:
    receipt = master.put(message(1))
    master.put(message(2))
    with SendingMaster(master) as sender:
        sender.change = lambda offset, data: b"".join(
            (data[: receipt.end - offset], b"GET / HTTP/1.1 ", data[receipt.end - offset + 15 :])
        )
        with open_slave(tmp_path / "slave", sender.address) as slave:
            assert slave.slave is not None
            until(lambda: "no record" in (slave.slave.status().error or ""), "the refusal")  # type: ignore[union-attr]
            assert slave.port.ends.appended == receipt.end
            sender.change = lambda offset, data: data
            caught_up(master, slave)


def test_a_master_in_controller_mode_is_told_by_its_silence(tmp_path: Path) -> None:
    """It waits for a handshake, and closes when it has read 12 bytes that are none."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    got = 0
                    while got < 12:
                        got += len(connection.recv(64))

        threading.Thread(target=serve, daemon=True).start()
        with open_slave(tmp_path / "slave", f"127.0.0.1:{server.getsockname()[1]}") as slave:
            assert slave.slave is not None
            with pytest.raises(ControllerMode, match="enableControllerMode=false"):
                slave.slave.wait_caught_up(IN_TIME_S)


def test_a_slave_that_became_a_master_takes_writes_and_cannot_go_back(master: MessageStore, tmp_path: Path) -> None:
    for number in range(200):
        master.put(message(number, body=bytes(1000)))
    with SendingMaster(master) as sender:
        with open_slave(tmp_path / "slave", sender.address) as slave:
            caught_up(master, slave)
        with open_small(tmp_path / "slave") as promoted:
            own = promoted.put(message(1000, topic="own"))
            for number in range(300):
                promoted.put(message(number, topic="own", body=bytes(1000)))
        for number in range(400):
            master.put(message(number, body=bytes(1000)))
        with open_slave(tmp_path / "slave", sender.address) as slave:
            assert slave.slave is not None
            end = slave.port.ends.appended
            with pytest.raises(Diverged, match=f"part at offset {own.physical_offset}: .*exist only here") as told:
                slave.slave.wait_caught_up(IN_TIME_S)
            assert (told.value.offset, told.value.end) == (own.physical_offset, end)
            assert slave.port.ends.appended == end, "nothing was appended"
            assert slave.health().workers


def test_a_slave_that_is_ahead_of_its_master_says_where_the_master_ends(master: MessageStore, tmp_path: Path) -> None:
    for number in range(20):
        master.put(message(number))
    with SendingMaster(master, heartbeat_s=0.6) as sender:
        with open_slave(tmp_path / "slave", sender.address) as slave:
            caught_up(master, slave)
        with open_small(tmp_path / "slave") as promoted:
            promoted.put(message(21))
        with open_slave(tmp_path / "slave", sender.address) as slave:
            assert slave.slave is not None
            end = master.port.ends.appended
            with pytest.raises(Diverged, match=f"part at offset {end}: the master has nothing there"):
                slave.slave.wait_caught_up(IN_TIME_S)


@pytest.mark.parametrize("back", [1, 2], ids=["the last byte", "the last but one"])
def test_logs_part_at_the_record_that_holds_the_first_byte_that_differs(
    master: MessageStore, tmp_path: Path, back: int
) -> None:
    kept = [master.put(message(number)) for number in range(5)]
    with SendingMaster(master) as sender:
        with open_slave(tmp_path / "slave", sender.address) as slave:
            caught_up(master, slave)
        parted, at = kept[3].physical_offset, kept[3].end - back
        with Path(tmp_path / "slave", "commitlog", f"{0:020d}").open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 4]))
        with open_slave(tmp_path / "slave", sender.address) as slave:
            assert slave.slave is not None
            heals = f"repair {tmp_path / 'slave'} --from {sender.address}"
            with pytest.raises(Diverged, match=f"part at offset {parted}: the bytes differ at {at}; .*{heals}"):
                slave.slave.wait_caught_up(IN_TIME_S)


def test_a_log_that_is_long_enough_counts_only_once_it_was_compared(master: MessageStore, tmp_path: Path) -> None:
    for number in range(20):
        master.put(message(number))
    with SendingMaster(master, heartbeat_s=0.6) as sender:
        with open_slave(tmp_path / "slave", sender.address) as slave:
            caught_up(master, slave)
        parted = master.put(message(20)).physical_offset
        with open_small(tmp_path / "slave") as promoted:
            promoted.put(message(21, body=bytes(1000)))
        with open_slave(tmp_path / "slave", sender.address) as slave:
            assert slave.slave is not None
            with pytest.raises(Diverged, match=f"part at offset {parted}: "):
                slave.slave.wait_caught_up(IN_TIME_S, end_offset=master.port.ends.appended)
    with open_slave(tmp_path / "slave", f"127.0.0.1:{free_port()}") as slave:
        assert slave.slave is not None
        assert not slave.slave.wait_caught_up(0.05, end_offset=master.port.ends.appended), "no master has said so"


@pytest.mark.parametrize("own", [0, 30], ids=["it is a beginning", "it went on too"])
def test_a_slave_that_is_far_ahead_of_its_master_says_where_its_own_part_begins(
    master: MessageStore, tmp_path: Path, own: int
) -> None:
    """It asks for the end of its log, where this master has nothing. They part several files before that."""
    for number in range(200):
        master.put(message(number, body=bytes(1000)))
    with SendingMaster(master) as sender:
        with open_slave(tmp_path / "slave", sender.address) as slave:
            caught_up(master, slave)
        parted = master.port.ends.appended
        with open_small(tmp_path / "slave") as promoted:
            for number in range(400):
                promoted.put(message(number, topic="own", body=bytes(1000)))
        for number in range(own):
            master.put(message(number, body=bytes(1000)))
        master_end = master.port.ends.appended
        with open_slave(tmp_path / "slave", sender.address) as slave:
            assert slave.slave is not None
            end = slave.port.ends.appended
            with pytest.raises(Diverged, match=f"part at offset {parted}: .*its log ends at {master_end}"):
                slave.slave.wait_caught_up(IN_TIME_S)
            assert slave.port.ends.appended == end, "nothing was appended"


def test_a_slave_whose_next_bytes_retention_deleted_has_not_parted(tmp_path: Path) -> None:
    """It was off while its master deleted old files. Nothing shows a difference, so none is claimed."""
    with serving(tmp_path / "master", heartbeat_interval_ms=200) as (master, port):
        for number in range(30):
            master.put(message(number, body=bytes(1000)))
        address = "{}:{}".format(*port.address)
        with open_slave(tmp_path / "slave", address) as slave:
            caught_up(master, slave)
            end = slave.port.ends.appended
        for number in range(300):
            master.put(message(number, body=bytes(1000)))
        master.wait_dispatched(IN_TIME_S)
        master.retain(keep_bytes=LOG_FILE)
        assert master.first_offset > end
        told_by = [address]
        with SendingMaster(master) as like_rocketmq:  # it begins new slaves at its newest file
            told_by.append(like_rocketmq.address)
            for each in told_by:
                with open_slave(tmp_path / "slave", each) as slave:
                    assert slave.slave is not None
                    with pytest.raises(NotOnMaster, match=f"follows offset {end}.*retention.*an empty folder"):
                        slave.slave.wait_caught_up(IN_TIME_S)
                    assert slave.port.ends.appended == end


def test_a_master_without_a_log_is_named_as_such(tmp_path: Path) -> None:
    with serving(tmp_path / "first", heartbeat_interval_ms=200) as (master, port):
        master.put(message(1))
        with open_slave(tmp_path / "slave", "{}:{}".format(*port.address)) as slave:
            caught_up(master, slave)
    with (
        serving(tmp_path / "empty", heartbeat_interval_ms=200) as (_, port),
        open_slave(tmp_path / "slave", "{}:{}".format(*port.address)) as slave,
    ):
        assert slave.slave is not None
        end = slave.port.ends.appended
        with pytest.raises(NotOnMaster, match=f"it has no log, and this one ends at {end}"):
            slave.slave.wait_caught_up(IN_TIME_S)
        assert slave.port.ends.appended == end


def test_a_master_that_ends_before_this_log_begins_has_parted_from_all_of_it(tmp_path: Path) -> None:
    """As after its newest bytes were lost: a slave that had begun at its newest file has nothing of what is left."""
    with open_bare(tmp_path / "first") as master, SendingMaster(master) as sender:
        for number in range(200):
            master.put(message(number, body=bytes(1000)))
        with open_slave(tmp_path / "slave", sender.address, begin_offset=None) as slave:
            caught_up(master, slave)
            first, end = slave.first_offset, slave.port.ends.appended
    assert first > 0
    with serving(tmp_path / "older", heartbeat_interval_ms=200) as (master, port):
        master.put(message(1))
        with open_slave(tmp_path / "slave", "{}:{}".format(*port.address)) as slave:
            assert slave.slave is not None
            with pytest.raises(Diverged, match=f"part at offset {first}: .*; {end - first} bytes"):
                slave.slave.wait_caught_up(IN_TIME_S)


def test_caught_up_is_what_the_master_says_after_the_question(master: MessageStore, tmp_path: Path) -> None:
    """Its last word before was true when it was said, and says nothing of the messages that it took since."""
    master.put(message(1))
    with SendingMaster(master, heartbeat_s=0.2) as sender, open_slave(tmp_path / "slave", sender.address) as slave:
        follower = slave.slave
        assert follower is not None
        until(lambda: follower.status().is_caught_up, "a heartbeat")
        sender.heartbeat_s = 1000.0
        is_sending, may_send = threading.Event(), threading.Event()

        def hold(offset: int, data: bytes) -> bytes:
            is_sending.set()
            assert may_send.wait(IN_TIME_S)
            return data

        sender.change = hold
        master.put(message(2))
        assert is_sending.wait(IN_TIME_S)
        assert follower.status().is_caught_up, "the slave does not know better yet"
        assert not follower.wait_caught_up(0.05)
        sender.heartbeat_s = 0.2
        may_send.set()
        assert follower.wait_caught_up(IN_TIME_S)
        same_log(master, slave)


def test_half_a_record_that_a_full_disk_kept_does_not_stay_in_the_log(
    master: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave could not remove it when the connection was cut. It must, before it takes what comes next: here the
    record's beginning twice would pass for a record, because its body holds what a record ends with.
    """
    first = master.put(message(1, body=bytes(3000)))
    size, half = first.size, 1500
    record = log_bytes(master.path, 0, size, LOG_FILE)
    body_at = record.index(bytes(3000), 60)
    tail = record[body_at + 3000 :]
    body = bytes(size - half - len(tail) - body_at) + tail
    assert master.put(message(1, body=body + bytes(3000 - len(body)))).size == size
    full, write_at = [True, True], MappedFile.write_at

    def write(file: MappedFile, position: int, data: bytes | memoryview) -> None:
        if type(data) is bytes and any(full) and not any(data) and data:
            full[full.index(True)] = False
            raise OSError(errno.ENOSPC, "No space left on device")
        write_at(file, position, data)

    monkeypatch.setattr(MappedFile, "write_at", write)
    with SendingMaster(master) as sender:
        cuts = [size + half - 1]
        sender.cut_after = lambda: cuts.pop() if cuts else None
        with open_slave(tmp_path / "slave", sender.address) as slave:
            caught_up(master, slave)
            assert not any(full), "the disk was full"


def test_a_full_disk_is_tried_again_ever_more_slowly_and_told_once(
    master: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its master is there and answers: that is no success, as long as nothing of it can be kept."""
    for number in range(20):
        master.put(message(number))
    is_full, write_at = threading.Event(), MappedFile.write_at

    def write(file: MappedFile, position: int, data: bytes | memoryview) -> None:
        if is_full.is_set() and data and "slave" in str(file.path):
            raise DiskFull(file.path, len(data), "No space left on device")
        write_at(file, position, data)

    monkeypatch.setattr(MappedFile, "write_at", write)
    with SendingMaster(master) as sender, open_slave(tmp_path / "slave", sender.address) as slave:
        caught_up(master, slave)
        is_full.set()
        master.put(message(21))
        until(lambda: worker_of(slave, "slave").error_count >= 4)
        assert worker_of(slave, "slave").state == "retrying"
        assert len([each for each in caplog.messages if each.startswith("slave: ")]) == 1
        is_full.clear()
        caught_up(master, slave)
        until(lambda: worker_of(slave, "slave").state == "running")


def test_what_is_wanted_of_a_slave_is_checked_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="must be HOST:PORT"):
        follow(tmp_path / "slave", "somewhere")
    with open_slave(tmp_path / "slave", None) as slave:
        assert slave.slave is None
        with pytest.raises(NotMaster):
            slave.put(message(1))


def test_a_frame_of_another_offset_is_refused_and_asked_for_again(master: MessageStore, tmp_path: Path) -> None:
    master.put(message(1))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(8)
                connection.sendall(struct.pack(">qi", 77, 3) + b"abc")
                connection.recv(8)

        threading.Thread(target=serve, daemon=True).start()
        with open_slave(tmp_path / "slave", f"127.0.0.1:{server.getsockname()[1]}") as slave:
            assert slave.slave is not None
            until(lambda: "bytes of offset 77" in (slave.slave.status().error or ""), "the refusal")  # type: ignore[union-attr]


def test_follow_opens_a_slave_that_is_found_in_health_and_stops_with_the_store(
    master: MessageStore, tmp_path: Path
) -> None:
    master.put(message(1, queue_id=0))
    with SendingMaster(master) as sender:
        from mqlake import StoreConfig

        config = StoreConfig(commit_log=SMALL_FILES["commit_log"], retention=SMALL_FILES["retention"])
        store = follow(tmp_path / "slave", sender.address, begin_offset=0, config=config)
        assert store.slave is not None
        caught_up(master, store)
        until(lambda: store.slave.status().is_caught_up, "a heartbeat")  # type: ignore[union-attr]
        assert store.slave.wait_caught_up(IN_TIME_S)
        status = store.slave.status()
        assert (status.state, status.master, status.error) == (State.FOLLOWING, sender.address, None)
        assert status.received_bytes == status.end_offset == master.port.ends.appended
        assert "slave" in [worker.name for worker in store.health().workers]
        store.close()
        assert store.slave.status().state is State.STOPPED
    assert log_bytes(tmp_path / "slave", 0, 100, LOG_FILE) == log_bytes(master.path, 0, 100, LOG_FILE)
