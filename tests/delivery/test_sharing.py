"""Consumers of one group share its queues. Each message goes to one of them, even if others fail."""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqlake import InvalidConfig, MessageStore, NotPermitted, StoredMessage
from mqlake.delivery.consume.consumer import Consumer
from tests.helpers import covers, eventually, message, open_small
from tests.interrupting import interrupt_at


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_small(tmp_path / "s") as opened:
        opened.create_topic("orders", 4)
        yield opened


def fill(store: MessageStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        store.put(message(number, body=b"%d" % number))


def queue_ids(*consumers: Consumer) -> list[list[int]]:
    """Return the queues of each consumer after all have polled."""
    for consumer in (*consumers, *consumers):
        consumer.poll()
    return [[queue_id for _, queue_id in consumer.queues] for consumer in consumers]


def test_queues_are_divided_again_when_a_consumer_joins_or_closes(store: MessageStore) -> None:
    first = store.consumer("g", "orders")
    assert queue_ids(first) == [[0, 1, 2, 3]]
    second = store.consumer("g", "orders")
    assert queue_ids(first, second) == [[0, 1], [2, 3]]
    third = store.consumer("g", "orders")
    assert queue_ids(first, second, third) == [[0], [1], [2, 3]]
    first.close()
    assert queue_ids(second, third) == [[0, 1], [2, 3]]
    third.close()
    assert queue_ids(second) == [[0, 1, 2, 3]]
    more = [store.consumer("g", "orders") for _ in range(5)]
    assert [each for part in queue_ids(second, *more) for each in part] == [0, 1, 2, 3]  # some consumers have none


INTERRUPTED = ("share.py", "assignment.py", "consumer.py", "consumers.py", "progress.py")


def test_a_consumer_whose_creation_a_signal_interrupts_anywhere_has_no_queues(store: MessageStore) -> None:
    store.consumer("g", "orders").close()
    for number in itertools.count():
        was_interrupted = interrupt_at(number, lambda: store.consumer("g", "orders"), INTERRUPTED)
        gc.collect()
        with store.consumer("g", "orders") as after:
            assert queue_ids(after) == [[0, 1, 2, 3]], f"interrupted at line {number}"
        if not was_interrupted:
            assert number > 40, "at least some lines were interrupted"
            break


def test_a_close_that_a_signal_interrupts_anywhere_is_finished_by_the_next(store: MessageStore) -> None:
    for number in itertools.count():
        closed = store.consumer("g", "orders")
        assert queue_ids(closed) == [[0, 1, 2, 3]]
        was_interrupted = interrupt_at(number, closed.close, INTERRUPTED)
        closed.close()
        assert closed.is_closed
        with store.consumer("g", "orders") as after:
            assert queue_ids(after) == [[0, 1, 2, 3]], f"interrupted at line {number}"
        if not was_interrupted:
            assert number > 20, "at least some lines were interrupted"
            break


def test_queues_change_hands_although_a_signal_interrupts_a_poll_anywhere(store: MessageStore) -> None:
    """It takes queues, or gives up those of a newcomer; the next poll makes up for what it did not do."""
    for number in itertools.count():
        with store.consumer("g", "orders") as first:
            taking = interrupt_at(number, first.poll, INTERRUPTED)
            assert queue_ids(first) == [[0, 1, 2, 3]], f"interrupted at line {number}"
            with store.consumer("g", "orders") as second:
                giving_up = interrupt_at(number, first.poll, INTERRUPTED)
                assert queue_ids(first, second) == [[0, 1], [2, 3]], f"interrupted at line {number}"
        if not taking and not giving_up:
            assert number > 60, "at least some lines were interrupted"
            break


def test_an_own_progress_file_is_unlocked_wherever_a_signal_interrupts_the_creation(
    store: MessageStore, tmp_path: Path
) -> None:
    open_one = partial(store.consumer, "g", "orders", progress=tmp_path / "progress.json")
    for number in itertools.count():
        was_interrupted = interrupt_at(number, open_one, INTERRUPTED)
        gc.collect()
        open_one().close()
        if not was_interrupted:
            assert number > 40, "at least some lines were interrupted"
            break


@covers("P1")
def test_each_message_goes_to_one_consumer_while_consumers_join_and_leave(store: MessageStore) -> None:
    seen: Counter[int] = Counter()
    lock = threading.Lock()
    stop = threading.Event()

    def work(batch: int, lives: int) -> None:
        for _ in range(lives):
            with store.consumer("g", "orders", idle_s=0.02) as consumer:
                for count, each in enumerate(consumer):
                    with lock:
                        seen[int(each.body)] += 1
                    if count > batch:
                        break
        with store.consumer("g", "orders", idle_s=0.05) as consumer:
            while not stop.is_set() or consumer.lag():
                for each in consumer.poll(0.05):
                    with lock:
                        seen[int(each.body)] += 1

    threads = [threading.Thread(target=work, args=(20 * n, 4)) for n in range(1, 4)]
    for thread in threads:
        thread.start()
    fill(store, 3000)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert set(seen) == set(range(3000))
    assert seen.total() == 3000  # without failures no message is delivered twice when queues change owners


def test_queue_order_is_kept_when_queues_change_owners(store: MessageStore) -> None:
    fill(store, 400)
    seen: dict[int, list[int]] = {queue_id: [] for queue_id in range(4)}
    consumers = [store.consumer("g", "orders")]
    for round_number in range(60):
        if round_number % 7 == 3:
            consumers.append(store.consumer("g", "orders"))
        if round_number % 11 == 5 and len(consumers) > 1:
            consumers.pop(0).close()
        for consumer in consumers:
            for each in consumer.poll(limit=5):
                seen[each.queue_id].append(each.queue_offset)
            consumer.commit()
    for consumer in consumers:
        consumer.close()
    with store.consumer("g", "orders", idle_s=0) as consumer:
        for each in consumer:
            seen[each.queue_id].append(each.queue_offset)
    assert seen == {queue_id: list(range(100)) for queue_id in range(4)}


def test_a_queue_changes_owners_only_when_its_delivered_messages_are_committed(store: MessageStore) -> None:
    fill(store, 40)
    first = store.consumer("g", "orders", auto_commit=False)
    given = [each for _ in range(4) for each in first.poll(limit=2)]
    assert {each.queue_id for each in given} == {0, 1, 2, 3}
    second = store.consumer("g", "orders", auto_commit=False)
    assert second.poll() == [] and first.queues and not second.queues
    assert {each.queue_id for _ in range(4) for each in first.poll(limit=2)} <= {0, 1}
    first.commit()
    first.poll(limit=1)
    found = second.poll(1.0)
    assert found[0].queue_offset == 2 and found[0].queue_id in (2, 3)


def test_a_consumer_in_a_loop_gives_up_queues_between_two_messages(store: MessageStore) -> None:
    fill(store, 40)
    first = iter(store.consumer("g", "orders"))
    next(first)
    second = store.consumer("g", "orders")
    assert second.poll() == []
    next(first)
    assert {each.queue_id for each in second.poll(1.0, limit=1)} <= {2, 3} == {queue for _, queue in second.queues}


def test_the_queues_of_a_consumer_whose_thread_ended_go_to_the_others(store: MessageStore) -> None:
    fill(store, 40)
    failing = store.consumer("g", "orders")
    given: list[StoredMessage] = []

    def fail() -> None:
        for each in failing:
            given.append(each)
            return  # without closing the consumer, as after an error

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert len(given) == 1
    with store.consumer("g", "orders", idle_s=20.0) as other:
        seen = {int(each.body) for _, each in zip(range(40), other, strict=False)}
    assert seen == set(range(40))  # the failed message was not committed, so it is delivered again
    assert failing.poll() == [] and failing.queues  # the consumer may rejoin


def test_a_groups_only_consumer_may_be_used_by_one_thread_after_another(store: MessageStore) -> None:
    fill(store, 40)
    consumer = store.consumer("g", "orders", auto_commit=False)
    found: list[StoredMessage] = []
    for _ in range(4):
        thread = threading.Thread(target=lambda: found.extend(consumer.poll(limit=10)))
        thread.start()
        thread.join()
        store.delivery.consumers.step(0)
    assert len({each.physical_offset for each in found}) == 40


def test_the_queues_of_a_garbage_collected_consumer_go_to_the_others(store: MessageStore) -> None:
    forgotten = store.consumer("g", "orders")
    forgotten.poll()
    other = store.consumer("g", "orders")
    assert queue_ids(other) == [[]]
    del forgotten
    gc.collect()
    assert eventually(lambda: queue_ids(other) == [[0, 1, 2, 3]])
    assert store.delivery.consumers.count_of("g") == 1


def test_consumers_of_a_group_need_the_same_subscription(store: MessageStore) -> None:
    with store.consumer("g", "orders", filter="a"):
        with pytest.raises(InvalidConfig, match=r"orders \(b\).*another consumer of the group reads orders \(a\)"):
            store.consumer("g", "orders", filter="b")
        with pytest.raises(InvalidConfig, match="give one consumer all topics, or use another group"):
            store.consumer("g", "payments", filter="a")
        store.consumer("g", "orders", filter="a").close()
    store.consumer("g", "payments").close()  # allowed, because the other consumers are closed


def test_consumers_with_their_own_progress_each_get_all_messages(store: MessageStore, tmp_path: Path) -> None:
    fill(store, 12)
    first = store.consumer("g", "orders", progress="memory", idle_s=0)
    second = store.consumer("g", "orders", progress=tmp_path / "mine" / "progress.json", idle_s=0)
    assert len(list(first)) == len(list(second)) == 12
    fill(store, 3, 12)
    with pytest.raises(NotPermitted, match=r"progress\.json: another consumer keeps its progress in this file"):
        store.consumer("g", "orders", progress=tmp_path / "mine" / "progress.json")
    second.commit()
    second.close()
    with store.consumer("g", "orders", progress=tmp_path / "mine" / "progress.json", idle_s=0) as again:
        assert len(list(again)) == 3
    with store.consumer("g", "orders", progress="memory", idle_s=0) as again:
        assert len(list(again)) == 15
    assert store.groups() == ["g"] and store.lag("g") == []  # the group itself has no progress
    store.update_group("g", broadcast_enabled=False)
    with pytest.raises(NotPermitted, match="its consumers must share progress"):
        store.consumer("g", "orders", progress="memory")


def test_an_ordered_consumer_gets_no_more_of_a_queue_before_it_commits(store: MessageStore) -> None:
    fill(store, 8)
    with store.consumer("g", "orders", ordered=True, auto_commit=False, idle_s=0) as consumer:
        given = {each.queue_id: each for each in consumer}
        assert len(given) == 4 and {each.queue_offset for each in given.values()} == {0}
        assert consumer.poll() == []
        consumer.commit(given[2])
        found = consumer.poll(limit=9)
        assert [(each.queue_id, each.queue_offset) for each in found] == [(2, 1)]
    store.update_group("g", ordered=True)
    with store.consumer("g", "orders", auto_commit=False) as consumer:
        assert all(consumer.poll(limit=1) for _ in range(4))
        threading.Timer(0.05, consumer.commit).start()
        assert consumer.poll(10.0)  # a commit by another thread frees the queue


def test_messages_skipped_by_a_filter_do_not_block_an_ordered_consumer(store: MessageStore) -> None:
    fill(store, 40)
    with store.consumer("g", "orders", filter="tag1", ordered=True, auto_commit=False, idle_s=0) as consumer:
        assert consumer.poll(limit=1) and consumer.lag() == 40
    with store.consumer("h", "orders", filter="none", ordered=True, auto_commit=False, idle_s=0) as consumer:
        assert consumer.poll() == [] and consumer.lag() == 0


def test_async_iteration_does_not_block_the_event_loop(store: MessageStore) -> None:
    seen: list[int] = []
    beats = 0

    consumers = [store.consumer("g", "orders") for _ in range(2)]

    async def consume(consumer: Consumer) -> None:
        async for each in consumer:
            seen.append(int(each.body))
            if len(seen) == 200:
                for open_one in consumers:
                    open_one.close()

    async def beat() -> None:
        nonlocal beats
        while len(seen) < 200:
            await asyncio.sleep(0.001)
            beats += 1

    async def put() -> None:
        for number in range(200):
            await store.put_async(message(number, body=b"%d" % number))
            if number % 20 == 0:
                await asyncio.sleep(0.005)

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*map(consume, consumers), beat(), put()), 30)

    asyncio.run(main())
    assert sorted(seen) == list(range(200)) and beats > 5


