"""RocketMQ's bytes: examples computed by hand and compared with the original's encoder (docs/format.md)."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from mqlake import CommitLogConfig
from mqlake.codec.checkpoint import CHECKPOINT_SIZE, RocketCheckpoint
from mqlake.codec.index_entry import DEFAULT_ENTRIES, DEFAULT_SLOTS, IndexHeader, index_file_size, key_hash, key_text
from mqlake.codec.message_id import decode_message_id, encode_message_id
from mqlake.codec.queue_entry import BATCH_ENTRY, FILLER, BatchEntry
from mqlake.kernel.hosts import format_host, pack_host
from mqlake.kernel.types import BLANK, REACHED_END
from tests.helpers import covers, message, open_small
from tests.kernel.twins import both

BORN, STORED = 1_700_000_000_000, 1_700_000_000_123
BORN_HOST, STORE_HOST = "192.168.0.10:50001", "10.0.0.1:10911"
BORN_HOST_V6, STORE_HOST_V6 = "[2001:db8::1]:50001", "[2001:db8::2]:10911"
PROPERTIES_A = {"KEYS": "order-1001 vip", "TAGS": "TagA", "UNIQ_KEY": "C0A8000A1A2B18B4AAC21F3C4D5E0000"}
DELAYS_MS = (1_000, 5_000, 10_000, 30_000)

RECORD_A = bytes.fromhex(
    "000000ba daa320a7 69c865ed 00000001 00000000 0000000000000000 0000000000000000 00000000 0000018bcfe56800"
    "c0a8000a0000c351 0000018bcfe5687b 0a00000100002a9f 00000000 0000000000000000"
    "0000000e 48656c6c6f20526f636b65744d51 09 546f70696354657374 0048"
    "4b455953016f726465722d313030312076697002 54414753015461674102"
    "554e49515f4b4559014330413830303041314132423138423441414332314633433444354530303030 02"
)
RECORD_B = bytes.fromhex(
    "000000a8daa320a77098aa7d0000000200000000000000000000000700000000000000ba00000000"
    "0000018bcfe56800c0a8000a0000c3510000018bcfe5687b0a00000100002a9f0000000000000000"
    "000000000000000864656c6179206d65135343484544554c455f544f5049435f5858585800325441"
    "475301546167420244454c41590133025245414c5f544f50494301546f7069635465737402524541"
    "4c5f514944013002"
)
RECORD_C = bytes.fromhex(
    "000000cedaa320a769c865ed00000001000000000000000000000000000000000000000000000000"
    "0000018bcfe56800c0a8000a0000c3510000018bcfe5687b0a00000100002a9f0000000000000000"
    "000000000000000e48656c6c6f20526f636b65744d5109546f70696354657374005c4b455953016f"
    "726465722d31303031207669700254414753015461674102554e49515f4b45590143304138303030"
    "41314132423138423441414332314633433444354530303030025f5f435243333223013936333935"
    "373835313102"
)
RECORD_D = bytes.fromhex(
    "000000f6daa320ab706b9d0f00000000000000000000000000000001000000000000100000000030"
    "0000018bcfe5680020010db80000000000000000000000010000c3510000018bcfe5687b20010db8"
    "00000000000000000000000200002a9f0000000000000000000000000000000276320080"
    "25524554525925" + "67" * 121 + "0000"
)

twins = pytest.mark.parametrize("twin", both(), ids=lambda twin: twin.__name__.rpartition(".")[2])


def record(twin: Any, topic: str, body: bytes, places: tuple[int, int, int], **more: Any) -> bytes:
    """Return a record with the hosts and times that the examples share."""
    store_host = pack_host(more.pop("store_host", STORE_HOST))
    append_crc = more.pop("append_crc", False)
    fields = {"born_timestamp": BORN, "born_host": BORN_HOST} | more
    encoded = twin.encode_record(twin.Message(topic, body, **fields), *places, STORED, store_host, append_crc)
    assert isinstance(encoded, bytes)
    return encoded


# ---- records


@covers("H1", "H2", "H3", "H4", "H5", "H6", "H7", "H8", "H9", "H11", "H13", "H14", "H15", "H17")
@twins
def test_an_ordinary_record_is_rocketmqs_byte_for_byte(twin: Any) -> None:
    assert record(twin, "TopicTest", b"Hello RocketMQ", (1, 0, 0), properties=PROPERTIES_A) == RECORD_A


@twins
def test_tags_and_keys_become_the_properties_that_rocketmq_reads(twin: Any) -> None:
    made = twin.Message("TopicTest", b"", keys=["order-1001", "vip"], tags="TagA")
    assert made.properties == {"KEYS": "order-1001 vip", "TAGS": "TagA"}


@twins
def test_a_delayed_record_is_rocketmqs_byte_for_byte(twin: Any) -> None:
    properties = {"TAGS": "TagB", "DELAY": "3", "REAL_TOPIC": "TopicTest", "REAL_QID": "0"}
    assert record(twin, "SCHEDULE_TOPIC_XXXX", b"delay me", (2, 7, 186), properties=properties) == RECORD_B
    assert twin.crc32(b"delay me") == 0xF098AA7D  # stored without its highest bit: 7098aa7d


@twins
def test_a_record_with_its_crc_as_a_property_is_rocketmqs_byte_for_byte(twin: Any) -> None:
    arguments = "TopicTest", b"Hello RocketMQ", (1, 0, 0)
    assert record(twin, *arguments, properties=PROPERTIES_A, append_crc=True) == RECORD_C
    assert RECORD_C.endswith(b"__CRC32#\x019639578511\x02")  # 1158759369, least significant digit first
    stale = PROPERTIES_A | {"__CRC32#": "0000000000"}
    assert record(twin, *arguments, properties=stale, append_crc=True) == RECORD_C


@covers("H10", "H12", "H16")
@twins
def test_a_long_retry_topic_and_ipv6_hosts_are_rocketmqs_byte_for_byte(twin: Any) -> None:
    hosts = {"born_host": BORN_HOST_V6, "store_host": STORE_HOST_V6}
    assert record(twin, "%RETRY%" + "g" * 121, b"v2", (0, 1, 4096), **hosts) == RECORD_D


@twins
@pytest.mark.parametrize(
    ("example", "offset"), [(RECORD_A, 0), (RECORD_B, 186), (RECORD_C, 0), (RECORD_D, 4096)], ids="ABCD"
)
def test_each_example_reads_as_one_whole_record(twin: Any, example: bytes, offset: int) -> None:
    assert twin.check_record(example, 0, len(example), offset, True) == len(example)
    stored = twin.StoredRecord(example)
    assert (stored.physical_offset, stored.born_timestamp, stored.store_timestamp) == (offset, BORN, STORED)


@twins
def test_properties_without_a_last_separator_are_read_too(twin: Any) -> None:
    """4.9.1 to 5.1.4 omit it: one byte less, everything else equal."""
    shorter = bytearray(RECORD_A[:-1])
    struct.pack_into(">i", shorter, 0, 185)
    struct.pack_into(">h", shorter, 112, 71)
    assert twin.check_record(shorter, 0, 185, 0, True) == 185
    assert twin.StoredRecord(bytes(shorter)).properties == PROPERTIES_A == twin.StoredRecord(RECORD_A).properties


@twins
def test_an_end_of_file_marker_ends_a_walk(twin: Any) -> None:
    marker = bytes.fromhex("00000064 cbd43194") + b"remains of an older message".ljust(92, b"\xda")
    assert twin.check_record(marker, 0, len(marker), 0, True) == BLANK
    log = RECORD_A + RECORD_B + marker
    assert twin.walk_records(log, 0, len(log), 0, True) == (186 + 168, BLANK, 2, 186, STORED)
    assert twin.walk_records(log, 0, len(log), 0, True, 1) == (186, REACHED_END, 1, 0, STORED)


def test_a_full_file_is_closed_by_a_marker_over_the_rest_of_it(tmp_path: Path) -> None:
    with open_small(tmp_path, commit_log=CommitLogConfig(file_size_bytes=4096)) as store:
        while (receipt := store.put(message(0, body=b"x" * 500))).physical_offset < 4096:
            end = receipt.end
    first = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    assert first[end : end + 8] == struct.pack(">iI", 4096 - end, 0xCBD43194)
    assert not any(first[end + 8 :])


# ---- consume queue


@twins
def test_queue_entries_are_rocketmqs_byte_for_byte(twin: Any) -> None:
    log = RECORD_A + RECORD_B
    position, why, runs, _, count, last, timestamp = twin.dispatch_records(
        log, 0, len(log), 0, len(log), DELAYS_MS, False, False
    )
    assert (position, why, count, last, timestamp) == (len(log), 1, 2, 186, STORED)
    assert runs == [
        ("TopicTest", 1, 0, bytes.fromhex("0000000000000000 000000ba 000000000027a807")),
        ("SCHEDULE_TOPIC_XXXX", 2, 7, bytes.fromhex("00000000000000ba 000000a8 0000018bcfe58f8b")),
    ]


@twins
def test_a_negative_hash_fills_the_upper_half_of_the_tags_code(twin: Any) -> None:
    log = record(twin, "t", b"x" * 94, (0, 0, 0), properties={"TAGS": "polygenelubricants"})
    _, _, runs, *_ = twin.dispatch_records(log, 0, len(log), 0, len(log), DELAYS_MS, False, False)
    assert runs[0][3] == struct.pack(">qi", 0, len(log)) + bytes.fromhex("ffffffff80000000")


def test_fillers_and_entries_of_batches_are_rocketmqs() -> None:
    assert bytes.fromhex("0000000000000000 7fffffff 0000000000000000") == FILLER
    entry = BatchEntry(4096, 500, 2598919, STORED, 30, 3, -1, 0)
    assert BATCH_ENTRY.pack(*entry) == bytes.fromhex(
        "0000000000001000 000001f4 000000000027a807 0000018bcfe5687b 000000000000001e 0003 ffffffff 00000000"
    )


@twins
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("标签", 857175),
        ("😀", 1772899),
        ("TopicTest", -1902610879),
        ("polygenelubricants", -(1 << 31)),
        ("TopicTest#C0A8000A1A2B18B4AAC21F3C4D5E0000", -1982127388),
        ("TopicTest#order-1001", 1043804929),
        ("TopicTest#vip", 85139163),
    ],
)
def test_hashes_are_javas(twin: Any, text: str, expected: int) -> None:
    assert twin.java_hash(text) == expected
    assert twin.java_hash(text[2:], twin.java_hash(text[:2])) == expected  # a hash can be continued


# ---- index

SLOTS, ENTRIES = 100, 400
VIP_AGAIN = struct.pack("<iqq", 85139163, 512, 1_700_000_061_999)


@twins
def test_an_index_file_is_rocketmqs_byte_for_byte(twin: Any) -> None:
    keys = twin.dispatch_records(RECORD_A, 0, len(RECORD_A), 0, 1, DELAYS_MS, True, False)[3] + VIP_AGAIN
    expected = bytearray(index_file_size(SLOTS, ENTRIES))
    for at, text in {
        0: "0000018bcfe5687b 0000018bcfe65a2f 0000000000000000 0000000000000200 00000003 00000005",
        392: "00000001",
        156: "00000002",
        292: "00000004",
        460: "7624dd1c 0000000000000000 00000000 00000000",
        480: "3e373301 0000000000000000 00000000 00000000",
        500: "05131edb 0000000000000000 00000000 00000000",
        520: "05131edb 0000000000000200 0000003d 00000003",
    }.items():
        content = bytes.fromhex(text)
        expected[at : at + len(content)] = content
    index = bytearray(len(expected))
    assert twin.put_index_keys(index, SLOTS, ENTRIES, keys, 0) == 4
    assert index == expected
    assert twin.find_index_key(index, SLOTS, ENTRIES, 85139163, 0, 1 << 62, 64) == [512, 0]


@twins
def test_the_first_entry_after_a_roll_counts_its_seconds_from_the_file_before(twin: Any) -> None:
    """A quirk of RocketMQ: the difference is 3 seconds although the file's own begin time equals the entry's."""
    index = bytearray(index_file_size(SLOTS, ENTRIES))
    struct.pack_into(">qqqqii", index, 0, *(1_700_000_061_999,) * 2, *(512,) * 2, 0, 1)
    key = struct.pack("<iqq", key_hash("TopicTest#next"), 900, 1_700_000_065_000)
    assert twin.put_index_keys(index, SLOTS, ENTRIES, key, 0) == 1
    assert index[:40] == bytes.fromhex(
        "0000018bcfe665e8 0000018bcfe665e8 0000000000000384 0000000000000384 00000001 00000002"
    )
    assert index[40 + 4 * 51 : 44 + 4 * 51] == bytes.fromhex("00000001")
    assert index[460:480] == bytes.fromhex("62b2f40b 0000000000000384 00000003 00000000")


@twins
def test_a_full_index_file_accepts_no_more_and_returns_where_it_stopped(twin: Any) -> None:
    """Entry 0 is never used, so a file for N entries holds N - 1."""
    keys = b"".join(struct.pack("<iqq", number, number, STORED) for number in range(10))
    index = bytearray(index_file_size(3, 5))
    assert twin.put_index_keys(index, 3, 5, keys, 0) == 4
    assert IndexHeader.decode(bytes(index)).next_entry == 5


@twins
def test_dispatch_orders_index_keys_as_rocketmq_does(twin: Any) -> None:
    """The client's id, then the keys, then (since 5.4) the tag."""
    keys = twin.dispatch_records(RECORD_A, 0, len(RECORD_A), 0, 1, DELAYS_MS, True, True)[3]
    texts = [key_text("TopicTest", key) for key in (PROPERTIES_A["UNIQ_KEY"], "order-1001", "vip")]
    expected = [*texts, key_text("TopicTest", "TagA", tag=True)]
    assert list(struct.iter_unpack("<iqq", keys)) == [(key_hash(text), 0, STORED) for text in expected]


