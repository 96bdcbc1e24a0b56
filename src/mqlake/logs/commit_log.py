"""The commit log: all messages of all topics, one after the other.

Invariant: [first_offset, end) is a gap-free sequence of records; each file is closed by an end-of-file marker, and no
record spans two files. A record's own physical offset is where it lies.

Ends: `committed` <= `end`. Without the transient pool they are the same; with it, bytes between the two are in a
pool buffer, and only the process knows them. Readers stay below `committed`.

Appends are serial, under one lock. A record is encoded before the lock is taken; under it, it gets its place, its
number in the queue and its time, and is copied. Any thread reads.
"""

from __future__ import annotations

import logging
import mmap
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mqlake.config import RECORD_OVERHEAD, CommitLogConfig
from mqlake.errors import CorruptRecord, DiskFull, InvalidMessage, NoSuchMessage, OffsetOutOfRange, StoreError
from mqlake.codec.host import pack_host
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.names import file_name
from mqlake.files.pool import TransientPool
from mqlake.files.positions import APPENDED
from mqlake.files.preallocation import Preallocator
from mqlake.files.warm_ahead import WarmAhead
from mqlake.kernel import check_record, encode_record, place_record, place_records, unlock_memory
from mqlake.kernel.types import REASONS
from mqlake.logs.stretch import Stretch
from mqlake.logs.topic_table import TopicState, TopicTable
from mqlake.message import Durability, Message, PhysicalOffset, PutReceipt, QueueOffset

MARKER: Final = struct.Struct(">iI")
MARKER_MAGIC: Final = 0xCBD43194
MARKER_SIZE: Final = 8
"""Every file keeps this much for its end-of-file marker."""
POOL_WAIT_S: Final = 5.0
LIGHT_QUEUES: Final = "INNER_MULTI_DISPATCH"
LIGHT_OFFSETS: Final = "INNER_MULTI_QUEUE_OFFSET"
UNNUMBERED: Final = (0x4, 0xC)
"""Transaction types (prepared, rolled back) that are in no queue and take no number."""

_log = logging.getLogger(__name__)
_now_ns = time.time_ns


