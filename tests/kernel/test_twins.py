"""The compiled kernel returns what the reference returns: same result, or same error with the same text."""

from __future__ import annotations

import mmap
import pickle
import struct
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqlake.kernel.reference.record import parse
from mqlake.kernel.types import BAD_ENTRY, REASONS, Run
from tests.kernel.records import Parts, damaged
from tests.kernel.strategies import (
    ANY_TEXT,
    DELAYS_MS,
    INT32,
    INT64,
    MESSAGE_FIELDS,
    PROPERTIES,
    REFUSED_FIELDS,
    STORE_HOST,
    STORE_HOST_V6,
    Fields,
    any_logs,
    logs,
    make,
)
from tests.kernel.twins import Outcome, compiled, outcome, reference, require_agreement


class FileOfLog(NamedTuple):
    start: int
    pages: Any


ENTRY = struct.Struct(">qiq")
KEY = struct.Struct("<iqq")
SLOTS, ENTRIES = 7, 12
INDEX_SIZE = 40 + 4 * SLOTS + 20 * ENTRIES
RECORD_ATTRIBUTES = [
    "record",
    "topic",
    "properties",
    "tags",
    "keys",
    "raw_body",
    "size",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "flag",
    "sys_flag",
    "born_timestamp",
    "store_timestamp",
    "born_address",
    "store_address",
    "reconsume_times",
    "prepared_offset",
    "body_crc",
]
MESSAGE_ATTRIBUTES = [
    "topic",
    "body",
    "queue_id",
    "properties",
    "flag",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "reconsume_times",
    "prepared_offset",
    "tags",
    "keys",
]


def pages(data: bytes) -> mmap.mmap | bytes:
    """Return bytes in a mapping, as the store has them."""
    if not data:
        return data
    mapped = mmap.mmap(-1, len(data))
    mapped.write(data)
    return mapped


@given(
    data=st.binary(max_size=300),
    position=st.integers(-1, 301),
    end=st.integers(0, 301),
    block_bytes=st.integers(0, 100),
    crc=st.integers(0, (1 << 32) - 1),
)
@example(data=bytes(range(256)) * 40, position=0, end=10_000, block_bytes=4096, crc=0)
def test_checksums_of_blocks_agree(data: bytes, position: int, end: int, block_bytes: int, crc: int) -> None:
    require_agreement("checksum_blocks", data, position, end, block_bytes, crc, crc ^ 1)
    require_agreement("checksum_blocks", pages(data), position, end, block_bytes)


def test_checksums_of_blocks_are_those_that_everybody_knows() -> None:
    found = struct.unpack("<II", compiled().checksum_blocks(b"123456789", 0, 9, 16))
    assert found == (0xCBF43926, 0xE3069283)  # the check values of CRC-32 and CRC-32C


@given(data=st.binary(max_size=300), value=st.integers(0, (1 << 32) - 1))
@example(data=bytes(range(256)) * 300, value=0)  # long enough that the interpreter lock is released
@example(data=b"\xff" * 64, value=1)
def test_crc32_agrees_on_every_length(data: bytes, value: int) -> None:
    require_agreement("crc32", data, value)
    require_agreement("crc32", memoryview(data)[1:], value)


@given(text=ANY_TEXT | st.text(), seed=INT32)
@example(text="", seed=0)
@example(text="\ud800", seed=0)
@example(text="a\udc00b", seed=7)
@example(text="😀标签", seed=-1)
@example(text="polygenelubricants", seed=0)
def test_java_hash_agrees_on_all_text_including_lone_surrogates(text: str, seed: int) -> None:
    require_agreement("java_hash", text, seed)


@given(
    fields=MESSAGE_FIELDS | REFUSED_FIELDS,
    places=st.tuples(INT32, INT64, INT64, INT64),
    host=st.sampled_from([STORE_HOST, STORE_HOST_V6]),
    append_crc=st.booleans(),
)
def test_encode_record_agrees_on_messages_that_can_be_stored_and_that_cannot(
    fields: Fields, places: tuple[int, ...], host: bytes, append_crc: bool
) -> None:
    def encoded(twin: Any) -> Any:
        return outcome(lambda: twin.encode_record(make(twin, fields), *places, host, append_crc))

    assert encoded(compiled()) == encoded(reference)


@given(data=PROPERTIES | st.binary(max_size=60))
@example(data=b"a\x01b")
@example(data=b"a\x01\x02\x01b\x02a\x01b\x01c\x02")
@example(data=b"\xff\x01\xc3\x02")
def test_decode_properties_agrees_on_any_bytes(data: bytes) -> None:
    require_agreement("decode_properties", data)


