"""Timed messages: the compiled kernel agrees with the reference, on whole and on damaged records."""

from __future__ import annotations

import struct
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.records import INT64, PARTS, PROPERTIES, Parts, blank_marker, damaged, stretch_of
from tests.kernel.twins import both, outcome, require_agreement

PAIR = struct.Struct("=qq")
ENTRY = struct.Struct(">qiq")
NUMBERS = st.sampled_from([b"", b"0", b"999", b"1000", b"1700000000000", b"-1", b"x", b"9" * 18, b"9" * 19, b"1" * 15])
NAMES = [b"TIMER_OUT_MS", b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DEL_UNIQKEY"]
TIMING = st.lists(st.tuples(st.sampled_from([*NAMES, b"TIMER_", b"TAGS"]), NUMBERS), max_size=6).map(
    lambda pairs: b"".join(b"%b\x01%b\x02" % pair for pair in pairs)
)
TIMED = st.builds(lambda part, properties: part._replace(properties=properties), PARTS, TIMING | PROPERTIES)
STARTS = st.sampled_from([0, 1 << 20])


def entries_of(parts: list[Parts], log_start: int) -> bytes:
    offset, entries = log_start, b""
    for part in parts:
        size = len(part.record(offset))
        entries += ENTRY.pack(offset, size, 0)
        offset += size
    return entries


@given(data=st.data(), parts=st.lists(TIMED, max_size=6), log_start=STARTS, precision_ms=st.sampled_from([1, 1000]))
def test_compiled_timers_agree_with_the_reference(
    data: Any, parts: list[Parts], log_start: int, precision_ms: int
) -> None:
    log, entries = stretch_of(parts, log_start), entries_of(parts, log_start)
    if data.draw(st.booleans()):
        log = data.draw(damaged(log))
    if data.draw(st.booleans()):
        entries = data.draw(damaged(entries))
    readable = data.draw(st.integers(0, len(log) + 5))
    require_agreement("read_timers", log, log_start, readable, entries, data.draw(st.integers(-1, 7)), precision_ms)


@given(pairs=st.lists(st.tuples(INT64, INT64), max_size=20), before=INT64, extra=st.integers(-1, 2))
def test_compiled_taking_of_what_is_due_agrees_with_the_reference(
    pairs: list[tuple[int, int]], before: int, extra: int
) -> None:
    content = b"".join(PAIR.pack(*pair) for pair in pairs)
    count = len(pairs) + min(extra, 1)
    answers = []
    for twin in both():
        buffer = bytearray(content)
        try:
            answers.append((twin.take_due(buffer, count, before), bytes(buffer)))
        except ValueError as error:
            answers.append((str(error), bytes(buffer)))
    assert all(answer == answers[0] for answer in answers)


@given(pairs=st.lists(st.tuples(INT64, INT64), max_size=20), rest=st.integers(0, 15))
def test_compiled_lowest_places_agree_with_the_reference(pairs: list[tuple[int, int]], rest: int) -> None:
    require_agreement("lowest_place", b"".join(PAIR.pack(*pair) for pair in pairs) + bytes(rest))


class File(NamedTuple):
    start: int
    pages: bytes


LOG = File(1000, struct.pack(">i", 77) * 500)


@given(
    pairs=st.lists(st.tuples(st.integers(-50, 5_000), st.integers(-3_100, 3_100)), max_size=12),
    now_ms=st.integers(0, 3_000),
    precision_ms=st.sampled_from([0, 1, 100, 1000]),
    window_ms=st.sampled_from([10, 1_000, 3_000]),
    per_file=st.sampled_from([0, 1, 3, 100]),
    room=st.integers(-1, 1),
)
def test_compiled_units_of_the_timer_log_agree_with_the_reference(
    pairs: list[tuple[int, int]], now_ms: int, precision_ms: int, window_ms: int, per_file: int, room: int
) -> None:
    def file_at(offset: int) -> File | None:
        return LOG if LOG.start <= offset < LOG.start + len(LOG.pages) else None

    content = b"".join(PAIR.pack(*pair) for pair in pairs)
    answers = []
    for twin in both():
        target = bytearray(b"?" * max(0, 52 * len(pairs) + room))
        arguments = content, now_ms, precision_ms, window_ms, per_file, 10_000, file_at, target
        answers.append((outcome(partial(twin.pack_timer_units, *arguments)), bytes(target)))
    assert all(answer == answers[0] for answer in answers)


@given(data=st.data(), parts=st.lists(PARTS, max_size=6), log_start=STARTS, marker=st.booleans())
def test_compiled_search_for_deliveries_agrees_with_the_reference(
    data: Any, parts: list[Parts], log_start: int, marker: bool
) -> None:
    log = stretch_of(parts, log_start) + (blank_marker(16) if marker else b"")
    if data.draw(st.booleans()):
        log = data.draw(damaged(log))
    position, end = data.draw(st.integers(-1, 3)), data.draw(st.integers(0, len(log) + 1))
    require_agreement("find_deliveries", log, 0, len(log), log_start)
    require_agreement("find_deliveries", log, position, end, log_start)


@pytest.mark.parametrize("twin", both())
def test_a_timed_message_is_due_at_the_requested_time_or_at_the_end_of_its_second(twin: Any) -> None:
    def due(**properties: int | str) -> tuple[int, int]:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        part = Parts(b"rmq_sys_wheel_timer", b"x", text, timestamp=9_000)
        log = part.record(0)
        pairs, number, why = twin.read_timers(log, 0, len(log), ENTRY.pack(0, len(log), 0), 0, 1000)
        return PAIR.unpack(pairs) if pairs else (number, why)

    assert due(TIMER_OUT_MS=10_000, TIMER_DELIVER_MS=10_300) == (10_300, 0)
    assert due(TIMER_OUT_MS=10_000, TIMER_DELIVER_MS=11_000) == (11_000, 0)
    assert due(TIMER_OUT_MS=10_000, TIMER_DELIVER_MS=10_000) == (11_000, 0)
    assert due(TIMER_OUT_MS=10_000) == (11_000, 0)
    assert due(TIMER_OUT_MS=10_000, TIMER_DELAY_SEC=1) == (10_001, 0)  # stored at 9,001
    assert due(TIMER_OUT_MS=10_000, TIMER_DELAY_MS=1_500) == (10_501, 0)
    assert due(TIMER_OUT_MS=10_000, TIMER_DEL_UNIQKEY="t+k") == (10_000, ~0)
    assert due(TIMER_DELIVER_MS=10_000) == (0, -9)


@pytest.mark.parametrize("twin", both())
def test_a_delivery_names_the_record_it_delivers_even_if_that_is_the_first(twin: Any) -> None:
    parts = [
        Parts(b"t", b"", b"", prepared_offset=at, sys_flag=flag) for at, flag in ((0, 0), (-1, 0), (0, 8), (77, 0))
    ]
    log = stretch_of(parts, 0)
    size = len(log) // 4
    _, why, pairs = twin.find_deliveries(log, 0, len(log), 0)
    assert why == 1
    assert list(PAIR.iter_unpack(pairs)) == [(size, 0), (2 * size, 0), (3 * size, 77)]
