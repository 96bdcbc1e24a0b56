"""Queue offset -> entries -> records; look-ups by physical offset, message id, key and time.

Every record is checked as it is copied out, CRC included, and must be the one of the number that was asked for: a
damaged one is never a message. Reads of a queue and look-ups pass over it, and list it; by its offset it is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from mqlake.codec.index_entry import key_hash, key_text
from mqlake.codec.message_id import decode_message_id
from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER_SIZE, QueueEntry
from mqlake.errors import CorruptRecord, NoSuchMessage, OffsetOutOfRange, UnknownTopic
from mqlake.kernel import check_record, find_messages, read_records, seek_timestamp, select_entries
from mqlake.kernel.types import BAD_ENTRY, REASONS
from mqlake.logs.batch_queue import BatchQueue
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.logs.consume_queues import BatchQueues, ConsumeQueues
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.scars import Scars
from mqlake.logs.stretch import Stretch
from mqlake.message import StoredMessage

MAX_READ_BYTES = 32 << 20
"""One read returns no more than this, but at least one message."""
END_OF_TIME = 2**63 - 1
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


class Fetched(NamedTuple):
    """Messages of a queue, and where to go on: every entry before that was looked at."""

    messages: list[StoredMessage]
    next_offset: int


class _Queue(NamedTuple):
    """A queue that is read, and who it is."""

    topic: str
    queue_id: int
    raw_topic: bytes
    files: ConsumeQueue


class Reader:
    """The reading side of a store, the same for its writer and for followers."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        index: KeyIndex | None,
        scars: Scars,
        readable_end: Callable[[], int],
    ) -> None:
        self._scars = scars
        self._damaged_entries: set[tuple[str, int, int]] = set()
        self._log = log
        self._queues = queues
        self._batch_queues = batch_queues
        self._index = index
        self._readable_end = readable_end
        """Where readers of the log must stop."""

    # ---- queues

    def topics(self) -> list[str]:
        return sorted({*self._queues.topics(), *self._batch_queues.topics()})

    def queues(self, topic: str) -> list[QueueRange]:
        ids = self.queue_ids(topic)
        if not ids:
            raise UnknownTopic(topic, None, f"{len(self.topics())} topics: {', '.join(self.topics()[:8])}")
        return [self.range_of(topic, queue_id) for queue_id in ids]

    def range_of(self, topic: str, queue_id: int) -> QueueRange:
        batch = self._batch_queues.get(topic, queue_id)
        queue = batch if batch is not None else self._queues.get(topic, queue_id)
        first = queue.first_offset(self._log.first_offset)
        return QueueRange(topic, queue_id, first, max(first, queue.end))

    def range_or_empty(self, topic: str, queue_id: int) -> QueueRange:
        """A queue's range; an empty one for a queue that is not there yet."""
        try:
            return self.range_of(topic, queue_id)
        except UnknownTopic:
            return QueueRange(topic, queue_id, 0, 0)

    def end_of(self, topic: str, queue_id: int) -> int:
        """Where a queue ends; 0 for one that is not there yet."""
        batch = self._batch_queues.get(topic, queue_id)
        return batch.end if batch is not None else self._queues.end_of(topic, queue_id)

    def queue_ids(self, topic: str) -> list[int]:
        return sorted({*self._queues.queue_ids(topic), *self._batch_queues.queue_ids(topic)})

    def read(self, topic: str, queue_id: int, start: int, limit: int, max_bytes: int) -> list[StoredMessage]:
        """At most `limit` messages from `start` on; none at the queue's end."""
        return self.fetch(topic, queue_id, start, limit, max_bytes).messages

    def fetch(
        self, topic: str, queue_id: int, start: int, limit: int, max_bytes: int, codes: bytes | None = None
    ) -> Fetched:
        """At most `limit` messages from `start` on; with `codes` (see `select_entries`) those that may have a tag."""
        batch = self._batch_queues.get(topic, queue_id)
        queue = batch if batch is not None else self._queues.get(topic, queue_id)
        end = self._require_in_range(topic, queue_id, queue, start)
        if batch is not None:
            return self._read_batches(batch, start, limit)
        assert isinstance(queue, ConsumeQueue)
        where = _Queue(topic, queue_id, topic.encode("utf-8", "surrogatepass"), queue)
        fetched = Fetched([], start)
        try:
            fetched = self._read_ahead(where, start, end, limit, max_bytes, codes)
        finally:
            if not fetched.messages:  # deleted under this read: neither damage nor the queue's end
                self._require_in_range(topic, queue_id, queue, start)
        return fetched

    def _require_in_range(self, topic: str, queue_id: int, queue: ConsumeQueue | BatchQueue, start: int) -> int:
        """The queue's end; OffsetOutOfRange for a start outside of what is there now."""
        first, end = queue.first_offset(self._log.first_offset), queue.end
        if not first <= start <= end:
            raise OffsetOutOfRange(f"{topic}, queue {queue_id}", start, first, end)
        return end

    def _read_ahead(
        self, where: _Queue, start: int, end: int, limit: int, max_bytes: int, codes: bytes | None
    ) -> Fetched:
        if codes is not None:
            return self._read_entries(where, start, end, limit, max_bytes, codes)
        fetched = self._read_entries(where, start, min(end, start + limit), limit, max_bytes)
        while not fetched.messages and fetched.next_offset < end:  # entries of no message, or damage: look behind them
            start = fetched.next_offset
            fetched = self._read_entries(where, start, min(end, start + limit), limit, max_bytes)
        return fetched

    def _read_batches(self, batch: BatchQueue, start: int, limit: int) -> Fetched:
        readable = self._readable_end()
        found = []
        for entry in batch.entries_from(start, limit):
            try:
                found.append(StoredMessage(self._log.record_at(entry.physical_offset, readable)))
            except CorruptRecord as error:
                self._scars.add(entry.physical_offset, entry.physical_offset + entry.size, error.reason)
            start = entry.base_offset + entry.message_count
        return Fetched(found, start)

    def _read_entries(
        self, queue: _Queue, start: int, stop: int, limit: int, max_bytes: int, codes: bytes | None = None
    ) -> Fetched:
        records: list[StoredMessage] = []
        first, readable = self._log.first_offset, self._readable_end()
        left = max_bytes
        while start < stop and len(records) < limit and (left > 0 or not records):
            entries = queue.files.entries(start, stop)
            place, total = 0, len(entries) // ENTRY_SIZE
            numbers, behind = None, total
            if not total:  # the queue's file is gone
                raise OffsetOutOfRange(f"{queue.topic}, queue {queue.queue_id}", start, stop, stop)
            if codes is not None:
                numbers, behind = select_entries(entries, 0, codes, limit - len(records))
                total = len(numbers)
            while place < total:
                number = place if numbers is None else numbers[place]
                if left <= 0 and records:
                    return Fetched(records, start + number)
                offset, size, _ = ENTRY.unpack_from(entries, number * ENTRY_SIZE)
                if not (0 < size < FILLER_SIZE and first <= offset < readable):
                    if size != FILLER_SIZE:
                        self._note_entry(queue, start + number, offset)
                    place += 1
                    continue
                file = self._log.files.file_at(offset)
                if file is None:  # deleted since this read began
                    raise OffsetOutOfRange("commit log", offset, self._log.first_offset, readable)
                found, after, why = read_records(
                    file.pages,
                    file.start,
                    min(readable, file.end) - file.start,
                    entries,
                    place,
                    left,
                    StoredMessage,
                    queue.raw_topic,
                    queue.queue_id,
                    start,
                    numbers,
                )
                if not why and after == total and start + behind == stop:
                    return Fetched(records + found if records else found, stop)
                records += found
                left -= sum(message.size for message in found)
                if why:
                    number = after if numbers is None else numbers[after]
                    stretch = Stretch(file.pages, file.start, 0, min(readable, file.end) - file.start, file.path)
                    entry = QueueEntry(*ENTRY.unpack_from(entries, number * ENTRY_SIZE))
                    self._note_damage(queue, start + number, stretch, entry, why)
                    after += 1
                elif after == place:  # the next would pass max_bytes
                    return Fetched(records, start + number)
                place = after
            start += behind
        return Fetched(records, start)

    def _note_damage(self, queue: _Queue, number: int, stretch: Stretch, entry: QueueEntry, why: int) -> None:
        """Is it the record, or the queue's entry? Where the log goes on behind it, the entry had the right place."""
        behind = entry.physical_offset - stretch.log_start + entry.size
        goes_on = behind == stretch.end or (
            behind < stretch.end
            and check_record(stretch.data, behind, stretch.end, stretch.log_start + behind, False) >= 0
        )
        if why != BAD_ENTRY and goes_on:
            self._scars.add(entry.physical_offset, entry.physical_offset + entry.size, REASONS[why])
        else:
            self._note_entry(queue, number, entry.physical_offset)

    def _note_entry(self, queue: _Queue, number: int, offset: int) -> None:
        where = (queue.topic, queue.queue_id, number)
        if where not in self._damaged_entries:
            self._damaged_entries.add(where)
            _log.error("topic %s, queue %d: entry %d names offset %d, where its message is not", *where, offset)

    @property
    def damaged_entry_count(self) -> int:
        """Queue entries, found so far, that name no record or another one than that of their number."""
        return len(self._damaged_entries)

    # ---- look-ups

    def get(self, at: int | str) -> StoredMessage:
        """The message at a physical offset, or with a message id."""
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
        """Physical offsets that the index names for a key, rising; other keys of the same hash among them."""
        if self._index is None:
            return []
        found = self._index.find(key_hash(key_text(topic, key, tag=tag)), begin_ms, end_ms, limit)
        first, end = self._log.first_offset, self._readable_end()
        if len(found) == 1:
            return found if first <= found[0] < end else []
        return sorted({offset for offset in found if first <= offset < end})

    def find(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int, *, tag: bool) -> list[StoredMessage]:
        """The newest `limit` messages that really have a key, in log order; what the log no longer has is left out."""
        index, files = self._index, self._log.files
        if index is None:
            return []
        numbers = index.slot_count, index.entry_count
        readable = files.first_offset, self._readable_end()
        found = find_messages(
            index.pages, *numbers, topic, key, tag, begin_ms, end_ms, limit, *readable, files.file_at, StoredMessage
        )
        found.reverse()
        return found

    def seek_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first message of a queue stored at or after a time; the queue's end where there is none."""
        queue = self._queues.get(topic, queue_id)
        low, end = queue.first_offset(self._log.first_offset), queue.end
        log_file_at = self._log.files.file_at
        while low < end:  # file by file of the queue: most queries end in the one that holds the last entry before it
            entries = queue.entries(low, end)
            count = len(entries) // ENTRY_SIZE
            at_last = count == 0 or low + count == end
            if not at_last and seek_timestamp(entries, count - 1, count, timestamp_ms, log_file_at) == count:
                low += count
                continue
            return low + seek_timestamp(entries, 0, count, timestamp_ms, log_file_at)
        return low