def test_a_put_wakes_a_polling_task_and_another_task_replaces_a_failed_one(store: MessageStore) -> None:
    async def fail(consumer: Consumer) -> None:
        async with consumer:
            assert await consumer.poll_async(20.0)
            raise ZeroDivisionError

    async def main() -> None:
        failing, other = store.consumer("g", "orders"), store.consumer("g", "orders")
        asyncio.get_running_loop().call_later(0.05, store.put, message(1, queue_id=0))
        task = asyncio.create_task(fail(failing))
        with pytest.raises(ZeroDivisionError):
            await task
        assert [each.queue_id for each in await other.poll_async(20.0)] == [0]
        assert await other.poll_async() == []

    asyncio.run(main())


def test_consumers_that_live_for_one_message_read_every_queue(store: MessageStore) -> None:
    fill(store, 400)
    read = set()
    for _ in range(100):
        with store.consumer("g", "orders") as consumer:
            read |= {each.queue_id for each in consumer.poll(5, 1)}
    assert read == {0, 1, 2, 3}


def test_polls_in_tasks_of_their_own_deliver_each_message_once(store: MessageStore) -> None:
    """`asyncio.wait_for` makes a task for each call, which ends with it: the consumer goes on."""
    fill(store, 400)
    seen: list[bytes] = []

    async def consume(consumer: Consumer) -> None:
        while found := await asyncio.wait_for(consumer.poll_async(2.0, 3), 30):
            await asyncio.sleep(0.01)
            seen.extend(each.body for each in found)
            consumer.commit()

    async def watch() -> None:
        while len(seen) < 400:
            store.delivery.consumers.step(0)  # the watch that takes queues from dead consumers
            await asyncio.sleep(0.002)

    async def main() -> None:
        consumers = [store.consumer("g", "orders", auto_commit=False) for _ in range(3)]
        await asyncio.gather(watch(), *map(consume, consumers))

    asyncio.run(main())
    assert len(seen) == len(set(seen)) == 400


