"""Feed the compiled kernel mutated bytes that end at the end of accessible memory. Run it as a module.

    python -m tests.kernel.fuzz --seed 7 --seconds 60 [--only ROUND]

Every buffer touches an inaccessible page, with its last byte before the page or its first byte after it, so that one
byte read out of bounds kills the process. Memory is limited, each round has a few seconds, and every tenth round is
compared with the reference. A round depends only on the seed and its number: `--only` repeats it.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import mmap
import os
import random
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mqlake.errors import InvalidMessage
from mqlake.kernel import _compiled as _compiled_twin
from mqlake.kernel import reference as _reference_twin
from tests.kernel.records import Parts, blank_marker, stretch_of

compiled: Any = _compiled_twin
reference: Any = _reference_twin
PAGE = mmap.PAGESIZE
PROT_NONE = 0
ROOM = 64 * PAGE
ROUND_SECONDS = 10
MEMORY_ABOVE_START = 256 << 20
LIES = [
    0,
    1,
    -1,
    7,
    8,
    90,
    91,
    92,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    1 << 20,
    (1 << 31) - 1,
    -(1 << 31),
    -(1 << 15),
]
SLOTS, ENTRIES = 5, 30
T_K = abs(reference.java_hash("t#k"))
INDEX_SIZE = 40 + 4 * SLOTS + 20 * ENTRIES
Log = tuple[bytes, int]


class File(NamedTuple):
    start: int
    pages: memoryview


class GuardedMemory:
    """Memory between two inaccessible pages."""

    def __init__(self) -> None:
        self._pages = mmap.mmap(-1, ROOM + 2 * PAGE)
        self._anchor = ctypes.c_char.from_buffer(self._pages)
        self.address = ctypes.addressof(self._anchor)
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (self.address, self.address + PAGE + ROOM):
            if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._room = memoryview(self._pages)[PAGE : PAGE + ROOM]

    def hold(self, data: bytes | bytearray, *, at_end: bool = True) -> memoryview:
        """Return a copy of `data` that touches a guard page."""
        view = self._room[ROOM - len(data) :] if at_end else self._room[: len(data)]
        view[:] = data
        return view


class Fuzzer:
    """The buffers of one run, and its rounds."""

    def __init__(self) -> None:
        self.log = GuardedMemory()
        self.other = GuardedMemory()

    def round(self, seed: int, number: int) -> None:
        rng = random.Random(f"{seed}:{number}")
        compare = number % 10 == 0
        content, log_start = mutated_log(rng)
        view = self.log.hold(content, at_end=rng.random() < 0.8)
        self.records(rng, view, log_start, compare)
        self.reading(rng, view, log_start, compare)
        self.index(rng, compare)
        self.properties(rng, compare)
        self.append(rng)

    def records(self, rng: random.Random, view: memoryview, log_start: int, compare: bool) -> None:
        position, end = span(rng, len(view))
        check_crc = rng.random() < 0.5
        both(compare, "check_record", view, position, end, rng.choice([-1, log_start + position]), check_crc)
        both(compare, "walk_records", view, position, end, log_start, check_crc, rng.choice([0, 2, 1 << 40]))
        both(compare, "find_record", view, position, end, log_start, check_crc)
        both(compare, "crc32", view[position:end])
        limit = rng.choice([0, 100, 1 << 20, (1 << 63) - 1])
        arguments = view, position, end, log_start, limit, (1000, 5000), rng.random() < 0.8, rng.random() < 0.5
        both(False, "dispatch_records", *arguments)  # compared by the property tests, whose texts are UTF-8
        try:
            stored = compiled.StoredRecord(bytes(view))
            assert stored.topic is not None and stored.properties is not None
            assert len(stored.raw_body) + len(stored.born_address) + len(stored.store_address) < stored.size
        except ValueError:
            pass

    def reading(self, rng: random.Random, view: memoryview, log_start: int, compare: bool) -> None:
        _, _, runs, *_ = compiled.dispatch_records(view, 0, len(view), log_start, len(view), (), False, False)
        entries = bytearray(b"".join(entries for _, _, _, entries in runs[:50])[:2000])
        for _ in range(rng.randrange(3)):
            place = rng.choice([log_start + rng.randint(-9, len(view) + 9), rng.getrandbits(64) - (1 << 63)])
            entries += struct.pack(">qiq", place, rng.choice([*LIES, 100]) & 0x7FFFFFFF, 0)
        mutate(rng, entries, rng.randrange(2))
        held = self.other.hold(entries, at_end=rng.random() < 0.8)
        first, readable = (
            rng.choice([0, 0, 1, len(entries) // 20, -1, 1 << 40]),
            rng.choice([len(view), len(view) // 2, 1 << 40]),
        )
        topic, queue_id, number, _ = rng.choice(runs) if runs else ("t", 0, 0, b"")
        file = File(log_start, view)
        span = first, rng.choice([len(entries) // 20, len(entries) // 40, 1 << 40]), number
        bounds = rng.choice([0, log_start, 1 << 40]), log_start + readable, lambda _: file
        queue = topic.encode("utf-8", "replace"), queue_id
        both(False, "read_records", held, *span, *queue, *bounds, rng.choice([0, 500, 1 << 40]), compiled.StoredRecord)
        both(compare, "count_valid_entries", held, rng.choice([log_start + len(view), 0, (1 << 63) - 1]))

    def index(self, rng: random.Random, compare: bool) -> None:
        content = bytearray(INDEX_SIZE)
        keys = b"".join(
            struct.pack(
                "<iqq", rng.choice([rng.randrange(20), *LIES[:3], T_K]), rng.randrange(200), rng.randrange(1 << 40)
            )
            for _ in range(rng.randrange(40))
        )
        reference.put_index_keys(content, SLOTS, ENTRIES, keys, 0)
        for _ in range(rng.randrange(4)):
            struct.pack_into(
                ">i",
                content,
                rng.choice([32, 36, rng.randrange(0, INDEX_SIZE - 4, 4)]),
                rng.choice([*LIES, 29, 30, 31]),
            )
        mutate(rng, content, rng.randrange(2), keep_size=True)
        before = bytes(content)
        held = self.other.hold(content, at_end=rng.random() < 0.8)
        keys_held = self.log.hold(keys)
        entered = compiled.put_index_keys(held, SLOTS, ENTRIES, keys_held, 0)
        if compare:
            assert entered == reference.put_index_keys(content, SLOTS, ENTRIES, keys, 0)
            assert held == content, before.hex()
        if compare:
            compiled.link_index_entries(held, SLOTS, ENTRIES)
            reference.link_index_entries(content, SLOTS, ENTRIES)
            assert bytes(held) == bytes(content)
        both(compare, "find_index_key", held, SLOTS, ENTRIES, rng.randrange(20), rng.randrange(1 << 40), 1 << 50, 64)
        log = bytearray(reference.encode_record(reference.Message("t", b"b", keys="k"), 0, 0, 9, 5, bytes(8), False))
        mutate(rng, log, rng.randrange(2))
        file = File(9, self.log.hold(log))
        times, ends = (0, 1 << 50), (rng.randrange(20), rng.randrange(300))
        key = (held,), SLOTS, ENTRIES, "t", "k", False, *times, 64, *ends, lambda _: file
        both(False, "find_messages", *key, compiled.StoredRecord)

    def properties(self, rng: random.Random, compare: bool) -> None:
        data = bytearray(
            rng.choice([b"", b"a\x01b\x02", b"TAGS\x01\xf0\x9f\x98\x80\x02KEYS\x01a b\x02", rng.randbytes(30)])
        )
        mutate(rng, data, rng.randrange(4))
        both(compare, "decode_properties", self.other.hold(data))
        both(compare, "java_hash", bytes(data).decode("utf-8", rng.choice(["replace", "surrogateescape"])))

    def append(self, rng: random.Random) -> None:
        """Append into a file that ends with the memory: a record that does not fit must not be written."""
        target = self.log.hold(bytes(rng.randrange(0, 700)))
        appender = compiled.Appender(
            compiled.Ends(0, 0, 1, False, self.other.hold(bytes(24))), bytes(8), 300, rng.random() < 0.5, 10**18
        )
        for topic in ("t", "%RETRY%" + "g" * 150):
            appender.states[topic] = compiled.TopicState(topic, 1)
            appender.states[topic].next_offsets[0] = 0
        appender.open(target, 0, rng.randint(0, len(target)))
        begin = appender.position
        for _ in range(6):
            batch = [random_message(rng) for _ in range(rng.randrange(4))]
            try:
                for message in batch[:1]:
                    appender.append(message, 1)
                appender.append_many(batch, 1)
            except InvalidMessage:
                pass
        end, why, *_ = reference.walk_records(target, begin, appender.position, 0, True)
        assert (end, why) == (appender.position, 1), (end, why, appender.position)
        assert appender.position <= max(begin, len(target) - 8)


def random_message(rng: random.Random) -> Any:
    return compiled.Message(
        rng.choice(["t", "t", "%RETRY%" + "g" * 150]),
        rng.randbytes(rng.choice([0, 1, 64, 200, 301])),
        properties={"n" * rng.randint(0, 3): "ü" * rng.choice([1, 20, 100])} if rng.random() < 0.5 else {},
        born_host=rng.choice([None, "1.2.3.4:5", "[::1]:5"]),
    )


def both(compare: bool, function: str, *arguments: Any) -> None:
    """Call the compiled function. A ValueError is fine, but the reference must raise the same."""
    found = outcome(getattr(compiled, function), *arguments)
    if compare:
        expected = outcome(getattr(reference, function), *arguments)
        assert found == expected, (function, found, expected)


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError as error:
        return str(error)


def span(rng: random.Random, size: int) -> tuple[int, int]:
    """Return a part of a buffer: mostly all of it, sometimes one that is out of bounds."""
    if rng.random() < 0.7:
        return 0, size
    return rng.randint(-1, size + 1), rng.randint(-1, size + 1)


def mutated_log(rng: random.Random) -> Log:
    log_start = rng.choice([0, 1 << 30, 1 << 40])
    parts = [
        Parts(
            topic=rng.choice([b"t", b"orders", b"SCHEDULE_TOPIC_XXXX", b"r" * 200, b"\xff\xfe"]),
            body=rng.randbytes(rng.choice([0, 1, 15, 64, 100])),
            properties=rng.choice(
                [b"", b"TAGS\x01a\x02DELAY\x012\x02", b"KEYS\x01a  b \x02UNIQ_KEY\x01u\x02", light_queues(rng)]
            ),
            sys_flag=rng.choice([0, 4, 8, 12]),
            queue_id=rng.randrange(3),
            born_host=bytes(rng.choice([8, 20])),
            store_host=bytes(rng.choice([8, 20])),
        )
        for _ in range(rng.randrange(6))
    ]
    log = bytearray(stretch_of(parts, log_start))
    if rng.random() < 0.3:
        log += blank_marker(rng.randint(8, 40))
    mutate(rng, log, rng.randrange(6))
    return bytes(log[: ROOM - 1]), log_start


def light_queues(rng: random.Random) -> bytes:
    names = b",".join(rng.choice([b"%LMQ%a", b"b", b"", b"c/d"]) for _ in range(rng.randrange(5)))
    offsets = b",".join(rng.choice([b"0", b"5", b"", b"x", b"9" * 18]) for _ in range(rng.randrange(5)))
    return b"INNER_MULTI_DISPATCH\x01" + names + b"\x02INNER_MULTI_QUEUE_OFFSET\x01" + offsets + b"\x02"


def mutate(rng: random.Random, data: bytearray, count: int, *, keep_size: bool = False) -> None:
    for _ in range(count):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(3 if keep_size else 6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at + 4 <= len(data):
            struct.pack_into(">i", data, at, rng.choice(LIES))
        elif kind == 2 and at + 2 <= len(data):
            struct.pack_into(">h", data, at, rng.choice([*LIES[:13], -1, -32768]))
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            del data[at : at + rng.randint(1, 20)]
        elif kind == 5:
            data[at:at] = rng.randbytes(rng.randint(1, 20))


def limit_memory() -> None:
    used = int(open("/proc/self/statm").read().split()[0]) * PAGE  # noqa: SIM115, PTH123
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_ABOVE_START,) * 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--overrun", action="store_true", help="read one byte too far, to test that it is detected")
    parser.add_argument("--devour", action="store_true", help="use too much memory, to test that it is detected")
    parser.add_argument("--hang", action="store_true", help="never end, to test that it is detected")
    options = parser.parse_args()
    faulthandler.enable()
    fuzzer = Fuzzer()
    limit_memory()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    numbers = iter(range(1 << 60)) if options.only is None else iter([options.only])
    deadline = time.monotonic() + options.seconds
    for number in numbers:
        os.pwrite(1, b"%20d" % number, 0)  # the round, in case the process dies in it
        signal.alarm(1 if options.hang else ROUND_SECONDS)
        fuzzer.round(options.seed, number)
        if options.overrun:
            ctypes.string_at(fuzzer.log.address + PAGE + ROOM - 1, 2)
        if options.devour:
            bytearray(2 * MEMORY_ABOVE_START)
        while options.hang:
            pass
        if time.monotonic() > deadline:
            break


if __name__ == "__main__":
    main()
    sys.exit(0)
