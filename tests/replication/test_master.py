"""The master's side: what slaves get, what they may say, and what they cannot do to the master."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

import pytest

from mqlake import CommitLogConfig, FlushConfig, MessageStore, StoreConfig
from mqlake.config import ReplicationConfig
from mqlake.errors import Diverged
from mqlake.kernel.types import APPENDED
from mqlake.replication import follow
from mqlake.replication.master import Master
from tests.helpers import LOG_FILE, message, open_small, writer_of
from tests.replication.slaves import Slave, log_bytes, serving, until


def put(store: MessageStore, count: int, size: int = 500) -> int:
    """Put messages; return where the log ends."""
    for number in range(count):
        store.put(message(number, body=os.urandom(size)))
    return writer_of(store).ends.appended


def test_a_new_slave_gets_the_whole_log_over_all_files_and_then_what_is_put(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as (store, master):
        end = put(store, 400)
        assert len(store.port.log.files.starts) > 2
        with Slave(master) as slave:
            slave.read_to(end)
            assert slave.start == 0
            end = put(store, 20)
            slave.read_to(end)
            assert slave.log == log_bytes(store, 0, end)
            assert slave.largest <= store.config.replication.transfer_bytes


def test_a_slave_goes_on_where_it_was_even_in_the_middle_of_a_record(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as (store, master):
        end = put(store, 50)
        for wanted in (1, LOG_FILE // 7, end - 3, end):
            with Slave(master, wanted) as slave:
                slave.start = wanted
                slave.read_to(end)
                assert slave.log == log_bytes(store, wanted, end)
        with Slave(master, end) as slave:
            slave.start = end
            more = put(store, 1)
            slave.read_to(more)
            assert slave.log == log_bytes(store, end, more)


def test_with_sync_flush_a_slave_never_has_what_is_not_on_the_masters_disk(tmp_path: Path) -> None:
    with serving(tmp_path / "store", flush=FlushConfig(sync=True)) as (store, master), Slave(master) as slave:
        end = put(store, 5)
        slave.read_to(end)
        port = writer_of(store)
        port.log.append(message(6), port.unforced)  # not synced: nobody waits for it
        assert port.ends.appended > port.ends.durable
        slave.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            slave.read()
        store.flush()
        slave.socket.settimeout(30)
        slave.read_to(port.ends.appended)


def test_what_slaves_have_confirmed_is_in_the_statistics_and_for_other_processes(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as (store, master):
        end = put(store, 10)
        assert store.stats().slaves == ()
        with Slave(master) as slave:
            slave.read_to(end)
            until(lambda: store.stats().replicated_end == end, "the confirmation")
            (seen,) = store.stats().slaves
            assert (seen.confirmed_offset, seen.sent_offset, seen.lag_bytes, seen.in_sync) == (end, end, 0, True)
            assert "replication" in [each.name for each in store.health().workers]
            store.port.tell_health()
            with MessageStore.open(tmp_path / "store", read_only=True) as other:
                assert [each.address for each in other.stats().slaves] == [seen.address]
        until(lambda: not store.stats().slaves, "the slave to be gone")
        assert store.stats().replicated_end == end


def test_an_idle_connection_gets_heartbeats_and_a_silent_slave_is_closed(tmp_path: Path) -> None:
    with serving(tmp_path / "store", heartbeat_interval_ms=50, silence_limit_ms=1000) as (_, master):
        with Slave(master) as slave:
            while slave.heartbeat_count < 3:
                slave.report(0)
                assert slave.read()
            assert slave.is_closed()  # it reports no more
        with Slave(master, ask=False) as mute:
            assert mute.is_closed()
            assert mute.heartbeat_count == 0  # nothing is sent before its first report
        until(lambda: len(master.partings) == 2, "both to be closed")
        assert all("haHousekeepingInterval" in reason for _, reason in master.partings)


@pytest.mark.parametrize("said", [b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n", struct.pack(">q", 1 << 62)])
def test_garbage_is_closed_and_harms_nobody(tmp_path: Path, said: bytes) -> None:
    with serving(tmp_path / "store") as (store, master), Slave(master) as good:
        with Slave(master, ask=False) as bad:
            bad.socket.sendall(said)
            assert bad.is_closed()
        end = put(store, 10)
        good.read_to(end)
        until(lambda: store.stats().replicated_end == end, "the confirmation of the good one")
        assert store.health().ok


def test_a_slave_may_confirm_only_what_it_was_sent(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as (store, master):
        with Slave(master) as slave:
            slave.read_to(put(store, 3))
            slave.report(slave.end + 1)
            assert slave.is_closed()
        ends = writer_of(store).ends
        assert ends.replicated <= ends.appended
        with Slave(master, 100) as slave:
            slave.read()
            slave.report(50)  # it had more before
            assert slave.is_closed()
        until(lambda: len(master.partings) == 2, "both to be closed")


def test_a_slave_with_more_than_its_master_is_refused_and_told_why(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as (store, master):
        end = put(store, 3)
        with Slave(master, end + 1) as slave:
            assert slave.is_closed()
        until(lambda: master.partings, "the reason")
        assert "it has more than this master" in master.partings[0][1]
        assert store.health().ok


def test_a_slave_that_never_reads_costs_nothing_and_holds_up_nobody(tmp_path: Path) -> None:
    with serving(tmp_path / "store", max_lag_bytes=100_000) as (store, master):
        with Slave(master, receive_buffer=4096) as lazy, Slave(master) as good:
            put(store, 1)
            until(lambda: len(store.stats().slaves) == 2, "both")
            for _ in range(40):
                end = put(store, 200)
                good.read_to(end)
            until(lambda: store.stats().replicated_end == end, "the confirmation of the good one")
            states = {each.address: each for each in store.stats().slaves}
            slow = states["{}:{}".format(*lazy.socket.getsockname())]
            assert not slow.in_sync and slow.confirmed_offset == 0
            used = time.thread_time()
            busy = time.process_time()
            time.sleep(0.5)
            assert time.process_time() - busy - (time.thread_time() - used) < 0.25, "the master does not spin"


def test_a_slave_whose_next_file_was_deleted_is_closed_and_told_why(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as (store, master):
        put(store, 400)
        with Slave(master, receive_buffer=4096) as slave:
            until(lambda: store.stats().slaves, "it to follow")
            put(store, 1500, size=4000)
            until(lambda: store.stats().slaves[0].sent_offset < store.port.log.files.starts[-1], "it to lag")
            store.retain(keep_bytes=LOG_FILE)
            assert store.port.log.first_offset > LOG_FILE
            assert slave.is_closed()  # after it has read what was under way: whole bytes of a deleted file
            assert slave.log and slave.end < store.port.log.first_offset
        until(lambda: master.partings, "the reason")
        assert "deleted what it needs next" in master.partings[0][1]
        with Slave(master, 10) as late:
            assert late.is_closed()
        with Slave(master) as fresh:  # begins where the log begins now
            fresh.read_to(writer_of(store).ends.appended)
            assert fresh.start == store.port.log.first_offset


def test_more_connections_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlake.replication.master.MAX_SLAVES", 2)
    with serving(tmp_path / "store") as (store, master), Slave(master) as first, Slave(master):
        until(lambda: len(store.stats().slaves) == 2, "both")
        with Slave(master, ask=False) as third:
            assert third.is_closed()
        first.read_to(put(store, 1))


def test_a_put_pays_for_no_event_while_there_is_no_slave(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as (store, master):
        ends = writer_of(store).ends
        event = os.eventfd(0, os.EFD_NONBLOCK)
        ends.watch(APPENDED, event)  # what the master would do for a slave that has everything
        put(store, 2)
        assert os.eventfd_read(event) == 2
        ends.unwatch(event)
        os.close(event)
        with Slave(master) as slave:
            slave.read_to(put(store, 1))


def test_closing_the_store_closes_the_master_and_its_connections(tmp_path: Path) -> None:
    store = open_small(tmp_path / "store", replication=ReplicationConfig(listen_port=0))
    master = Master(store.port)
    with Slave(master) as slave:
        slave.read_to(put(store, 3))
        store.close()
        assert slave.is_closed()
        with pytest.raises(OSError):
            socket.create_connection(master.address, timeout=5)
    master.close()


def test_a_port_that_is_taken_is_refused_with_its_name(tmp_path: Path) -> None:
    from mqlake import InvalidConfig

    with serving(tmp_path / "store") as (_, master), open_small(tmp_path / "other") as other:
        with pytest.raises(InvalidConfig, match="haListenPort"):
            Master(other.port, listen_port=master.address[1])
        other.put(message(1))


def test_an_mqlake_slave_follows_and_one_with_another_log_learns_it(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as (store, master):
        end = put(store, 300)
        name = "{}:{}".format(*master.address)
        small = StoreConfig(commit_log=CommitLogConfig(file_size_bytes=LOG_FILE))
        with follow(tmp_path / "slave", name, config=small) as slave:
            assert slave.slave is not None
            assert slave.slave.wait_caught_up(30, end_offset=end)
            assert log_bytes(slave, 0, end) == log_bytes(store, 0, end)
            until(lambda: store.stats().replicated_end == end, "the confirmation")
        with open_small(tmp_path / "longer") as other:
            put(other, 500)
        with follow(tmp_path / "longer", name, config=small) as slave:
            assert slave.slave is not None
            with pytest.raises(Diverged):
                slave.slave.wait_caught_up(30)
