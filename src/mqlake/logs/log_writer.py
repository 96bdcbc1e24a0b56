"""The writing side of the commit log.

Appends are serial. The kernel's appender places a record in one call, under its own mutex. What needs more than a copy
(the next file, more blocks, a topic's first message, light queues) is done under the log's lock.

No other part's code runs under that lock. Asking whether a topic may be written (`TopicTable.admit`), where a delayed
message is stored meanwhile (`Router`), and telling that it is stored all happen before it is taken or after it is
released.

Blocks are reserved ahead of the write position, a chunk at a time, so that a full disk is a refused put and never a bus
error in a mapped page. With the transient pool records are written into a buffer, and `commit` copies them to the file.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import FrameType
from typing import Final, Protocol, TypeVar

from mqlake.config import CommitLogConfig
from mqlake.errors import DiskFull, InvalidMessage, NotPermitted, StoreError, file_error
from mqlake.files.mapped_file import MappedFile, open_descriptor
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.names import file_name
from mqlake.files.pool import TransientPool
from mqlake.files.preallocation import CHUNK_BYTES, Preallocator
from mqlake.kernel import Appender, Ends, GroupCommit, survey_packed, unlock_memory
from mqlake.kernel.hosts import pack_host
from mqlake.kernel.types import COMMITTED, Readable
from mqlake.logs.commit_log import MARKER, MARKER_MAGIC, MARKER_SIZE, CommitLog
from mqlake.logs.topic_table import (
    LIGHT_OFFSETS,
    LIGHT_PREFIX,
    LIGHT_QUEUES,
    NotAdmitted,
    TopicTable,
    require_light_queue,
)
from mqlake.message import Durability, Message, PutReceipt, StoredMessage
from mqlake.runtime.locks import is_mine, make_lock, make_rlock
from mqlake.runtime.shield import Shield

POOL_WAIT_S: Final = 5.0
PACKED_BYTES: Final = 16 << 20
"""Packed records that are placed in one call, before dispatch gets its turn."""
Placed = TypeVar("Placed")

_log = logging.getLogger(__name__)


class NoRoom(Exception):
    """A record does not fit into what is reserved of the file. The caller makes room, without the lock, and repeats."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class Router(Protocol):
    """Rewrites delayed messages to their holding topic."""

    def route(self, message: Message, take_turn: Callable[[Message], int]) -> Message:
        """Return the message as it is to be stored now; `take_turn` picks the queue it is meant for."""

    def stored(self, routed: Message) -> None:
        """Hear that a message that was rewritten is in the log."""