def test_a_reading_process_needs_its_own_progress_to_consume(store: MessageStore, tmp_path: Path) -> None:
    fill(store, 10)
    store.wait_dispatched()
    program = f"""if True:
        import sys
        from mqlake import MessageStore, NotPermitted
        with MessageStore.open({str(store.path)!r}, read_only=True) as reader:
            try:
                reader.consumer("g", "orders")
            except NotPermitted as error:
                print(error)
            with reader.consumer("g", "orders", progress={str(tmp_path / "mine.json")!r}, idle_s=0) as consumer:
                print(sum(1 for _ in consumer))
            print("ready", flush=True)
            sys.stdin.readline()
            with reader.consumer("g", "orders", progress={str(tmp_path / "mine.json")!r}, idle_s=30) as consumer:
                print(sum(1 for _, _ in zip(range(5), consumer)))
            try:
                reader.consumer("g", "nowhere", progress="memory")
            except Exception as error:
                print(error)
    """
    child = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)
    assert child.stdin is not None and child.stdout is not None
    printed = [child.stdout.readline().strip() for _ in range(3)]
    assert "several processes need a broker" in printed[0] and 'progress="memory"' in printed[0]
    assert printed[1:] == ["10", "ready"]
    fill(store, 5, 10)
    rest, _ = child.communicate("\n", timeout=60)
    assert rest.splitlines()[0] == "5" and "'nowhere': not in this store" in rest
    assert store.groups() == []
