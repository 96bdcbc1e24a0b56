"""Look-ups over queue entries: the compiled kernel agrees with the reference, on whole and on damaged records."""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any, NamedTuple

import pytest

from mqlake.kernel import reference
from mqlake.kernel.hosts import pack_host
from tests.kernel.twins import compiled

HOST = pack_host("10.0.0.1:10911")
KEY = struct.Struct("<iqq")


class File(NamedTuple):
    start: int
    pages: bytes


def log_of(seed: int) -> tuple[list[File], bytes, list[int]]:
    """Return two files of records with rising times, the entries of one queue, and the records' offsets."""
    draw = random.Random(seed)
    files: list[File] = []
    entries: list[bytes] = []
    offsets: list[int] = []
    time = 1000
    for start in (0, 8192):
        pages = bytearray(8192)
        position = 0
        while position < 6000:
            time += draw.choice([0, 0, 1, 7])
            message = reference.Message(
                draw.choice(["orders", "order", "payments"]),
                draw.randbytes(draw.randrange(200)),
                keys=draw.choice(["", "a", "a b", "ab c", "标签 b"]),
                tags=draw.choice([None, "a", "b"]),
                properties=draw.choice([None, {"UNIQ_KEY": "b"}]),
                born_host=draw.choice([None, "[::1]:1"]),
                born_timestamp=1,
            )
            record = reference.encode_record(message, 0, len(entries), start + position, time, HOST, False)
            pages[position : position + len(record)] = record
            entries.append(reference.queue.ENTRY.pack(start + position, len(record), 0))
            offsets.append(start + position)
            position += len(record)
        files.append(File(start, bytes(pages)))
    return files, b"".join(entries), offsets


