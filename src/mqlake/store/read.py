"""Read messages: queue offset -> entries -> records; look-ups by physical offset, message id, key and time.

Every record is checked as it is copied, CRC included, and must have the requested queue offset: a damaged record is
never returned. Queue reads and look-ups skip it and record the damage; a read by its physical offset raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, SupportsIndex

from mqlake.codec.index_entry import key_hash, key_text
from mqlake.codec.message_id import decode_message_id
from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER_SIZE, QueueEntry
from mqlake.errors import (
    CorruptRecord,
    InvalidConfig,
    InvalidMessage,
    NoSuchMessage,
    OffsetOutOfRange,
    StoreError,
    UnknownTopic,
)
from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import check_record, find_messages, gather_records, read_records, seek_timestamp, select_entries
from mqlake.kernel.types import BAD_ENTRY, REASONS
from mqlake.logs.batch_queue import BatchQueue
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.logs.consume_queues import BatchQueues, ConsumeQueues, known_topics
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.scars import Scars
from mqlake.logs.stretch import Stretch
from mqlake.message import StoredMessage

MAX_READ_BYTES = 32 << 20
"""One read returns no more than this, but at least one message."""
END_OF_TIME = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCANNED_ENTRIES = 16_000
"""So many queue entries one `gather` looks at: a filter that matches nothing must not keep others waiting."""
_log = logging.getLogger(__name__)


class QueueRange(NamedTuple):
    """One queue and the half-open range of its messages that can be read."""

    topic: str
    queue_id: int
    first_offset: int
    end_offset: int

    @property
    def message_count(self) -> int:
        return self.end_offset - self.first_offset


class Followed(Protocol):
    """A store that is read while it is written: see `Reading` in store/ports.py."""

    reader: Reader

    @property
    def reach(self) -> int: ...

    def follow(self) -> None: ...

    def settle(self) -> None: ...

    def wait_until(self, arrived: Callable[[], bool], timeout_s: float) -> bool: ...


def read_settled(
    port: Followed, topic: str, queue_id: int, start: int, limit: int, max_bytes: int, wait_s: float
) -> list[StoredMessage]:
    """Read a queue. If there is less than asked for, let dispatch come to what was put before; then wait for more."""
    if not (type(queue_id) is type(start) is type(limit) is int and limit >= 0):
        queue_id, start, limit = _whole("queue_id", queue_id), _whole("start", start), _whole("limit", limit, 0)
    port.follow()
    reader, before = port.reader, port.reach
    messages: list[StoredMessage]
    try:  # not `contextlib.suppress`, which takes a tenth of a read
        messages = reader.read(topic, queue_id, start, limit, max_bytes)
    except (UnknownTopic, OffsetOutOfRange):
        messages = []
    if len(messages) >= limit > 0:
        return messages
    port.settle()
    if not messages or port.reach != before:  # dispatch may have come between the two looks, before it was asked to
        try:
            messages = reader.read(topic, queue_id, start, limit, max_bytes)
        except UnknownTopic:
            if wait_s <= 0:
                raise  # else its first message may come: with the pool, a put is not visible at once
    if not messages and wait_s > 0:
        port.wait_until(lambda: reader.end_of(topic, queue_id) > start, wait_s)
        messages = reader.read(topic, queue_id, start, limit, max_bytes)
    return messages


def _whole(name: str, value: object, least: int | None = None) -> int:
    """Return an argument as an int, numpy's too; raise InvalidConfig if it is none."""
    if not isinstance(value, SupportsIndex) or (least is not None and value.__index__() < least):
        raise InvalidConfig(name, value, f"must be a whole number{'' if least is None else f', {least} or more'}")
    return value.__index__()


class Fetched(NamedTuple):
    """Messages of a queue, and the queue offset at which to continue: every entry before it was read."""

    messages: list[StoredMessage]
    next_offset: int


class Gathered(NamedTuple):
    """Records of a queue next to each other, how many, the queue offset at which to continue, and the queue's range."""

    records: bytes
    message_count: int
    next_offset: int
    first_offset: int
    end_offset: int


_Messages = tuple[list[StoredMessage], int]
"""The fields of a `Fetched`, without the cost of creating one for each read."""


_Name = tuple[str, int]
"""A queue's topic and id."""


