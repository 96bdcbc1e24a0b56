"""Packed records: both kernels pack the same, and appended they are what a put would have written."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqlake.kernel.hosts import pack_host
from mqlake.kernel.types import COMMITTED
from tests.kernel.strategies import INT32, INT64, STORE_HOST, STORE_HOST_V6, TEXT, any_logs
from tests.kernel.twins import compiled, outcome, reference, require_agreement

TOPICS = st.sampled_from(
    [b"orders", b"pay|ments", b"%RETRY%" + b"g" * 140, b"x" * 127, b"x" * 128, b"a b", b"", b"\xff"]
)
BYTES = st.one_of(TEXT.map(str.encode), st.binary(max_size=6), st.just(b"a b"))
NAMES = BYTES | st.sampled_from([b"KEYS", b"TAGS", b"INNER_MULTI_DISPATCH", b"__CRC32#", b"name"])
SOUND = TEXT.map(str.encode).filter(lambda text: b" " not in text)
HOSTS = [pack_host(host) for host in ("10.1.2.3:40000", "[fd00::7]:1")]
GOOD_ROWS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from([b"orders", b"payments", b"%RETRY%" + b"g" * 140]),
        "body": st.binary(max_size=60) | st.just(b"as stored"),
        "tags": st.just(b"") | SOUND,
        "keys": st.lists(SOUND, max_size=3),
        "properties": st.dictionaries(SOUND | st.sampled_from([b"KEYS", b"TAGS"]), SOUND, max_size=3),
        "queue_id": st.integers(-1, 1),
        "flag": INT32,
        "sys_flag": st.integers(0, 0x7FF),
        "reconsume_times": INT32,
        "body_crc": st.sampled_from([0, zlib.crc32(b"as stored") & 0x7FFFFFFF]),
        "queue_offset": st.integers(0, 9),
        "born_timestamp": st.integers(0, 1 << 45),
        "store_timestamp": st.integers(1, 1 << 45),
        "prepared_offset": INT64,
        "born_host": st.sampled_from(HOSTS),
    }
)
ANY_ROWS = st.builds(
    lambda row, bad: row | bad,
    GOOD_ROWS,
    st.fixed_dictionaries(
        {},
        optional={
            "topic": TOPICS,
            "tags": BYTES,
            "keys": st.lists(BYTES, max_size=3),
            "properties": st.dictionaries(NAMES, BYTES, max_size=3)
            | st.integers(32_700, 32_780).map(lambda size: {b"name": b"v" * size}),
            "queue_id": st.integers(-3, 3),
            "body": st.binary(min_size=60, max_size=70),
        },
    ),
)
OPTIONAL = [
    "tags",
    "keys",
    "properties",
    "born_host",
    "queue_id",
    "flag",
    "sys_flag",
    "queue_offset",
    "body_crc",
]
Rows = Sequence[dict[str, Any]]


def texts(columns: dict[str, Any], name: str, values: Sequence[bytes]) -> None:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    columns[f"{name}.offsets"] = struct.pack(f"={len(ends)}i", *ends)
    columns[f"{name}.values"] = b"".join(values)


def lists(columns: dict[str, Any], name: str, values: Sequence[Any]) -> None:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    columns[f"{name}.offsets"] = struct.pack(f"={len(ends)}i", *ends)


def columns_of(rows: Rows, without: set[str], *, joined_keys: bool = False) -> dict[str, Any]:
    """Return rows as the kernel reads them."""
    columns: dict[str, Any] = {}
    for name in ("topic", "body", "tags"):
        texts(columns, name, [row[name] for row in rows])
    if joined_keys:
        texts(columns, "keys", [b" ".join(row["keys"]) for row in rows])
    else:
        lists(columns, "keys", [row["keys"] for row in rows])
        texts(columns, "keys.item", [key for row in rows for key in row["keys"]])
    lists(columns, "properties", [row["properties"] for row in rows])
    texts(columns, "properties.name", [name for row in rows for name in row["properties"]])
    texts(columns, "properties.value", [value for row in rows for value in row["properties"].values()])
    for name in ("queue_id", "flag", "sys_flag", "reconsume_times", "body_crc"):
        columns[name] = struct.pack(f"={len(rows)}i", *(row[name] for row in rows))
    for name in ("queue_offset", "born_timestamp", "store_timestamp", "prepared_offset"):
        columns[name] = struct.pack(f"={len(rows)}q", *(row[name] for row in rows))
    texts(columns, "born_host", HOSTS)
    columns["born_host"] = struct.pack(f"={len(rows)}i", *(HOSTS.index(row["born_host"]) for row in rows))
    return {name: buffer for name, buffer in columns.items() if name.split(".")[0] not in without}


@given(
    rows=st.lists(ANY_ROWS, max_size=5),
    without=st.sets(st.sampled_from(OPTIONAL)),
    joined_keys=st.booleans(),
    host=st.sampled_from([STORE_HOST, STORE_HOST_V6]),
    max_size=st.sampled_from([200, 1 << 20]),
    append_crc=st.booleans(),
    lights=st.booleans(),
)
def test_compiled_packing_agrees_with_the_reference(
    rows: Rows, without: set[str], joined_keys: bool, host: bytes, max_size: int, append_crc: bool, lights: bool
) -> None:
    columns = columns_of(rows, without, joined_keys=joined_keys)
    kind, answer = require_agreement("pack_records", columns, len(rows), host, 66, max_size, append_crc, lights)
    assert kind == "returned", answer
    require_agreement("survey_packed", bytes(answer[0]), 0, 300)


def packed_of(rows: Rows, append_crc: bool) -> bytes:
    packed, taken = reference.pack_records(
        columns_of(rows, set()), len(rows), STORE_HOST, 66, 1 << 20, append_crc, True
    )
    assert taken == len(rows)
    return bytes(packed)


class Log:
    """An appender of one kernel over a small file, and everything visible of it."""

    def __init__(self, twin: Any) -> None:
        self.file = bytearray(3000)
        self.word = bytearray(24)
        self.ends = twin.Ends(77, 0, COMMITTED, False, memoryview(self.word).cast("q"))
        self.appender = twin.Appender(self.ends, STORE_HOST, 66, False, 10**18)
        self.appender.open(self.file, 4096, 100)
        self.states = {}
        for topic in ("orders", "payments", "%RETRY%" + "g" * 140):
            state = self.states[topic] = twin.TopicState(topic, 2)
            state.next_offsets.update({0: 3, 1: 5})

    def append(self, twin: Any, packed: bytes, max_bytes: int, timestamp: int, keep: int) -> list[int]:
        self.appender.close()
        position, reached = 0, [0]
        while position < len(packed):
            _, destination_of, names = twin.survey_packed(packed, position, max_bytes)
            destinations = [(self.states[topic], queue_id) for topic, queue_id in names]
            position = self.appender.append_packed(packed, position, destination_of, destinations, timestamp, keep)
            if position == reached[-1]:
                break
            reached.append(position)
        return reached

    def seen(self) -> Any:
        states = [
            (state.turn, dict(state.next_offsets), state.put_count, state.put_bytes) for state in self.states.values()
        ]
        appender = self.appender
        return (
            bytes(self.file),
            bytes(self.word),
            appender.position,
            self.ends.appended,
            appender.last_timestamp,
            states,
        )


@given(
    rows=st.lists(GOOD_ROWS, max_size=8),
    append_crc=st.booleans(),
    max_bytes=st.sampled_from([1, 400, 1 << 20]),
    keep=st.integers(0, 3),
)
def test_compiled_bulk_append_agrees_with_the_reference(
    rows: Rows, append_crc: bool, max_bytes: int, keep: int
) -> None:
    packed, now = packed_of(rows, append_crc), 1 << 46
    logs = [(twin, Log(twin)) for twin in (reference, compiled())]
    first, second = (log.append(twin, packed, max_bytes, now, keep) for twin, log in logs)
    assert first == second
    assert logs[0][1].seen() == logs[1][1].seen()


@given(
    rows=st.lists(GOOD_ROWS, min_size=1, max_size=6), append_crc=st.booleans(), flip=st.integers(0, 5000) | st.none()
)
def test_the_log_is_recognised_by_what_was_packed(rows: Rows, append_crc: bool, flip: int | None) -> None:
    """Everything appended matches; if a byte of the packed records changes, less matches."""
    packed, now = packed_of(rows, append_crc), 1 << 46
    log = Log(reference)
    end = 100 + log.append(reference, packed, 1 << 20, now, 0)[-1]
    wanted = bytearray(packed)
    if flip is not None:
        wanted[flip % len(wanted)] ^= 1
    kind, answer = require_agreement("match_packed", bytes(log.file), 100, end, 4096, now, bytes(wanted), 0)
    assert kind == "returned"
    if flip is None:
        assert answer == (end, end - 100, 1)
    require_agreement("match_packed", bytes(log.file), 100, end, 4096, now - 1, bytes(wanted), 0)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(log=any_logs(), packed=any_logs(), at=st.integers(-1, 100), position=st.integers(-1, 100))
def test_both_kernels_agree_on_any_bytes(
    log: tuple[bytes, int], packed: tuple[bytes, int], at: int, position: int
) -> None:
    require_agreement("survey_packed", packed[0], at, 200)
    require_agreement("match_packed", log[0], position, len(log[0]), log[1], 1_700_000_000_000, packed[0], at)


def test_columns_that_contradict_themselves_are_refused() -> None:
    """Lengths from a buffer never lead outside of it."""
    row = {
        "topic": b"t", "body": b"body", "tags": b"", "keys": [b"k"], "properties": {b"a": b"b"}, "queue_id": 0,
        "flag": 0, "sys_flag": 0, "body_crc": 0, "reconsume_times": 0, "queue_offset": 0, "born_timestamp": 1,
        "store_timestamp": 1, "prepared_offset": 0, "born_host": HOSTS[0],
    }  # fmt: skip
    for name, value in [
        ("body.offsets", struct.pack("=2i", 0, 5)),
        ("body.offsets", struct.pack("=2i", 3, 2)),
        ("body.offsets", struct.pack("=2i", -1, 2)),
        ("body.offsets", b"\0" * 4),
        ("keys.offsets", struct.pack("=2i", 0, 2)),
        ("properties.offsets", struct.pack("=2i", 0, 9)),
        ("flag", b"\0" * 3),
        ("born_host", struct.pack("=i", 2)),
        ("born_host.offsets", struct.pack("=2i", 0, 7)),
    ]:
        columns = columns_of([row], set()) | {name: value}
        kind, _ = outcome(lambda: compiled().pack_records(columns, 1, STORE_HOST, 66, 1 << 20, False, True))  # noqa: B023
        assert kind == "ValueError", name
