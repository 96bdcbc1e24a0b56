"""Frames are decoded and encoded by the compiled kernel as by the reference, whatever the bytes."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.golden.wire_frames import all_exchanges
from tests.kernel.strategies import INT32
from tests.kernel.twins import Outcome, compiled, outcome, reference

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LANGUAGES = st.sampled_from(["JAVA", "GO", "PYTHON", "KLINGON"])
VALUES = st.one_of(
    TEXT, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False), st.lists(st.integers(), max_size=2)
)
FRAMES = [
    frame.data
    for each in all_exchanges()
    for frame in (each.request, each.response)
    if frame and len(frame.data) < 2048
]


def decoded(kernel: Any, data: bytes) -> Outcome:
    def decode() -> Any:
        commands, position = kernel.decode_commands(data, 0, 1 << 20)
        return [command.parts() for command in commands], position

    return outcome(decode)


def require_same(data: bytes) -> None:
    assert decoded(compiled(), data) == decoded(reference, data)


def framed(header: bytes, kind: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "code": st.one_of(INT32, st.integers(), TEXT),
            "language": st.one_of(LANGUAGES, st.none(), st.integers()),
            "version": st.one_of(INT32, st.none()),
            "opaque": st.one_of(INT32, st.floats()),
            "flag": INT32,
            "remark": st.one_of(TEXT, st.none(), st.integers()),
            "extFields": st.one_of(st.none(), st.dictionaries(TEXT, VALUES, max_size=5), st.integers()),
            "other": VALUES,
        },
    ),
    st.booleans(),
    st.booleans(),
    st.binary(max_size=30),
)
def test_json_headers_of_any_shape(header: dict[str, Any], ascii_only: bool, spaced: bool, body: bytes) -> None:
    separators = (", ", " : ") if spaced else (",", ":")
    data = json.dumps(header, ensure_ascii=ascii_only, separators=separators).encode()
    require_same(framed(data, body=body))


@given(st.binary(max_size=80), st.sampled_from([0, 1, 2]))
@example(b'{"code":1,"extFields":{"a":"\\u12"}}', 0)
@example(b'{"code":1,"extFields":{"a":-0,"b":01}}', 0)
@example(b'{"code":1,"extFields":{"a":nullx}}', 0)
@example(b'{"code":1,}', 0)
@example(b'{"code":1}x', 0)
@example(b'{"code":1,"code":2,"extFields":{"a":"1","a":null},"remark":"x","remark":null}', 0)
@example(b'{"code":12345678901234567890}', 0)
def test_headers_of_random_bytes(header: bytes, kind: int) -> None:
    require_same(framed(header, kind))


@given(
    st.sampled_from(FRAMES),
    st.lists(st.tuples(st.integers(0, 2047), st.integers(0, 255)), max_size=4),
    st.integers(0, 2100),
)
def test_recorded_frames_with_flipped_bytes_and_cuts(frame: bytes, flips: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(frame)
    for at, value in flips:
        data[at % len(data)] = value
    require_same(bytes(data[:cut]) if cut < 2048 else bytes(data) + frame)


@given(
    INT32,
    LANGUAGES,
    st.integers(-32768, 32767),
    INT32,
    INT32,
    st.one_of(st.none(), TEXT),
    st.dictionaries(TEXT, TEXT, max_size=5),
    st.binary(max_size=30),
    st.booleans(),
)
def test_commands_are_encoded_alike_and_read_back(
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    fields: dict[str, str],
    body: bytes,
    binary: bool,
) -> None:
    made = {"language": language, "version": version, "opaque": opaque, "flag": flag, "remark": remark}
    ones = [kernel.Command(code, **made, fields=fields, body=body, binary=binary) for kernel in (compiled(), reference)]
    frames = [kernel.encode_command(one) for kernel, one in zip((compiled(), reference), ones, strict=True)]
    assert frames[0] == frames[1]
    assert ones[0].parts() == ones[1].parts() and repr(ones[0]) == repr(ones[1])
    require_same(frames[0])
    (again,), _ = compiled().decode_commands(frames[0], 0, 1 << 24)
    assert again.fields == fields and again.body == body and again.opaque == opaque
