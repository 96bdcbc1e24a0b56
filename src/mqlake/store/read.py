"""Queue offset -> entries -> records; look-ups by physical offset, message id, key and time.

Every record is checked as it is copied out, CRC included: a damaged one is an error, never a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mqlake.codec.index_entry import key_hash, key_text
from mqlake.codec.message_id import decode_message_id
from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER_SIZE
from mqlake.errors import CorruptRecord, NoSuchMessage, OffsetOutOfRange, UnknownTopic
from mqlake.kernel import find_messages, read_records, seek_timestamp
from mqlake.kernel.types import REASONS
from mqlake.logs.batch_queue import BatchQueue
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.logs.consume_queues import BatchQueues, ConsumeQueues
from mqlake.logs.key_index import KeyIndex
from mqlake.message import StoredMessage

MAX_READ_BYTES = 32 << 20
"""One read returns no more than this, but at least one message."""
END_OF_TIME = 2**63 - 1


class QueueRange(NamedTuple):
    """One queue and the half-open range of its messages that can be read."""

    topic: str
    queue_id: int
    first_offset: int
    end_offset: int

    @property
    def message_count(self) -> int:
        return self.end_offset - self.first_offset


class Reader:
    """The reading side of a store, the same for its writer and for followers."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchQueues,
        index: KeyIndex | None,
        readable_end: Callable[[], int],
    ) -> None:
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
        ids = sorted({*self._queues.queue_ids(topic), *self._batch_queues.queue_ids(topic)})
        if not ids:
            raise UnknownTopic(topic, None, f"{len(self.topics())} topics: {', '.join(self.topics()[:8])}")
        return [self.range_of(topic, queue_id) for queue_id in ids]

    def range_of(self, topic: str, queue_id: int) -> QueueRange:
        batch = self._batch_queues.get(topic, queue_id)
        queue = batch if batch is not None else self._queues.get(topic, queue_id)
        first = queue.first_offset(self._log.first_offset)
        return QueueRange(topic, queue_id, first, max(first, queue.end))

    def read(self, topic: str, queue_id: int, start: int, limit: int, max_bytes: int) -> list[StoredMessage]:
        """At most `limit` messages from `start` on; none at the queue's end."""
        batch = self._batch_queues.get(topic, queue_id)
        queue = batch if batch is not None else self._queues.get(topic, queue_id)
        end = self._require_in_range(topic, queue_id, queue, start)
        if batch is not None:
            readable = self._readable_end()
            entries = batch.entries_from(start, limit)
            return [StoredMessage(self._log.record_at(entry.physical_offset, readable)) for entry in entries]
        assert isinstance(queue, ConsumeQueue)
        messages: list[StoredMessage] = []
        try:
            messages = self._read_ahead(queue, start, end, limit, max_bytes)
        finally:
            if not messages:  # deleted under this read: neither damage nor the queue's end
                self._require_in_range(topic, queue_id, queue, start)
        return messages

    def _require_in_range(self, topic: str, queue_id: int, queue: ConsumeQueue | BatchQueue, start: int) -> int:
        """The queue's end; OffsetOutOfRange for a start outside of what is there now."""
        first, end = queue.first_offset(self._log.first_offset), queue.end
        if not first <= start <= end:
            raise OffsetOutOfRange(f"{topic}, queue {queue_id}", start, first, end)
        return end

    def _read_ahead(self, queue: ConsumeQueue, start: int, end: int, limit: int, max_bytes: int) -> list[StoredMessage]:
        messages = self._read_entries(queue, start, min(end, start + limit), max_bytes)
        while not messages and start + limit < end:  # nothing but entries of no message: look behind them
            start += limit
            messages = self._read_entries(queue, start, min(end, start + limit), max_bytes)
        return messages

    def _read_entries(self, queue: ConsumeQueue, start: int, stop: int, max_bytes: int) -> list[StoredMessage]:
        records: list[StoredMessage] = []
        readable = self._readable_end()
        left = max_bytes
        while start < stop and (left > 0 or not records):
            entries = queue.entries(start, stop)
            number, count = 0, len(entries) // ENTRY_SIZE
            if not count:  # the queue's file is gone
                raise OffsetOutOfRange(str(queue.files.directory), start, stop, stop)
            while number < count and (left > 0 or not records):
                offset, size, _ = ENTRY.unpack_from(entries, number * ENTRY_SIZE)
                if size == FILLER_SIZE:
                    number += 1
                    continue
                stretch = self._log.stretch(offset, readable)
                if stretch is None:
                    raise OffsetOutOfRange("commit log", offset, self._log.first_offset, readable)
                found, after, why = read_records(
                    stretch.data, stretch.log_start, stretch.end, entries, number, left, StoredMessage
                )
                records += found
                left -= sum(message.size for message in found)
                if why:
                    if records:
                        return records
                    raise CorruptRecord(stretch.file, ENTRY.unpack_from(entries, after * ENTRY_SIZE)[0], REASONS[why])
                if after == number:  # the next would pass max_bytes
                    return records
                number = after
            start += count
        return records

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