class LogWriter(CommitLog):
    """The log with its write position. Any thread may append."""

    def __init__(
        self,
        files: MappedFileQueue,
        config: CommitLogConfig,
        ends: Ends,
        topics: TopicTable,
        preallocator: Preallocator,
        shield: Shield,
        *,
        last_timestamp: int,
        pool: TransientPool | None,
        pool_fails_fast: bool = False,
        unlock_full_files: bool = False,
    ) -> None:
        """`last_timestamp` is the store time of the last record."""
        super().__init__(files, ends)
        self._pool = pool
        self._pool_wait_s = 0.0 if pool_fails_fast else POOL_WAIT_S
        self._unlock_full_files = unlock_full_files
        self._topics = topics
        self._preallocator = preallocator
        self._shield = shield
        slow_ns = config.slow_append_ms * 1_000_000
        self._appender = Appender(
            ends, pack_host(config.store_host), config.max_message_bytes, config.append_record_crc, slow_ns
        )
        self._appender.last_timestamp = last_timestamp
        self._appender.on_slow = _warn_slow
        self.append_quickly = self._appender.append
        """Append one message if that is only a copy; None if `append_slowly` must do it. Bound, because a call less is
        a twentieth of a put."""
        self.append_many_quickly = self._appender.append_many
        """Append messages next to each other if that is only a copy; None if `append_many_slowly` must do it."""
        topics.use(self._appender)
        self.group = GroupCommit(ends)
        """Decides which thread leads a sync of the log."""
        self._router: Router | None = None
        self._refusals: dict[str, Callable[[], StoreError]] = {}
        """Why puts are refused, by name, each with what makes the error. Puts are taken while it is empty."""
        self._lock = make_rlock("log")
        self._names_lock = make_lock("log.names")
        self._commit_lock = make_lock("log.commit")
        self._buffers: dict[int, mmap.mmap] = {}
        self._marker_ends: dict[int, int] = {}
        self._new_names = False
        self._file: MappedFile | None = None
        self._target: mmap.mmap | None = None
        file = files.file_at(ends.appended)
        if file is not None:
            self._write_to(file, self._target_for(file), ends.appended - file.start)
        files.directory.mkdir(parents=True, exist_ok=True)
        self._folder = open_descriptor(files.directory, os.O_RDONLY | os.O_DIRECTORY)
        """Kept open: a put that needs the next file must not fail because descriptors are used up."""

    @property
    def now_ms(self) -> int:
        """The store's clock: the machine's, unless a test has moved it ahead (`advance`)."""
        return time.time_ns() // 1_000_000 + self._appender.ahead_ms

    def advance(self, ms: int) -> None:
        """Move the store's clock ahead of the machine's. For tests: store times and delays follow it."""
        self._appender.ahead_ms += ms

    def route_delayed(self, router: Router) -> None:
        """Send messages with a delay through a router before they are stored."""
        self._router = router
        self._appender.sets_delayed_aside = True

    # ---- append

    def append(self, message: Message, durability: Durability) -> PutReceipt:
        """Append one message. The receipt is true once the caller has brought it to `durability`."""
        return self.append_quickly(message, durability) or self.append_slowly(message, durability)

    def append_as_is(self, message: Message, durability: Durability) -> PutReceipt:
        """Append without delay routing."""
        return self.append_quickly(message, durability, True) or self.append_slowly(message, durability, as_is=True)

    def append_many(self, messages: Sequence[Message], durability: Durability) -> list[PutReceipt]:
        """Append messages next to each other, in one file, or none of them."""
        receipts = self.append_many_quickly(messages, durability)
        return receipts if receipts is not None else self.append_many_slowly(messages, durability)

    def append_slowly(self, message: Message, durability: Durability, *, as_is: bool = False) -> PutReceipt:
        """A new file, more blocks, a queue's first message, light queues, a delay, or a refusal."""
        self._require_no_put_under_way()
        stored = message if as_is else self._route(message)
        is_routed = stored is not message
        receipt = self._under_lock([stored.topic], lambda: self._place(stored, durability, is_routed))
        if is_routed and self._router is not None:
            self._router.stored(stored)
        return receipt

    def _under_lock(self, topics: Collection[str], place: Callable[[], Placed]) -> Placed:
        """Return what `place` returns, called under the log's lock once the topics are admitted and there is room."""
        while True:
            for topic in topics:
                self._topics.admit(topic)
            try:
                with self._lock:
                    self._raise_if_refused()
                    return place()
            except NotAdmitted:  # a topic was deleted or set up anew since it was admitted
                continue
            except NoRoom as full:
                self._make_room(full.needed)

    def _place(self, message: Message, durability: Durability, is_routed: bool) -> PutReceipt:
        self._topics.prepare(message)
        if LIGHT_QUEUES in message.properties and not is_routed:  # a routed one enters them when it is delivered
            return self._append_to_light_queues(message, durability)
        receipt = self._appender.append(message, durability, True, is_routed)
        if receipt is None:
            raise NoRoom(self._appender.size_of(message))
        return receipt

    def append_many_slowly(self, messages: Sequence[Message], durability: Durability) -> list[PutReceipt]:
        """As `append_slowly`, for messages that are next to each other."""
        self._require_no_put_under_way()
        stored = [self._route(message) for message in messages]
        for message in stored:
            if LIGHT_QUEUES in message.properties:
                raise InvalidMessage("batch", repr(message), "no light queues in a batch: put it alone")
        topics = {message.topic for message in stored}
        receipts = self._under_lock(topics, lambda: self._place_many(stored, durability))
        for message, routed in zip(messages, stored, strict=True):
            if routed is not message and self._router is not None:
                self._router.stored(routed)
        return receipts

    def _place_many(self, messages: list[Message], durability: Durability) -> list[PutReceipt]:
        for message in messages:
            self._topics.prepare(message)
        receipts = self._appender.append_many(messages, durability, True)
        if receipts is None:
            raise NoRoom(sum(map(self._appender.size_of, messages)))
        return receipts

    def append_packed(self, packed: Readable, *, timestamp: int = 0, keep: int = 0) -> None:
        """Append packed records (kernel/pack.pxi), all of them, in their order; other puts wait meanwhile.

        All get one store time, `timestamp` or now, and the next queue offsets. `keep` lets them keep their own: see
        `kernel.types`.
        """
        self._require_no_put_under_way()
        position = 0
        while position < len(packed):
            _, destination_of, names = survey_packed(packed, position, PACKED_BYTES)
            place = partial(self._place_packed, packed, position, destination_of, names, timestamp, keep)
            position = self._under_lock({topic for topic, _ in names}, place)

    def _place_packed(
        self,
        packed: Readable,
        position: int,
        destination_of: bytes,
        names: list[tuple[str, int]],
        timestamp: int,
        keep: int,
    ) -> int:
        destinations = [self._topics.destination(topic, queue_id) for topic, queue_id in names]
        try:
            self._appender.close()
            reached = self._appender.append_packed(packed, position, destination_of, destinations, timestamp, keep)
        finally:
            self._appender.reopen()
        if reached == position:
            self._refuse_packed(packed, position)
        return reached

    def _refuse_packed(self, packed: Readable, position: int) -> None:
        """The packed record at a position was not taken: there is no room, or its own queue offset is taken."""
        size = int.from_bytes(packed[position : position + 4], "big")
        if self._file is not None and self._appender.position + size + MARKER_SIZE <= self._appender.limit:
            record = StoredMessage(bytes(packed[position : position + size]))
            found = f"{record.queue_offset} in queue {record.queue_id} of {record.topic}"
            raise InvalidMessage("queue_offset", found, "one after those that the queue has")
        raise NoRoom(size)

    def _route(self, message: Message) -> Message:
        return message if self._router is None else self._router.route(message, self.take_turn)

    def take_turn(self, message: Message) -> int:
        """Return the queue that a message is meant for, and count it as put there. For one that is stored elsewhere."""
        self._require_no_put_under_way()
        return self._under_lock([message.topic], lambda: self._take_turn(message))

    def _take_turn(self, message: Message) -> int:
        self._topics.prepare(message)
        queue_id = self._turn_of(message)
        if message.queue_id is None:
            state = self._topics.states[message.topic]
            state.turn = (queue_id + 1) % state.queue_count
        return queue_id

    def _turn_of(self, message: Message) -> int:
        return self._topics.states[message.topic].turn if message.queue_id is None else message.queue_id

    def _append_to_light_queues(self, message: Message, durability: Durability) -> PutReceipt:
        """A message that names light queues carries its queue offsets in them: nobody else may append meanwhile."""
        names = message.properties[LIGHT_QUEUES].split(",")
        for name in names:
            require_light_queue(name)
        room = self._room_with_lights(message)
        if self._file is None or self._appender.position + room > self._appender.limit:
            raise NoRoom(room)
        try:
            self._appender.close()
            queue_id = self._turn_of(message)
            queues = [(self._topics.state(name), 0 if name.startswith(LIGHT_PREFIX) else queue_id) for name in names]
            offsets = [self._topics.next_offset(light, light_id) for light, light_id in queues]
            message.properties[LIGHT_OFFSETS] = ",".join(map(str, offsets))
            receipt = self._appender.append(message, durability, True, numbered_lights=True, while_closed=True)
            assert receipt is not None, "there is room, and the queue is known"
            for (light, light_id), offset in zip(queues, offsets, strict=True):
                light.next_offsets[light_id] = offset + 1
            return receipt
        finally:
            self._appender.reopen()

    def _room_with_lights(self, message: Message) -> int:
        """Return the most that a message can need, with its queue offsets in light queues."""
        names = message.properties[LIGHT_QUEUES].count(",") + 1
        return self._appender.size_of(message) + len(LIGHT_OFFSETS) + 2 + 20 * names + MARKER_SIZE

    # ---- room: more blocks of the file, or the next file

    def _make_room(self, needed: int) -> None:
        """Let a record of `needed` bytes fit. The caller does not hold the lock, and tries again: others may have come.

        A roll that a signal interrupts would leave the file, the appender and group commit in disagreement.
        """
        self._shield.run(lambda: self._make_room_locked(needed))

    def _make_room_locked(self, needed: int) -> None:
        """Reserve more blocks of the file being written, or roll, unless there is room by now."""
        with self._lock:
            self._raise_if_refused()
            self._extend_or_roll(needed)

    def _extend_or_roll(self, needed: int) -> None:
        if needed + MARKER_SIZE > self.file_size:
            expected = f"at most {self.file_size - MARKER_SIZE} bytes, because files have {self.file_size}"
            raise InvalidMessage("message", f"{needed} bytes as a record", expected)
        file, wanted = self._file, self._appender.position + needed + MARKER_SIZE
        if file is None or wanted > file.size:
            self._roll()
            file, wanted = self._file, needed + MARKER_SIZE
        assert file is not None, "rolling gives a file"
        if wanted > file.reserved:
            file.reserve(min(file.size, -(-wanted // CHUNK_BYTES) * CHUNK_BYTES))
        self._appender.extend(file.start, file.reserved)
        self.group.reserved(file.start + file.reserved)
        self._preallocator.reserve_ahead(file)

    def _roll(self) -> None:
        """Close the file being written with a marker and continue in the next. If there is none, nothing changes."""
        old, start = self._file, self._next_start()
        file = self.files.file_at(start)
        if file is None:
            self._sync_names()
            file = self._preallocator.take(start)  # others continue in the old file meanwhile
            path = self.files.directory / file_name(start)
            try:
                file.rename(path)
            except OSError as error:
                file.delete()
                raise file_error(path, "named", file.size, error) from error
            except BaseException:
                file.delete()
                raise
            self._new_names = True
            self.files.add(file)
        target = self._target_for(file)
        if old is not None:
            self._close_file(old)
        self._write_to(file, target, 0)

    def _next_start(self) -> int:
        """Return where the file after the one being written starts."""
        return self._file.end if self._file is not None else self.files.end_offset

    def _target_for(self, file: MappedFile) -> mmap.mmap:
        """Return where the bytes of a file are written: its own pages, or a buffer of the pool."""
        if self._pool is None:
            return file.pages
        buffer = self._buffers.get(file.start) or self._pool.borrow(self._pool_wait_s)
        if buffer is None:
            raise DiskFull(file.path, file.size, "no buffer of the transient pool is free")
        self._buffers[file.start] = buffer
        return buffer

    def _write_to(self, file: MappedFile, target: mmap.mmap, position: int) -> None:
        """Make `file` the one being written, from `position` on."""
        self._file = file
        self._target = target
        self.group.write_to(self._descriptor_of(file), file.start, file.start + file.reserved)
        self._appender.open(target, file.start, position, max(position, file.reserved))

    def _descriptor_of(self, file: MappedFile) -> int:
        """Return what a sync of the file is one call on; with the pool it is more than a call, and -1."""
        return file.descriptor if self._pool is None else -1

    def _close_file(self, file: MappedFile) -> None:
        self._appender.close()
        position = self._appender.position
        assert self._target is not None, "a file that is written has a target"
        if file.size - position >= MARKER_SIZE:
            MARKER.pack_into(self._target, position, file.size - position, MARKER_MAGIC)
        self._marker_ends[file.start] = min(file.size, position + MARKER_SIZE)
        if self._unlock_full_files:
            unlock_memory(file.pages)

    def _sync_names(self) -> None:
        """Sync the folder if a file got its name since the last time.

        A file is named only when the name before it is on disk: a power cut must not leave a gap between files. A
        failure latches the store. A thread that comes while another syncs waits for it.
        """
        with self._names_lock:
            if self._new_names:
                self._new_names = False  # first: a name that comes from now on needs another sync
                self.group.sync_folder(self._folder)

    # ---- refusing

    def _require_no_put_under_way(self) -> None:
        """Refuse a put inside of another one of this thread: by a signal handler, or a finalizer. It could not wait for
        the outer one, which continues only when it returns, and half of a roll may be done.
        """
        if is_mine(self._lock) or self._makes_room():
            found = "this thread is in the middle of another put: a signal handler or a finalizer interrupted it"
            raise NotPermitted("put", found, "put from ordinary code; let the handler set a flag or fill a queue")

    def _makes_room(self) -> bool:
        """Return whether this call came out of a signal handler that interrupted the main thread in `_make_room`."""
        if threading.current_thread() is not threading.main_thread():
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            # The stack itself is asked, because an interrupt could leave a note of ours behind.
            if frame.f_code is LogWriter._make_room.__code__ and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _raise_if_refused(self) -> None:
        for make_error in self._refusals.values():
            raise make_error()

    def refuse(self, why: str, make_error: Callable[[], StoreError]) -> None:
        """Take no put from now on; one that is under way finishes first. `allow` ends it."""
        with self._lock:
            self._appender.close()
            self._refusals.setdefault(why, make_error)

    def allow(self, why: str) -> None:
        """Take puts again, unless they are refused for another reason."""
        with self._lock:
            self._refusals.pop(why, None)
            if not self._refusals:
                self._appender.reopen()

    def is_refused(self, why: str) -> bool:
        return why in self._refusals

    # ---- topics

    def ask_again(self, topic: str) -> None:
        """A topic's set-up changed: the next put to it uses the new one."""
        with self._lock:
            self._topics.park(topic)

    def begin_deletion(self, topic: str) -> int:
        """Forget a topic and make puts to it wait until `end_deletion`. Returns the end of its old life in the log.

        Waits while another thread deletes it.
        """
        self._topics.claim_deletion(topic)
        with self._lock:
            self._topics.begin_deletion(topic)
            return self.ends.appended

    def end_deletion(self, topic: str, *, deleted: bool) -> None:
        """Take puts to the topic again: to its next life, or to the old one if it could not be deleted."""
        self._topics.end_deletion(topic, deleted=deleted)

    def hold_visible(self) -> None:
        """Keep what is appended from now on invisible until `ends.release`: it becomes visible together."""
        self._appender.hold_visible()

    def close(self) -> None:
        """Let go of the file being written; `refuse` came before."""
        self._appender.release()
        self._file = None
        self._target = None
        self._buffers.clear()
        folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)

    # ---- commit and sync

    def commit(self) -> int:
        """Copy what is in pool buffers to the files and return the committed end. Without the pool, only return it."""
        ends = self.ends
        if self._pool is None:
            return ends.appended
        with self._commit_lock:
            target, position = ends.appended, ends.committed
            while position < target:
                file = self.files.file_at(position)
                assert file is not None, "what was appended has a file"
                stop = min(target, file.end)
                self._commit_file(file, position - file.start, stop - file.start)
                position = stop
                ends.advance(COMMITTED, position)
                if position == file.end:  # after the end moved: a put that waits for the buffer must find it moved
                    self._pool.give_back(self._buffers.pop(file.start))
            return position

    def _commit_file(self, file: MappedFile, position: int, stop: int) -> None:
        buffer = self._buffers[file.start]
        # After its marker the buffer holds remains of another file: the new file is zero there, and stays so.
        written = min(stop, self._marker_ends.get(file.start, stop))
        if written > position:
            file.write_at(position, memoryview(buffer)[position:written])

    def sync(self, durable: int, target: int) -> bool:
        """Bring [durable, target) to disk, with the names of new files. The caller leads; a failure latches."""
        files = [self.files.file_at(start) for start in self.files.starts if _overlap(self, start, durable, target)]
        with self._names_lock:
            new_names, self._new_names = self._new_names, False
            try:
                descriptors = [file.descriptor for file in files if file is not None]
                return self.group.sync_files(target, descriptors, [self._folder] if new_names else [])
            except BaseException:
                self._new_names = new_names
                raise

    def dirty_pages(self) -> int:
        """Return how many pages of 4 KiB begin between the durable end and the committed one."""
        return self.ends.committed // 4096 - self.ends.durable // 4096


def _overlap(log: CommitLog, start: int, first: int, stop: int) -> bool:
    return start < stop and start + log.file_size > first


def _warn_slow(size: int, took_ms: int) -> None:
    _log.warning("appending %d bytes took %d ms", size, took_ms)
