"""Topics and groups: puts follow a topic's settings; topics that are created on first use are written later."""

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
from mqlake.delivery.registry.topics import Permission, Topic
from tests.helpers import QUEUE_FILE, covers, message, open_small


def queue_ids(store: MessageStore, count: int, topic: str = "orders") -> list[int]:
    return [store.put(message(number, topic)).queue_id for number in range(count)]


@covers("P1")
def test_puts_are_spread_over_the_configured_queues_of_a_topic(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("orders", 3)
        assert queue_ids(store, 4) == [0, 1, 2, 0]
        store.update_topic("orders", write_queue_count=2)
        assert queue_ids(store, 3) == [1, 0, 1]
        store.update_topic("orders", write_queue_count=5)
        assert queue_ids(store, 9) == [0, 1, 2, 3, 4, 0, 1, 2, 3]
        store.update_topic("orders", write_queue_count=3)  # the next put would have gone to queue 4
        assert queue_ids(store, 3) == [1, 2, 0]
        store.update_topic("orders", write_queue_count=5)
    with open_small(tmp_path) as store:
        assert store.topic("orders") == Topic("orders", 3, 5)
        assert queue_ids(store, 6) == [0, 1, 2, 3, 4, 0]
        assert [q.end_offset for q in store.queues("orders")] == [8, 7, 5, 3, 2]


def test_queue_offsets_stay_consecutive_when_settings_change_while_dispatch_is_behind(tmp_path: Path) -> None:
    """The next queue offsets are ahead of the queues on disk. They survive the change of a topic."""
    with open_small(tmp_path) as store:
        store.create_topic("orders", 1)
        for number in range(60):
            assert store.put(message(number)).queue_offset == number
            store.update_topic("orders", ordered=number % 2 == 0)


def test_creating_a_topic_that_exists_by_use_is_durable_on_return(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(message(1))
        store.create_topic("orders", 4)  # it exists with these settings, but only in memory
        with open_small(tmp_path, read_only=True) as reader:
            assert reader.topic("orders") == Topic("orders", 4, 4)


def test_a_put_creates_its_topic_and_close_writes_it(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(message(1))
        assert store.topic("orders") == Topic("orders", 4, 4)
    with open_small(tmp_path, read_only=True) as reader:
        assert reader.topic("orders") == Topic("orders", 4, 4)


def test_a_topic_created_on_first_use_counts_the_queues_it_already_has(tmp_path: Path) -> None:
    with open_small(
        tmp_path, consume_queue=ConsumeQueueConfig(queues_per_topic=9, file_size_bytes=QUEUE_FILE)
    ) as store:
        queue_ids(store, 9)
    for file in (tmp_path / "config").iterdir():
        file.unlink()
    with open_small(tmp_path) as store:
        store.put(message(1))
        assert store.topic("orders").write_queue_count == 9


def test_without_auto_creation_a_put_to_an_unknown_topic_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    with open_small(tmp_path, delivery=DeliveryConfig(auto_create_topics=False)) as store:
        store.create_topic("orders")
        with pytest.raises(UnknownTopic, match=r"'order': .* it has orders; create_topic .*autoCreateTopicEnable"):
            store.put(message(1, "order"))
        with pytest.raises(UnknownTopic):
            store.put_many([message(1), message(2, "order")])
        store.put(message(1))
        store.put(message(1, "%RETRY%readers"))  # system topics are created on first use even so
        assert store.stats().appended_end > 0 and store.topics() == ["%RETRY%readers", "orders"]


def test_a_topic_takes_no_messages_while_it_has_no_write_permission(tmp_path: Path) -> None:
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


def test_the_error_for_an_unknown_setting_lists_the_known_ones(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("orders")
        with pytest.raises(InvalidConfig, match=r"queues = 3: unknown setting; known are read_queue_count, write_"):
            store.update_topic("orders", queues=3)
        with pytest.raises(InvalidConfig, match="must be in"):
            store.create_topic("more", 0x10001)
        with pytest.raises(InvalidMessage, match="topic"):
            store.create_topic("a b")
        with pytest.raises(InvalidConfig, match=r"it exists with .*_queue_count .*; update_topic changes it"):
            store.create_topic("orders", 9)
        assert store.create_topic("orders") == store.topic("orders")
        with pytest.raises(UnknownTopic):
            store.update_topic("order", ordered=True)


def test_group_settings_are_saved_and_can_be_changed(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_group("billing", max_retry_count=3)
        store.update_group("billing", enabled=False)
        with pytest.raises(NotPermitted, match="group 'billing': it is not enabled"):
            store.delivery.require_group("billing")
    with open_small(tmp_path, delivery=DeliveryConfig(auto_create_groups=False)) as store:
        assert store.group("billing").max_retry_count == 3 and not store.group("billing").enabled
        with pytest.raises(UnknownGroup):
            store.delivery.require_group("biling")


def test_a_reader_cannot_create_topics_or_groups(tmp_path: Path) -> None:
    open_small(tmp_path).close()
    with open_small(tmp_path, read_only=True) as reader:
        with pytest.raises(ReadOnlyStore):
            reader.create_topic("orders")
        with pytest.raises(ReadOnlyStore):
            reader.create_group("billing")


def test_settings_are_read_by_rocketmqs_names() -> None:
    from mqlake import StoreConfig

    config = StoreConfig.from_properties(
        {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false", "flushConsumerOffsetInterval": "100"}
    )
    assert config.delivery == DeliveryConfig(
        auto_create_topics=False, auto_create_groups=False, persist_interval_ms=100
    )


def test_a_store_that_only_takes_messages_reads_one_config_file(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        delivery = store.delivery
        assert delivery._topics.peek() is None
        store.put(Message("orders", b""))
        assert delivery._topics.peek() is not None
        assert delivery._groups.peek() is None and delivery._offsets.peek() is None
