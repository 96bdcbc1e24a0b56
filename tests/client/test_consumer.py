"""What a consumer promises, against mqlake's broker and real ones."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mqlake import Message, Sql
from mqlake.client import Admin, AsyncConsumer, Consumer, Producer
from mqlake.client.positions import GroupPositions
from mqlake.client.pulling import Puller
from mqlake.client.remote_queue import RemoteQueue
from mqlake.client.session import Session
from mqlake.delivery.consume.cursor import Lost
from mqlake.delivery.consume.progress import Start
from mqlake.errors import InvalidConfig, NotConnected, NotPermitted, RequestRefused
from mqlake.remoting.bodies import MessageQueue
from mqlake.remoting.headers import PullResult
from tests.client.conftest import WAIT_S, put, take, until
from tests.clients.endpoints import Endpoint


def bodies_of(consumer: Consumer, count: int) -> list[bytes]:
    return sorted(message.body for message in take(consumer, count))


def test_an_iteration_delivers_everything_once_and_ends_when_idle(
    at: str, topic: str, group: str, producer: Producer
) -> None:
    bodies = put(producer, topic, 100)
    with Consumer(at, group, topic, idle_s=2.0) as consumer:
        assert sorted(message.body for message in consumer) == sorted(bodies)
    with Consumer(at, group, topic, idle_s=1.0) as consumer:
        assert list(consumer) == [], "all of it is committed"


def test_an_asyncio_program_consumes(at: str, topic: str, group: str, producer: Producer) -> None:
    bodies = put(producer, topic, 30)

    async def main() -> list[bytes]:
        async with AsyncConsumer(at, group, topic, idle_s=2.0) as consumer:
            return [message.body async for message in consumer]

    assert sorted(asyncio.run(main())) == sorted(bodies)


def test_a_message_arrives_while_a_poll_waits(at: str, topic: str, group: str, producer: Producer) -> None:
    producer.send(Message(topic, b"before"))
    with Consumer(at, group, topic) as consumer:
        take(consumer, 1)
        timer = threading.Timer(0.3, lambda: producer.send(Message(topic, b"meanwhile")))
        timer.start()
        assert [message.body for message in consumer.poll(60.0)] == [b"meanwhile"]
        timer.join()


def test_what_was_not_committed_is_delivered_again(at: str, topic: str, group: str, producer: Producer) -> None:
    for number in range(10):
        producer.send(Message(topic, b"%d" % number, queue_id=0))
    with Consumer(at, group, topic, auto_commit=False) as consumer:
        found = take(consumer, 10)
        consumer.commit(found[3], durable=True)
    with Admin(at) as admin:
        assert [lag.message_count for lag in admin.lag(group, topic) if lag.queue_id == 0] == [6]
    with Consumer(at, group, topic) as consumer:
        assert [int(message.body) for message in take(consumer, 6)] == [4, 5, 6, 7, 8, 9]


def test_an_error_leaves_the_current_message_uncommitted(at: str, topic: str, group: str, producer: Producer) -> None:
    for number in range(10):
        producer.send(Message(topic, b"%d" % number, queue_id=0))
    with pytest.raises(ZeroDivisionError), Consumer(at, group, topic) as consumer:
        for message in consumer:
            if message.body == b"4":
                _ = 1 / 0
    with Consumer(at, group, topic) as consumer:
        assert [int(message.body) for message in take(consumer, 6)] == [4, 5, 6, 7, 8, 9]


def test_a_loop_that_is_left_and_entered_again_misses_nothing(
    at: str, topic: str, group: str, producer: Producer
) -> None:
    for number in range(20):
        producer.send(Message(topic, b"%d" % number, queue_id=2))
    found = []
    with Consumer(at, group, topic, idle_s=2.0) as consumer:
        for message in consumer:
            found.append(int(message.body))
            if len(found) % 3 == 0:
                break
        for message in consumer:
            found.append(int(message.body))
    assert found == list(range(20))


# ---- filters


def test_tags_select(at: str, topic: str, group: str, producer: Producer) -> None:
    for number in range(30):
        producer.send(Message(topic, b"%d" % number, tags=("a", "b", "c")[number % 3]))
    with Consumer(at, group, topic, filter="a || c") as consumer:
        assert bodies_of(consumer, 20) == sorted(b"%d" % number for number in range(30) if number % 3 != 1)
        assert consumer.poll(0.5) == []


def test_tags_with_the_same_hash_are_told_apart(at: str, topic: str, group: str, producer: Producer) -> None:
    """`Aa` and `BB` have the same hash in Java: the broker gives both, the consumer compares the tags."""
    for tag in ("Aa", "BB", "Aa"):
        producer.send(Message(topic, tag.encode(), tags=tag))
    with Consumer(at, group, topic, filter="Aa") as consumer:
        assert bodies_of(consumer, 2) == [b"Aa", b"Aa"]
        assert consumer.poll(0.5) == []


def test_sql_selects_by_properties(at: str, topic: str, group: str, producer: Producer) -> None:
    for number in range(20):
        producer.send(Message(topic, b"%d" % number, properties={"amount": str(number)}))
    with Consumer(at, group, topic, filter=Sql("amount > 14 AND amount <= 18")) as consumer:
        assert bodies_of(consumer, 4) == [b"15", b"16", b"17", b"18"]


def test_filtered_messages_count_as_processed(at: str, topic: str, group: str, producer: Producer) -> None:
    put(producer, topic, 40, tags="other")
    producer.send(Message(topic, b"mine", tags="mine"))
    with Consumer(at, group, topic, filter="mine") as consumer, Admin(at) as admin:
        take(consumer, 1)
        consumer.commit()

        def is_done() -> bool:
            consumer.commit(durable=True)
            return sum(lag.message_count for lag in admin.lag(group, topic)) == 0

        until(is_done)


# ---- retries


def test_a_failed_message_comes_again_and_ends_as_a_dead_letter(
    at: str, topic: str, group: str, producer: Producer
) -> None:
    with Admin(at) as admin:
        admin.create_group(group, max_retry_count=2)
        with Consumer(at, group, topic) as consumer:
            producer.send(Message(topic, b"bad", keys=["17"]))
            times = []
            for _ in range(3):
                (message,) = take(consumer, 1)
                times.append(message.reconsume_times)
                assert (message.body, message.keys) == (b"bad", ["17"])
                consumer.fail(message, level=1)
            assert times == [0, 1, 2]
            until(lambda: f"%DLQ%{group}" in admin.topics())
            (dead,) = until(lambda: admin.read(f"%DLQ%{group}"))
            assert dead.body == b"bad"


def test_a_message_can_be_made_a_dead_letter_at_once(at: str, topic: str, group: str, producer: Producer) -> None:
    with Admin(at) as admin, Consumer(at, group, topic) as consumer:
        producer.send(Message(topic, b"worse"))
        (message,) = take(consumer, 1)
        consumer.fail(message, level=-1)
        until(lambda: f"%DLQ%{group}" in admin.topics())
        (dead,) = until(lambda: admin.read(f"%DLQ%{group}"))
        assert dead.body == b"worse"


# ---- start


def test_a_new_group_starts_where_it_is_told(
    endpoint: Endpoint, at: str, topic: str, group: str, producer: Producer
) -> None:
    early = [producer.send(Message(topic, b"early", queue_id=0)) for _ in range(5)]
    with Admin(at) as admin:
        until(lambda: len(admin.read(topic)) == 5)
        between_ms = admin.read(topic)[-1].store_timestamp + 1
        until(lambda: time.time_ns() // 1_000_000 > between_ms)
        producer.send(Message(topic, b"late", queue_id=0))
        until(lambda: len(admin.read(topic)) == 6)
    assert early[-1].queue_offset == 4
    at_time = datetime.fromtimestamp(between_ms / 1000, UTC)
    starts: list[tuple[Start, int]] = [("first", 6), (at_time, 1), (4, 2), ({0: 3}, 3)]
    if endpoint.kind == "rocketmq-4.9":
        starts.remove((at_time, 1))  # it finds the message that is nearest, before the time or after it
    for number, (start, expected) in enumerate(starts):
        with Consumer(at, f"{group}-{number}", topic, start=start) as consumer:
            assert len(take(consumer, expected)) == expected
            assert consumer.poll(0.5) == []
    with pytest.raises(InvalidConfig, match="start"):
        Consumer(at, group, topic, start="middle")


def test_a_group_that_starts_last_gets_only_what_comes_later(
    at: str, topic: str, group: str, producer: Producer
) -> None:
    put(producer, topic, 10)
    with Consumer(at, group, topic, start="last") as consumer:
        until(lambda: len(consumer.queues) == 5)
        assert consumer.poll(1.0) == []
        producer.send(Message(topic, b"later"))
        assert bodies_of(consumer, 1) == [b"later"]


# ---- broadcast


def test_consumers_with_their_own_progress_each_get_everything(
    at: str, topic: str, group: str, producer: Producer, tmp_path: Path
) -> None:
    bodies = sorted(put(producer, topic, 20))
    with Consumer(at, group, topic, progress="memory") as one, Consumer(at, group, topic, progress="memory") as two:
        found = take(one, 20)
        assert sorted(message.body for message in found) == bodies_of(two, 20) == bodies
        with pytest.raises(NotPermitted, match="retry topic"):
            one.fail(found[0])
    file = tmp_path / "progress.json"
    with Consumer(at, group, topic, progress=file) as consumer:
        assert bodies_of(consumer, 20) == bodies
        with pytest.raises(NotPermitted, match="another consumer"):
            Consumer(at, group, topic, progress=file)
    producer.send(Message(topic, b"after"))
    with Consumer(at, group, topic, progress=file) as consumer:
        assert bodies_of(consumer, 1) == [b"after"]


# ---- order


def test_an_ordered_consumer_gets_the_next_only_after_a_commit(
    at: str, topic: str, group: str, producer: Producer
) -> None:
    for number in range(6):
        producer.send(Message(topic, b"%d" % number, queue_id=1))
    with Consumer(at, group, topic, ordered=True, auto_commit=False) as consumer:
        found = []
        for _ in range(6):
            (message,) = until(lambda: consumer.poll(1.0, limit=1))
            found.append(int(message.body))
            assert consumer.poll(0.05) == []
            consumer.commit(message)
    assert found == list(range(6))


def test_queues_of_an_ordered_group_have_one_reader_at_a_time(
    at: str, topic: str, group: str, producer: Producer
) -> None:
    with Consumer(at, group, topic, ordered=True) as one:
        until(lambda: len([queue for queue in one.queues if queue.topic == topic]) == 4)
        with Consumer(at, group, topic, ordered=True) as two:

            def shared() -> bool:
                one.poll(0.02), two.poll(0.02)
                mine, its = set(one.queues), set(two.queues)
                assert not mine & its
                return len([queue for queue in mine | its if queue.topic == topic]) == 4 and len(its) >= 2

            until(shared)


# ---- resets


def test_a_connected_consumer_continues_where_its_group_is_reset_to(
    endpoint: Endpoint, at: str, topic: str, group: str, producer: Producer
) -> None:
    for number in range(10):
        producer.send(Message(topic, b"%d" % number, queue_id=0))
    with Consumer(at, group, topic) as consumer, Admin(at) as admin:
        take(consumer, 10)
        consumer.commit(durable=True)
        if endpoint.kind == "rocketmq-4.9":
            with pytest.raises(NotPermitted, match="by time only"):
                admin.reset(group, topic, 7)
        else:
            admin.reset(group, topic, {0: 7, 1: 0, 2: 0, 3: 0})
            assert [int(message.body) for message in take(consumer, 3)] == [7, 8, 9]
        admin.reset(group, topic, "first")
        assert [int(message.body) for message in take(consumer, 10)] == list(range(10))
    with Admin(at) as admin:
        assert admin.reset(group, topic, "first")[0] == 0
        with Consumer(at, group, topic) as consumer:
            assert [int(message.body) for message in take(consumer, 10)] == list(range(10))


# ---- topics that are deleted and made again


def test_a_connected_consumer_gets_all_of_a_topic_that_is_made_again(
    endpoint: Endpoint, at: str, topic: str, group: str, producer: Producer
) -> None:
    if endpoint.kind != "mqlake":
        pytest.skip("RocketMQ leads its clients to the end of the new queue")
    put(producer, topic, 20)
    with Consumer(at, group, topic) as consumer, Admin(at) as admin:
        take(consumer, 20)
        consumer.commit(durable=True)
        admin.delete_topic(topic)
        admin.create_topic(topic, 4)
        bodies = put(producer, topic, 30)
        assert bodies_of(consumer, 30) == sorted(bodies)
        assert consumer.lost == []


def test_a_queue_that_ends_before_the_groups_progress_is_listed_as_lost() -> None:
    """RocketMQ leads to the end of a queue that was made again, or lost its end: what was before it is passed over."""
    lost = moved(PullResult(0, next_begin_offset=30, min_offset=0, max_offset=30), "OFFSET_OVERFLOW_BADLY")
    assert lost == [Lost("T", 0, 50, 0, 30)]
    assert moved(PullResult(0, next_begin_offset=30, min_offset=0, max_offset=90), "OFFSET_RESET") == []
    assert moved(PullResult(0, next_begin_offset=0, min_offset=0, max_offset=30), "OFFSET_OVERFLOW_BADLY") == []


def moved(result: PullResult, remark: str) -> list[Lost]:
    """Return what a consumer at queue offset 50 counts as lost if a pull is answered so."""

    async def main() -> list[Lost]:
        session = Session("127.0.0.1:1")
        puller = Puller(session, "G", {}, GroupPositions(session, "G", "first"), lambda: None, lambda: None)
        queue = RemoteQueue(MessageQueue("T", "broker-a", 0), 0.0)
        queue.move(50)
        puller._moved(queue, result, remark)
        assert queue.next_offset == result.next_begin_offset
        await session.close()
        return puller.lost

    return asyncio.run(main())


# ---- cancelled tasks


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_consumer_that_is_cancelled_while_its_block_ends_leaves_its_group(
    at: str, topic: str, group: str, producer: Producer
) -> None:
    put(producer, topic, 8)

    async def work(ending: asyncio.Event) -> None:
        async with AsyncConsumer(at, group, topic) as consumer:
            assert len(await consumer.poll(WAIT_S, limit=1)) == 1
            ending.set()

    async def main() -> None:
        ending = asyncio.Event()
        task = asyncio.create_task(work(ending))
        await ending.wait()
        await cancelled(task)
        async with AsyncConsumer(at, group, topic) as consumer:
            found = 0
            async with asyncio.timeout(WAIT_S / 4):  # less than a member that does not answer is waited for
                while found < 7:
                    found += len(await consumer.poll(1.0))
            assert await consumer.poll(0.2) == [], "what the block had processed is committed"

    asyncio.run(main())


def test_a_first_poll_that_is_cancelled_can_be_tried_again(at: str, topic: str, group: str, producer: Producer) -> None:
    put(producer, topic, 8)

    async def main() -> None:
        for steps in range(0, 60, 4):
            consumer = AsyncConsumer(at, f"{group}-{steps}", topic)
            poll = asyncio.create_task(consumer.poll(WAIT_S, limit=1))
            for _ in range(steps):
                await asyncio.sleep(0)
            poll.cancel()
            await asyncio.wait([poll])
            assert len(await consumer.poll(WAIT_S, limit=1)) == 1
            await consumer.close()

    asyncio.run(main())


def test_a_first_poll_that_fails_can_be_tried_again(group: str) -> None:
    async def main() -> None:
        consumer = AsyncConsumer("127.0.0.1:1", group, "T")
        for _ in range(2):
            with pytest.raises(NotConnected):
                await consumer.poll()
        await consumer.close()
        with pytest.raises(NotPermitted, match="closed"):
            await consumer.poll()
        assert [message async for message in consumer] == []

    asyncio.run(main())


def test_a_time_that_is_no_number_is_refused(at: str, topic: str, group: str) -> None:
    soon: Any = "soon"
    with pytest.raises(InvalidConfig, match="idle_s"):
        Consumer(at, group, topic, idle_s=soon)
    with Consumer(at, group, topic) as consumer, pytest.raises(InvalidConfig, match="timeout_s"):
        consumer.poll(soon)


def test_a_consumer_that_cannot_start_lets_go_of_its_file(group: str, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(NotConnected):
            Consumer("127.0.0.1:1", group, "T", progress=tmp_path / "progress.json")


# ---- errors


def test_a_filter_that_the_broker_cannot_read_is_refused_at_the_start(at: str, topic: str, group: str) -> None:
    wanted = Sql("a > 5")
    object.__setattr__(wanted, "expression", "a >> 5")
    with pytest.raises(RequestRefused):
        Consumer(at, group, topic, filter=wanted)


def test_a_name_server_that_is_not_there_is_an_error(group: str) -> None:
    with pytest.raises(NotConnected):
        Consumer("127.0.0.1:1", group, "T")


def test_a_closed_consumer_refuses_calls_and_ends_its_iteration(at: str, topic: str, group: str) -> None:
    consumer = Consumer(at, group, topic)
    closer = threading.Timer(0.3, consumer.close)
    closer.start()
    assert list(consumer) == []
    closer.join()
    with pytest.raises(NotPermitted, match="closed"):
        consumer.poll()
    consumer.close()
