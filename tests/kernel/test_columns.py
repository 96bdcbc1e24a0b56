"""Columns and find_record: the compiled kernel agrees with the reference, on valid and on damaged bytes."""

from __future__ import annotations

import itertools
import struct
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.kernel import reference
from mqlake.kernel.types import BAD_CRC, BAD_MAGIC, BLANK, COLUMN_NAMES, NOTHING, REACHED_END, Readable
from tests.kernel.records import PARTS, Parts, blank_marker, damaged, stretch_of

compiled = pytest.importorskip("mqlake.kernel._compiled")

ALL = (1 << len(COLUMN_NAMES)) - 1
LIMITS = st.tuples(st.sampled_from([1, 300, 1000, 1 << 20]), st.sampled_from([1, 3, 1000]))
COLUMNS = st.one_of(st.just(ALL), st.integers(0, ALL))
TOPICS = st.none() | st.lists(st.sampled_from(["orders", "payments", "\ufffd", "", "nobody"]), max_size=4)
LOG_STARTS = st.sampled_from([0, 65536, 1 << 40])


def scan(kernel: Any, log: Readable, log_start: int = 0, **options: Any) -> tuple[int, int, int, dict[str, bytes]]:
    settings = {"max_bytes": 1 << 20, "max_rows": 1 << 20, "columns": ALL, "check_crc": True, "topics": None} | options
    position, status, rows, buffers = kernel.scan_columns(
        log, settings.pop("position", 0), len(log), log_start, *settings.values()
    )
    return position, status, rows, {name: bytes(buffer) for name, buffer in buffers.items()}


