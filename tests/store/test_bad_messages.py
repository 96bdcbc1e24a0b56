"""A message that cannot be stored is refused: the error says what was found and expected, and nothing is written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mqlake import CommitLogConfig, InvalidMessage, Message, MessageStore
from mqlake.kernel import reference
from tests.helpers import LOG_FILE, bodies, covers, message, open_small

LIMIT = 4 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_small(tmp_path / "store") as store:
        store.put(message(0, queue_id=0))
        yield store


def refused(store: MessageStore, *batch: Message, alone: bool = True) -> str:
    """Return the error of a refused put; the store must be unchanged and still take puts."""
    end, topics, folders = store.end_offset, store.topics(), sorted(os.listdir(store.path))
    with pytest.raises(InvalidMessage) as caught:
        store.put(*batch) if alone else store.put_many(list(batch))
    assert store.end_offset == end
    assert store.wait_dispatched()
    assert store.topics() == topics
    assert sorted(os.listdir(store.path)) == folders
    assert store.put(message(1, queue_id=0)).physical_offset == end
    return str(caught.value)


def order(**fields: Any) -> Message:
    return Message(fields.pop("topic", "orders"), fields.pop("body", b"x"), **fields)


# ---- topics


@pytest.mark.parametrize("topic", ["", None, b"orders", 7], ids=repr)
def test_a_topic_that_is_not_a_string_is_refused(store: MessageStore, topic: Any) -> None:
    assert refused(store, order(topic=topic)) == f"topic: found {topic!r}; expected a text that is not empty"


@pytest.mark.parametrize(
    "topic", ["a b", "a/b", "..", "a.b", "ünder", "a\0b", "a\n", "\ud800", "a#b", "{x}"], ids=ascii
)
def test_a_topic_with_characters_that_rocketmq_refuses_is_refused(store: MessageStore, topic: str) -> None:
    expected = "only ASCII letters, digits and the characters % | - _"
    assert refused(store, order(topic=topic)) == f"topic: found {topic!r}; expected {expected}"


@covers("G2")
@pytest.mark.parametrize("size", [128, 255, 40_000])
def test_a_topic_of_more_than_127_bytes_is_refused(store: MessageStore, size: int) -> None:
    text = refused(store, order(topic="t" * size))
    assert text.startswith(f"topic: found {size} bytes (")
    assert text.endswith("; expected at most 127 bytes")
    assert len(text) < 200


@pytest.mark.parametrize("topic", ["t" * 127, "%RETRY%" + "g" * 248, "%DLQ%g", "a|b-c_d%1"])
def test_the_longest_topics_and_all_allowed_characters_are_accepted(store: MessageStore, topic: str) -> None:
    store.put(order(topic=topic, queue_id=0))
    assert bodies(store, topic) == [b"x"]


def test_a_retry_topic_of_more_than_255_bytes_is_refused(store: MessageStore) -> None:
    text = refused(store, order(topic="%RETRY%" + "g" * 249))
    assert text.startswith("topic: found 256 bytes")
    assert text.endswith("expected at most 255 bytes")


# ---- properties


@covers("G2", "H18")
@pytest.mark.parametrize("append_crc", [False, True])
def test_properties_of_more_than_32767_bytes_are_refused(tmp_path: Path, append_crc: bool) -> None:
    config = CommitLogConfig(file_size_bytes=LOG_FILE, append_record_crc=append_crc)
    fits = 32767 - len("n") - 2 - (20 if append_crc else 0)
    with open_small(tmp_path / "other", commit_log=config) as store:
        text = refused(store, order(properties={"n": "v" * (fits + 1)}))
        assert text == "properties: found 32768 bytes encoded; expected at most 32767 bytes"
        receipt = store.put(order(properties={"n": "v" * fits}))
        assert store.get(receipt.physical_offset).properties["n"] == "v" * fits


def test_properties_are_measured_in_bytes_and_not_in_characters(store: MessageStore) -> None:
    assert "32769 bytes encoded" in refused(store, order(properties={"n": "签" * 10_922}))


@pytest.mark.parametrize("properties", [{"n\x01": "v"}, {"n": "v\x01"}, {"n\x02": "v"}, {"n": "\x02v"}], ids=repr)
def test_separators_inside_names_and_values_are_refused(store: MessageStore, properties: dict[str, str]) -> None:
    text = refused(store, order(properties=properties))
    assert repr(next(iter(properties))) in text
    assert text.endswith("no \\x01 or \\x02 inside a name or a value: they separate properties on disk")


@pytest.mark.parametrize("properties", [{"": "v"}, {"n": ""}], ids=repr)
def test_an_empty_name_or_value_is_refused_because_readers_would_drop_it(
    store: MessageStore, properties: dict[str, str]
) -> None:
    text = refused(store, order(properties=properties))
    assert text.startswith(f"properties: found {next(iter(properties))!r}: ''")
    assert text.endswith("no empty name or value: readers drop them")


@pytest.mark.parametrize("properties", [{"n": 1}, {1: "v"}, {"n": None}, {"n": b"v"}], ids=repr)
def test_a_property_that_is_not_a_string_is_refused(store: MessageStore, properties: Any) -> None:
    assert refused(store, order(properties=properties)).endswith("expected names and values of type str")


def test_a_property_that_utf8_cannot_encode_is_refused(store: MessageStore) -> None:
    text = refused(store, order(properties={"n": "\udc00"}))
    assert text == r"properties: found 'n': '\udc00'; expected text without lone surrogates"


@pytest.mark.parametrize("keys", [["a b"], [""], ["a", ""]], ids=repr)
def test_a_key_that_would_merge_with_its_neighbours_is_refused(keys: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"keys: found .*; expected keys that are not empty and hold no space"):
        Message("orders", b"", keys=keys)


# ---- bodies, queues, hosts, numbers


@covers("H18")
def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_accepted(tmp_path: Path) -> None:
    config = CommitLogConfig(file_size_bytes=LOG_FILE, max_message_bytes=1000)
    with open_small(tmp_path / "other", commit_log=config) as store:
        text = refused(store, order(body=b"x" * 1001))
        assert text == "body: found 1001 bytes; expected at most 1000 bytes (maxMessageSize)"
        assert len(store.get(store.put(order(body=b"x" * 1000)).physical_offset).body) == 1000


def test_the_limit_is_four_mebibytes_unless_configured(store: MessageStore) -> None:
    text = refused(store, order(body=bytes(LIMIT + 1)))
    assert text == f"body: found {LIMIT + 1} bytes; expected at most {LIMIT} bytes (maxMessageSize)"


@pytest.mark.parametrize("topic", ["orders", "new"])
def test_a_message_bigger_than_a_file_is_refused_with_the_files_size(store: MessageStore, topic: str) -> None:
    files = sorted((store.path / "commitlog").iterdir())
    text = refused(store, order(topic=topic, body=bytes(LOG_FILE)))
    assert text.startswith("message: found 656")
    assert text.endswith("bytes as a record; expected at most 65528 bytes, because files have 65536")
    assert sorted((store.path / "commitlog").iterdir()) == files


@pytest.mark.parametrize("body", ["text", None, 7], ids=repr)
@pytest.mark.parametrize("topic", ["orders", "new"])
def test_a_body_that_is_not_bytes_is_refused_and_nothing_is_written(store: MessageStore, topic: str, body: Any) -> None:
    text = refused(store, order(topic=topic, body=body))
    assert text == f"body: found {type(body)!r}; expected bytes or another bytes-like object"
    assert refused(store, order(topic=topic), order(topic=topic, body=body), alone=False) == text


@pytest.mark.parametrize("queue_id", [-1, 1 << 31, 1.5, "0"], ids=repr)
@pytest.mark.parametrize("topic", ["orders", "new"])
def test_a_queue_id_out_of_range_is_refused(store: MessageStore, topic: str, queue_id: Any) -> None:
    text = refused(store, order(topic=topic, queue_id=queue_id))
    assert text == f"queue_id: found {queue_id!r}; expected a number in [0, 2147483647]"


@pytest.mark.parametrize("host", ["", "localhost:80", "1.2.3.4", "1.2.3.4:65536", "1.2.3:4", "[::1]", "::1"])
def test_a_host_that_is_not_an_address_and_port_is_refused(store: MessageStore, host: str) -> None:
    text = refused(store, order(born_host=host))
    assert text == f"host: found {host!r}; expected an address and a port, like 127.0.0.1:10911 or [::1]:10911"


@pytest.mark.parametrize("field", ["flag", "sys_flag", "reconsume_times"])
def test_a_number_too_big_for_its_field_is_refused(field: str) -> None:
    with pytest.raises(
        InvalidMessage, match=rf"{field}: found 2147483648; expected a whole number in \[-2147483648, 2147"
    ):
        Message("orders", b"", **{field: 1 << 31})  # type: ignore[arg-type]


# ---- batches


def test_an_empty_batch_is_refused(store: MessageStore) -> None:
    assert refused(store, alone=False) == "batch: found no messages; expected at least one"


@pytest.mark.parametrize("kind", [0x4, 0x8, 0xC])
@pytest.mark.parametrize("topic", ["orders", "new"])
def test_a_transaction_inside_a_batch_is_refused(store: MessageStore, topic: str, kind: int) -> None:
    text = refused(store, order(topic=topic), order(topic=topic, sys_flag=kind), alone=False)
    assert text.startswith(f"batch: found Message('{topic}', 1 bytes")
    assert text.endswith("no transactions in a batch: put it alone")


def test_light_queues_inside_a_batch_are_refused(store: MessageStore) -> None:
    light = order(properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    assert refused(store, light, order(), alone=False).endswith("no light queues in a batch: put it alone")


def test_a_batch_over_the_limit_is_refused(tmp_path: Path) -> None:
    config = CommitLogConfig(file_size_bytes=4 * LOG_FILE, max_message_bytes=1000)
    with open_small(tmp_path / "other", commit_log=config) as store:
        store.put(message(0, queue_id=0))
        text = refused(store, *[order(body=bytes(1000))] * 70, alone=False)
        assert text.startswith("batch: found 76")
        assert "bytes in 70 records; expected at most 66536 bytes (maxMessageSize and 64 KiB); put it in parts" in text


def test_a_batch_bigger_than_a_file_is_refused_with_the_files_size(store: MessageStore) -> None:
    text = refused(store, *[order(body=bytes(30_000))] * 3, alone=False)
    assert "expected at most 65528 bytes, because files have 65536" in text


def test_one_bad_message_refuses_its_whole_batch(store: MessageStore) -> None:
    bad = order(properties={"n": ""})
    assert "no empty name or value" in refused(store, order(), order(topic="new"), bad, alone=False)


# ---- light queues


@pytest.mark.parametrize("name", ["..", ".", "a\0b", "%LMQ%" + "x" * 300], ids=ascii)
def test_a_light_queue_that_cannot_be_a_folder_is_refused(store: MessageStore, name: str) -> None:
    text = refused(store, order(properties={"INNER_MULTI_DISPATCH": f"%LMQ%a,{name}"}))
    assert "INNER_MULTI_DISPATCH" in text or "topic" in text


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_the_ends_of_the_calendar_are_no_delivery_time_and_can_be_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """In most zones a local time there lies in no year of UTC."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with pytest.raises(InvalidMessage, match="deliver_at"):
            Message("orders", b"", deliver_at=datetime.min)
        with open_small(tmp_path) as store:
            store.put(Message("orders", b"", queue_id=0))
            assert store.read("orders", wait_s=5)
            assert store.seek_time("orders", datetime.min) == 0
            assert store.seek_time("orders", datetime.min.replace(tzinfo=UTC)) == 0
            assert store.seek_time("orders", datetime.max) == 1
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_message_with_a_wrong_body_can_be_shown() -> None:
    assert "None" in repr(Message("orders", None)) and "2 bytes" in repr(Message("orders", b"17"))  # type: ignore[arg-type]


@pytest.mark.parametrize("tags", [3, 0, ["a"], b"a", True], ids=repr)
def test_a_tag_that_is_no_text_is_named_as_the_tag(tags: Any) -> None:
    for kind in (Message, reference.Message):
        with pytest.raises(InvalidMessage) as caught:
            kind("orders", b"x", tags=tags)
        assert str(caught.value) == f"tags: found {tags!r}; expected one tag of type str"
