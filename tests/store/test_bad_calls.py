"""A call that cannot be answered raises an error that names what was requested and what exists."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mqlake import (
    CommitLogConfig,
    ConsumeQueueConfig,
    DiskAboveLimit,
    Durability,
    FlushConfig,
    IndexConfig,
    InvalidConfig,
    InvalidMessage,
    MessageStore,
    NoSuchMessage,
    OffsetOutOfRange,
    PoolConfig,
    ReadOnlyStore,
    StoreClosed,
    StoreConfig,
    StoredMessage,
    StoreError,
    UnknownTopic,
)
from tests.helpers import message, open_small


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_small(tmp_path / "store") as store:
        for number in range(5):
            store.put(message(number, queue_id=0))
        store.put(message(5, topic="payments", queue_id=3))
        store.create_topic("orders")
        store.create_group("g")
        assert store.wait_dispatched()
        yield store


# ---- offsets, topics, queues


@pytest.mark.parametrize("start", [-1, 6, 1 << 40, -(1 << 40)])
def test_an_offset_outside_a_queue_names_both_ends(store: MessageStore, start: int) -> None:
    with pytest.raises(OffsetOutOfRange) as caught:
        store.read("orders", start=start)
    assert str(caught.value) == f"orders, queue 0: offset {start} is outside of [0, 5)"
    assert (caught.value.first_offset, caught.value.end_offset) == (0, 5)
    assert store.read("orders", start=5) == []  # the end itself: nothing there yet


@pytest.mark.parametrize("offset", [-1, 1 << 40])
def test_an_offset_outside_the_log_names_both_ends(store: MessageStore, offset: int) -> None:
    for ask in (store.get, lambda at: store.scan(start=at), lambda at: store.scan(end=at)):
        with pytest.raises(OffsetOutOfRange) as caught:
            ask(offset)
        assert str(caught.value) == f"commit log: offset {offset} is outside of [0, {store.end_offset})"


def test_the_end_of_the_log_is_no_message(store: MessageStore) -> None:
    with pytest.raises(OffsetOutOfRange):
        store.get(store.end_offset)


@pytest.mark.parametrize(
    "ask",
    [lambda s: s.read("nope"), lambda s: s.queues("nope"), lambda s: s.seek_time("nope", 0)],
    ids=["read", "queues", "seek_time"],
)
def test_an_unknown_topic_is_named_with_the_existing_ones(
    store: MessageStore, ask: Callable[[MessageStore], object]
) -> None:
    with pytest.raises(UnknownTopic) as caught:
        ask(store)
    assert str(caught.value) == "topic 'nope': not in this store; it has 2 topics: orders, payments"


@pytest.mark.parametrize("queue_id", [0, 4, -1, 1 << 40])
def test_an_unknown_queue_is_named_with_the_queues_of_its_topic(store: MessageStore, queue_id: int) -> None:
    for ask in (store.read, lambda topic, queue_id: store.seek_time(topic, 0, queue_id=queue_id)):
        with pytest.raises(UnknownTopic) as caught:
            ask("payments", queue_id=queue_id)
        expected = f"topic 'payments', queue {queue_id}: not in this store; it has queues 3 of this topic"
        assert str(caught.value) == expected


def test_an_empty_store_says_that_it_has_no_topics(tmp_path: Path) -> None:
    with open_small(tmp_path / "new") as store:
        for ask in (store.read, store.queues):
            with pytest.raises(UnknownTopic, match="topic 'orders': not in this store; it has no topics yet"):
                ask("orders")
        assert store.topics() == []


# ---- message ids, and offsets without a message


@pytest.mark.parametrize("text", ["", "zz", "0A", "g" * 32, "0" * 31, "0" * 33, "0" * 40, "ü" * 32], ids=ascii)
def test_a_string_that_is_no_message_id_is_refused_with_its_length(store: MessageStore, text: str) -> None:
    with pytest.raises(NoSuchMessage) as caught:
        store.get(text)
    assert str(caught.value) == (
        f"message id {text!r}: it has {len(text)} characters; "
        "expected 32 hexadecimal digits, or 56 with an IPv6 store host"
    )


def test_a_message_id_of_another_store_is_recognised(store: MessageStore) -> None:
    with pytest.raises(NoSuchMessage, match=r"the message at 0 was stored by 127\.0\.0\.1:10911"):
        store.get("0A00000100002A9F0000000000000000")


@pytest.mark.parametrize("offset", ["FFFFFFFFFFFFFFFF", "0000010000000000"])
def test_a_message_id_outside_the_log_names_both_ends(store: MessageStore, offset: str) -> None:
    with pytest.raises(NoSuchMessage, match=r"it names physical offset -?\d+: commit log: offset .* outside of \[0, "):
        store.get(f"7F00000100002A9F{offset}")


@pytest.mark.parametrize("inside", [1, 4, 20, 90])
def test_an_offset_in_the_middle_of_a_record_is_no_message(store: MessageStore, inside: int) -> None:
    with pytest.raises(NoSuchMessage, match=f"physical offset {inside}: no record begins here: "):
        store.get(inside)
    with pytest.raises(NoSuchMessage, match=f"physical offset {inside}: no record begins here: "):
        store.get(f"7F00000100002A9F{inside:016X}")


def test_an_end_of_file_marker_is_no_message(tmp_path: Path) -> None:
    with open_small(tmp_path / "other", commit_log=CommitLogConfig(file_size_bytes=4096)) as store:
        while (receipt := store.put(message(0, body=bytes(500)))).physical_offset < 4096:
            marker = receipt.end
        with pytest.raises(NoSuchMessage, match=f"physical offset {marker}: the marker that closes a file is here"):
            store.get(marker)


# ---- after close, and read only

NO_MESSAGE = cast(StoredMessage, None)
"""It is not looked at where nothing can be done with it."""
CALLS: dict[str, Callable[[MessageStore], Any]] = {
    "put": lambda s: s.put(message(0)),
    "put_many": lambda s: s.put_many([message(0)]),
    "put_async": lambda s: asyncio.run(s.put_async(message(0))),
    "put_packed": lambda s: s.put_packed(b""),
    "match_packed": lambda s: s.match_packed(0, 0, b""),
    "flush": lambda s: s.flush(),
    "read": lambda s: s.read("orders"),
    "get": lambda s: s.get(0),
    "find": lambda s: s.find("orders", "key-1"),
    "seek_time": lambda s: s.seek_time("orders", 0),
    "scan": lambda s: s.scan(),
    "dump": lambda s: s.dump({}),
    "topics": lambda s: s.topics(),
    "queues": lambda s: s.queues("orders"),
    "stats": lambda s: s.stats(),
    "first_offset": lambda s: s.first_offset,
    "end_offset": lambda s: s.end_offset,
    "wait_dispatched": lambda s: s.wait_dispatched(),
    "retain": lambda s: s.retain(),
    "retention": lambda s: s.retention,
    "port": lambda s: s.port,
    "put_as_is": lambda s: s.put_as_is(message(0)),
    "delivery": lambda s: s.delivery,
    "health": lambda s: s.health(),
    "backup": lambda s: s.backup(s.path.parent / "copy"),
    "heal": lambda s: s.heal(s.path.parent / "copy"),
    "run": lambda s: s.run(print, group="g", topic="orders"),
    "run_async": lambda s: asyncio.run(s.run_async(print, group="g", topic="orders")),
    "topic": lambda s: s.topic("orders"),
    "create_topic": lambda s: s.create_topic("more"),
    "update_topic": lambda s: s.update_topic("orders", ordered=True),
    "delete_topic": lambda s: s.delete_topic("orders"),
    "groups": lambda s: s.groups(),
    "group": lambda s: s.group("g"),
    "create_group": lambda s: s.create_group("more"),
    "update_group": lambda s: s.update_group("g", max_retry_count=1),
    "delete_group": lambda s: s.delete_group("g"),
    "consumer": lambda s: s.consumer("g", "orders", progress="memory").close(),
    "lag": lambda s: s.lag("g"),
    "reset": lambda s: s.reset("g", "orders", "first"),
    "waiting": lambda s: s.waiting(),
    "cancel": lambda s: s.cancel(0),
    "retry": lambda s: s.retry("g", NO_MESSAGE),
    "resend": lambda s: s.resend(NO_MESSAGE),
    "transaction": lambda s: s.transaction(),
    "transactions": lambda s: s.transactions,
}
WRITES = (
    *("put", "put_many", "put_packed", "put_async", "put_as_is", "flush", "retain", "retention", "port"),
    *("create_topic", "update_topic", "delete_topic", "create_group", "update_group", "delete_group"),
    *("reset", "cancel", "retry", "resend", "transaction", "transactions", "heal"),
)


def test_every_public_call_is_tried_on_a_closed_store() -> None:
    public = {name for name, _ in inspect.getmembers(MessageStore) if not name.startswith("_")}
    assert public - {"open", "close", "recovery", "slave"} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_store_says_that_it_is_closed(store: MessageStore, name: str) -> None:
    store.close()
    with pytest.raises(StoreClosed) as caught:
        CALLS[name](store)
    assert str(caught.value) == f"{store.path}: the store is closed; open it again with MessageStore.open"


@pytest.mark.parametrize("name", [name for name in CALLS if name not in (*WRITES, "run", "run_async")])
def test_a_closed_reader_says_that_it_is_closed(store: MessageStore, name: str) -> None:
    reader = MessageStore.open(store.path, read_only=True)
    CALLS[name](reader)
    reader.close()
    with pytest.raises(StoreClosed):
        CALLS[name](reader)


@pytest.mark.parametrize("name", WRITES)
def test_a_reader_refuses_to_write_and_says_how_to_open_a_writer(store: MessageStore, name: str) -> None:
    end = store.end_offset
    with MessageStore.open(store.path, read_only=True) as reader, pytest.raises(ReadOnlyStore) as caught:
        CALLS[name](reader)
    assert str(caught.value) == f"{store.path}: opened read-only; open it without read_only=True to write"
    assert store.end_offset == end


def test_errors_survive_pickling_with_their_text() -> None:
    errors: list[StoreError] = [
        OffsetOutOfRange("commit log", 9, 0, 5),
        UnknownTopic("t", None, "no topics yet"),
        InvalidConfig("a", 1, "must be 2"),
        StoreClosed(Path("here")),
        DiskAboveLimit(Path("here"), 91, 90, 85),
    ]
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.args) == (type(error), str(error), error.args)


# ---- durability


def test_a_level_without_a_replica_is_refused_and_nothing_is_written(store: MessageStore) -> None:
    end = store.end_offset
    for put in (store.put, lambda m, durability: store.put_many([m], durability=durability)):
        with pytest.raises(InvalidConfig) as caught:
            put(message(0), durability=Durability.REPLICA)
        assert str(caught.value) == "durability = 'REPLICA': this store serves no slaves; use DISK or less"
    assert store.end_offset == end


@pytest.mark.parametrize("level", [7, -1, "DISK", 1.5], ids=repr)
def test_an_unknown_level_is_refused_and_nothing_is_written(store: MessageStore, level: Any) -> None:
    end = store.end_offset
    with pytest.raises(InvalidConfig, match="durability"):
        store.put(message(0), durability=level)
    assert store.end_offset == end


# ---- settings


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: CommitLogConfig(file_size_bytes=4095),
            "file_size_bytes = 4095: must be a whole number in [4096, 2147483647]",
        ),
        (
            lambda: CommitLogConfig(file_size_bytes=1 << 31),
            "file_size_bytes = 2147483648: must be a whole number in [4096, 2147483647]",
        ),
        (
            lambda: CommitLogConfig(max_message_bytes=0),
            "max_message_bytes = 0: must be a whole number in [1, 2147418111]",
        ),
        (
            lambda: CommitLogConfig(max_message_bytes=True),
            "max_message_bytes = True: must be a whole number in [1, 2147418111]",
        ),
        (
            lambda: CommitLogConfig(store_host="nowhere"),
            "store_host = 'nowhere': an address and a port, like 127.0.0.1:10911 or [::1]:10911",
        ),
        (
            lambda: ConsumeQueueConfig(file_size_bytes=0),
            "file_size_bytes = 0: must be a whole number in [20, 2147483647]",
        ),
        (lambda: ConsumeQueueConfig(queues_per_topic=0), "queues_per_topic = 0: must be a whole number in [1, 65536]"),
        (lambda: IndexConfig(slot_count=0), "slot_count = 0: must be a whole number in [1, 500000000]"),
        (lambda: IndexConfig(entry_count=1), "entry_count = 1: must be a whole number in [2, 100000000]"),
        (lambda: FlushConfig(interval_ms=0), "interval_ms = 0: must be a whole number in [1, 10000]"),
        (lambda: FlushConfig(interval_ms=20_000), "interval_ms = 20000: must be a whole number in [1, 10000]"),
        (lambda: FlushConfig(timeout_ms=1.5), "timeout_ms = 1.5: must be a whole number in [1, 86400000]"),  # type: ignore[arg-type]
        (lambda: PoolConfig(buffer_count=1), "buffer_count = 1: must be a whole number in [2, 1024]"),
        (lambda: StoreConfig(delay_levels="1s 5x"), "messageDelayLevel = '5x': must be a number and one of s, m, h, d"),
        (lambda: StoreConfig(delay_levels=""), "messageDelayLevel = '': must name 1 to 64 levels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_out_of_range_is_named_with_its_range(make: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        make()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "maxMessageSizes=1",
            "maxMessageSizes = '1': RocketMQ has no such setting; correct the name or remove it",
        ),
        ("maxMessageSize=many", "maxMessageSize = 'many': must be a whole number"),
        ("maxMessageSize=0", "maxMessageSize = 0: must be a whole number in [1, 2147418111]"),
        ("flushDiskType=SYNC", "flushDiskType = 'SYNC': must be SYNC_FLUSH or ASYNC_FLUSH"),
        ("messageIndexEnable=yes", "messageIndexEnable = 'yes': must be true or false"),
        ("messageDelayLevel=1s 2y", "messageDelayLevel = '2y': must be a number and one of s, m, h, d"),
        ("transientStorePoolSize=1", "transientStorePoolSize = 1: must be a whole number in [2, 1024]"),
    ],
)
def test_a_bad_line_of_a_broker_conf_is_named_by_rocketmqs_own_name(tmp_path: Path, line: str, text: str) -> None:
    (tmp_path / "broker.conf").write_text(f"# a broker\nbrokerName=broker-a\n{line}\n")
    with pytest.raises(InvalidConfig) as caught:
        StoreConfig.load(tmp_path / "broker.conf")
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "value", "low"),
    [("mappedFileSizeCommitLog", "100", 4096), ("mappedFileSizeConsumeQueue", "0", 20)],
)
def test_a_file_size_out_of_range_is_named_by_rocketmqs_own_name(name: str, value: str, low: int) -> None:
    """Two settings have this key in our own configuration: the error must use the name that was written."""
    with pytest.raises(InvalidConfig) as caught:
        StoreConfig.from_properties({name: value})
    assert str(caught.value) == f"{name} = {value}: must be a whole number in [{low}, 2147483647]"


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_an_impossible_host_is_named_by_rocketmqs_own_name(port: str) -> None:
    with pytest.raises(InvalidConfig, match=r"brokerIP1|listenPort"):
        StoreConfig.from_properties({"brokerIP1": "10.0.0.1", "listenPort": port})


def test_a_line_without_an_equals_sign_is_named_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\nmaxMessageSize 100\n")
    with pytest.raises(InvalidConfig) as caught:
        StoreConfig.load(path)
    assert str(caught.value) == f"{path}, line 2 = 'maxMessageSize 100': must read name=value"


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["missing", "no text"])
def test_a_broker_conf_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "broker.conf").write_bytes(content)
    with pytest.raises(InvalidConfig, match=r"broker\.conf.*cannot be read"):
        StoreConfig.load(tmp_path / "broker.conf")


def test_broker_settings_that_a_store_does_not_use_are_accepted() -> None:
    config = StoreConfig.from_properties({"brokerClusterName": "c", "namesrvAddr": "x:1", "rocketmq.x": "1"})
    assert config == StoreConfig()


def test_a_section_of_the_wrong_type_is_refused_with_the_class_that_it_must_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="flush = True: must be a FlushConfig"):
        MessageStore.open(tmp_path / "new", flush=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match=r"config = .*: must be a StoreConfig"):
        MessageStore.open(tmp_path / "new", config={"flush": 1})  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
    with pytest.raises(TypeError, match=r"opened by MessageStore\.open\(path\)"):
        MessageStore()


def test_a_look_up_of_what_no_message_can_have_is_refused(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.put(message(1))
        for topic, key in (("orders", "n\udcc3"), ("\udcc3", "17")):
            with pytest.raises(InvalidMessage, match="text without lone surrogates"):
                store.find(topic, key)
        with pytest.raises(UnknownTopic, match="it has 1 topic: "):
            store.read("nope")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"queue_id": "0"}, "queue_id = '0': must be a whole number"),
        ({"start": "0"}, "start = '0': must be a whole number"),
        ({"start": 1.0}, "start = 1.0: must be a whole number"),
        ({"limit": "2"}, "limit = '2': must be a whole number, 0 or more"),
        ({"limit": -1}, "limit = -1: must be a whole number, 0 or more"),
    ],
    ids=str,
)
def test_a_read_names_the_argument_that_is_no_number(store: MessageStore, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        store.read("orders", **arguments)
    assert str(caught.value) == told


def test_numbers_of_other_types_are_numbers(store: MessageStore) -> None:
    class Number:
        def __index__(self) -> int:
            return 1

    assert [m.queue_offset for m in store.read("orders", start=cast(int, Number()), limit=cast(int, Number()))] == [1]


@pytest.mark.parametrize("key", [17, b"17", None], ids=repr)
def test_a_key_that_is_no_text_is_refused_by_a_look_up(store: MessageStore, key: Any) -> None:
    with pytest.raises(InvalidMessage) as caught:
        store.find("orders", key)
    assert str(caught.value) == f"key: found {key!r}; expected a text, of type str"


@pytest.mark.parametrize("value", ["false", "no", 0, None], ids=repr)
def test_a_switch_is_true_or_false_and_no_text(tmp_path: Path, value: Any) -> None:
    """The text "false" would turn it on."""
    with pytest.raises(InvalidConfig) as caught:
        MessageStore.open(tmp_path / "new", flush=FlushConfig(sync=value))
    assert str(caught.value) == f"sync = {value!r}: must be True or False"
    assert not (tmp_path / "new").exists()
