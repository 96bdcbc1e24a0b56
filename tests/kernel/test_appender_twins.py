"""Both appenders, given the same calls, write the same log and return the same receipts, except for the time."""

from __future__ import annotations

import gc
import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.kernel.reference.record import parse
from mqlake.kernel.types import COMMITTED
from tests.kernel.strategies import MESSAGE_FIELDS, REFUSED_FIELDS, STORE_HOST, STORE_HOST_V6, Fields, make
from tests.kernel.twins import compiled, outcome, reference

MAX_BODY = 60
TOPICS = st.sampled_from(["orders", "payments", "%RETRY%" + "g" * 140, "unknown"])
FIELDS = st.builds(
    lambda fields, topic: fields | {"topic": topic}, MESSAGE_FIELDS | MESSAGE_FIELDS | REFUSED_FIELDS, TOPICS
)
CALLS = st.one_of(
    st.tuples(st.just("append"), FIELDS, st.booleans(), st.booleans(), st.booleans()),
    st.tuples(st.just("append"), FIELDS, st.just(False), st.just(False), st.just(False)),
    st.tuples(st.just("set_aside"), st.booleans()),
    st.tuples(st.just("append_many"), st.lists(FIELDS, max_size=4)),
    st.tuples(st.just("size_of"), FIELDS),
    st.tuples(st.sampled_from(["close", "reopen", "reopen"])),
    st.tuples(st.just("open"), st.sampled_from([0, 500, 3000]), st.integers(-1, 600)),
    st.tuples(st.just("learn"), TOPICS, st.integers(0, 5), st.integers(0, 9)),
)


class Driver:
    """One appender, the files it wrote, and the outcome of its calls."""

    def __init__(self, twin: Any, host: bytes, append_crc: bool) -> None:
        self.twin = twin
        self.word = bytearray(24)
        self.ends = twin.Ends(77, 0, COMMITTED, False, memoryview(self.word).cast("q"))
        self.appender = twin.Appender(self.ends, host, MAX_BODY, append_crc, 10**18)
        self.append_crc = append_crc
        self.files: list[tuple[int, bytearray]] = []
        for topic in ("orders", "payments", "%RETRY%" + "g" * 140):
            state = self.appender.states[topic] = twin.TopicState(topic, 2)
            state.next_offsets.update({0: 0, 1: 5})

    def call(self, name: str, *arguments: Any) -> Any:
        return outcome(lambda: getattr(self, name)(*arguments))

    def append(self, fields: Fields, as_is: bool, numbered_lights: bool, while_closed: bool) -> Any:
        message = make(self.twin, fields)
        return shown(self.appender.append(message, 1, as_is, numbered_lights, while_closed))

    def set_aside(self, delayed: bool) -> None:
        self.appender.sets_delayed_aside = delayed

    def append_many(self, batch: list[Fields]) -> Any:
        receipts = self.appender.append_many([make(self.twin, fields) for fields in batch], 2)
        return None if receipts is None else [shown(receipt) for receipt in receipts]

    def size_of(self, fields: Fields) -> Any:
        return self.appender.size_of(make(self.twin, fields))

    def open(self, size: int, position: int) -> None:
        start = 4096 * len(self.files)
        target = bytearray(size)
        self.appender.open(target, start, position)
        self.files.append((position, target))

    def close(self) -> None:
        self.appender.close()

    def reopen(self) -> None:
        self.appender.reopen()

    def learn(self, topic: str, queue_id: int, next_offset: int) -> None:
        if topic in self.appender.states:
            self.appender.states[topic].next_offsets[queue_id] = next_offset

    def state(self) -> Any:
        """Return everything visible, without store times and the record CRCs that cover them."""
        appender = self.appender
        topics = [
            (s.name, s.queue_count, s.turn, s.next_offsets, s.put_count, s.put_bytes) for s in appender.states.values()
        ]
        ends = self.ends.appended, appender.file_start, appender.position, struct.unpack("qqq", self.word)
        return ends, topics, [self.without_clock(content, position) for position, content in self.files]

    def without_clock(self, content: bytearray, position: int) -> bytes:
        plain = bytearray(content)
        while not isinstance(parsed := parse(bytes(content[position:]), -1, True), int):
            size, fields = parsed
            time_at = position + 48 + len(fields.born_host)
            plain[time_at : time_at + 8] = bytes(8)
            if self.append_crc:
                plain[position + size - 11 : position + size - 1] = bytes(10)
            position += size
        return bytes(plain)


def shown(receipt: Any) -> Any:
    if receipt is None:
        return None
    names = [
        "topic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "size",
        "durability",
        "store_host",
        "end",
        "message_id",
    ]
    return [getattr(receipt, name) for name in names]