@given(log=any_logs(), check_crc=st.booleans(), shift=st.integers(-1, 1), data=st.data())
def test_check_record_agrees_at_every_position(log: tuple[bytes, int], check_crc: bool, shift: int, data: Any) -> None:
    content, log_start = log
    position = data.draw(st.integers(-1, len(content) + 1) | st.just(0))
    end = data.draw(st.integers(-1, len(content) + 1) | st.just(len(content)))
    offset = data.draw(st.sampled_from([log_start + position + shift, -1]))
    require_agreement("check_record", pages(content), position, end, offset, check_crc)


@given(log=any_logs(), check_crc=st.booleans(), data=st.data())
def test_walk_records_agrees(log: tuple[bytes, int], check_crc: bool, data: Any) -> None:
    content, log_start = log
    position = data.draw(st.integers(0, len(content)) | st.just(0))
    end = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    require_agreement("walk_records", pages(content), position, end, log_start, check_crc)
    require_agreement(
        "walk_records", pages(content), position, end, log_start, check_crc, data.draw(st.integers(-1, 5))
    )


@given(log=any_logs(), max_bytes=st.sampled_from([0, 1, 150, 1 << 20, (1 << 63) - 1]), data=st.data())
def test_survey_records_agrees(log: tuple[bytes, int], max_bytes: int, data: Any) -> None:
    content, log_start = log
    position = data.draw(st.integers(0, len(content)) | st.just(0))
    end = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    require_agreement("survey_records", pages(content), position, end, log_start, max_bytes)


@given(
    log=any_logs(),
    max_bytes=st.sampled_from([0, 1, 150, 1 << 20, (1 << 63) - 1]),
    delays=st.sampled_from([DELAYS_MS, (), tuple(range(64)), tuple(range(65))]),
    index_keys=st.booleans(),
    index_tags=st.booleans(),
    data=st.data(),
)
def test_dispatch_records_agrees(
    log: tuple[bytes, int], max_bytes: int, delays: tuple[int, ...], index_keys: bool, index_tags: bool, data: Any
) -> None:
    content, log_start = log
    position = data.draw(st.integers(0, len(content)) | st.just(0))
    end = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    arguments = pages(content), position, end, log_start, max_bytes, delays, index_keys, index_tags
    ours = outcome(lambda: compiled().dispatch_records(*arguments))
    theirs = outcome(lambda: reference.dispatch_records(*arguments))
    assert without_runs(ours) == without_runs(theirs)
    if ours[0] == "returned":
        assert places(ours[1][2]) == places(theirs[1][2])
        # Two names that are not UTF-8 may read the same: the compiled kernel still keeps them in separate runs.
        assert ours == theirs or any("\ufffd" in topic for topic, *_ in theirs[1][2])


def test_a_delayed_message_with_the_latest_possible_time_is_dispatched_by_both() -> None:
    message = make(reference, {"topic": "SCHEDULE_TOPIC_XXXX", "body": b"", "properties": {"DELAY": "3"}})
    log = reference.encode_record(message, 0, 0, 0, (1 << 63) - 1, STORE_HOST, False)
    _, dispatched = require_agreement("dispatch_records", log, 0, len(log), 0, len(log), DELAYS_MS, True, True)
    assert ENTRY.unpack(dispatched[2][0][3])[2] == -(1 << 63) + 9_999  # sums wrap around, as in Java


def without_runs(dispatched: Outcome) -> Any:
    kind, result = dispatched
    return (kind, *result[:2], *result[3:]) if kind == "returned" else dispatched


