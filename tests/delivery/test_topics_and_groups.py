"""Topics and groups of a store: what is set up counts for puts, what comes by use is written later."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake import (
    ConsumeQueueConfig,
    DeliveryConfig,
    InvalidConfig,
    InvalidMessage,
    Message,
    MessageStore,
    NotPermitted,
    ReadOnlyStore,
    UnknownGroup,
    UnknownTopic,
)
from mqlake.delivery.topics import Permission, Topic
from tests.helpers import QUEUE_FILE, covers, message, open_small


def queue_ids(store: MessageStore, count: int, topic: str = "orders") -> list[int]:
    return [store.put(message(number, topic)).queue_id for number in range(count)]


@covers("P1")
def test_puts_are_spread_over_the_queues_that_a_topic_is_set_up_with(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("orders", 3)
        assert queue_ids(store, 4) == [0, 1, 2, 0]
        store.update_topic("orders", write_queue_count=2)
        assert queue_ids(store, 3) == [1, 0, 1]
        store.update_topic("orders", write_queue_count=5)
        assert queue_ids(store, 9) == [0, 1, 2, 3, 4, 0, 1, 2, 3]
        store.update_topic("orders", write_queue_count=3)  # it was the turn of queue 4
        assert queue_ids(store, 3) == [1, 2, 0]
        store.update_topic("orders", write_queue_count=5)
    with open_small(tmp_path) as store:
        assert store.topic("orders") == Topic("orders", 3, 5)
        assert queue_ids(store, 6) == [0, 1, 2, 3, 4, 0]
        assert [q.end_offset for q in store.queues("orders")] == [8, 7, 5, 3, 2]


def test_a_change_while_dispatch_is_behind_loses_no_number(tmp_path: Path) -> None:
    """The next numbers are ahead of the queues on disk: a topic that is asked for again keeps them."""
    with open_small(tmp_path) as store:
        store.create_topic("orders", 1)
        for number in range(60):
            assert store.put(message(number)).queue_offset == number
            store.update_topic("orders", ordered=number % 2 == 0)


def test_setting_up_what_came_by_use_is_durable_on_return(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(message(1))
        store.create_topic("orders", 4)  # as it is, but so far in memory only
        with open_small(tmp_path, read_only=True) as reader:
            assert reader.topic("orders") == Topic("orders", 4, 4)


def test_a_topic_that_is_put_to_comes_into_being_and_is_written_at_close(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(message(1))
        assert store.topic("orders") == Topic("orders", 4, 4)
    with open_small(tmp_path, read_only=True) as reader:
        assert reader.topic("orders") == Topic("orders", 4, 4)


def test_a_topic_that_has_queues_already_is_noted_with_as_many(tmp_path: Path) -> None:
    with open_small(
        tmp_path, consume_queue=ConsumeQueueConfig(queues_per_topic=9, file_size_bytes=QUEUE_FILE)
    ) as store:
        queue_ids(store, 9)
    for file in (tmp_path / "config").iterdir():
        file.unlink()
    with open_small(tmp_path) as store:
        store.put(message(1))
        assert store.topic("orders").write_queue_count == 9


def test_with_auto_creation_off_a_put_to_an_unknown_topic_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with open_small(tmp_path, delivery=DeliveryConfig(auto_create_topics=False)) as store:
        store.create_topic("orders")
        with pytest.raises(UnknownTopic, match=r"'order': .* it has orders; create_topic .*autoCreateTopicEnable"):
            store.put(message(1, "order"))
        with pytest.raises(UnknownTopic):
            store.put_many([message(1), message(2, "order")])
        store.put(message(1))
        store.put(message(1, "%RETRY%readers"))  # RocketMQ's own come into being by use all the same
        assert store.stats().appended_end > 0 and store.topics() == ["%RETRY%readers", "orders"]


def test_a_topic_without_write_permission_takes_no_messages_until_it_has_it_again(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(message(0))
        store.update_topic("orders", permission=Permission.READ)
        with pytest.raises(NotPermitted, match=r"topic 'orders': its permission is .*WRITE is needed.*update_topic"):
            store.put(message(1))
        with pytest.raises(NotPermitted):
            store.put_many([message(1), message(2)])
        assert store.stats().topics["orders"].put_count == 1
        store.update_topic("orders", permission=Permission.READ | Permission.WRITE)
        assert store.put(message(1)).queue_id == 1


def test_settings_that_are_none_are_named_with_those_there_are(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("orders")
        with pytest.raises(InvalidConfig, match=r"queues = 3: no such setting; there are read_queue_count, write_"):
            store.update_topic("orders", queues=3)
        with pytest.raises(InvalidConfig, match="must be in"):
            store.create_topic("more", 0x10001)
        with pytest.raises(InvalidMessage, match="topic"):
            store.create_topic("a b")
        with pytest.raises(InvalidConfig, match=r"it is there with .*_queue_count .*; update_topic changes it"):
            store.create_topic("orders", 9)
        assert store.create_topic("orders") == store.topic("orders")
        with pytest.raises(UnknownTopic):
            store.update_topic("order", ordered=True)


def test_groups_are_set_up_and_changed_and_survive(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_group("billing", max_retry_count=3)
        store.update_group("billing", enabled=False)
        with pytest.raises(NotPermitted, match="group 'billing': it is not enabled"):
            store.delivery.require_group("billing")
    with open_small(tmp_path, delivery=DeliveryConfig(auto_create_groups=False)) as store:
        assert store.group("billing").max_retry_count == 3 and not store.group("billing").enabled
        with pytest.raises(UnknownGroup):
            store.delivery.require_group("biling")


def test_a_reader_sets_nothing_up(tmp_path: Path) -> None:
    open_small(tmp_path).close()
    with open_small(tmp_path, read_only=True) as reader:
        with pytest.raises(ReadOnlyStore):
            reader.create_topic("orders")
        with pytest.raises(ReadOnlyStore):
            reader.create_group("billing")


def test_settings_have_rocketmqs_names() -> None:
    from mqlake import StoreConfig

    config = StoreConfig.from_properties(
        {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false", "flushConsumerOffsetInterval": "100"}
    )
    assert config.delivery == DeliveryConfig(
        auto_create_topics=False, auto_create_groups=False, persist_interval_ms=100
    )


def test_a_store_that_only_takes_messages_starts_with_one_look_at_one_file(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        assert store._delivery.peek() is None
        store.put(Message("orders", b""))
        delivery = store._delivery.peek()
        assert delivery is not None and delivery._groups.peek() is None and delivery._offsets.peek() is None