def outcome(twin: Any, name: str, *arguments: Any) -> object:
    try:
        answer = getattr(twin, name)(*arguments)
    except ValueError as error:
        return str(error)
    return [found.record for found in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("seed", range(5))
def test_compiled_look_ups_by_time_agree_with_the_reference(seed: int) -> None:
    files, entries, offsets = log_of(seed)

    def file_at(offset: int) -> File | None:
        return next((file for file in files[seed % 2 :] if file.start <= offset < file.start + 8192), None)

    count = len(offsets)
    for low, high in ((0, count), (3, count - 3), (count, count), (-1, 2), (0, count + 1)):
        for time in range(990, 1500, 3):
            arguments = entries, low, high, time, file_at
            assert outcome(compiled(), "seek_timestamp", *arguments) == outcome(reference, "seek_timestamp", *arguments)


@pytest.mark.parametrize("seed", range(5))
def test_compiled_look_ups_by_key_agree_with_the_reference(seed: int) -> None:
    files, _, offsets = log_of(seed)
    draw = random.Random(seed)
    for number, file in enumerate(files):
        damaged = bytearray(file.pages)
        for _ in range(4):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        files[number] = file._replace(pages=bytes(damaged))

    def file_at(offset: int) -> File | None:
        return next((file for file in files[seed % 2 :] if file.start <= offset < file.start + 8192), None)

    some = False
    slots, entries = 7, 7 * len(offsets)
    indexes = []
    for part in (offsets[: len(offsets) // 2], offsets[len(offsets) // 3 :]):  # the overlap is entered twice
        index = bytearray(40 + 4 * slots + 20 * entries)
        keys = b"".join(
            KEY.pack(abs(reference.java_hash(text)), offset, 1000 + offset // 100)
            for offset in part
            for text in ("orders#a", "orders#b", "orders#标签", "orders#T#a", "orders#", "#a")
        )
        compiled().put_index_keys(index, slots, entries, keys, 0)
        indexes.append(bytes(index))
    for topic, key in itertools.product(("orders", "order", ""), ("a", "b", "ab", "标签", "", " ")):
        for tag, limit, times in itertools.product((False, True), (1, 3, 999), ((0, 1 << 62), (1020, 1100))):
            arguments = tuple(indexes), slots, entries, topic, key, tag, *times, limit, offsets[2], offsets[-2], file_at
            found = outcome(compiled(), "find_messages", *arguments, compiled().StoredRecord)
            some = some or found != []
            assert found == outcome(reference, "find_messages", *arguments, reference.StoredRecord)
    assert some


@pytest.mark.parametrize("seed", range(5))
def test_compiled_selection_by_tags_codes_agrees_with_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    codes = [-(1 << 63), -7, 0, 97, 98, (1 << 63) - 1]
    sizes = [100, 100, 100, reference.queue.FILLER_SIZE, 0]
    entries = b"".join(
        reference.queue.ENTRY.pack(draw.randrange(9000), draw.choice(sizes), draw.choice(codes)) for _ in range(300)
    )
    for count in (0, 1, 2, 6):
        wanted = struct.pack(f"={count}q", *sorted(draw.sample(codes, count)))
        for first, limit in ((0, 1000), (0, 1), (17, 40), (299, 5), (300, 5), (-1, 5), (0, 0)):
            arguments = entries[: 6000 - draw.randrange(30)], first, wanted, limit
            answer = [_selected(twin, *arguments) for twin in (compiled(), reference)]
            assert answer[0] == answer[1]


def _selected(twin: Any, *arguments: Any) -> object:
    try:
        return twin.select_entries(*arguments)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(5))
def test_compiled_reads_of_selected_entries_agree_with_the_reference(seed: int) -> None:
    files, _, offsets = log_of(seed)
    draw = random.Random(seed)
    file = files[0]
    sizes = {at: int.from_bytes(file.pages[at : at + 4], "big") for at in offsets if at < 8192}
    topic = [twin_topic(file.pages, at) for at in sizes]
    entries = b"".join(reference.queue.ENTRY.pack(at, size, 0) for at, size in sizes.items())
    own = [number for number, name in enumerate(topic) if name == b"orders"]
    for numbers in (own, own[1::2], own[:1], [], [len(topic)], [-1], list(range(len(topic)))):
        for max_bytes in (1, 500, 1 << 20):
            first = draw.randrange(2)
            answers: list[Any] = []
            for twin in (compiled(), reference):
                place = first, max(first, len(numbers)), 0, b"orders", 0
                bounds = 0, 8192, lambda _: file
                try:
                    found, after, why = twin.read_records(
                        entries, *place, *bounds, max_bytes, twin.StoredRecord, numbers
                    )
                    answers.append(([one.record for one in found], after, why))
                except ValueError as error:
                    answers.append(str(error))
            assert answers[0] == answers[1]
            if numbers == own and max_bytes == 1 << 20:
                assert answers[0][1:] == (len(own), 0) and len(answers[0][0]) == len(own) - first


@pytest.mark.parametrize("body_size", [0, 700, 70_000])
def test_records_read_together_are_each_by_themselves(body_size: int) -> None:
    """Over two files of the log; one's bytes, taken out of what a batch shares, change nothing for the others."""
    sizes = [len(encoded(0, 0, body_size))] * 150
    middle = sum(sizes[:77])
    records = [encoded(number, number * sizes[0], body_size) for number in range(150)]
    files = File(0, b"".join(records[:77])), File(middle, b"".join(records[77:]))
    entries = b"".join(reference.queue.ENTRY.pack(at * sizes[0], sizes[0], 0) for at in range(150))
    for twin in (compiled(), reference):
        bounds = 0, 150 * sizes[0], lambda offset: files[offset >= middle]
        found, after, why = twin.read_records(entries, 0, 150, 0, b"orders", 0, *bounds, 1 << 40, twin.StoredRecord)
        assert (len(found), after, why) == (150, 150, 0)
        assert found[3].record == records[3]
        kept = found[4], found[149]
        del found
        for one, number in zip(kept, (4, 149), strict=True):
            assert (one.queue_offset, one.topic, one.keys, one.size) == (number, "orders", [f"k{number}"], sizes[0])
            assert one.raw_body == bytes([number]) * body_size
            assert one.record == records[number] and one == twin.StoredRecord(records[number])


def encoded(number: int, offset: int, body_size: int) -> bytes:
    padding = {"pad": "x" * (4 - len(str(number)))}  # all of one size
    message = reference.Message("orders", bytes([number]) * body_size, keys=f"k{number}", properties=padding)
    return reference.encode_record(message, 0, number, offset, 5, bytes(8), False)


def test_an_object_made_without_a_record_has_none() -> None:
    empty = compiled().StoredRecord.__new__(compiled().StoredRecord)
    assert (empty.record, empty.topic, empty.properties, empty.raw_body, empty.size) == (b"", "", {}, b"", 0)
    assert (empty.queue_offset, empty.store_timestamp, empty.prepared_offset, empty.body_crc) == (0, 0, 0, 0)
    assert (empty.born_address, empty.store_address) == (bytes(8), bytes(8))


def twin_topic(pages: bytes, at: int) -> bytes:
    size = int.from_bytes(pages[at : at + 4], "big")
    return reference.StoredRecord(pages[at : at + size]).topic.encode()