def places(runs: list[Run]) -> list[tuple[str, int, int, bytes]]:
    """Return every entry with its queue and queue offset."""
    return sorted(
        (topic, queue_id, first + number, entries[20 * number : 20 * number + 20])
        for topic, queue_id, first, entries in runs
        for number in range(len(entries) // 20)
    )


def test_dispatch_of_many_queues_agrees() -> None:
    """Use more queues than the compiled table starts with, each again and again, in and out of order."""
    message = make(reference, {"topic": "t", "body": b"", "properties": {"KEYS": "a b c", "TAGS": "x"}})
    log = b"".join(
        reference.encode_record(
            message, number % 700, number // 700 * (1 + number % 2), 110 * number, 5, STORE_HOST, False
        )
        for number in range(2100)
    )
    assert len(log) == 110 * 2100
    _, dispatched = require_agreement("dispatch_records", log, 0, len(log), 0, len(log), (), True, True)
    assert sum(len(entries) for _, _, _, entries in dispatched[2]) == 20 * 2100


@given(
    entries=st.lists(st.tuples(INT64 | st.integers(0, 400), INT32 | st.integers(0, 100), INT64), max_size=6),
    tail=st.binary(max_size=19),
    log_end=st.integers(0, (1 << 63) - 1) | st.integers(0, 500),
)
def test_count_valid_entries_agrees(entries: list[tuple[int, int, int]], tail: bytes, log_end: int) -> None:
    require_agreement("count_valid_entries", b"".join(ENTRY.pack(*entry) for entry in entries) + tail, log_end)


@given(log=any_logs(), max_bytes=st.sampled_from([0, 1, 200, 1 << 20, -1]), data=st.data())
def test_read_records_agrees_on_right_and_on_wrong_entries(log: tuple[bytes, int], max_bytes: int, data: Any) -> None:
    content, log_start = log
    _, _, runs, *_ = reference.dispatch_records(content, 0, len(content), log_start, len(content), (), False, False)
    entries = b"".join(entries for _, _, _, entries in runs)
    lie = st.tuples(
        INT64 | st.integers(log_start - 5, log_start + len(content) + 5), INT32 | st.integers(0, 400), INT64
    )
    entries += b"".join(ENTRY.pack(*entry) for entry in data.draw(st.lists(lie, max_size=2)))
    entries = data.draw(st.just(entries) | damaged(entries))
    first = data.draw(st.integers(-2, 3) | st.just(0))
    stop = data.draw(st.just(len(entries) // 20) | st.integers(-1, len(entries) // 20 + 1))
    readable = data.draw(st.just(len(content)) | st.integers(-1, len(content) + 1))
    log_first = data.draw(st.just(log_start) | st.integers(0, log_start + 200))
    file = FileOfLog(log_start, pages(content))
    file_end = log_start + len(content) + data.draw(st.sampled_from([0, 50]))  # a file may be shorter than it should be
    queues = [(topic.encode(errors="replace"), queue_id, number) for topic, queue_id, number, _ in runs]
    queue = data.draw(st.sampled_from([*queues, (b"", 0, 0), (b"orders", 1, 7)]))

    def read(twin: Any) -> Any:
        topic, queue_id, number = queue
        bounds = log_first, log_start + readable, lambda offset: file if log_start <= offset < file_end else None
        arguments = entries, first, stop, number, topic, queue_id, *bounds, max_bytes, twin.StoredRecord
        kind, result = outcome(lambda: twin.read_records(*arguments))
        return kind, ([record.record for record in result[0]], *result[1:]) if kind == "returned" else result

    assert read(compiled()) == read(reference)


def test_read_records_accepts_only_subclasses_of_stored_record() -> None:
    for twin in (reference, compiled()):
        with pytest.raises(TypeError, match="<class 'bytes'> is not a StoredRecord"):
            twin.read_records(b"", 0, 0, 0, b"t", 0, 0, 0, lambda _: None, 1, bytes)


def test_read_records_accepts_a_record_only_at_its_own_queue_offset_or_in_one_of_its_light_queues() -> None:
    lights = b"INNER_MULTI_DISPATCH\x01%LMQ%a,b\x02INNER_MULTI_QUEUE_OFFSET\x017,9\x02"
    record = Parts(topic=b"orders", body=b"x", properties=lights).record(0)
    stored = reference.StoredRecord(record)
    own = stored.queue_id, stored.queue_offset
    entry = ENTRY.pack(0, len(record), 0)
    numbers = {(b"orders", *own): 1, (b"%LMQ%a", 0, 7): 1, (b"b", own[0], 9): 1}
    wrong = [
        (b"orders", own[0] + 1, own[1]),
        (b"orders", own[0], own[1] + 1),
        (b"order", *own),
        (b"%LMQ%a", 0, 9),
        (b"%LMQ%a", 5, 7),
        (b"b", own[0] + 1, 9),
        (b"c", own[0], 9),
    ]
    file = FileOfLog(0, record)
    for twin in (reference, compiled()):

        def read(queue: tuple[bytes, int, int], twin: Any = twin) -> Any:
            topic, queue_id, number = queue
            bounds = 0, len(record), lambda _: file
            return twin.read_records(entry, 0, 1, number, topic, queue_id, *bounds, 1, twin.StoredRecord)

        for queue in numbers:
            found, after, why = read(queue)
            assert ([r.record for r in found], after, why) == ([record], 1, 0)
        for queue in wrong:
            assert read(queue) == ([], 0, BAD_ENTRY)


INDEX_KEYS = st.lists(
    st.tuples(INT32 | st.integers(0, 20), INT64 | st.integers(0, 50), INT64 | st.integers(0, 90_000)), max_size=20
).map(lambda keys: b"".join(KEY.pack(*key) for key in keys))
INDEX_BYTES = st.one_of(
    st.just(bytes(INDEX_SIZE)),
    st.binary(min_size=INDEX_SIZE, max_size=INDEX_SIZE),
    st.binary(min_size=40, max_size=40).map(lambda head: head.ljust(INDEX_SIZE, b"\0")),
    st.binary(max_size=INDEX_SIZE),
)


@given(
    index=INDEX_BYTES,
    keys=INDEX_KEYS,
    first=st.integers(-1, 3),
    geometry=st.sampled_from(
        [(SLOTS, ENTRIES), (1, 5), (SLOTS, ENTRIES + 1), (0, 1), (1, 0), (-1, 1), (1 << 30, 1 << 30)]
    ),
)
def test_put_index_keys_agrees_and_leaves_the_same_file(
    index: bytes, keys: bytes, first: int, geometry: tuple[int, int]
) -> None:
    ours, theirs = bytearray(index), bytearray(index)
    found = outcome(lambda: compiled().put_index_keys(ours, *geometry, keys, first))
    assert found == outcome(lambda: reference.put_index_keys(theirs, *geometry, keys, first))
    assert ours == theirs


@given(index=INDEX_BYTES, keys=INDEX_KEYS, sound=st.booleans())
def test_link_index_entries_agrees_and_gives_the_same_as_entering(index: bytes, keys: bytes, sound: bool) -> None:
    content = bytearray(INDEX_SIZE if sound else index)
    if sound:
        reference.put_index_keys(content, SLOTS, ENTRIES, keys, 0)
    ours, theirs = bytearray(content), bytearray(content)
    found = outcome(lambda: compiled().link_index_entries(ours, SLOTS, ENTRIES))
    assert found == outcome(lambda: reference.link_index_entries(theirs, SLOTS, ENTRIES))
    assert ours == theirs
    if sound:
        assert ours == content


@given(index=INDEX_BYTES, keys=INDEX_KEYS, cut=st.integers(0, INDEX_SIZE), sound=st.booleans())
def test_index_entries_hold_agrees_and_detects_a_cut(index: bytes, keys: bytes, cut: int, sound: bool) -> None:
    content = bytearray(INDEX_SIZE if sound else index)
    offsets = sorted(KEY.iter_unpack(keys[: len(keys) // 20 * 20]), key=lambda key: key[1])
    rising = b"".join(KEY.pack(*key) for key in offsets)
    if sound:
        reference.put_index_keys(content, SLOTS, ENTRIES, rising, 0)
    header = bytes(content[:40])
    cut_off = content[:cut].ljust(len(content), b"\0")
    for data, head in ((content, header), (cut_off, header), (content, header[:-1])):
        found = outcome(lambda: compiled().index_entries_hold(data, SLOTS, ENTRIES, head))  # noqa: B023
        assert found == outcome(lambda: reference.index_entries_hold(data, SLOTS, ENTRIES, head))  # noqa: B023


def test_entries_that_the_header_counts_and_the_file_lacks_are_detected() -> None:
    index = bytearray(INDEX_SIZE)
    reference.put_index_keys(index, SLOTS, ENTRIES, b"".join(KEY.pack(n, 100 + n, 1000) for n in range(5)), 0)
    header = bytes(index[:40])
    assert compiled().index_entries_hold(index, SLOTS, ENTRIES, header)
    last = 40 + 4 * SLOTS + 20 * 5
    assert not compiled().index_entries_hold(index[:last].ljust(INDEX_SIZE, b"\0"), SLOTS, ENTRIES, header)
    index[last - 12] ^= 1
    assert not compiled().index_entries_hold(index, SLOTS, ENTRIES, header)


def test_a_header_of_largest_numbers_is_handled_alike() -> None:
    head = struct.pack(">qqqqii", (1 << 63) - 1, 0, 0, 0, (1 << 31) - 1, 1)
    ours, theirs = bytearray(head.ljust(INDEX_SIZE, b"\0")), bytearray(head.ljust(INDEX_SIZE, b"\0"))
    keys = KEY.pack(3, 9, 10) + KEY.pack(3, 10, (1 << 63) - 1)
    assert compiled().put_index_keys(ours, SLOTS, ENTRIES, keys, 0) == 2
    assert reference.put_index_keys(theirs, SLOTS, ENTRIES, keys, 0) == 2
    assert ours == theirs


@given(
    index=INDEX_BYTES,
    keys=INDEX_KEYS,
    key_hash=INT32 | st.integers(0, 20),
    times=st.tuples(st.integers(-5, 90_000), INT64 | st.integers(0, 100_000)),
    limit=st.integers(-1, 20),
    sound=st.booleans(),
)
def test_find_index_key_agrees_on_sound_and_on_damaged_files(
    index: bytes, keys: bytes, key_hash: int, times: tuple[int, int], limit: int, sound: bool
) -> None:
    content = bytearray(INDEX_SIZE if sound else index)
    if sound:
        reference.put_index_keys(content, SLOTS, ENTRIES, keys, 0)
    require_agreement("find_index_key", content, SLOTS, ENTRIES, key_hash, *times, limit)


@given(
    fields=MESSAGE_FIELDS,
    tags=st.none() | st.text(max_size=3),
    keys=st.text(max_size=3) | st.lists(st.text(max_size=3)),
)
def test_messages_have_the_same_attributes(fields: Fields, tags: str | None, keys: str | list[str]) -> None:
    def shown(twin: Any) -> Any:
        message = make(twin, fields | {"tags": tags, "keys": keys})
        return [getattr(message, name) for name in MESSAGE_ATTRIBUTES], repr(message)

    assert outcome(lambda: shown(compiled())) == outcome(lambda: shown(reference))


@pytest.mark.parametrize("field", ["flag", "sys_flag", "born_timestamp", "reconsume_times", "prepared_offset"])
@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1, 1 << 63, -(1 << 63) - 1, "1", 1.5])
def test_a_number_that_its_field_cannot_hold_is_refused_by_both(field: str, value: object) -> None:
    def attempt(twin: Any) -> Any:
        return outcome(lambda: getattr(twin.Message("t", b"", **{field: value}), field))

    assert attempt(compiled()) == attempt(reference)
    wide = field in ("born_timestamp", "prepared_offset") and value in (1 << 31, -(1 << 31) - 1)
    assert attempt(reference)[0] == ("returned" if wide else "InvalidMessage")


@given(
    numbers=st.tuples(INT32, INT64, st.integers(0, 1 << 62), st.integers(0, 1 << 31), INT64),
    host=st.sampled_from([STORE_HOST, STORE_HOST_V6]),
)
def test_receipts_have_the_same_attributes_and_pickle(numbers: tuple[int, ...], host: bytes) -> None:
    names = [
        "topic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "size",
        "store_timestamp",
        "durability",
        "store_host",
        "end",
        "message_id",
    ]

    def shown(twin: Any) -> list[Any]:
        receipt = twin.PutReceipt("orders", *numbers, 2, host)
        assert pickle.loads(pickle.dumps(receipt)) == receipt
        assert hash(receipt) == hash(twin.PutReceipt("orders", *numbers, 2, host))
        return [getattr(receipt, name) for name in names]

    assert shown(compiled()) == shown(reference)


@given(log=any_logs())
def test_stored_records_have_the_same_attributes(log: tuple[bytes, int]) -> None:
    content, _ = log
    size = reference.check_record(content, 0, len(content), -1, False)
    record = content[:size] if size > 0 else content

    def shown(twin: Any) -> list[Any]:
        stored = twin.StoredRecord(record)
        assert pickle.loads(pickle.dumps(stored)) == stored
        assert hash(stored) == hash(twin.StoredRecord(record))
        return [getattr(stored, name) for name in RECORD_ATTRIBUTES]

    assert outcome(lambda: shown(compiled())) == outcome(lambda: shown(reference))


@given(log=logs(), data=st.data())
def test_both_find_one_flipped_bit_in_a_body(log: tuple[bytes, int], data: Any) -> None:
    content, log_start = log
    parsed = parse(content, log_start, True)
    if isinstance(parsed, int) or not parsed[1].body_size:
        return
    broken = bytearray(content)
    at = parsed[1].body_at + data.draw(st.integers(0, parsed[1].body_size - 1))
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    _, code = require_agreement("check_record", bytes(broken), 0, parsed[0], log_start, True)
    assert REASONS[code] == "the body's CRC differs from the one in its header"