class CommitLog:
    """The log and its write position. Made by `MessageStore.open`, after recovery has found where the log ends."""

    def __init__(self, files: MappedFileQueue, config: CommitLogConfig, end: int) -> None:
        self.files = files
        self.file_size = files.file_size
        self.end = end
        self.committed = end
        self._config = config
        self._slow_ns = config.slow_append_ms * 1_000_000

    def open_for_writing(
        self,
        topics: TopicTable,
        preallocator: Preallocator,
        pool: TransientPool | None,
        warm_ahead: WarmAhead | None,
        words: memoryview,
        *,
        pool_fails_fast: bool,
        unlock_full_files: bool,
    ) -> None:
        """Make it ready for `append`. `words` are the store's live positions."""
        self.topics = topics
        self.refusal: Callable[[], StoreError] | None = None
        """Set when puts must be refused: makes the error that says why."""
        self._preallocator = preallocator
        self._pool = pool
        self._pool_wait_s = 0.0 if pool_fails_fast else POOL_WAIT_S
        self._unlock_full_files = unlock_full_files
        self._warm_ahead = warm_ahead
        self._words = words
        self._store_host = pack_host(self._config.store_host)
        self._max_body = self._config.max_message_bytes
        self._append_crc = self._config.append_record_crc
        self._lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._buffers: dict[int, mmap.mmap] = {}
        self._marker_ends: dict[int, int] = {}
        self._new_names = False
        self._last_ms = 0
        self._file: MappedFile | None = None
        self._file_start = 0
        self._position = self.file_size  # no file yet: the first append finds it full
        self._warm_at = self.file_size
        file = self.files.file_at(self.end)
        if file is not None:
            self._write_to(file, self.end - file.start)

    def _write_to(self, file: MappedFile, position: int) -> None:
        """Make `file` the one that is written, from `position` on."""
        self._target: mmap.mmap = file.pages
        if self._pool is not None:
            buffer = self._pool.borrow(self._pool_wait_s)
            if buffer is None:
                raise DiskFull(file.path, file.size, "no buffer of the transient pool is free")
            self._buffers[file.start] = self._target = buffer
        self._file = file
        self._file_start = file.start
        self._position = position
        if self._warm_ahead is not None:
            self._warm_at = self._warm_ahead.advance(file, position)

    # ---- append

    def append(self, message: Message, durability: Durability) -> PutReceipt:
        """Write one message; the receipt is true once the caller has brought it to `durability`."""
        state = self.topics.states.get(message.topic) or self.topics.add(message.topic)
        if LIGHT_QUEUES in message.properties:
            return self._append_to_light_queues(state, message, durability)
        queue_id = self._queue_of(state, message)
        record = encode_record(message, queue_id, self._store_host, self._max_body, self._append_crc)
        with self._lock:
            return self._place(state, queue_id, record, message.sys_flag & 0xC in UNNUMBERED, durability)

    def append_many(self, messages: Sequence[Message], durability: Durability) -> list[PutReceipt]:
        """Write messages one behind the other, in one file, or none of them."""
        states = []
        queue_ids = []
        records = []
        for message in messages:
            if LIGHT_QUEUES in message.properties or message.sys_flag & 0xC:
                raise InvalidMessage("batch", repr(message), "no light queues and no transactions in a batch: put it alone")
            state = self.topics.states.get(message.topic) or self.topics.add(message.topic)
            queue_id = self._queue_of(state, message)
            states.append(state)
            queue_ids.append(queue_id)
            records.append(encode_record(message, queue_id, self._store_host, self._max_body, self._append_crc))
        total = sum(map(len, records))
        if total > self._max_body + RECORD_OVERHEAD:
            raise InvalidMessage(
                "batch",
                f"{total} bytes in {len(records)} records",
                f"at most {self._max_body + RECORD_OVERHEAD} bytes (maxMessageSize and 64 KiB); put it in parts",
            )
        with self._lock:
            return self._place_batch(states, queue_ids, records, total, durability)

    def _queue_of(self, state: TopicState, message: Message) -> int:
        queue_id = message.queue_id
        if queue_id is None:
            queue_id = state.turn
            state.turn = (queue_id + 1) % state.queue_count
        elif not 0 <= queue_id < 2**31:
            raise InvalidMessage("queue_id", repr(queue_id), "a number in [0, 2147483647]")
        return queue_id

    def _place(
        self, state: TopicState, queue_id: int, record: bytes, unnumbered: bool, durability: Durability
    ) -> PutReceipt:
        size = len(record)
        if self.refusal is not None:
            raise self.refusal()
        if self._position + size + MARKER_SIZE > self.file_size:
            self._roll(size)
        queue_offset = state.next_offsets.get(queue_id, -1)
        if queue_offset < 0 or unnumbered:
            queue_offset = 0 if unnumbered else self.topics.next_offset(state, queue_id)
        position = self._position
        offset = self._file_start + position
        began_ns = _now_ns()
        now = max(began_ns // 1_000_000, self._last_ms)  # store times never run backwards along the log
        place_record(self._target, position, record, queue_offset, offset, now, self._append_crc)
        self._last_ms = now
        self._position = position + size
        if not unnumbered:
            state.next_offsets[queue_id] = queue_offset + 1
        self._publish(offset + size)
        state.put_count += 1
        state.put_bytes += size
        if _now_ns() - began_ns > self._slow_ns:
            _log.warning("appending a record of %d bytes took %d ms", size, (_now_ns() - began_ns) // 1_000_000)
        return tuple.__new__(
            PutReceipt, (state.name, queue_id, queue_offset, offset, size, now, durability, self._store_host)
        )

    def _place_batch(
        self, states: list[TopicState], queue_ids: list[int], records: list[bytes], total: int, durability: Durability
    ) -> list[PutReceipt]:
        if self.refusal is not None:
            raise self.refusal()
        if self._position + total + MARKER_SIZE > self.file_size:
            self._roll(total)
        queue_offsets = []
        for state, queue_id in zip(states, queue_ids, strict=True):
            queue_offset = self.topics.next_offset(state, queue_id)
            state.next_offsets[queue_id] = queue_offset + 1
            queue_offsets.append(queue_offset)
        position = self._position
        offset = self._file_start + position
        now = max(_now_ns() // 1_000_000, self._last_ms)
        place_records(self._target, position, records, queue_offsets, offset, now, self._append_crc)
        self._last_ms = now
        self._position = position + total
        self._publish(offset + total)
        receipts = []
        host = self._store_host
        for state, queue_id, queue_offset, record in zip(states, queue_ids, queue_offsets, records, strict=True):
            size = len(record)
            state.put_count += 1
            state.put_bytes += size
            receipts.append(
                tuple.__new__(PutReceipt, (state.name, queue_id, queue_offset, offset, size, now, durability, host))
            )
            offset += size
        return receipts

    def _publish(self, end: int) -> None:
        """The log ends here now: for readers, and for other processes."""
        self.end = end
        if self._pool is None:
            self.committed = end
            self._words[APPENDED] = end
        if self._position >= self._warm_at and self._warm_ahead is not None and self._file is not None:
            self._warm_at = self._warm_ahead.advance(self._file, self._position)

    def _append_to_light_queues(self, state: TopicState, message: Message, durability: Durability) -> PutReceipt:
        """A message that names light queues carries its numbers in them, so it is encoded under the lock."""
        queue_id = self._queue_of(state, message)
        with self._lock:
            names = message.properties[LIGHT_QUEUES].split(",")
            queues = []
            for name in names:
                light = self.topics.states.get(name) or self.topics.add_unchecked(name)
                queues.append((light, 0 if name.startswith("%LMQ%") else queue_id))
            offsets = [self.topics.next_offset(light, light_id) for light, light_id in queues]
            numbered = Message(
                message.topic,
                message.body,
                properties={**message.properties, LIGHT_OFFSETS: ",".join(map(str, offsets))},
                flag=message.flag,
                sys_flag=message.sys_flag,
                born_timestamp=message.born_timestamp,
                reconsume_times=message.reconsume_times,
                prepared_offset=message.prepared_offset,
            )
            numbered.born_address = message.born_address
            record = encode_record(numbered, queue_id, self._store_host, self._max_body, self._append_crc)
            receipt = self._place(state, queue_id, record, message.sys_flag & 0xC in UNNUMBERED, durability)
            for (light, light_id), offset in zip(queues, offsets, strict=True):
                light.next_offsets[light_id] = offset + 1
            return receipt

    def _roll(self, needed: int) -> None:
        """Close the file that is written with a marker and go on in the next. Where there is none, nothing changes."""
        if needed + MARKER_SIZE > self.file_size:
            raise InvalidMessage(
                "message", f"{needed} bytes as a record", f"at most {self.file_size - MARKER_SIZE} bytes: files have {self.file_size}"
            )
        old, position = self._file, self._position
        start = old.end if old is not None else self.files.end_offset
        target = self._target if old is not None else None
        file = self._preallocator.take(start)
        try:
            self._write_to(file, 0)
        except DiskFull:
            file.delete()
            raise
        file.rename(self.files.directory / file_name(start))
        self._new_names = True
        if old is not None and target is not None:
            if old.size - position >= MARKER_SIZE:
                MARKER.pack_into(target, position, old.size - position, MARKER_MAGIC)
            self._marker_ends[old.start] = min(old.size, position + MARKER_SIZE)
            if self._unlock_full_files:
                unlock_memory(old.pages)
        self.files.add(file)
        self._publish(start)

    def refuse(self, refusal: Callable[[], StoreError]) -> None:
        """No put is taken from here on; one that is under way ends first."""
        with self._lock:
            self.refusal = refusal

    # ---- commit and sync

    def commit(self) -> int:
        """Bring what is in pool buffers to the files; where the log is committed to. A no-op without the pool."""
        if self._pool is None:
            return self.committed
        with self._commit_lock:
            target = self.end
            while self.committed < target:
                file = self.files.file_at(self.committed)
                assert file is not None, "what was appended has a file"
                stop = min(target, file.end)
                self._commit_file(file, self.committed - file.start, stop - file.start)
                self.committed = stop
            self._words[APPENDED] = self.committed
            return self.committed

    def _commit_file(self, file: MappedFile, position: int, stop: int) -> None:
        buffer = self._buffers[file.start]
        # Behind a marker the buffer holds remains of the file before: the new file is zero there, and stays so.
        written = min(stop, self._marker_ends.get(file.start, stop))
        if written > position:
            file.write_at(position, memoryview(buffer)[position:written])
        if stop == file.size and self._pool is not None:
            self._pool.give_back(self._buffers.pop(file.start))

    def sync(self, start: int, stop: int) -> None:
        """Bring [start, stop) to the disk, and the names of new files with it."""
        if self._new_names:
            self._new_names = False
            sync_directory(self.files.directory)
        for file_start in self.files.starts:
            if file_start < stop and file_start + self.file_size > start:
                file = self.files.file_at(file_start)
                if file is not None:
                    file.sync()

    def dirty_pages(self, durable: int) -> int:
        """Pages of 4 KiB that begin between the durable end and the log's."""
        return self.committed // 4096 - durable // 4096

    # ---- read

    @property
    def first_offset(self) -> int:
        return self.files.first_offset

    def stretch(self, start: int, stop: int) -> Stretch | None:
        """The part of [start, stop) that lies in one file; None where the file is gone."""
        file = self.files.file_at(start)
        if file is None:
            return None
        return Stretch(file.pages, file.start, start - file.start, min(stop, file.end) - file.start, file.path)

    def stretches(self, start: int, stop: int) -> Iterator[Stretch]:
        """[start, stop) file by file."""
        while start < stop:
            stretch = self.stretch(start, stop)
            if stretch is None:
                raise OffsetOutOfRange("commit log", start, self.first_offset, self.committed)
            yield stretch
            start = stretch.log_start + self.file_size

    def record_at(self, offset: int, readable: int) -> bytes:
        """The record that begins at an offset, checked, CRC included; `readable` is where readers must stop."""
        if not self.first_offset <= offset < readable:
            raise OffsetOutOfRange("commit log", offset, self.first_offset, readable)
        stretch = self.stretch(offset, readable)
        if stretch is None:
            raise OffsetOutOfRange("commit log", offset, self.first_offset, readable)
        size = check_record(stretch.data, stretch.position, stretch.end, offset, True)
        if size > 0:
            return bytes(stretch.data[stretch.position : stretch.position + size])
        if size == 0:
            raise NoSuchMessage(f"physical offset {offset}", "a file's end-of-file marker is here, not a record")
        if check_record(stretch.data, stretch.position, stretch.end, offset, False) > 0:
            raise CorruptRecord(stretch.file, offset, REASONS[size])
        raise NoSuchMessage(f"physical offset {offset}", f"no record begins here: {REASONS[size]}")