class Reader:
    """The reading side of a store, the same for its writer and for followers."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        index: KeyIndex | None,
        scars: Scars,
    ) -> None:
        self._scars = scars
        self._damaged_entries: set[tuple[str, int, int]] = set()
        self._log = log
        self._files = log.files
        self._queues = queues
        self._batch_queues = batch_queues
        self._index = index
        self.index_problem: StoreError | None = None
        """Why keys cannot be looked up although the store has an index."""

    def use(self, queues: ConsumeQueues, index: KeyIndex | None) -> None:
        """Read through other queues and another index of the same store from now on."""
        self._queues, self._index = queues, index

    def _readable_end(self) -> int:
        return self._log.ends.visible

    # ---- queues

    def topics(self) -> list[str]:
        return sorted({*self._queues.topics(), *self._batch_queues.topics()})

    def queues(self, topic: str) -> list[QueueRange]:
        ids = self.queue_ids(topic)
        if not ids:
            raise UnknownTopic(topic, None, known_topics(self.topics()))
        return [self.range_of(topic, queue_id) for queue_id in ids]

    def range_of(self, topic: str, queue_id: int) -> QueueRange:
        batch = self._batch_queues.get(topic, queue_id)
        queue = batch if batch is not None else self._queues.get(topic, queue_id)
        first = queue.first_offset(self._log.first_offset)
        return QueueRange(topic, queue_id, first, max(first, queue.end))

    def range_or_empty(self, topic: str, queue_id: int) -> QueueRange:
        """Return a queue's range; an empty one for a queue that does not exist yet."""
        try:
            return self.range_of(topic, queue_id)
        except UnknownTopic:
            return QueueRange(topic, queue_id, 0, 0)

    def end_of(self, topic: str, queue_id: int) -> int:
        """Return where a queue ends; 0 for one that does not exist yet."""
        batch = self._batch_queues.get(topic, queue_id)
        return batch.end if batch is not None else self._queues.end_of(topic, queue_id)

    def queue_ids(self, topic: str) -> list[int]:
        return sorted({*self._queues.queue_ids(topic), *self._batch_queues.queue_ids(topic)})

    def entries(self, topic: str, queue_id: int, start: int, limit: int) -> list[QueueEntry]:
        """Return at most `limit` entries from `start` on, as they are in the files; none outside of the queue."""
        found = self.range_of(topic, queue_id)
        if not found.first_offset <= start < found.end_offset:
            return []
        batch = self._batch_queues.get(topic, queue_id)
        if batch is not None:
            return [QueueEntry(*entry[:3]) for entry in batch.entries_from(start, limit)]
        queue, stop = self._queues.get(topic, queue_id), min(start + limit, found.end_offset)
        entries: list[QueueEntry] = []
        while start < stop and (data := queue.entries(start, stop)):  # empty if retention deletes the file meanwhile
            entries += map(QueueEntry._make, ENTRY.iter_unpack(data))
            start += len(data) // ENTRY_SIZE
        return entries

    def read(self, topic: str, queue_id: int, start: int, limit: int, max_bytes: int) -> list[StoredMessage]:
        """Return at most `limit` messages from `start` on; none at the queue's end."""
        found = self._read_simply(topic, queue_id, start, limit, max_bytes)
        return found or self._fetch(topic, queue_id, start, limit, max_bytes, None)[0]

    def _read_simply(self, topic: str, queue_id: int, start: int, limit: int, max_bytes: int) -> list[StoredMessage]:
        """Read entries of one queue file whose records are all whole, as nearly always; none if it is not so simple."""
        if self._batch_queues.exist or limit < 1:
            return []
        queue, files = self._queues.get(topic, queue_id), self._files
        log_first, end = files.first_offset, queue.end
        stop = start + limit
        if stop > end:
            stop = end
        if not queue.first_offset(log_first) <= start < stop:
            return []
        file = queue.files.file_at(start * ENTRY_SIZE)
        if file is None or stop * ENTRY_SIZE > file.end:
            return []
        first = file.start // ENTRY_SIZE
        found: list[StoredMessage]
        found, place, why = read_records(
            file.pages,
            start - first,
            stop - first,
            first,
            topic.encode("utf-8", "surrogatepass"),
            queue_id,
            log_first,
            self._log.ends.visible,
            files.file_at,
            max_bytes,
            StoredMessage,
        )
        is_done = place == stop - first or (why == 0 and self._is_full(found, file, place, max_bytes))
        return found if is_done else []

    @staticmethod
    def _is_full(messages: list[StoredMessage], file: MappedFile, place: int, max_bytes: int) -> bool:
        """Return whether the message of the next entry is too large for this read."""
        size = QueueEntry(*ENTRY.unpack_from(file.pages, place * ENTRY_SIZE)).size
        return bool(messages) and 0 < size < FILLER_SIZE and sum(each.size for each in messages) + size > max_bytes

    def fetch(
        self, topic: str, queue_id: int, start: int, limit: int, max_bytes: int, codes: bytes | None = None
    ) -> Fetched:
        """Return at most `limit` messages from `start` on; with `codes` (see `select_entries`) those that may match."""
        return Fetched(*self._fetch(topic, queue_id, start, limit, max_bytes, codes))

    def gather(
        self, topic: str, queue_id: int, start: int, limit: int, max_bytes: int, codes: bytes | None = None
    ) -> Gathered:
        """Return the bytes of at most `limit` messages from `start` on; with `codes`, of those that may match.

        Entries of one queue file are looked at, at most `SCANNED_ENTRIES`. `start` outside of the queue gives nothing,
        with the range that exists. What is not simple (damage, batch queues) is read message by message.
        """
        if self._batch_queues.exist and self._batch_queues.get(topic, queue_id) is not None:
            return self._gather_slowly(topic, queue_id, start, limit, max_bytes, codes)
        queue, files = self._queues.get(topic, queue_id), self._files
        log_first, end = files.first_offset, queue.end
        first = queue.first_offset(log_first)
        if not first <= start < end:
            return Gathered(b"", 0, start, first, end)
        file = queue.files.file_at(start * ENTRY_SIZE)
        if file is None:
            return self._gather_slowly(topic, queue_id, start, limit, max_bytes, codes)
        begin = file.start // ENTRY_SIZE
        records, place, count, is_stuck = gather_records(
            file.pages,
            start - begin,
            min(end, file.end // ENTRY_SIZE, start + SCANNED_ENTRIES) - begin,
            begin,
            topic.encode("utf-8", "surrogatepass"),
            queue_id,
            log_first,
            self._log.ends.visible,
            files.file_at,
            limit,
            max_bytes,
            codes,
        )
        if is_stuck and not count:
            return self._gather_slowly(topic, queue_id, begin + place, limit, max_bytes, codes)
        return Gathered(records, count, begin + place, first, end)

    def _gather_slowly(
        self, topic: str, queue_id: int, start: int, limit: int, max_bytes: int, codes: bytes | None
    ) -> Gathered:
        try:
            messages, next_offset = self._fetch(topic, queue_id, start, limit, max_bytes, codes)
        except OffsetOutOfRange:  # retention deleted them meanwhile
            messages, next_offset = [], start
        found = self.range_or_empty(topic, queue_id)
        records = b"".join([message.record for message in messages])
        return Gathered(records, len(messages), next_offset, found.first_offset, found.end_offset)

    def _fetch(
        self, topic: str, queue_id: int, start: int, limit: int, max_bytes: int, codes: bytes | None
    ) -> _Messages:
        batch = self._batch_queues.get(topic, queue_id)
        if batch is not None:
            if batch.damage is not None:
                raise batch.damage
            self._require_in_range(topic, queue_id, batch, start)
            return self._read_batches(batch, start, limit)
        queue = self._queues.get(topic, queue_id)
        end = self._require_in_range(topic, queue_id, queue, start)
        name = topic, queue_id
        messages: list[StoredMessage] = []
        next_offset = start
        try:
            if codes is not None:
                messages, next_offset = self._read_entries(name, queue, start, end, limit, max_bytes, codes)
            while codes is None and not messages and next_offset < end and limit > 0:  # skip fillers and damage
                stop = min(end, next_offset + limit)
                messages, next_offset = self._read_entries(name, queue, next_offset, stop, limit, max_bytes, None)
        finally:
            if not messages:  # retention may have deleted them during this read: neither damage nor the queue's end
                self._require_in_range(topic, queue_id, queue, start)
        return messages, next_offset

    def _require_in_range(self, topic: str, queue_id: int, queue: ConsumeQueue | BatchQueue, start: int) -> int:
        """Return the queue's end. Raises OffsetOutOfRange if `start` is outside of what exists now."""
        first, end = queue.first_offset(self._files.first_offset), queue.end
        if not first <= start <= end:
            raise OffsetOutOfRange(f"{topic}, queue {queue_id}", start, first, end)
        return end

    def _read_batches(self, batch: BatchQueue, start: int, limit: int) -> _Messages:
        readable = self._readable_end()
        found = []
        for entry in batch.entries_from(start, limit):
            try:
                found.append(StoredMessage(self._log.record_at(entry.physical_offset, readable)))
            except CorruptRecord as error:
                self._scars.add(entry.physical_offset, entry.physical_offset + entry.size, error.reason)
            start = entry.base_offset + entry.message_count
        return found, start

    def _read_entries(
        self, name: _Name, queue: ConsumeQueue, start: int, stop: int, limit: int, max_bytes: int, codes: bytes | None
    ) -> _Messages:
        """Read the messages of the entries [start, stop), one queue file at a time. Return them and where to continue.

        The kernel reads while entries and records are valid. Only the entry at which it stops is examined here.
        """
        found: list[StoredMessage] = []
        # Taken once: a file that retention deletes during this read is not damage, so none of it is skipped.
        log_range = self._files.first_offset, self._readable_end()
        topic = name[0].encode("utf-8", "surrogatepass")
        left = max_bytes
        while start < stop and len(found) < limit and (left > 0 or not found):
            file = queue.files.file_at(start * ENTRY_SIZE)
            if file is None:
                raise OffsetOutOfRange(f"{name[0]}, queue {name[1]}", start, stop, stop)
            first = file.start // ENTRY_SIZE
            place, after = start - first, min(stop - first, file.size // ENTRY_SIZE)
            total, numbers = after, None
            if codes is not None:
                entries = file.view(0, after * ENTRY_SIZE)
                numbers, after = select_entries(entries, place, codes, limit - len(found))
                place, total = 0, len(numbers)
            while place < total:
                if left <= 0 and found:
                    return found, first + (place if numbers is None else numbers[place])
                more, place, why = read_records(
                    file.pages,
                    place,
                    total,
                    first,
                    topic,
                    name[1],
                    *log_range,
                    self._files.file_at,
                    left,
                    StoredMessage,
                    numbers,
                )
                found = found + more if found else more
                if place == total:
                    break
                number = place if numbers is None else numbers[place]
                entry = QueueEntry(*ENTRY.unpack_from(file.pages, number * ENTRY_SIZE))
                if not self._pass_over(name, first + number, entry, log_range, why):
                    return found, first + number
                left -= sum(message.size for message in more)
                place += 1
            start = first + after
            if start < stop:
                left = max_bytes - sum(message.size for message in found)
        return found, start

    def _pass_over(self, name: _Name, number: int, entry: QueueEntry, log_range: tuple[int, int], why: int) -> bool:
        """Record what is wrong with an entry that gave no message. Return False if nothing is: the read is full."""
        offset, size, _ = entry
        first, readable = log_range
        if not (0 < size < FILLER_SIZE and first <= offset < readable):
            if size != FILLER_SIZE:
                self._note_entry(name, number, offset)
            return True
        file = self._files.file_at(offset)
        if file is None and self._scars.end_of(offset) > 0:  # the last file is lost
            return True
        if file is None:  # deleted since this read began
            raise OffsetOutOfRange("commit log", offset, self._log.first_offset, readable)
        if why:
            stretch = Stretch(file.pages, file.start, 0, min(readable, file.end) - file.start, file.path)
            self._note_damage(name, number, stretch, entry, why)
        return why != 0

    def _note_damage(self, name: _Name, number: int, stretch: Stretch, entry: QueueEntry, why: int) -> None:
        """Record whether the record or the entry is damaged: if a record follows where it ends, the entry is right."""
        after = entry.physical_offset - stretch.log_start + entry.size
        continues = after == stretch.end or (
            after < stretch.end
            and check_record(stretch.data, after, stretch.end, stretch.log_start + after, False) >= 0
        )
        if why != BAD_ENTRY and continues:
            self._scars.add(entry.physical_offset, entry.physical_offset + entry.size, REASONS[why])
        else:
            self._note_entry(name, number, entry.physical_offset)

    def _note_entry(self, name: _Name, number: int, offset: int) -> None:
        where = *name, number
        if where not in self._damaged_entries:
            self._damaged_entries.add(where)
            _log.error("topic %s, queue %d: entry %d names offset %d, but its message is not there", *where, offset)

    @property
    def damaged_entry_count(self) -> int:
        """Return how many queue entries were found so far that do not name the record with their queue offset."""
        return len(self._damaged_entries)

    # ---- look-ups

    def get(self, at: int | str) -> StoredMessage:
        """Return the message at a physical offset, or with a message id."""
        if isinstance(at, int):
            return StoredMessage(self._log.record_at(at, self._readable_end()))
        host, offset = decode_message_id(at)
        try:
            message = StoredMessage(self._log.record_at(offset, self._readable_end()))
        except OffsetOutOfRange as error:
            raise NoSuchMessage(f"message id {at}", f"it names physical offset {offset}: {error}") from None
        if message.store_address != host:
            raise NoSuchMessage(f"message id {at}", f"the message at {offset} was stored by {message.store_host}")
        return message

    def find_offsets(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int, *, tag: bool) -> list[int]:
        """Return the physical offsets that the index has for a key, ascending; keys with the same hash are included."""
        if self._index is None:
            return self._without_index()
        found = self._index.find(key_hash(key_text(topic, key, tag=tag)), begin_ms, end_ms, limit)
        first, end = self._log.first_offset, self._readable_end()
        if len(found) == 1:
            return found if first <= found[0] < end else []
        return sorted({offset for offset in found if first <= offset < end})

    def find(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int, *, tag: bool) -> list[StoredMessage]:
        """Return the newest `limit` messages that have a key and are still in the log, in log order."""
        index, files = self._index, self._files
        for name, text in (("topic", topic), ("tag" if tag else "key", key)):
            if type(text) is not str and not isinstance(text, str):  # the first alone is quicker
                raise InvalidMessage(name, repr(text), "a text, of type str")
            if not text.isascii() and not _is_text(text):
                raise InvalidMessage(name, repr(text), "text without lone surrogates, as every message has it")
        if index is None:
            return self._without_index()
        found = find_messages(
            index.pages,
            index.slot_count,
            index.entry_count,
            topic,
            key,
            tag,
            begin_ms,
            end_ms,
            limit,
            files.first_offset,
            self._readable_end(),
            files.file_at,
            StoredMessage,
        )
        if len(found) > 1:
            found.reverse()
        return found

    def _without_index(self) -> list[Any]:
        """Find nothing if the store keeps no index; raise if it has one that cannot be read."""
        if self.index_problem is not None:
            raise self.index_problem
        return []

    def seek_time(self, topic: str, queue_id: int, time: datetime | int) -> int:
        """Return the queue offset of the first message stored at or after a time; the queue's end if there is none."""
        timestamp_ms = milliseconds(time)
        queue = self._queues.get(topic, queue_id)
        low, end = queue.first_offset(self._log.first_offset), queue.end
        log_file_at = self._files.file_at
        while low < end:  # one queue file at a time; a file whose last entry is too old is skipped whole
            entries = queue.entries(low, end)
            count = len(entries) // ENTRY_SIZE
            at_last = count == 0 or low + count == end
            if not at_last and seek_timestamp(entries, count - 1, count, timestamp_ms, log_file_at) == count:
                low += count
                continue
            return low + seek_timestamp(entries, 0, count, timestamp_ms, log_file_at)
        return low


def milliseconds(time: datetime | int) -> int:
    """Return a time as milliseconds since 1970. Within a millisecond it is rounded up: a store time is never later."""
    if isinstance(time, datetime):
        if time.tzinfo is None and time.year in (MINYEAR, MAXYEAR):  # local times there may lie in no year
            time = time.replace(tzinfo=UTC)
        return -((EPOCH - (time if time.tzinfo is not None else time.astimezone())) // timedelta(milliseconds=1))
    if isinstance(time, bool) or not isinstance(time, int) or not -(1 << 63) <= time < 1 << 63:
        raise InvalidConfig("time", time, "must be a datetime, or milliseconds since 1970")
    return time


def _is_text(text: str) -> bool:
    """Return whether a text has a form in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
