"""The commit log: all messages of all topics, one after the other.

Invariant: [first_offset, end) is a gap-free sequence of records; each file is closed by an end-of-file marker, and no
record spans two files. A record's own physical offset is where it lies.

Ends: `committed` <= `end`. Without the transient pool they are the same; with it, bytes between the two are in a
pool buffer, and only the process knows them. Readers stay below `committed`.

Appends are serial: the kernel's appender places a record in one call. What needs more than a copy (the next file, a
queue's first message, light queues, messages for later) is done under the log's lock, with the appender closed where
others must stay out.
Any thread reads.
"""

from __future__ import annotations

import logging
import mmap
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from mqlake.config import CommitLogConfig
from mqlake.errors import CorruptRecord, DiskFull, InvalidMessage, NoSuchMessage, OffsetOutOfRange, StoreError
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.names import file_name
from mqlake.files.pool import TransientPool
from mqlake.files.positions import APPENDED, DURABLE
from mqlake.files.preallocation import Preallocator
from mqlake.kernel import Appender, GroupCommit, check_record, survey_packed, unlock_memory
from mqlake.kernel.hosts import pack_host
from mqlake.kernel.types import REASONS, Readable
from mqlake.logs.stretch import Stretch
from mqlake.logs.topic_table import TopicTable, require_light_queue
from mqlake.message import Durability, Message, PutReceipt, StoredMessage

MARKER: Final = struct.Struct(">iI")
MARKER_MAGIC: Final = 0xCBD43194
MARKER_SIZE: Final = 8
"""Every file keeps this much for its end-of-file marker."""
POOL_WAIT_S: Final = 5.0
PACKED_BYTES: Final = 16 << 20
"""Packed records that are placed in one call; dispatch follows behind it."""
LIGHT_QUEUES: Final = "INNER_MULTI_DISPATCH"
LIGHT_OFFSETS: Final = "INNER_MULTI_QUEUE_OFFSET"

_log = logging.getLogger(__name__)


class Readdress(Protocol):
    """Who knows where messages for later are stored in the meantime."""

    def address(self, message: Message, take_turn: Callable[[], int]) -> Message:
        """The message as it is to be stored; `take_turn` says which queue it is for."""

    def stored(self, waiting: Message) -> None:
        """A message with another address than it was put with is in the log."""


class CommitLog:
    """The log's files, for reading. `LogWriter` is the side that appends."""

    def __init__(self, files: MappedFileQueue, end: int) -> None:
        self.files = files
        self.file_size = files.file_size
        self._committed = end

    @property
    def committed(self) -> int:
        """Where the log ends for readers."""
        return self._committed

    def follow(self, end: int) -> None:
        """Another process wrote the log up to here."""
        self._committed = end
        if end > self.files.end_offset:
            self.files.refresh()

    @property
    def first_offset(self) -> int:
        return self.files.first_offset

    def file_time_ms(self, start: int) -> int:
        """When the newest record of a file, not the last one, was stored; milliseconds since 1970.

        The first record of the next file bounds it from above, and costs one look. A file's own modification time,
        which RocketMQ takes, lags behind what is written through a mapping and is set anew by a copy of the store: it
        stands in only where that record cannot be read.
        """
        try:
            return StoredMessage(self.record_at(start + self.file_size, self.committed)).store_timestamp
        except StoreError:
            return (self.files.directory / file_name(start)).stat().st_mtime_ns // 1_000_000

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

    def require_record(self, offset: int, readable: int) -> None:
        """CorruptRecord where neither a record nor an end-of-file marker begins at an offset."""
        stretch = self.stretch(offset, readable)
        size = check_record(stretch.data, stretch.position, stretch.end, offset, False) if stretch is not None else 1
        if stretch is not None and size < 0:
            raise CorruptRecord(stretch.file, offset, REASONS[size])


