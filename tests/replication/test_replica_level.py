"""REPLICA: puts that return when slaves have confirmed them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqlake import (
    Durability,
    FlushConfig,
    FlushTimeout,
    InvalidConfig,
    MessageStore,
    NotConfirmed,
    ReplicaMissing,
    ReplicaTimeout,
    ReplicationConfig,
    Role,
)
from mqlake.replication.master import Master
from tests.helpers import covers, message, open_small, writer_of
from tests.replication.slaves import Slave, serving, until


@contextmanager
def confirming(master: Master, wait_s: float = 0.0) -> Iterator[Slave]:
    """A slave that reads and confirms in a thread of its own."""
    with Slave(master) as slave:

        def follow() -> None:
            try:
                while slave.read():
                    time.sleep(wait_s)
                    slave.report(slave.end)
            except OSError:
                pass

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield slave
        finally:
            slave.socket.shutdown(2)
            thread.join(30)


@covers("P6")
@pytest.mark.parametrize("sync", [False, True])
def test_a_put_returns_when_disk_and_slave_have_it(tmp_path: Path, sync: bool) -> None:
    with serving(tmp_path / "store", Role.SYNC_MASTER, flush=FlushConfig(sync=sync)) as (store, master):
        with confirming(master) as slave:
            until(lambda: store.stats().slaves, "the slave")
            receipt = store.put(message(1))
            assert receipt.durability == Durability.REPLICA
            ends = writer_of(store).ends
            assert slave.end >= receipt.end and ends.replicated >= receipt.end and ends.durable >= receipt.end
            receipts = store.put_many([message(2), message(3)])
            assert slave.end >= receipts[-1].end
            assert asyncio.run(store.put_async(message(4))).end <= ends.replicated
            assert store.put_as_is(message(5)).end <= ends.replicated


def test_many_threads_and_tasks_wait_together(tmp_path: Path) -> None:
    with serving(tmp_path / "store", Role.SYNC_MASTER) as (store, master), confirming(master, 0.01) as slave:
        until(lambda: store.stats().slaves, "the slave")
        ends: list[int] = []
        threads = [
            threading.Thread(target=lambda: ends.extend(store.put(message(i)).end for i in range(10)))
            for _ in range(16)
        ]
        began = time.monotonic()
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert len(ends) == 160 and max(ends) <= slave.end
        assert time.monotonic() - began < 160 * 0.01, "one confirmation serves many"

        async def many() -> None:
            done = await asyncio.gather(*(store.put_async(message(i)) for i in range(200)))
            assert max(each.end for each in done) <= slave.end

        asyncio.run(many())


PUTS: list[Callable[[MessageStore], object]] = [
    lambda store: store.put(message(1)),
    lambda store: store.put_many([message(1)]),
    lambda store: asyncio.run(store.put_async(message(1))),
    lambda store: store.transactions.prepare(message(1)),
]


@pytest.mark.parametrize("put", PUTS)
def test_without_a_slave_the_message_is_stored_and_the_put_says_so(
    tmp_path: Path, put: Callable[[MessageStore], object]
) -> None:
    with serving(tmp_path / "store", Role.SYNC_MASTER) as (store, _):
        before = writer_of(store).ends.appended
        with pytest.raises(ReplicaMissing, match="stored here only") as caught:
            put(store)
        assert isinstance(caught.value, NotConfirmed) and not isinstance(caught.value, FlushTimeout)
        assert writer_of(store).ends.appended > before and writer_of(store).ends.durable > before


@pytest.mark.parametrize("put", PUTS)
def test_a_slave_that_does_not_confirm_in_time_is_a_timeout_and_the_message_is_stored(
    tmp_path: Path, put: Callable[[MessageStore], object]
) -> None:
    with serving(tmp_path / "store", Role.SYNC_MASTER, replica_timeout_ms=300) as (store, master), Slave(master):
        until(lambda: store.stats().slaves, "the slave")
        before, began = writer_of(store).ends.appended, time.monotonic()
        with pytest.raises(ReplicaTimeout, match="slaveTimeout"):
            put(store)
        assert time.monotonic() - began >= 0.29
        assert writer_of(store).ends.appended > before


def test_what_was_not_confirmed_is_visible_and_the_slave_may_still_get_it(tmp_path: Path) -> None:
    with serving(tmp_path / "store", Role.SYNC_MASTER) as (store, master):
        with pytest.raises(ReplicaMissing):
            store.put(message(7, queue_id=0))
        assert [each.body for each in store.read("orders", wait_s=10)] == [b"body 7"]
        with confirming(master):
            until(lambda: store.stats().replicated_end == writer_of(store).ends.appended, "the slave to catch up")
            store.put(message(8))


def test_a_slave_that_wants_all_may_attach_before_the_first_message(tmp_path: Path) -> None:
    """It asks for byte 1, and the log has none. It was told that it had another log, and came back seconds later."""
    with serving(tmp_path / "store", Role.SYNC_MASTER) as (store, master):
        address = "{}:{}".format(*master.address)
        config = ReplicationConfig(role=Role.SLAVE, master_address=address, begin_offset=0)
        with open_small(tmp_path / "slave", replication=config) as slave:
            until(lambda: store.stats().slaves, "the slave")
            assert store.put(message(1)).end <= slave.end_offset
            assert not master.partings


def test_what_a_slave_asks_for_is_not_what_it_confirms(tmp_path: Path) -> None:
    """An old master that attaches to the new one asks for the end of its own log, which may be another log."""
    with serving(tmp_path / "store", Role.SYNC_MASTER, replica_timeout_ms=1_000) as (store, master), Slave(master):
        until(lambda: store.stats().slaves, "a slave that confirms nothing")
        late: list[BaseException] = []

        def put() -> None:
            try:
                store.put(message(1))
            except NotConfirmed as error:
                late.append(error)

        thread = threading.Thread(target=put)
        thread.start()
        until(lambda: writer_of(store).ends.durable > 0, "the put to wait")
        end = writer_of(store).ends.appended
        with Slave(master, wanted=end) as other:
            until(lambda: len(store.stats().slaves) == 2, "a slave that says to have all")
            other.report(end)
            thread.join(30)
            assert len(late) == 1 and writer_of(store).ends.replicated < end
            store.put(message(2), durability=Durability.DISK)
            other.start = end
            other.read_to(writer_of(store).ends.appended)
            until(lambda: store.stats().replicated_end == writer_of(store).ends.appended, "what it was sent counts")


def test_a_slave_that_is_too_far_behind_is_not_waited_for(tmp_path: Path) -> None:
    with serving(tmp_path / "store", Role.SYNC_MASTER, max_lag_bytes=10_000) as (store, master), Slave(master) as slave:
        until(lambda: store.stats().slaves, "the slave")
        for number in range(100):
            store.put(message(number), durability=Durability.DISK)
        began = time.monotonic()
        with pytest.raises(ReplicaMissing):
            store.put(message(1))
        assert time.monotonic() - began < 2
        slave.read_to(writer_of(store).ends.appended)
        until(lambda: store.stats().slaves[0].in_sync, "it to be near")


def test_as_many_slaves_as_are_asked_for_must_confirm(tmp_path: Path) -> None:
    two = serving(tmp_path / "store", Role.SYNC_MASTER, in_sync_replicas=3, replica_timeout_ms=300)
    with two as (store, master), confirming(master):
        until(lambda: store.stats().slaves, "the first")
        with pytest.raises(ReplicaMissing, match="2 slaves must confirm"):
            store.put(message(1))
        with Slave(master) as second:
            until(lambda: len(store.stats().slaves) == 2, "the second")
            with pytest.raises(ReplicaTimeout):
                store.put(message(2))
            second.read_to(writer_of(store).ends.appended)
            until(lambda: store.stats().replicated_end == writer_of(store).ends.appended, "both")
        with confirming(master):
            until(lambda: len(store.stats().slaves) == 2, "another")
            store.put(message(3))


def test_an_async_master_waits_only_for_those_who_ask(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as (store, master):
        assert store.put(message(1)).durability == Durability.PAGE_CACHE
        with pytest.raises(ReplicaMissing):
            store.put(message(2), durability=Durability.REPLICA)
        with confirming(master) as slave:
            until(lambda: store.stats().slaves, "the slave")
            assert store.put(message(3), durability=Durability.REPLICA).end <= slave.end


def test_replica_is_refused_before_the_append_where_nobody_serves_slaves(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        with pytest.raises(InvalidConfig, match="serves no slaves"):
            store.put(message(1), durability=Durability.REPLICA)
        assert writer_of(store).ends.appended == 0


def test_a_weaker_level_does_not_wait_for_slaves(tmp_path: Path) -> None:
    with serving(tmp_path / "store", Role.SYNC_MASTER) as (store, _):
        assert store.put(message(1), durability=Durability.DISK).durability == Durability.DISK
        assert store.put(message(2), durability=Durability.PAGE_CACHE).durability == Durability.PAGE_CACHE


def test_a_transaction_waits_for_slaves_and_is_decided_even_if_they_do_not_confirm(tmp_path: Path) -> None:
    with serving(tmp_path / "store", Role.SYNC_MASTER) as (store, master):
        with confirming(master) as slave:
            until(lambda: store.stats().slaves, "the slave")
            with store.transaction() as transaction:
                assert transaction.put(message(1, queue_id=0)).end <= slave.end
            assert writer_of(store).ends.appended == slave.end
        until(lambda: not store.stats().slaves, "the slave to be gone")
        transaction = store.transaction()
        with pytest.raises(ReplicaMissing):
            transaction.put(message(2, queue_id=0))
        with pytest.raises(ReplicaMissing), transaction:
            transaction.commit()
        bodies = [each.body for each in store.read("orders", wait_s=10)]
        assert bodies == [b"body 1", b"body 2"]


def test_closing_ends_the_waits(tmp_path: Path) -> None:
    with serving(tmp_path / "store", Role.SYNC_MASTER, replica_timeout_ms=60_000) as (store, master):
        with Slave(master):
            until(lambda: store.stats().slaves, "the slave")
            caught: list[BaseException] = []

            def put() -> None:
                try:
                    store.put(message(1))
                except NotConfirmed as error:
                    caught.append(error)

            thread = threading.Thread(target=put)
            thread.start()
            until(lambda: writer_of(store).ends.durable > 0, "the put to wait")
            began = time.monotonic()
            store.close()
            thread.join(30)
            assert len(caught) == 1 and time.monotonic() - began < 20
            assert "before the store was closed" in str(caught[0])


def test_closing_ends_the_waits_of_tasks_too(tmp_path: Path) -> None:
    async def wait(store: MessageStore) -> None:
        put = asyncio.create_task(store.put_async(message(1)))
        while writer_of(store).ends.durable == 0:
            await asyncio.sleep(0.002)
        await asyncio.to_thread(store.close)
        with pytest.raises(ReplicaTimeout, match="before the store was closed"):
            await asyncio.wait_for(put, 30)

    with serving(tmp_path / "store", Role.SYNC_MASTER, replica_timeout_ms=60_000) as (store, master):
        with Slave(master):
            until(lambda: store.stats().slaves, "the slave")
            asyncio.run(wait(store))
