"""The inside of a put: number a message, place it, answer with its receipt."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from mqlake.errors import InvalidMessage
from mqlake.kernel.reference.encode import body_of, born_host_of, encode_record
from mqlake.kernel.reference.hashing import crc32
from mqlake.kernel.reference.message import Message, PutReceipt
from mqlake.kernel.reference.record import parse
from mqlake.kernel.types import KEEP_NUMBERS, KEEP_TIMES, Readable, Writable

UNNUMBERED = (0x4, 0xC)
"""Transaction types (prepared, rolled back) that are in no queue and take no number."""


class TopicState:
    """One topic: its queues' next numbers, whose turn it is, and what was put since the store was opened."""

    def __init__(self, name: str, queue_count: int) -> None:
        self.name = name
        self.queue_count = queue_count
        self.turn = 0
        self.next_offsets: dict[int, int] = {}
        self.put_count = 0
        self.put_bytes = 0


class Appender:
    """The write position of the log.

    Where an append needs more than a copy (the file is full or closed, a queue is written for the first time, light
    queues are named, a delay is asked for) the answer is None, nothing has happened, and the caller goes the slow way.
    """

    def __init__(
        self, end: int, store_host: bytes, max_body: int, append_crc: bool, slow_ns: int, words: Writable | None
    ) -> None:
        """`words`: the 8-byte word that tells other processes the end, or None."""
        self.end = end
        self.file_start = 0
        self.position = 0
        self.on_slow: Callable[[int, int], None] | None = None
        self.states: dict[str, TopicState] = {}
        self._store_host = store_host
        self._max_body = max_body
        self._append_crc = append_crc
        self._slow_ns = slow_ns
        self._words = words
        self.last_timestamp = 0
        self.sets_delayed_aside = False
        """A message with a delay goes the slow way, unless it is to be stored as it is."""
        self._is_open = False
        self._target: Writable | None = None
        self._mutex = threading.RLock()  # what the interpreter lock is to the compiled twin

    def open(self, target: Writable, file_start: int, position: int) -> None:
        """Write into this buffer from `position` on; it holds the file that starts at `file_start`."""
        if not 0 <= position <= len(target):
            raise ValueError(f"{position} is not inside of {len(target)} bytes")
        with self._mutex:
            self._target = target
            self.file_start = file_start
            self.position = position
            self._publish(file_start + position)
            self._is_open = True

    def close(self) -> None:
        """Every append answers None from here on."""
        with self._mutex:
            self._is_open = False

    def release(self) -> None:
        """Close, and let go of the buffer and of the end's word."""
        with self._mutex:
            self._is_open = False
            self._target = self._words = None

    def reopen(self) -> None:
        """Go on where `close` stopped."""
        self._is_open = self._target is not None

    def size_of(self, message: Message) -> int:
        """The bytes that a message takes as a record."""
        return len(self._encode(message, 0, 0, 0, 0))

    def append(
        self,
        message: Message,
        durability: Any,
        as_it_is: bool = False,
        numbered_lights: bool = False,
        while_closed: bool = False,
    ) -> PutReceipt | None:
        """Place one message; its receipt, or None where the slow way is needed.

        `as_it_is`: with a delay too. `numbered_lights`: its numbers in light queues are given. `while_closed`: the
        caller closed the appender to keep others out.
        """
        with self._mutex:
            size = self._plan(message, as_it_is, numbered_lights)
            if size is None or self._target is None or not (self._is_open or while_closed):
                return None
            if self.position + size + 8 > len(self._target):
                return None
            timestamp = self._now()
            receipt = self._place(self._target, message, timestamp, durability)
            self._publish(self.file_start + self.position)
        self._after(size, timestamp)
        return receipt

    def append_many(
        self, messages: Sequence[Message], durability: Any, as_it_is: bool = False
    ) -> list[PutReceipt] | None:
        """Place messages one behind the other; their receipts, or None and none of them placed."""
        total = 0
        with self._mutex:
            for message in messages:
                if message.sys_flag & 0xC:
                    raise InvalidMessage("batch", repr(message), "no transactions in a batch: put it alone")
                self._require_size(len(body_of(message)))
                if message.topic not in self.states:
                    return None
            for message in messages:
                born_host_of(message, self._store_host)  # refused before anything is measured
            for message in messages:
                size = self._plan(message, as_it_is, False)
                if size is None:
                    return None
                total += size
            if total > self._max_body + 65536:
                raise InvalidMessage(
                    "batch",
                    f"{total} bytes in {len(messages)} records",
                    f"at most {self._max_body + 65536} bytes (maxMessageSize and 64 KiB); put it in parts",
                )
            if self._target is None or not self._is_open or self.position + total + 8 > len(self._target):
                return None
            timestamp = self._now()
            receipts = [self._place(self._target, message, timestamp, durability) for message in messages]
            self._publish(self.file_start + self.position)
        self._after(total, timestamp)
        return receipts

    def append_packed(
        self,
        packed: Readable,
        position: int,
        lane_of: bytes,
        lanes: list[tuple[TopicState, int]],
        timestamp: int,
        keep: int,
    ) -> int:
        """Place packed records (pack.py) from `position` on; where it came to.

        That is before the one that does not fit into the file any more, or the one whose kept number is not behind
        those of its queue. The caller closed the appender to keep others out, and knows the `lanes` of the records,
        each a topic's state and a queue id, by `lane_of`: see `survey_packed`. All get one store time: `timestamp`, if
        it is not before the last, else now. `keep`: bit 1 for their own numbers, bit 2 for their own times.
        """
        if self._is_open:
            raise ValueError("the appender is open: others could append meanwhile")
        if self._target is None:
            return position
        if not 0 <= position <= len(packed):
            raise ValueError(f"{position} is not inside of {len(packed)} bytes")
        self.last_timestamp = max(self.last_timestamp, timestamp or time.time_ns() // 1_000_000)
        for (number,) in struct.iter_unpack("=i", lane_of):
            state, queue_id = lanes[number]
            parsed = parse(memoryview(packed)[position:], -1, False)
            if isinstance(parsed, int) or self.position + parsed[0] + 8 > len(self._target):
                break
            size, fields = parsed
            in_turn = queue_id < 0
            queue_id = state.turn if in_turn else queue_id
            queue_offset = state.next_offsets[queue_id]
            if fields.sys_flag & 0xC in UNNUMBERED:
                queue_offset = 0
            else:
                if keep & KEEP_NUMBERS:
                    if fields.queue_offset < queue_offset:
                        break
                    queue_offset = fields.queue_offset
                state.next_offsets[queue_id] = queue_offset + 1
            if keep & KEEP_TIMES:
                self.last_timestamp = max(self.last_timestamp, fields.store_timestamp)
            time_of = fields.store_timestamp if keep & KEEP_TIMES else self.last_timestamp
            record = bytearray(packed[position : position + size])
            struct.pack_into(">i", record, 12, queue_id)
            struct.pack_into(">qq", record, 20, queue_offset, self.file_start + self.position)
            struct.pack_into(">q", record, 48 + len(fields.born_host), time_of)
            if fields.properties_size >= 20 and record[-20:-11] == b"__CRC32#\x01":
                record[-11:-1] = f"{crc32(record[:-20]) & 0x7FFFFFFF:010d}"[::-1].encode()
            self._target[self.position : self.position + size] = record
            if in_turn:
                state.turn = (state.turn + 1) % state.queue_count
            state.put_count += 1
            state.put_bytes += size
            self.position += size
            position += size
        self._publish(self.file_start + self.position)
        return position

    def _plan(self, message: Message, as_it_is: bool, numbered_lights: bool) -> int | None:
        """The size of a record; None where the slow way is needed."""
        state = self.states.get(message.topic)
        if state is None:
            return None
        self._require_size(len(body_of(message)))
        size = self.size_of(message)
        if "INNER_MULTI_DISPATCH" in message.properties and not numbered_lights:
            return None
        if self.sets_delayed_aside and not as_it_is and any(map(is_delay, message.properties)):
            return None
        queue_id = state.turn if message.queue_id is None else message.queue_id
        if not isinstance(queue_id, int) or not 0 <= queue_id < 1 << 31:
            raise InvalidMessage("queue_id", repr(queue_id), "a number in [0, 2147483647]")
        if message.sys_flag & 0xC not in UNNUMBERED and queue_id not in state.next_offsets:
            return None
        return size

    def _require_size(self, body_size: int) -> None:
        if body_size > self._max_body:
            raise InvalidMessage("body", f"{body_size} bytes", f"at most {self._max_body} bytes (maxMessageSize)")

    def _place(self, target: Writable, message: Message, timestamp: int, durability: Any) -> PutReceipt:
        state = self.states[message.topic]
        queue_id = state.turn if message.queue_id is None else message.queue_id
        numbered = message.sys_flag & 0xC not in UNNUMBERED
        queue_offset = state.next_offsets[queue_id] if numbered else 0
        offset = self.file_start + self.position
        record = self._encode(message, queue_id, queue_offset, offset, timestamp)
        target[self.position : self.position + len(record)] = record
        self.position += len(record)
        if numbered:
            state.next_offsets[queue_id] = queue_offset + 1
        if message.queue_id is None:
            state.turn = (state.turn + 1) % state.queue_count
        state.put_count += 1
        state.put_bytes += len(record)
        size, host = len(record), self._store_host
        return PutReceipt(state.name, queue_id, queue_offset, offset, size, timestamp, durability, host)

    def _encode(self, message: Message, queue_id: int, queue_offset: int, offset: int, timestamp: int) -> bytes:
        places = queue_id, queue_offset, offset, timestamp
        return encode_record(message, *places, self._store_host, self._append_crc)

    def _now(self) -> int:
        """Store times never run backwards along the log."""
        self.last_timestamp = max(self.last_timestamp, time.time_ns() // 1_000_000)
        return self.last_timestamp

    def _publish(self, end: int) -> None:
        self.end = end
        if self._words is not None:
            struct.pack_into("q", self._words, 0, end)

    def _after(self, size: int, began_ms: int) -> None:
        took_ms = time.time_ns() // 1_000_000 - began_ms
        if took_ms * 1_000_000 > self._slow_ns and self.on_slow is not None:
            self.on_slow(size, took_ms)


def is_delay(name: str) -> bool:
    """DELAY, or one of TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DEL_UNIQKEY."""
    return name == "DELAY" or (len(name) >= 14 and name.startswith("TIMER_DEL"))
