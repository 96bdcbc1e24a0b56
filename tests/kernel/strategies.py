"""Messages and logs for property tests: what a store may be given, and what it may find on disk.

`records.py` makes raw records, valid or not. This module makes messages, logs as a store would write them, and bytes
that only look like a log.
"""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from mqlake.kernel import reference
from tests.kernel.records import INT32, INT64, PARTS, PROPERTIES, RAW_TEXT, Parts, blank_marker, damaged, stretch_of

Fields = dict[str, Any]
"""The arguments of a Message: each kernel makes its own from them."""

STORE_HOST = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F])
STORE_HOST_V6 = bytes.fromhex("20010db8000000000000000000000002") + bytes([0, 0, 0x2A, 0x9F])
DELAYS_MS = (1_000, 5_000, 10_000)

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
ANY_TEXT = st.text(max_size=12)
"""Including lone surrogates, separators and empty text."""
TOPICS = st.one_of(
    st.sampled_from(["orders", "payments", "SCHEDULE_TOPIC_XXXX", "rmq_sys_clock", "%LMQ%one", "%RETRY%group"]),
    st.integers(110, 248).map(lambda size: "%RETRY%" + "g" * size),
    TEXT,
)
HOSTS = st.sampled_from([None, "192.168.0.10:50001", "0.0.0.0:0", "[2001:db8::1]:50001", "255.255.255.255:65535"])
LIGHT_NAMES = st.lists(st.sampled_from(["%LMQ%one", "%LMQ%two", "plain", "a/b", ""]), min_size=1, max_size=4).map(
    ",".join
)
LIGHT_OFFSETS = st.lists(
    st.sampled_from(["0", "1", "7", "x", "", "999999999999999999", "1" * 19]), min_size=1, max_size=4
)
PROPERTY_VALUES = {
    "TAGS": st.sampled_from(["TagA", "标签", "😀", "polygenelubricants"]) | TEXT,
    "KEYS": st.sampled_from(["one", "one two", " one  two ", " "]) | TEXT,
    "UNIQ_KEY": TEXT,
    "DELAY": st.sampled_from(["0", "1", "3", "4", "99", "-1", "x", "1" * 19]),
    "TIMER_DELAY_SEC": st.sampled_from(["0", "60", "x"]),
    "TIMER_DELAYS": st.just("1"),
    "INNER_MULTI_DISPATCH": LIGHT_NAMES.filter(bool),
    "INNER_MULTI_QUEUE_OFFSET": LIGHT_OFFSETS.map(",".join).filter(bool),
    "__CRC32#": st.just("0000000000"),
}
PROPERTY_MAPS = st.builds(
    lambda known, others: known | others,
    st.fixed_dictionaries({}, optional=PROPERTY_VALUES),
    st.dictionaries(TEXT, TEXT, max_size=3),
)
MESSAGE_FIELDS: st.SearchStrategy[Fields] = st.fixed_dictionaries(
    {
        "topic": TOPICS,
        "body": st.binary(max_size=80),
        "properties": PROPERTY_MAPS,
        "born_timestamp": st.integers(0, 1 << 45),
    },
    optional={
        "born_host": HOSTS,
        "flag": INT32,
        "sys_flag": st.integers(0, 0x7FF),
        "reconsume_times": INT32,
        "prepared_offset": INT64,
        "queue_id": st.none() | st.integers(0, 3),
    },
)
REFUSED_FIELDS: st.SearchStrategy[Fields] = st.fixed_dictionaries(
    {
        "topic": TOPICS | ANY_TEXT,
        "body": st.binary(max_size=80),
        "properties": st.dictionaries(ANY_TEXT, ANY_TEXT | st.none() | st.binary(max_size=3), max_size=3)
        | st.integers(32_740, 32_780).map(lambda size: {"name": "v" * size}),
        "born_timestamp": st.just(0),
    },
    optional={
        "born_host": HOSTS | st.sampled_from(["", "localhost:1", "1.2.3.4", "1.2.3.4:65536", "[::1]", "1.2.3.4:x"]),
        "queue_id": st.sampled_from([None, 0, -1, 1 << 31, 1.5, "0"]),
    },
)
"""Messages, many of which cannot be stored."""


def make(twin: Any, fields: Fields) -> Any:
    """Return the message of one kernel."""
    return twin.Message(
        fields["topic"], fields["body"], **{k: v for k, v in fields.items() if k not in ("topic", "body")}
    )


@st.composite
def logs(draw: Any) -> tuple[bytes, int]:
    """Draw a log as a store writes it, and its first offset. Queue offsets rise by one, with occasional jumps."""
    log_start = draw(st.sampled_from([0, 4096, 1 << 40]))
    log = b""
    queue_offset = draw(st.integers(0, 1 << 40))
    for fields in draw(st.lists(MESSAGE_FIELDS, max_size=8)):
        message = make(reference, fields)
        timestamp = draw(st.integers(1_700_000_000_000, 1_700_000_900_000))
        places = fields.get("queue_id") or 0, queue_offset, log_start + len(log), timestamp
        append_crc = draw(st.booleans()) and "__CRC32#" not in fields["properties"]
        log += reference.encode_record(message, *places, draw(st.sampled_from([STORE_HOST, STORE_HOST_V6])), append_crc)
        queue_offset += draw(st.sampled_from([1, 1, 1, 2, 0]))
    if draw(st.booleans()):
        log += blank_marker(draw(st.integers(8, 64)))
    return log, log_start


RAW_LOGS = st.lists(PARTS, max_size=6).map(lambda parts: (stretch_of(parts, 4096), 4096))
"""Logs with names and values that are not UTF-8, negative queue ids, and properties that are not pairs."""


@st.composite
def any_logs(draw: Any) -> tuple[bytes, int]:
    """Draw a log that is sound, damaged, or no log at all."""
    log, log_start = draw(logs() | RAW_LOGS)
    kind = draw(st.sampled_from(["sound", "damaged", "random", "header"]))
    if kind == "damaged":
        log = draw(damaged(log))
    elif kind == "random":
        log = draw(st.binary(max_size=300))
    elif kind == "header":  # the start of a record, then arbitrary bytes
        magic = draw(st.sampled_from([0xDAA320A7, 0xDAA320AB, 0xCBD43194, 0]))
        log += struct.pack(">iI", draw(INT32 | st.integers(0, 400)), magic) + draw(st.binary(max_size=200))
    return log, log_start


__all__ = [
    "ANY_TEXT",
    "DELAYS_MS",
    "INT32",
    "INT64",
    "MESSAGE_FIELDS",
    "PROPERTIES",
    "RAW_TEXT",
    "REFUSED_FIELDS",
    "STORE_HOST",
    "STORE_HOST_V6",
    "Fields",
    "Parts",
    "any_logs",
    "logs",
    "make",
]
