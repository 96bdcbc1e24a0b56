"""The core of a put: assign a queue offset, write the record, return the receipt."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from mqlake.errors import InvalidMessage
from mqlake.kernel.reference.encode import body_of, born_host_of, encode_record
from mqlake.kernel.reference.ends import Ends
from mqlake.kernel.reference.hashing import crc32
from mqlake.kernel.reference.message import Message, PutReceipt
from mqlake.kernel.reference.record import parse
from mqlake.kernel.types import APPENDED, KEEP_NUMBERS, KEEP_TIMES, MAX_PIN_MS, Readable, Writable

UNNUMBERED = (0x4, 0xC)
"""Transaction types (prepared, rolled back) that are in no queue and take no queue offset."""


class TopicState:
    """One topic: the next queue offset of each queue, the queue whose turn it is, and what was put since opening."""

    def __init__(self, name: str, queue_count: int) -> None:
        self.name = name
        self.queue_count = queue_count
        self.turn = 0
        self.next_offsets: dict[int, int] = {}
        self.put_count = 0
        self.put_bytes = 0
        self.retired = False


class Appender:
    """The write position of the log.

    If an append needs more than a copy (the file or its reserved blocks are full, the appender is closed, a queue is
    written for the first time, the message names light queues or a delay), it changes nothing and returns None, and
    the caller takes the slow path.
    """

    def __init__(self, ends: Ends, store_host: bytes, max_body: int, append_crc: bool, slow_ns: int) -> None:
        self.ends = ends
        self.file_start = 0
        self.position = 0
        self.limit = 0
        self.on_slow: Callable[[int, int], None] | None = None
        self.states: dict[str, TopicState] = {}
        self._store_host = store_host
        self._max_body = max_body
        self._append_crc = append_crc
        self._slow_ns = slow_ns
        self.last_timestamp = 0
        self.ahead_ms = 0
        self.sets_delayed_aside = False
        self._is_open = False
        self._target: Writable | None = None
        self._mutex = threading.RLock()

    def open(self, target: Writable, file_start: int, position: int, limit: int = -1) -> None:
        """Write to this buffer from `position` on. It holds the file that starts at `file_start`. `limit` is where its
        reserved blocks end; by default, all of it is reserved.
        """
        if not 0 <= position <= len(target) or limit > len(target):
            raise ValueError(f"{position} is not inside {len(target)} bytes")
        with self._mutex:
            self._target = target
            self.file_start = file_start
            self.position = position
            self.limit = len(target) if limit < 0 else limit
            self._is_open = True
        self.ends.advance(APPENDED, file_start + position)

    def extend(self, file_start: int, limit: int) -> None:
        """Raise the limit of a file: more of its blocks are reserved. Do nothing if another file is written by now."""
        with self._mutex:
            same = self._target is not None and self.file_start == file_start
            if same and self.limit < limit <= len(self._target or b""):
                self.limit = limit

    def close(self) -> None:
        """Make every append return None. When this returns, none is in progress."""
        with self._mutex:
            self._is_open = False

    def release(self) -> None:
        """Close, and release the buffer."""
        with self._mutex:
            self._is_open = False
            self._target = None

    def reopen(self) -> None:
        """Continue where `close` stopped."""
        with self._mutex:
            self._is_open = self._target is not None

    def retire(self, topic: str) -> TopicState | None:
        """Remove a topic. When this returns, no append with its old state is in progress, and none follows."""
        with self._mutex:
            state = self.states.pop(topic, None)
            if state is not None:
                state.retired = True
            return state

    def hold_visible(self) -> None:
        """Keep what is appended from now on invisible until `ends.release`. One holder at a time."""
        with self._mutex:
            self.ends.hold()

    def size_of(self, message: Message) -> int:
        """Return the size of a message as a record, in bytes."""
        return len(self._encode(message, 0, 0, 0, 0))

    def append(
        self,
        message: Message,
        durability: Any,
        as_is: bool = False,
        numbered_lights: bool = False,
        while_closed: bool = False,
    ) -> PutReceipt | None:
        """Append one message. Return its receipt, or None if the slow path is needed.

        `as_is`: accept a delay. `numbered_lights`: its queue offsets in light queues are already set. `while_closed`:
        the caller closed the appender to keep others out.
        """
        with self._mutex:
            size = self._plan(message, as_is, numbered_lights)
            if size is None or self._target is None or not (self._is_open or while_closed):
                return None
            if self.position + size + 8 > self.limit:
                return None
            timestamp = self._now()
            receipt = self._place(self._target, message, timestamp, durability)
            self.ends.advance(APPENDED, self.file_start + self.position)
        self._after(size, timestamp)
        return receipt

    def append_many(self, messages: Sequence[Message], durability: Any, as_is: bool = False) -> list[PutReceipt] | None:
        """Append messages one after the other. Return their receipts, or None, and then none was appended."""
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
                size = self._plan(message, as_is, False)
                if size is None:
                    return None
                total += size
            if total > self._max_body + 65536:
                raise InvalidMessage(
                    "batch",
                    f"{total} bytes in {len(messages)} records",
                    f"at most {self._max_body + 65536} bytes (maxMessageSize and 64 KiB); put it in parts",
                )
            if self._target is None or not self._is_open or self.position + total + 8 > self.limit:
                return None
            timestamp = self._now()
            receipts = [self._place(self._target, message, timestamp, durability) for message in messages]
            self.ends.advance(APPENDED, self.file_start + self.position)
        self._after(total, timestamp)
        return receipts

    def append_packed(
        self,
        packed: Readable,
        position: int,
        destination_of: bytes,
        destinations: list[tuple[TopicState, int]],
        timestamp: int,
        keep: int,
    ) -> int:
        """Append packed records (pack.py) from `position` on. Return where it stopped.

        It stops before a record that does not fit into the file, or whose kept queue offset is less than the queue's
        next one. The caller has closed the appender to keep others out, and passes the `destinations` of the records
        (each a topic's state and a queue id) and which of them each record has (`destination_of`): see
        `survey_packed`. All get one store time: `timestamp` if it is not before the last one, else now. `keep`: bit 1
        keeps their own queue offsets, bit 2 their own times.
        """
        if self._is_open:
            raise ValueError("the appender is open: others could append meanwhile")
        if self._target is None:
            return position
        if not 0 <= position <= len(packed):
            raise ValueError(f"{position} is not inside {len(packed)} bytes")
        if timestamp == 0:
            self._now()
        else:
            self.last_timestamp = max(self.last_timestamp, timestamp)
        for (number,) in struct.iter_unpack("=i", destination_of):
            state, queue_id = destinations[number]
            parsed = parse(memoryview(packed)[position:], -1, False)
            if isinstance(parsed, int) or self.position + parsed[0] + 8 > self.limit:
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
        self.ends.advance(APPENDED, self.file_start + self.position)
        return position

    def _plan(self, message: Message, as_is: bool, numbered_lights: bool) -> int | None:
        """Return the size of a record; None if the slow path is needed."""
        state = self.states.get(message.topic)
        if state is None:
            return None
        self._require_size(len(body_of(message)))
        size = self.size_of(message)
        if "INNER_MULTI_DISPATCH" in message.properties and not numbered_lights:
            return None
        if self.sets_delayed_aside and not as_is and any(map(is_delay, message.properties)):
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
        """Take the store time. If the clock is set back a little, the store time stays; if it is set back by more than
        MAX_PIN_MS, the clock is trusted.
        """
        now_ms = time.time_ns() // 1_000_000 + self.ahead_ms
        if now_ms > self.last_timestamp or now_ms < self.last_timestamp - MAX_PIN_MS:
            self.last_timestamp = now_ms
        return self.last_timestamp

    def _after(self, size: int, began_ms: int) -> None:
        took_ms = time.time_ns() // 1_000_000 + self.ahead_ms - began_ms
        if took_ms * 1_000_000 > self._slow_ns and self.on_slow is not None:
            self.on_slow(size, took_ms)


def is_delay(name: str) -> bool:
    """Return whether it is DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DEL_UNIQKEY."""
    return name == "DELAY" or (len(name) >= 14 and name.startswith("TIMER_DEL"))