@settings(max_examples=150)
@given(
    calls=st.lists(CALLS, max_size=25),
    host=st.sampled_from([STORE_HOST, STORE_HOST_V6]),
    append_crc=st.booleans(),
    open_first=st.booleans(),
)
def test_any_sequence_of_calls_gives_the_same_log_and_the_same_receipts(
    calls: list[tuple[Any, ...]], host: bytes, append_crc: bool, open_first: bool
) -> None:
    ours, theirs = Driver(compiled(), host, append_crc), Driver(reference, host, append_crc)
    for call in [("open", 3000, 0), *calls] if open_first else calls:
        assert ours.call(*call) == theirs.call(*call)
        assert ours.state() == theirs.state()


def test_a_record_that_leaves_exactly_eight_bytes_fits_and_one_byte_more_does_not() -> None:
    """Both kernels reserve eight bytes for the end-of-file marker."""
    for twin in (reference, compiled()):
        for spare, fits in ((8, True), (7, False)):
            driver = Driver(twin, STORE_HOST, False)
            fields: Fields = {"topic": "orders", "body": b"x" * 10, "properties": {}, "queue_id": 0}
            driver.open(driver.size_of(fields) + spare, 0)
            assert (driver.append(fields, False, False, False) is not None) == fits


def test_store_times_never_fall_along_the_log() -> None:
    for twin in (reference, compiled()):
        driver = Driver(twin, STORE_HOST, False)
        driver.open(3000, 0)
        message = twin.Message("orders", b"", queue_id=0)
        times = [driver.appender.append(message, 1).store_timestamp for _ in range(20)]
        assert times == sorted(times)


def test_a_slow_append_is_reported_and_its_receipt_is_valid() -> None:
    for twin in (reference, compiled()):
        reported: list[tuple[int, int]] = []
        appender = twin.Appender(twin.Ends(0, 0, COMMITTED), STORE_HOST, MAX_BODY, False, -1)
        appender.on_slow = lambda size, took_ms, reported=reported: reported.append((size, took_ms))
        appender.states["orders"] = twin.TopicState("orders", 1)
        appender.states["orders"].next_offsets[0] = 0
        appender.open(bytearray(1000), 0, 0)
        receipt = appender.append(twin.Message("orders", b"late"), 1)
        assert [size for size, _ in reported] == [receipt.size]


def test_a_message_that_changes_during_its_put_cannot_overrun_its_record() -> None:
    """Packing the born host runs Python code, during which another thread may change the message."""

    class Host(str):
        def __hash__(self) -> int:
            message.properties["grown"] = "x" * 1000
            return super().__hash__()

    for twin in (reference, compiled()):
        target = bytearray(4000)
        appender = twin.Appender(twin.Ends(0, 0, COMMITTED), STORE_HOST, 100, False, 10**18)
        appender.states["orders"] = twin.TopicState("orders", 1)
        appender.states["orders"].next_offsets[0] = 0
        appender.open(target, 0, 0)
        for in_a_batch in (False, True):
            message = twin.Message("orders", b"", born_host=Host("1.2.3.4:5"))
            receipt = appender.append_many([message], 1)[0] if in_a_batch else appender.append(message, 1)
            size, at = receipt.size, receipt.physical_offset
            assert twin.check_record(target, at, at + size, at, True) == size
            assert appender.position == at + size
            assert not any(target[at + size :])


def test_a_put_from_a_finalizer_gets_its_own_offset() -> None:
    """The garbage collector may run in the middle of a put, and a finalizer may put, or let another thread put."""

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            receipts.append(appender.append(twin.Message("orders", b"from a finalizer", queue_id=0), 1))

    thresholds = gc.get_threshold()
    for twin in (reference, compiled()):
        target = bytearray(200_000)
        receipts: list[Any] = []
        appender = twin.Appender(twin.Ends(0, 0, COMMITTED), STORE_HOST, 100, False, 10**18)
        appender.states["orders"] = twin.TopicState("orders", 1)
        appender.states["orders"].next_offsets[0] = 0
        appender.open(target, 0, 0)
        gc.set_threshold(1)
        try:
            for number in range(100):
                Garbage()
                receipts.append(appender.append(twin.Message("orders", b"%d" % number, queue_id=0), 1))
                Garbage()
                receipts += appender.append_many([twin.Message("orders", b"in a batch", queue_id=0)] * 3, 1)
        finally:
            gc.set_threshold(*thresholds)
        gc.collect()
        end, why, count, _, _ = twin.walk_records(target, 0, appender.position, 0, True)
        assert (end, why, count) == (appender.position, 1, len(receipts))
        assert {receipt.physical_offset for receipt in receipts} == set(offsets_in(target, end))
        assert sorted(receipt.queue_offset for receipt in receipts) == list(range(len(receipts)))


def offsets_in(log: bytearray, end: int) -> list[int]:
    offsets, position = [], 0
    while position < end:
        offsets.append(position)
        position += struct.unpack_from(">i", log, position)[0]
    return offsets