def numbers(letter: str, buffer: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(buffer) // struct.calcsize(letter)}{letter}", buffer))


def texts(buffers: dict[str, bytes], name: str) -> list[bytes]:
    places = numbers("i", buffers[f"{name}.offsets"])
    return [buffers[f"{name}.values"][start:stop] for start, stop in itertools.pairwise(places)]


@settings(max_examples=150)
@given(st.lists(PARTS, max_size=12), LIMITS, COLUMNS, TOPICS, LOG_STARTS, st.booleans())
def test_compiled_columns_agree_with_the_reference(
    parts: list[Parts],
    limits: tuple[int, int],
    columns: int,
    topics: list[str] | None,
    log_start: int,
    check_crc: bool,
) -> None:
    log = stretch_of(parts, log_start)
    options: dict[str, Any] = {"max_bytes": limits[0], "max_rows": limits[1], "columns": columns}
    options |= {"check_crc": check_crc, "topics": topics}
    assert scan(compiled, log, log_start, **options) == scan(reference, log, log_start, **options)


@settings(max_examples=300)
@given(st.data(), st.lists(PARTS, min_size=1, max_size=5), st.booleans(), TOPICS)
def test_compiled_columns_agree_with_the_reference_on_damaged_bytes(
    data: st.DataObject, parts: list[Parts], check_crc: bool, topics: list[str] | None
) -> None:
    log = data.draw(damaged(stretch_of(parts, 0)))
    found = scan(compiled, log, check_crc=check_crc, topics=topics)
    assert found == scan(reference, log, check_crc=check_crc, topics=topics)


def pick(kernel: Any, log: Readable, offsets: list[int], log_start: int, *rest: Any) -> Any:
    first, max_bytes, columns, check_crc, topics = rest
    packed = struct.pack(f"={len(offsets)}q", *offsets)
    number, status, rows, buffers = kernel.pick_columns(
        log, packed, first, len(log), log_start, max_bytes, columns, check_crc, topics
    )
    return number, status, rows, {name: bytes(buffer) for name, buffer in buffers.items()}


@settings(max_examples=300)
@given(st.data(), st.lists(PARTS, max_size=8), LIMITS, COLUMNS, TOPICS, LOG_STARTS, st.booleans())
def test_compiled_columns_of_given_records_agree_with_the_reference(
    data: st.DataObject,
    parts: list[Parts],
    limits: tuple[int, int],
    columns: int,
    topics: list[str] | None,
    log_start: int,
    check_crc: bool,
) -> None:
    log = stretch_of(parts, log_start)
    starts = [log_start + len(stretch_of(parts[:i], log_start)) for i in range(len(parts))]
    if data.draw(st.booleans()):
        log = data.draw(damaged(log))
    anywhere = st.integers(log_start - 10, log_start + len(log) + 10)
    offsets = data.draw(st.lists(st.sampled_from(starts) | anywhere if starts else anywhere, max_size=12))
    first = data.draw(st.integers(0, len(offsets)))
    options = first, limits[0], columns, check_crc, topics
    assert pick(compiled, log, offsets, log_start, *options) == pick(reference, log, offsets, log_start, *options)


@pytest.mark.parametrize("kernel", [compiled, reference])
def test_picked_records_are_those_of_the_scan(kernel: Any) -> None:
    parts = [Parts(b"orders", b"body %d" % i, b"TAGS\x01t%d\x02" % i) for i in range(9)]
    log = stretch_of(parts, 4096)
    starts = [4096 + len(stretch_of(parts[:i], 4096)) for i in range(9)]
    number, status, rows, buffers = pick(
        kernel, log, [starts[7], starts[2], starts[2]], 4096, 0, 1 << 20, ALL, True, None
    )
    assert (number, status, rows) == (3, REACHED_END, 3)
    assert texts(buffers, "body") == [b"body 7", b"body 2", b"body 2"]
    assert numbers("q", buffers["physical_offset"]) == [starts[7], starts[2], starts[2]]
    assert pick(kernel, log, [starts[1] + 1], 4096, 0, 1 << 20, ALL, True, None)[:3] == (0, BAD_MAGIC, 0)


@settings(max_examples=300)
@given(st.data(), st.lists(PARTS, min_size=1, max_size=5), LOG_STARTS, st.booleans())
def test_compiled_search_for_a_record_agrees_with_the_reference(
    data: st.DataObject, parts: list[Parts], log_start: int, check_crc: bool
) -> None:
    log = data.draw(damaged(stretch_of(parts, log_start)))
    start = data.draw(st.integers(0, len(log)))
    found = compiled.find_record(log, start, len(log), log_start, check_crc)
    assert found == reference.find_record(log, start, len(log), log_start, check_crc)


@pytest.mark.parametrize("kernel", [compiled, reference])
class TestColumns:
    """What both kernels promise."""

    def test_each_record_is_a_row_with_the_fields_of_its_header(self, kernel: Any) -> None:
        parts = [
            Parts(b"t", b"x" * n, b"", queue_id=n, flag=-n, reconsume_times=3, prepared_offset=1 << 40)
            for n in range(3)
        ]
        log = stretch_of(parts, 1000)

        position, status, rows, buffers = scan(kernel, log, 1000)

        assert (position, status, rows) == (len(log), REACHED_END, 3)
        assert numbers("i", buffers["queue_id"]) == [0, 1, 2]
        assert numbers("i", buffers["flag"]) == [0, -1, -2]
        assert numbers("i", buffers["size"]) == [92, 93, 94]
        assert numbers("q", buffers["physical_offset"]) == [1000, 1092, 1185]
        assert numbers("q", buffers["store_timestamp"]) == [1_700_000_000_001] * 3
        assert texts(buffers, "body") == [b"", b"x", b"xx"]

    def test_repeated_texts_are_stored_once(self, kernel: Any) -> None:
        log = stretch_of([Parts(topic, b"", b"") for topic in (b"a", b"b", b"a", b"a")], 0)
        _, _, _, buffers = scan(kernel, log)
        assert texts(buffers, "topic") == [b"a", b"b"]
        assert numbers("i", buffers["topic"]) == [0, 1, 0, 0]
        assert texts(buffers, "store_host") == [b"127.0.0.1:10911"]

    def test_the_last_value_of_a_repeated_name_counts_at_the_position_of_the_first(self, kernel: Any) -> None:
        many = b"".join(b"%d\x01x\x02" % i for i in range(100))
        for more in (b"", many):
            log = stretch_of([Parts(b"t", b"", b"a\x01old\x02b\x011\x02" + more + b"a\x01new\x02")], 0)
            _, _, _, buffers = scan(kernel, log)
            assert texts(buffers, "properties.name")[:2] == [b"a", b"b"]
            assert texts(buffers, "properties.value")[:2] == [b"new", b"1"]
            assert len(texts(buffers, "properties.name")) == (102 if more else 2)

    def test_malformed_utf8_is_replaced_as_python_replaces_it(self, kernel: Any) -> None:
        raw = b"\xf0\x90\x80\xed\xa0\x80\xffok\xc3"
        log = stretch_of([Parts(raw, b"", b"TAGS\x01" + raw + b"\x02KEYS\x01a " + raw + b"\x02")], 0)
        _, _, _, buffers = scan(kernel, log)
        wanted = raw.decode("utf-8", "replace").encode()
        assert texts(buffers, "topic") == texts(buffers, "tags") == [wanted]
        assert texts(buffers, "keys.item") == [b"a", wanted]

    def test_names_that_differ_only_in_malformed_bytes_become_one(self, kernel: Any) -> None:
        log = stretch_of([Parts(topic, b"", b"\xff\x011\x02\xfe\x012\x02") for topic in (b"\xff", b"\xfe")], 0)
        _, _, _, buffers = scan(kernel, log)
        assert texts(buffers, "topic") == ["\ufffd".encode()]
        assert texts(buffers, "properties.value") == [b"2", b"2"]

    def test_keys_are_split_at_spaces_and_missing_tags_are_null(self, kernel: Any) -> None:
        log = stretch_of([Parts(b"t", b"", b"KEYS\x01 a  b \x02"), Parts(b"t", b"", b"TAGS\x01x\x02")], 0)
        _, _, _, buffers = scan(kernel, log)
        assert texts(buffers, "keys.item") == [b"a", b"b"]
        assert numbers("i", buffers["keys.offsets"]) == [0, 2, 2]
        assert buffers["tags.validity"] == b"\x02"

    def test_a_scan_stays_below_its_limit_but_always_takes_one_record(self, kernel: Any) -> None:
        log = stretch_of([Parts(b"t", b"x" * 100, b"")] * 5, 0)
        size = len(log) // 5
        assert scan(kernel, log, max_bytes=3 * size)[:3] == (3 * size, REACHED_END, 3)
        assert scan(kernel, log, max_bytes=3 * size - 1)[:3] == (2 * size, REACHED_END, 2)
        assert scan(kernel, log, max_bytes=1)[:3] == (size, REACHED_END, 1)
        assert scan(kernel, log, max_rows=4)[:3] == (4 * size, REACHED_END, 4)

    def test_other_topics_are_skipped_and_their_bodies_not_checked(self, kernel: Any) -> None:
        log = bytearray(stretch_of([Parts(b"other", b"body", b""), Parts(b"wanted", b"body", b"")], 0))
        log[88] ^= 1
        position, status, rows, buffers = scan(kernel, log, topics=["wanted"])
        assert (position, status, rows) == (len(log), REACHED_END, 1)
        assert texts(buffers, "body") == [b"body"]
        assert scan(kernel, log, topics=["other"])[:3] == (0, BAD_CRC, 0)

    def test_a_scan_stops_at_a_marker_and_at_damage_and_returns_the_rows_before(self, kernel: Any) -> None:
        good = stretch_of([Parts(b"t", b"body", b"")] * 2, 0)
        assert scan(kernel, good + blank_marker(50))[:3] == (len(good), BLANK, 2)
        assert scan(kernel, good + bytes(50))[:3] == (len(good), NOTHING, 2)
        assert scan(kernel, good + b"\xff" * 50)[:3] == (len(good), BAD_MAGIC, 2)

    def test_the_next_record_is_found_after_bytes_that_look_like_one(self, kernel: Any) -> None:
        elsewhere = Parts(b"t", b"quoted", b"").record(77)  # holds another physical offset than its own
        log = b"\xda\xa3\x20" * 9 + elsewhere
        log += Parts(b"t", b"real", b"").record(len(log))
        found = kernel.find_record(log, 0, len(log), 0)
        assert log[found:] == Parts(b"t", b"real", b"").record(found)
        assert kernel.find_record(log, found + 1, len(log), 0) == len(log)

    def test_invalid_limits_and_ranges_are_refused(self, kernel: Any) -> None:
        wrong = {"max_bytes": 0, "max_rows": 0, "columns": ALL + 1, "position": 9}
        for name, value in [*wrong.items(), ("max_bytes", (1 << 30) + 1), ("position", -1)]:
            with pytest.raises(ValueError, match=r"max_bytes|columns|inside"):
                scan(kernel, bytes(8), **{name: value})


def test_many_topics_that_differ_in_their_last_letters_cost_little_more_than_one() -> None:
    """A hash that keeps the last bytes of a word out of its low bits would put all of them into a few slots."""

    def quickest(topics: list[bytes]) -> float:
        log = stretch_of([Parts(topics[number % len(topics)], b"", b"") for number in range(4000)], 0)
        times = []
        for _ in range(15):
            began = time.process_time()
            scan(compiled, log, columns=1)
            times.append(time.process_time() - began)
        return min(times)

    assert quickest([b"topic-%d" % number for number in range(10, 100)]) < 2.5 * quickest([b"topic-10"])