class LogWriter(CommitLog):
    """The log with its write position. Made by `Engine`, once recovery has found where the log ends."""

    def __init__(
        self,
        files: MappedFileQueue,
        config: CommitLogConfig,
        end: int,
        words: memoryview,
        last_timestamp: int = 0,
        *,
        pool: TransientPool | None,
    ) -> None:
        """`words` are the store's live positions; `last_timestamp` is the last record's store time."""
        super().__init__(files, end)
        self._words = words
        self._pool = pool
        self._appender = Appender(
            end,
            pack_host(config.store_host),
            config.max_message_bytes,
            config.append_record_crc,
            config.slow_append_ms * 1_000_000,
            words[APPENDED : APPENDED + 1] if pool is None else None,
        )
        self._appender.last_timestamp = last_timestamp
        self._appender.on_slow = _warn_slow
        self.group = GroupCommit(self._appender, words[DURABLE : DURABLE + 1])
        """Who syncs the log, and who waits for it."""
        self._readdress: Readdress | None = None
        self.refusal: Callable[[], StoreError] | None = None
        """Set when puts must be refused: makes the error that says why."""
        self._lock = threading.Lock()
        self._names_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._buffers: dict[int, mmap.mmap] = {}
        self._marker_ends: dict[int, int] = {}
        self._new_names = False
        self._names_failure: OSError | None = None
        """A sync of the folder failed: no later sync of the log can succeed."""
        self._file: MappedFile | None = None
        self._target: mmap.mmap | None = None

    def open(
        self,
        topics: TopicTable,
        preallocator: Preallocator,
        *,
        pool_fails_fast: bool,
        unlock_full_files: bool,
    ) -> None:
        """Make it ready for `append`."""
        self._topics = topics
        topics.states = self._appender.states
        self._preallocator = preallocator
        self._pool_wait_s = 0.0 if pool_fails_fast else POOL_WAIT_S
        self._unlock_full_files = unlock_full_files
        file = self.files.file_at(self.end)
        if file is not None:
            target = self._target_for(file)
            self._write_to(file, target, self.end - file.start)

    def readdress(self, readdress: Readdress) -> None:
        """Have messages with a delay asked for where they are to be stored in the meantime."""
        self._readdress = readdress
        self._appender.sets_delayed_aside = True

    @property
    def end(self) -> int:
        """Where the log ends; with the transient pool, part of it is in memory only."""
        return self._appender.end

    @property
    def committed(self) -> int:
        return self._appender.end if self._pool is None else self._committed

    # ---- append

    def append(self, message: Message, durability: Durability) -> PutReceipt:
        """Write one message; the receipt is true once the caller has brought it to `durability`."""
        receipt = self._appender.append(message, durability)
        return receipt if receipt is not None else self._append_slowly(message, durability)

    def append_many(self, messages: Sequence[Message], durability: Durability) -> list[PutReceipt]:
        """Write messages one behind the other, in one file, or none of them."""
        receipts = self._appender.append_many(messages, durability)
        return receipts if receipts is not None else self._append_many_slowly(messages, durability)

    def append_as_it_is(self, message: Message, durability: Durability) -> PutReceipt:
        """`append` for those who deliver, load or copy: a delay that the message names is over, or none of theirs."""
        receipt = self._appender.append(message, durability, True)
        return receipt if receipt is not None else self._append_slowly(message, durability, as_it_is=True)

    def append_packed(self, packed: Readable, *, timestamp: int = 0, keep: int = 0) -> None:
        """Write packed records (kernel/pack.pxi), all of them, in their order; others wait meanwhile.

        They get one store time, `timestamp` or now, and their numbers; or they keep their own: see `kernel.types`.
        """
        position = 0
        with self._lock:
            while position < len(packed):
                self._raise_if_refused()
                _, lane_of, names = survey_packed(packed, position, PACKED_BYTES)
                lanes = [self._topics.lane(topic, queue_id) for topic, queue_id in names]
                self._appender.close()
                try:
                    reached = self._appender.append_packed(packed, position, lane_of, lanes, timestamp, keep)
                finally:
                    self._appender.reopen()
                if reached == position:
                    self._make_room_for(packed, position)
                position = reached

    def _make_room_for(self, packed: Readable, position: int) -> None:
        """The packed record at a position was not taken: the file is full, or its own number is taken already."""
        size = int.from_bytes(packed[position : position + 4], "big")
        if self._file is not None and self._appender.position + size + MARKER_SIZE <= self.file_size:
            record = StoredMessage(bytes(packed[position : position + size]))
            found = f"{record.queue_offset} in queue {record.queue_id} of {record.topic}"
            raise InvalidMessage("queue_offset", found, "a number behind those that the queue has")
        self._roll(size)

    def _append_slowly(self, message: Message, durability: Durability, *, as_it_is: bool = False) -> PutReceipt:
        """A new file, a queue's first message, light queues, a message for later, or a refusal."""
        with self._lock:
            self._raise_if_refused()
            addressed = message if as_it_is else self._address(message)
            self._topics.prepare(addressed)
            waits = addressed is not message
            if LIGHT_QUEUES in addressed.properties and not waits:  # one that waits is in them when it is delivered
                return self._append_to_light_queues(addressed, durability)
            receipt = self._appender.append(addressed, durability, True, waits)
            while receipt is None:
                self._roll(self._appender.size_of(addressed))
                receipt = self._appender.append(addressed, durability, True, waits)
            if waits:
                self._tell_stored(addressed)
            return receipt

    def _append_many_slowly(self, messages: Sequence[Message], durability: Durability) -> list[PutReceipt]:
        with self._lock:
            self._raise_if_refused()
            addressed = [self._address(message) for message in messages]
            for message in addressed:
                if LIGHT_QUEUES in message.properties:
                    raise InvalidMessage("batch", repr(message), "no light queues in a batch: put it alone")
                self._topics.prepare(message)
            receipts = self._appender.append_many(addressed, durability, True)
            while receipts is None:
                self._roll(sum(map(self._appender.size_of, addressed)))
                receipts = self._appender.append_many(addressed, durability, True)
            for message, stored in zip(messages, addressed, strict=True):
                if stored is not message:
                    self._tell_stored(stored)
            return receipts

    def _address(self, message: Message) -> Message:
        """The message as it is stored: elsewhere, if it is to be delivered later."""
        if self._readdress is None:
            return message
        return self._readdress.address(message, lambda: self._take_turn(message))

    def _tell_stored(self, waiting: Message) -> None:
        assert self._readdress is not None, "who else gave it another address"
        self._readdress.stored(waiting)

    def take_turn(self, message: Message) -> int:
        """The queue that a message is for, which counts as put there: for one that is stored elsewhere first."""
        with self._lock:
            self._raise_if_refused()
            return self._take_turn(message)

    def _take_turn(self, message: Message) -> int:
        self._topics.prepare(message)
        queue_id = self._turn_of(message)
        if message.queue_id is None:
            state = self._topics.states[message.topic]
            state.turn = (queue_id + 1) % state.queue_count
        return queue_id

    def _append_to_light_queues(self, message: Message, durability: Durability) -> PutReceipt:
        """A message that names light queues carries its numbers in them: nobody else may append meanwhile."""
        for name in message.properties[LIGHT_QUEUES].split(","):
            require_light_queue(name)
        if self._file is None or self._appender.position + self._room_with_lights(message) > self.file_size:
            self._roll(self._room_with_lights(message))
        self._appender.close()
        try:
            names = message.properties[LIGHT_QUEUES].split(",")
            queue_id = self._turn_of(message)
            queues = [(self._topics.state(name), 0 if name.startswith("%LMQ%") else queue_id) for name in names]
            offsets = [self._topics.next_offset(light, light_id) for light, light_id in queues]
            message.properties[LIGHT_OFFSETS] = ",".join(map(str, offsets))
            receipt = self._appender.append(message, durability, True, numbered_lights=True, while_closed=True)
            assert receipt is not None, "there is room, and the queue is known"
            for (light, light_id), offset in zip(queues, offsets, strict=True):
                light.next_offsets[light_id] = offset + 1
            return receipt
        finally:
            self._appender.reopen()

    def _turn_of(self, message: Message) -> int:
        return self._topics.states[message.topic].turn if message.queue_id is None else message.queue_id

    def _room_with_lights(self, message: Message) -> int:
        """What a message needs at most, its numbers in light queues included."""
        names = message.properties[LIGHT_QUEUES].count(",") + 1
        return self._appender.size_of(message) + len(LIGHT_OFFSETS) + 2 + 20 * names + MARKER_SIZE

    def _raise_if_refused(self) -> None:
        if self.refusal is not None:
            raise self.refusal()

    def _target_for(self, file: MappedFile) -> mmap.mmap:
        """Where the bytes of a file are written: its own pages, or a buffer of the pool."""
        if self._pool is None:
            return file.pages
        buffer = self._pool.borrow(self._pool_wait_s)
        if buffer is None:
            raise DiskFull(file.path, file.size, "no buffer of the transient pool is free")
        self._buffers[file.start] = buffer
        return buffer

    def _write_to(self, file: MappedFile, target: mmap.mmap, position: int) -> None:
        """Make `file` the one that is written, from `position` on."""
        self._file = file
        self._target = target
        self.group.write_to(self._descriptor_of(file), file.start)
        self._appender.open(target, file.start, position)

    def _descriptor_of(self, file: MappedFile) -> int:
        """What a sync of the file is a call on; with the pool it is more than a call, and -1."""
        return file.descriptor if self._pool is None else -1

    def _roll(self, needed: int) -> None:
        """Close the file that is written with a marker and go on in the next. Where there is none, nothing changes."""
        if needed + MARKER_SIZE > self.file_size:
            expected = f"at most {self.file_size - MARKER_SIZE} bytes, because files have {self.file_size}"
            raise InvalidMessage("message", f"{needed} bytes as a record", expected)
        old = self._file
        start = old.end if old is not None else self.files.end_offset
        self._sync_names()
        file = self._preallocator.take(start)  # others go on in the old file meanwhile
        try:
            target = self._target_for(file)
            file.rename(self.files.directory / file_name(start))
        except DiskFull:
            file.delete()
            raise
        except OSError as error:
            file.delete()
            raise DiskFull(file.path, file.size, error.strerror or str(error)) from error
        self._new_names = True
        if old is not None:
            self._close_file(old)
        self.files.add(file)
        self._write_to(file, target, 0)

    def _sync_names(self) -> None:
        """A file gets its name when the name before is on the disk: a power cut must not leave a gap between files.

        Whoever comes while another thread syncs waits for it: that it has begun says nothing.
        """
        with self._names_lock:
            if self._new_names and self._names_failure is None:
                self._new_names = False  # first: a name that comes from here on needs another
                try:
                    sync_directory(self.files.directory)
                except OSError as error:
                    self._names_failure = error

    def _close_file(self, file: MappedFile) -> None:
        self._appender.close()
        position = self._appender.position
        assert self._target is not None, "a file that is written has a target"
        if file.size - position >= MARKER_SIZE:
            MARKER.pack_into(self._target, position, file.size - position, MARKER_MAGIC)
        self._marker_ends[file.start] = min(file.size, position + MARKER_SIZE)
        if self._unlock_full_files:
            unlock_memory(file.pages)

    def refuse(self, refusal: Callable[[], StoreError]) -> None:
        """No put is taken from here on; one that is under way ends first."""
        self._appender.close()
        with self._lock:
            self._appender.close()
            self.refusal = refusal

    def pause(self, refusal: Callable[[], StoreError]) -> None:
        """Refuse puts until `resume`; nothing changes where they are refused already."""
        with self._lock:
            if self.refusal is None:
                self._appender.close()
                self.refusal = refusal

    def resume(self, refusal: Callable[[], StoreError]) -> None:
        """Take puts again, if this is what they are refused for."""
        with self._lock:
            if self.refusal == refusal:
                self.refusal = None
                self._appender.reopen()

    def ask_again(self, topic: str) -> None:
        """A topic's set-up changed: the next put to it goes by the new one."""
        with self._lock:
            self._topics.park(topic)

    @contextmanager
    def forgetting(self, topic: str) -> Iterator[int]:
        """Forget a topic's queues; while it is entered nobody puts to it. Gives the log's end: what comes is behind."""
        with self._lock:
            self._topics.forget(topic)
            yield self.end

    def close(self) -> None:
        """Let go of the file that was written; `refuse` came before."""
        self._appender.release()
        self.group.release()
        self._file = None
        self._target = None
        self._buffers.clear()

    # ---- commit and sync

    def commit(self) -> int:
        """Bring what is in pool buffers to the files; where the log is committed to. A no-op without the pool."""
        if self._pool is None:
            return self.end
        with self._commit_lock:
            target = self.end
            while self._committed < target:
                file = self.files.file_at(self._committed)
                assert file is not None, "what was appended has a file"
                stop = min(target, file.end)
                self._commit_file(file, self._committed - file.start, stop - file.start)
                self._committed = stop
            self._words[APPENDED] = self._committed
            return self._committed

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
        self._sync_names()
        if self._names_failure is not None:
            raise self._names_failure
        for file_start in self.files.starts:
            if file_start < stop and file_start + self.file_size > start:
                file = self.files.file_at(file_start)
                if file is not None:
                    file.sync()

    def dirty_pages(self, durable: int) -> int:
        """Pages of 4 KiB that begin between the durable end and the log's."""
        return self.committed // 4096 - durable // 4096


def _warn_slow(size: int, took_ms: int) -> None:
    _log.warning("appending %d bytes took %d ms", size, took_ms)
