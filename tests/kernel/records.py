"""Records from raw parts, valid or not: readers must handle even what an encoder would refuse."""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

from hypothesis import strategies as st

from mqlake.kernel.reference.record import BORN_IPV6, HEAD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, STORE_IPV6, TAIL


class Parts(NamedTuple):
    """The parts of a record, as bytes and numbers."""

    topic: bytes
    body: bytes
    properties: bytes
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_host: bytes = bytes([10, 0, 0, 1, 0, 0, 0, 9])
    store_host: bytes = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
    reconsume_times: int = 0
    prepared_offset: int = 0
    timestamp: int = 1_700_000_000_000

    def record(self, physical_offset: int) -> bytes:
        v2 = len(self.topic) > 127
        sys_flag = self.sys_flag & ~(BORN_IPV6 | STORE_IPV6)
        sys_flag |= BORN_IPV6 if len(self.born_host) == 20 else 0
        sys_flag |= STORE_IPV6 if len(self.store_host) == 20 else 0
        rest = b"".join(
            [
                self.born_host,
                struct.pack(">q", self.timestamp + 1),
                self.store_host,
                TAIL.pack(self.reconsume_times, self.prepared_offset, len(self.body)),
                self.body,
                struct.pack(">h" if v2 else ">b", len(self.topic)),
                self.topic,
                struct.pack(">h", len(self.properties)),
                self.properties,
            ]
        )
        head = (HEAD.size + len(rest), MAGIC_V2 if v2 else MAGIC_V1, zlib.crc32(self.body) & 0x7FFFFFFF)
        place = (self.queue_id, self.flag, physical_offset // 7, physical_offset)
        return HEAD.pack(*head, *place, sys_flag, self.timestamp) + rest


def stretch_of(parts: list[Parts], log_start: int) -> bytes:
    """Return the records of a log that starts at `log_start`."""
    log = b""
    for part in parts:
        log += part.record(log_start + len(log))
    return log


def blank_marker(size: int) -> bytes:
    """Return an end-of-file marker that covers `size` bytes."""
    return struct.pack(">iI", size, MAGIC_BLANK) + bytes(size - 8)


RAW_TEXT = st.one_of(
    st.sampled_from(
        [b"TAGS", b"KEYS", b"UNIQ_KEY", b"a", b"a b", b"  a  b ", b"\xff", b"\xfe", b"\xef\xbf\xbd", b"\xc3"]
    ),
    st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace")),
    st.binary(max_size=6),
)
PROPERTIES = st.one_of(
    st.lists(st.tuples(RAW_TEXT, RAW_TEXT), max_size=8).map(
        lambda pairs: b"".join(b"%b\x01%b\x02" % pair for pair in pairs)
    ),
    st.lists(RAW_TEXT | st.sampled_from([b"\x01", b"\x02"]), max_size=12).map(b"".join),
    st.integers(0, 80).map(lambda count: b"".join(b"n%d\x01v%d\x02" % (i % 60, i) for i in range(count))),
)
HOSTS = st.sampled_from(
    [
        bytes([10, 0, 0, 1, 0, 0, 0x9C, 0x40]),
        bytes([255, 255, 255, 255, 255, 255, 255, 255]),
        bytes(15) + b"\x01" + bytes([0, 0, 0x2A, 0x9F]),
        bytes(10) + b"\xff\xff\x7f\x00\x00\x01" + bytes(4),
        bytes(range(16)) + bytes([0x7F, 0xFF, 0xFF, 0xFF]),
        bytes.fromhex("fd000000000000010000000000000007") + bytes([0x80, 0, 0, 0]),
    ]
)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PARTS = st.builds(
    Parts,
    topic=st.sampled_from([b"orders", b"payments", b"\xff", b"\xfe", b"\xef\xbf\xbd", b"t" * 200, b""]) | RAW_TEXT,
    body=st.binary(max_size=200),
    properties=PROPERTIES,
    queue_id=INT32,
    flag=INT32,
    sys_flag=st.integers(0, 0xFFFF),
    born_host=HOSTS,
    store_host=HOSTS,
    reconsume_times=INT32,
    prepared_offset=INT64,
    timestamp=st.integers(0, 1 << 50),
)


@st.composite
def damaged(draw: Any, log: bytes) -> bytes:
    """Damage a log in one to three places: flip a bit, change a field, cut a piece out, or truncate it."""
    data = bytearray(log)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["flip", "lie", "cut", "truncate"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "lie" and len(data) >= at + 4:
            struct.pack_into(">i", data, at, draw(INT32 | st.integers(-1, 300)))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "truncate":
            del data[at:]
    return bytes(data)
