"""Frames from anyone: bad lengths are refused before memory is spent, good commands before a bad one are kept."""

from __future__ import annotations

import struct

import pytest

from mqlake.errors import BadFrame, BadRequest
from mqlake.kernel import Command, encode_command
from mqlake.message import Message
from mqlake.remoting.bodies import (
    decode_batch,
    decode_records,
    encode_batch,
    encode_properties,
    object_map,
    parse_properties,
    read_json,
)
from mqlake.remoting.frames import FrameReader
from mqlake.remoting.headers import PullHeader, QueueHeader, SendHeader, SendHeaderV2, read_send_header

GOOD = encode_command(Command(105, fields={"topic": "T"}, opaque=7))


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 3),
        struct.pack(">i", 16 * 1024 * 1024 + 1),
        struct.pack(">i", 1_000_000_000),
        struct.pack(">ii", 8, 5) + b"abcd",
        struct.pack(">ii", 8, 2 << 24 | 4) + b"abcd",
        struct.pack(">ii", 8, 4) + b"abcd",
        struct.pack(">ii", 8, 1 << 24 | 4) + b"abcd",
        struct.pack(">ii", 6, 2) + b"{}",
        struct.pack(">ii", 6, 2) + b"[]",
        struct.pack(">ii", 4, 0),
        struct.pack(">ii", 4 + 100_000, 100_000) + b"[" * 100_000,
    ],
)
def test_what_is_no_frame_is_refused_as_soon_as_it_shows(frame: bytes) -> None:
    with pytest.raises(BadFrame):
        FrameReader().feed(frame)
    reader = FrameReader()
    assert reader.feed(GOOD + frame) == FrameReader().feed(GOOD), "commands before it are not lost"
    assert reader.has_more
    with pytest.raises(BadFrame):
        reader.feed(b"")


def test_only_one_incomplete_frame_is_kept() -> None:
    reader = FrameReader()
    for _ in range(1000):
        assert len(reader.feed(GOOD[:-1])) == 0
        assert len(reader.feed(GOOD[-1:])) == 1
        assert reader.kept_bytes == 0


@pytest.mark.parametrize(
    ("header", "fields"),
    [
        (
            b'{"code":1,"extFields":{"a":1,"b":true,"c":null,"d":false,"e":-5}}',
            {"a": "1", "b": "true", "d": "false", "e": "-5"},
        ),
        (b'{"code":1,"extFields":{"a":1.5,"b":[1],"c":{"d":1}}}', {"a": "1.5", "b": "[1]", "c": '{"d":1}'}),
        (b'{"code":1,"extFields":{"a":"\\ud83d\\ude00"}}', {"a": "\U0001f600"}),
        (b'{"code":1,"extFields":{"a":"\\ud83d"}}', {"a": "\ufffd"}),
        (b'{"code":1,"extFields":{"a":"\\u00e9\\n\\"\\/"}}', {"a": 'é\n"/'}),
        (b' { "code" : 1 , "extFields" : { "a" : "b" } } ', {"a": "b"}),
        (b'{"code":1,"extFields":null}', {}),
        (b'{"code":1}', {}),
        (b'{"code":"1","x":[1,2,{}]}', {}),
    ],
)
def test_json_headers_of_every_client_are_read(header: bytes, fields: dict[str, str]) -> None:
    (command,) = FrameReader().feed(struct.pack(">ii", 4 + len(header), len(header)) + header)
    assert (command.code, command.fields) == (1, fields)


def test_a_header_names_the_field_that_is_wrong() -> None:
    with pytest.raises(BadRequest, match="queueId"):
        QueueHeader.read({"topic": "T", "queueId": "four"})
    with pytest.raises(BadRequest, match="topic"):
        QueueHeader.read({"queueId": "4"})


def test_both_forms_of_a_send_header_say_the_same() -> None:
    long = SendHeader("G", "T", "TBW102", 4, 0, 0, 17, 0, properties="A\x01b\x02", batch=True)
    short = SendHeaderV2("G", "T", "TBW102", 4, 0, 0, 17, 0, properties="A\x01b\x02", batch=True)
    assert set(short.write()) == set("abcdefghikm")
    assert read_send_header(short.write()) == short
    assert read_send_header(long.write()) == long


def test_a_pull_header_needs_neither_subscription_nor_limits() -> None:
    header = PullHeader.read(
        {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "5", "maxMsgNums": "32", "sysFlag": "2"}
    )
    assert header.subscription is None and header.max_msg_bytes is None and header.suspend_timeout_millis == 0


def test_a_batch_is_read_as_it_was_written() -> None:
    batch = encode_batch([Message("T", b"one", tags="A"), Message("T", b"", flag=3)])
    assert list(decode_batch(batch)) == [(0, b"one", {"TAGS": "A"}), (3, b"", {})]


def test_no_cut_of_a_batch_is_read_as_whole() -> None:
    batch = encode_batch([Message("T", b"one", tags="A"), Message("T", b"two")])
    first = int.from_bytes(batch[:4], "big")
    for size in range(1, len(batch)):
        if size != first:
            with pytest.raises(BadRequest):
                list(decode_batch(batch[:size]))


def test_records_that_are_cut_are_refused() -> None:
    with pytest.raises(BadRequest):
        decode_records(struct.pack(">i", 100) + b"\0" * 50)


def test_properties_are_read_with_and_without_their_last_separator() -> None:
    assert parse_properties("A\x01b\x02C\x01d") == parse_properties("A\x01b\x02C\x01d\x02") == {"A": "b", "C": "d"}
    assert parse_properties(None) == {}
    assert encode_properties({"A": "b"}) == "A\x01b\x02"


def test_maps_with_objects_as_keys_are_written_and_read() -> None:
    text = object_map([({"queueId": 0, "topic": 'T"{'}, {"maxOffset": 5}), ({"queueId": 1, "topic": "T"}, 6)])
    assert text == '{{"queueId":0,"topic":"T\\"{"}:{"maxOffset":5},{"queueId":1,"topic":"T"}:6}'
    assert list(read_json(b'{"offsetTable":' + text.encode() + b"}")["offsetTable"].values()) == [{"maxOffset": 5}, 6]
    assert read_json(b'{"brokerAddrs":{0:"h:1",-1:"h:2"}}') == {"brokerAddrs": {"0": "h:1", "-1": "h:2"}}
    assert read_json(b'{ {"a" : "}"} : {1 : ",2:"}, "b":",{\\"c\\":1}:"}') == {
        '{"a" : "}"}': {"1": ",2:"},
        "b": ',{"c":1}:',
    }