def test_index_hashes_and_sizes_are_rocketmqs() -> None:
    assert key_hash("polygenelubricants") == 0  # the one int without an absolute value
    assert key_hash("TopicTest#C0A8000A1A2B18B4AAC21F3C4D5E0000") == 1982127388
    assert index_file_size(DEFAULT_SLOTS, DEFAULT_ENTRIES) == 420_000_040


# ---- checkpoint, ids, hosts


def test_the_checkpoint_is_rocketmqs_byte_for_byte() -> None:
    encoded = RocketCheckpoint(log_timestamp=STORED, queue_timestamp=1_700_000_000_100).encode()
    assert encoded == bytes.fromhex("0000018bcfe5687b 0000018bcfe56864").ljust(4096, b"\0")
    assert RocketCheckpoint.decode(encoded).log_timestamp == STORED
    assert len(encoded) == CHECKPOINT_SIZE


def test_a_checkpoint_of_an_older_release_reads_as_if_zeros_followed() -> None:
    assert RocketCheckpoint.decode(struct.pack(">qqq", 1, 2, 3)) == RocketCheckpoint(1, 2, 3)
    assert RocketCheckpoint.decode(b"") == RocketCheckpoint()


@pytest.mark.parametrize(
    ("host", "offset", "text"),
    [
        (STORE_HOST, 0, "0A00000100002A9F0000000000000000"),
        (STORE_HOST, 186, "0A00000100002A9F00000000000000BA"),
        ("192.168.30.188:10911", 83768, "C0A81EBC00002A9F0000000000014738"),
        (STORE_HOST_V6, 4096, "20010DB800000000000000000000000200002A9F0000000000001000"),
    ],
)
def test_message_ids_are_rocketmqs(host: str, offset: int, text: str) -> None:
    assert encode_message_id(pack_host(host), offset) == text
    assert decode_message_id(text) == (pack_host(host), offset)
    assert format_host(pack_host(host)) == host
    for twin in both():
        assert twin.PutReceipt("t", 0, 0, offset, 1, 0, 2, pack_host(host)).message_id == text
