"""Topics, groups, progress and look-ups through the admin."""

from __future__ import annotations

import os

import pytest

from mqlake import Message
from mqlake.client import Admin, Consumer, Producer
from mqlake.errors import BadRequest, InvalidConfig, NoRoute, NoSuchMessage, OffsetOutOfRange
from tests.client.conftest import new_name, put, take, until


def test_topics_are_created_described_and_deleted(at: str) -> None:
    name = new_name("topic")
    with Admin(at) as admin, Producer(at) as producer:
        admin.create_topic(name, 3)
        until(lambda: name in admin.topics())
        described = admin.topic(name)
        assert (described.name, described.read_queue_count, described.write_queue_count) == (name, 3, 3)
        put(producer, name, 6)
        until(lambda: [each.message_count for each in admin.queues(name)] == [2, 2, 2])
        admin.delete_topic(name)
        until(lambda: name not in admin.topics())
        with pytest.raises(NoRoute, match=name):
            admin.topic(name)


def test_groups_are_created_listed_and_deleted(at: str, group: str) -> None:
    with Admin(at) as admin:
        admin.create_group(group, max_retry_count=3)
        assert group in admin.groups()
        admin.delete_group(group)
        assert group not in admin.groups()
        with pytest.raises(InvalidConfig, match="unknown setting; known are enabled"):
            admin.create_group(group, nope=1)
        assert group not in admin.groups()


def test_a_text_that_no_request_can_hold_is_an_error(at: str, topic: str) -> None:
    with Admin(at) as admin, pytest.raises(BadRequest, match="surrogates"):
        admin.find(topic, "\ud800")


def test_lag_is_what_is_not_committed(at: str, topic: str, group: str, producer: Producer) -> None:
    put(producer, topic, 12)
    with Admin(at) as admin:
        with Consumer(at, group, topic, auto_commit=False) as consumer:
            assert len(admin.members(group)) == 1
            take(consumer, 12)
            consumer.commit(durable=True)
        assert until(lambda: not admin.members(group))
        put(producer, topic, 5)
        until(lambda: sum(each.message_count for each in admin.lag(group, topic)) == 5)
        assert {each.topic for each in admin.lag(group, topic)} == {topic}


def test_a_reset_of_some_queues_leaves_the_others_where_they_are(
    at: str, topic: str, group: str, producer: Producer
) -> None:
    for queue_id in range(4):
        for _ in range(3):
            producer.send(Message(topic, b"x", queue_id=queue_id))
    with Admin(at) as admin:
        admin.create_group(group)
        admin.reset(group, topic, "last")
        assert admin.reset(group, topic, {0: 2, 3: 1}) == {0: 2, 3: 1}
        lags = {each.queue_id: each.message_count for each in admin.lag(group, topic)}
        assert lags == {0: 1, 1: 0, 2: 0, 3: 2}
        with pytest.raises(InvalidConfig, match="has only queues 0, 1, 2, 3"):
            admin.reset(group, topic, {0: 0, 9: 0})
        assert {each.queue_id: each.message_count for each in admin.lag(group, topic)} == lags


def test_the_newest_messages_are_found_also_if_one_answer_cannot_hold_them(
    at: str, topic: str, producer: Producer
) -> None:
    for number in range(6):
        producer.send(Message(topic, b"%d" % number + os.urandom(2_000_000), keys=["large"]))
    with Admin(at) as admin:
        until(lambda: [message.body[:1] for message in admin.find(topic, "large", limit=1)] == [b"5"])
        assert [message.body[:1] for message in admin.find(topic, "large")] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert [message.body[:1] for message in admin.find(topic, "large", limit=5)] == [b"1", b"2", b"3", b"4", b"5"]


def test_messages_are_found_by_key_id_and_time(at: str, topic: str, producer: Producer) -> None:
    receipts = [
        producer.send(Message(topic, b"%d" % number, keys=[f"k{number % 3}"], queue_id=1)) for number in range(9)
    ]
    with Admin(at) as admin:
        until(lambda: len(admin.find(topic, "k1")) == 3)
        assert [message.body for message in admin.find(topic, "k1")] == [b"1", b"4", b"7"]
        assert admin.find(topic, "k9") == []
        assert [message.body for message in admin.find(topic, "k1", limit=1)] == [b"7"]
        assert admin.find(topic, "k1", limit=0) == admin.find(topic, "k1", limit=-1) == []
        assert admin.get(receipts[5].message_id).body == b"5"
        assert admin.get(receipts[6].unique_key, topic=topic).body == b"6"
        stored = admin.read(topic, queue_id=1, limit=9)
        assert [message.body for message in stored] == [b"%d" % number for number in range(9)]
        assert admin.seek_time(topic, 0, queue_id=1) == 0
        times = [message.store_timestamp for message in stored]
        assert admin.seek_time(topic, times[4], queue_id=1) == times.index(times[4])
        assert admin.read(topic, queue_id=1, start=9) == []
        with pytest.raises(OffsetOutOfRange):
            admin.read(topic, queue_id=1, start=99)
        with pytest.raises(OffsetOutOfRange):
            admin.read(topic, queue_id=77)
        with pytest.raises(NoSuchMessage):
            admin.get("17")
        with pytest.raises(NoSuchMessage):
            admin.get("F" * 32, topic=topic)
