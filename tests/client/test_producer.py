"""What a producer promises, against mqlake's broker and real ones."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mqlake import Message
from mqlake.client import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer, SendStatus
from mqlake.errors import (
    InvalidConfig,
    InvalidMessage,
    NotConnected,
    NotPermitted,
    RequestRefused,
    RequestTimeout,
    StoreError,
    TransactionEnded,
)
from tests.client.conftest import WAIT_S, new_name, put, take, until
from tests.clients.endpoints import Endpoint


def test_a_sent_message_is_found_where_its_receipt_says(at: str, topic: str, producer: Producer) -> None:
    message = Message(topic, b"hello", tags="created", keys=["17", "18"], properties={"region": "north"}, flag=7)
    receipt = producer.send(message)
    assert receipt.status is SendStatus.OK
    with Admin(at) as admin:
        (found,) = until(lambda: admin.read(topic, queue_id=receipt.queue_id, start=receipt.queue_offset))
        assert (found.body, found.tags, found.keys, found.flag) == (b"hello", "created", ["17", "18"], 7)
        assert found.properties["region"] == "north"
        assert found.properties["UNIQ_KEY"] == receipt.unique_key
        assert (found.message_id, found.physical_offset) == (receipt.message_id, receipt.physical_offset)
    assert "UNIQ_KEY" not in message.properties, "the caller's message is not changed"


def test_messages_go_to_the_queues_in_turn(topic: str, producer: Producer) -> None:
    receipts = [producer.send(Message(topic, b"x")) for _ in range(8)]
    assert sorted(receipt.queue_id for receipt in receipts) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_batch_is_stored_in_order_in_one_queue(at: str, topic: str, producer: Producer) -> None:
    bodies = [b"%d" % number for number in range(500)]
    receipts = producer.send_many(Message(topic, body, tags="t", keys=[body.decode()]) for body in bodies)
    assert len(receipts) == 500
    assert len({receipt.queue_id for receipt in receipts}) == 1
    assert [receipt.queue_offset for receipt in receipts] == list(range(500))
    with Admin(at) as admin:
        queue_id = receipts[0].queue_id
        until(lambda: len(admin.read(topic, queue_id=queue_id, limit=500)) == 500)
        found = admin.read(topic, queue_id=queue_id, limit=500)
        assert [message.body for message in found] == bodies
        assert [message.message_id for message in found] == [receipt.message_id for receipt in receipts]
        assert found[7].keys == ["7"] and found[7].tags == "t"


def test_batches_are_cut_by_size_topic_queue_and_delay(topic: str, producer: Producer) -> None:
    large = [Message(topic, bytes(300_000), queue_id=1) for _ in range(5)]
    delayed = Message(topic, b"later", delay_level=18)
    receipts = producer.send_many([*large, delayed, Message(topic, b"a", queue_id=0), Message(topic, b"b", queue_id=2)])
    assert [receipt.queue_id for receipt in receipts[:5]] == [1] * 5
    assert [receipt.queue_offset for receipt in receipts[:5]] == [0, 1, 2, 3, 4]
    assert (receipts[6].queue_id, receipts[7].queue_id) == (0, 2)


@pytest.mark.parametrize(
    ("count", "body", "properties"), [(50_000, b"ten  bytes", {}), (300, b"x", {"p": "v" * 10_000}), (40_000, b"", {})]
)
def test_a_batch_takes_as_many_messages_as_brokers_accept(
    count: int, body: bytes, properties: dict[str, str], endpoint: Endpoint, topic: str, producer: Producer
) -> None:
    """Small bodies are mostly headers and properties, and those count for a broker."""
    if not body and endpoint.kind != "mqlake":
        pytest.skip("RocketMQ takes no empty messages")
    receipts = producer.send_many(Message(topic, body, properties=properties) for _ in range(count))
    assert len({(receipt.queue_id, receipt.queue_offset) for receipt in receipts}) == count


def test_a_producer_that_is_cancelled_while_it_closes_is_closed(at: str, topic: str) -> None:
    async def main() -> None:
        producer = AsyncProducer(at, new_name("producers"))
        await producer.send(Message(topic, b"x"))
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await producer.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(NotConnected, match="closed"):
            await producer.send(Message(topic, b"x"))

    asyncio.run(main())


def test_a_large_body_is_sent_compressed_and_arrives_as_it_was(at: str, topic: str, producer: Producer) -> None:
    body = b"0123456789" * 5_000
    receipt = producer.send(Message(topic, body))
    with Admin(at) as admin:
        (found,) = until(lambda: admin.read(topic, queue_id=receipt.queue_id, start=receipt.queue_offset))
    assert found.body == body
    assert found.sys_flag & 1 and len(found.raw_body) < 5_000


def test_messages_with_one_ordering_key_stay_in_order(at: str, topic: str, group: str, producer: Producer) -> None:
    for number in range(40):
        producer.send(Message(topic, b"%d" % number, keys=[f"k{number % 4}"]), ordered_by=f"k{number % 4}")
    with Consumer(at, group, topic) as consumer:
        found = take(consumer, 40)
    for key in range(4):
        mine = [message for message in found if message.keys == [f"k{key}"]]
        assert len({message.queue_id for message in mine}) == 1
        assert [int(message.body) for message in mine] == list(range(key, 40, 4))


def test_one_way_messages_arrive(at: str, topic: str, group: str, producer: Producer) -> None:
    for number in range(20):
        producer.send_oneway(Message(topic, b"%d" % number))
    with Consumer(at, group, topic) as consumer:
        assert sorted(int(message.body) for message in take(consumer, 20)) == list(range(20))


def test_a_delayed_message_arrives_after_its_delay(at: str, topic: str, group: str, producer: Producer) -> None:
    sent = time.time()
    producer.send(Message(topic, b"later", delay_level=5))  # two seconds
    producer.send(Message(topic, b"now"))
    with Consumer(at, group, topic) as consumer:
        assert [message.body for message in take(consumer, 2)] == [b"now", b"later"]
    assert time.time() - sent >= 1.9


def test_a_timed_message_can_be_recalled(
    endpoint: Endpoint, at: str, topic: str, group: str, producer: Producer
) -> None:
    if endpoint.kind == "rocketmq-4.9":
        pytest.skip("RocketMQ 4.9 has no timed messages")
    recalled = producer.send(Message(topic, b"recalled", delay_s=5))
    producer.send(Message(topic, b"timed", delay_s=6))
    assert recalled.recall_handle
    producer.recall(recalled)
    with Consumer(at, group, topic) as consumer:
        assert [message.body for message in take(consumer, 1)] == [b"timed"]


# ---- transactions


def test_only_committed_messages_are_delivered(at: str, topic: str, group: str, producer: Producer) -> None:
    with producer.transaction(Message(topic, b"committed", keys=["1"])):
        pass
    with pytest.raises(ZeroDivisionError), producer.transaction(Message(topic, b"rolled back")):
        _ = 1 / 0
    explicit = producer.transaction(Message(topic, b"explicit"))
    explicit.commit()
    with pytest.raises(TransactionEnded):
        explicit.rollback()
    with Consumer(at, group, topic) as consumer:
        assert {message.body for message in take(consumer, 2)} == {b"committed", b"explicit"}
        assert consumer.poll(1.0) == []


def test_a_broker_asks_about_an_undecided_transaction(at: str, topic: str, group: str) -> None:
    asked: list[bytes] = []
    done = threading.Event()

    def check(message: object) -> bool | None:
        body = message.body  # type: ignore[attr-defined]
        asked.append(body)
        if asked.count(body) == 1:
            return None  # not decided yet: it must ask again
        done.set()
        return bool(body == b"yes")

    with Producer(at, new_name("deciders"), check=check) as producer, Consumer(at, group, topic) as consumer:
        for body in (b"yes", b"no"):
            producer.transaction(Message(topic, body)).leave()
        assert [message.body for message in take(consumer, 1)] == [b"yes"]
        until(lambda: asked.count(b"no") >= 2)
    assert done.is_set()


# ---- request and reply


def test_a_request_gets_the_reply_of_its_consumer(at: str, topic: str, group: str, producer: Producer) -> None:
    async def serve() -> None:
        async with AsyncConsumer(at, group, topic) as consumer, AsyncProducer(at, new_name("repliers")) as replier:
            async for message in consumer:
                await replier.reply(message, message.body.upper())
                if message.body == b"last":
                    return

    server = threading.Thread(target=lambda: asyncio.run(serve()))
    server.start()
    limits = {b"one": 60.0, b"two": 60, b"last": math.inf}
    replies = [producer.request(Message(topic, body), timeout_s=limit_s) for body, limit_s in limits.items()]
    server.join()
    assert [reply.body for reply in replies] == [b"ONE", b"TWO", b"LAST"]


def test_a_request_that_nobody_answers_ends_in_time(topic: str, producer: Producer) -> None:
    began = time.monotonic()
    with pytest.raises(RequestTimeout, match="did not answer"):
        producer.request(Message(topic, b"?"), timeout_s=1.0)
    assert time.monotonic() - began < 30.0


# ---- errors


def test_a_message_that_cannot_be_stored_is_refused_at_once(topic: str, producer: Producer) -> None:
    with pytest.raises(InvalidMessage, match="body"):
        producer.send(Message(topic, bytes(5 << 20)))
    with pytest.raises(InvalidMessage, match="properties"):
        producer.send(Message(topic, b"x", properties={"a": "b\x01c"}))
    with pytest.raises(InvalidConfig, match="4 queues"):
        producer.send(Message(topic, b"x", queue_id=9))


NO_BODIES: list[Any] = [5, [1, 2], "text", None, 1.5]


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (Message("T", b"x", properties={"a": "\ud800"}), {}),
        (Message("T\ud800", b"x"), {}),
        (Message("T", b"x"), {"timeout_s": "x"}),
        (Message("T", b"x"), {"timeout_s": math.nan}),
        (Message("T", b"x"), {"timeout_s": 10**400}),
        *((Message("T", body), {}) for body in NO_BODIES),
        (Message("T", b"x"), {"ordered_by": 5}),
    ],
)
def test_what_cannot_be_sent_is_a_store_error(producer: Producer, message: Message, options: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=r"surrogates|timeout_s|ordered_by|bytes-like"):
        producer.send(message, **options)
    with pytest.raises(StoreError, match=r"surrogates|timeout_s|ordered_by|bytes-like"):
        producer.send_many([message, message], **options)


def test_a_refusal_names_its_code_and_its_broker(endpoint: Endpoint, producer: Producer) -> None:
    with pytest.raises(RequestRefused) as refused:
        producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))
    assert (refused.value.code, refused.value.code_name) == (16, "NO_PERMISSION")
    assert refused.value.address.endswith(f":{endpoint.ports.broker}")


def test_a_name_server_that_is_not_there_is_an_error_in_time() -> None:
    with Producer("127.0.0.1:1", timeout_s=0.5) as producer:
        began = time.monotonic()
        with pytest.raises(NotConnected, match=r"127\.0\.0\.1:1"):
            producer.send(Message("T", b"x"))
        assert time.monotonic() - began < 30.0
    with pytest.raises(NotPermitted, match="closed"):
        producer.send(Message("T", b"x"))
    with pytest.raises(InvalidConfig, match="HOST:PORT"):
        Producer("localhost")


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where connections are taken and nothing is answered."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        yield f"127.0.0.1:{door.getsockname()[1]}"


def test_a_send_ends_in_its_time_if_the_name_server_is_silent(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlake.client.session.CALL_S", 3600.0)
    with Producer(silent, timeout_s=0.2) as producer:
        for send in (
            lambda: producer.send(Message("T", b"x")),
            lambda: producer.send(Message("T", b"x"), timeout_s=0.1),
            lambda: producer.send_many([Message("T", b"x"), Message("T", b"y")]),
            lambda: producer.send_oneway(Message("T", b"x")),
            lambda: producer.transaction(Message("T", b"x")),
            lambda: producer.request(Message("T", b"x"), 0.2),
        ):
            with pytest.raises(RequestTimeout):
                send()


def test_a_silent_name_server_is_asked_after_the_others_and_keeps_no_known_route_from_a_send(
    at: str, topic: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqlake.client.session.CALL_S", 3600.0)
    monkeypatch.setattr("mqlake.client.session.random.sample", lambda found, _: found)

    async def send() -> None:
        async with AsyncProducer(f"{silent};{at}") as producer:
            with pytest.raises(RequestTimeout, match=silent):
                await producer.send(Message(topic, b"x"), timeout_s=0.2)
            await producer.send(Message(topic, b"x"), timeout_s=WAIT_S)
            producer._session.routes.expire(topic)
            producer._session._name_servers = [silent]
            await producer.send(Message(topic, b"x"), timeout_s=10.0)

    asyncio.run(send())


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:0", "[::1]:70000", "h:" + "9" * 5000, "h:-1", "h:²"])
def test_an_address_without_a_possible_port_is_refused(address: str) -> None:
    for make in (Producer, Admin, lambda at: Consumer(at, "G", "T")):
        with pytest.raises(InvalidConfig, match="a port from 1 to 65535"):
            make(address)


def test_many_threads_share_one_producer(at: str, topic: str, group: str, producer: Producer) -> None:
    threads = [threading.Thread(target=put, args=(producer, topic, 25)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Consumer(at, group, topic) as consumer:
        keys = {message.properties["UNIQ_KEY"] for message in take(consumer, 200)}
    assert len(keys) == 200


def test_a_new_topic_is_created_by_its_first_message(at: str, group: str, producer: Producer) -> None:
    name = new_name("auto")
    bodies = put(producer, name, 8)
    with Consumer(at, group, name) as consumer:
        assert sorted(message.body for message in take(consumer, 8)) == sorted(bodies)
