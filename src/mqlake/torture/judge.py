"""Open what a fault left and compare it with what was promised.

The judge believes nothing that the store says of itself. A message counts as kept only if `read` returns it at the
queue offset of its receipt with the bytes that were put, and everything that is served must have been put. `scan` must
agree with the queues, keys must find their messages, and the next put must get the next queue offset of its queue.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from mqlake import MessageStore, MissingExtra, QueueRange, StoreConfig, StoredMessage, StoreError
from mqlake.torture.ledger import LIFE, NEVER, TOPICS, Ack, is_as_put, message_of, number_of

SAMPLE = 8
"""Keys to look up, and messages to fetch by physical offset, for each verdict."""
EMPTY_READS = 1_000
"""Empty reads in one queue after which its end must be wrong: no queue holds this many messages."""
PROBE = 9_000 * LIFE
"""From here on, numbers belong to messages that are put into a store to see that it works."""


@dataclass(slots=True)
class Served:
    """Everything that a store serves, and what was wrong with it."""

    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number -> queue offset and physical offset, for all messages that are served as they were put."""
    strange: list[str] = field(default_factory=list)
    """Messages with a body that nobody put, or that are served twice."""
    misplaced: list[str] = field(default_factory=list)
    """Bodies as they were put, but under another topic, queue, key or tag."""
    unreadable: list[str] = field(default_factory=list)
    """Bodies that the store itself reports as damaged."""
    gaps: list[str] = field(default_factory=list)
    """Queue offsets without a message."""
    unlike_scan: list[int] = field(default_factory=list)
    """Physical offsets that only the scan or only the queues have."""
    lost_keys: list[str] = field(default_factory=list)
    """Keys that find nothing although their messages are there."""
    errors: list[str] = field(default_factory=list)
    refused: str | None = None
    """Why the store did not open, if it did not."""
    log_end: int = 0
    next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    def lost(self, acks: Collection[Ack]) -> list[Ack]:
        """Return the messages that are not served where their receipts say."""
        return [ack for ack in acks if self.places.get(ack.number) != (ack.queue_offset, ack.physical_offset)]


def open_and_read(path: Path, config: StoreConfig, rng: random.Random, *, probe: bool = True) -> Served:
    """Open a store for writing, read everything, look some messages up, put one per topic, and close it."""
    served = Served()
    try:
        store = MessageStore.open(path, config=config, retention=NEVER)
    except Exception as error:
        served.refused = f"{type(error).__name__}: {error}"
        return served
    try:
        _read_all(store, served)
        _compare_scan(store, served)
        _look_up(store, served, rng)
        if probe:
            _probe(store, served, rng)
    except Exception as error:
        served.errors.append(f"{type(error).__name__}: {error}")
    finally:
        try:
            store.close()
        except Exception as error:
            served.errors.append(f"close raised {type(error).__name__}: {error}")
    return served


def _read_all(store: MessageStore, served: Served) -> None:
    served.log_end = store.end_offset
    for topic in store.topics():
        for queue in store.queues(topic):
            served.next_offsets[topic, queue.queue_id] = queue.end_offset
            expected = queue.first_offset
            for message in _messages(store, queue, served):
                _note_gap(queue, expected, message.queue_offset, served)
                expected = message.queue_offset + 1
                _enter(message, served)
            _note_gap(queue, expected, queue.end_offset, served)


def _note_gap(queue: QueueRange, expected: int, found: int, served: Served) -> None:
    if found != expected:
        served.gaps.append(f"{queue.topic}/{queue.queue_id}: offset {found} comes after {expected - 1}")


def _messages(store: MessageStore, queue: QueueRange, served: Served) -> list[StoredMessage]:
    """Return all messages of a queue. If a read raises, note the error and continue after that message."""
    found: list[StoredMessage] = []
    start, limit, empty = queue.first_offset, 64, 0
    while start < queue.end_offset:
        try:
            batch = store.read(queue.topic, queue_id=queue.queue_id, start=start, limit=limit)
        except Exception as error:
            if limit == 1:
                served.errors.append(
                    f"read of {queue.topic}/{queue.queue_id} at {start}: {type(error).__name__}: {error}"
                )
                start += 1
            limit = 1 if limit > 1 else 64
            continue
        found += batch
        start = max(start, batch[-1].queue_offset) + 1 if batch else start + 1
        empty += not batch
        if empty > EMPTY_READS:
            served.errors.append(f"{queue.topic}/{queue.queue_id} should end at {queue.end_offset}; no read gets there")
            break
    return found


def _enter(message: StoredMessage, served: Served) -> None:
    try:
        message.body  # noqa: B018  # decompresses it
    except StoreError as error:
        served.unreadable.append(f"{message!r}: {error}")
        return
    number = number_of(message)
    if number is None:
        served.strange.append(f"nobody put this: {message!r}")
    elif not is_as_put(message, number):
        served.misplaced.append(f"number {number} is not as it was put: {message!r}")
    elif number in served.places:
        served.strange.append(f"number {number} is served twice: {message!r}")
    else:
        served.places[number] = message.queue_offset, message.physical_offset


def _compare_scan(store: MessageStore, served: Served) -> None:
    """Compare scan and queues. Without pyarrow there is no scan."""
    try:
        batches = list(store.scan(columns=["physical_offset"]))
    except MissingExtra:
        return
    scanned = Counter(offset for batch in batches for offset in batch.column("physical_offset").to_pylist())
    read = Counter(physical for _, physical in served.places.values())
    served.unlike_scan = sorted([*(scanned - read).elements(), *(read - scanned).elements()])


def _look_up(store: MessageStore, served: Served, rng: random.Random) -> None:
    for number in rng.sample(sorted(served.places), min(SAMPLE, len(served.places))):
        find_key(store, served, number)
        physical = served.places[number][1]
        if number_of(store.get(physical)) != number:
            served.errors.append(f"get({physical}) is not number {number}")


def find_key(store: MessageStore, served: Served, number: int) -> None:
    """Note an error unless a key finds its message."""
    message = message_of(number)
    found = store.find(message.topic, message.keys[0])
    if not found:
        served.lost_keys.append(f"{message.keys[0]} of {message.topic}")
    elif [m.physical_offset for m in found] != [served.places[number][1]]:
        served.errors.append(f"key {message.keys[0]} of {message.topic} finds {found}")


def _probe(store: MessageStore, served: Served, rng: random.Random) -> None:
    """Check that the store accepts a message of each topic, gives it the next queue offset, and serves it."""
    first = PROBE + rng.randrange(LIFE)
    for topic in TOPICS:
        _put_one(store, served, next(n for n in itertools.count(first) if message_of(n).topic == topic))


def _put_one(store: MessageStore, served: Served, number: int) -> None:
    message = message_of(number)
    receipt = store.put(message)
    queue = (message.topic, receipt.queue_id)
    expected = served.next_offsets.get(queue, 0)
    if receipt.queue_offset != expected:
        served.gaps.append(f"{queue[0]}/{queue[1]}: the next put got {receipt.queue_offset}, not {expected}")
    store.flush()
    back = store.read(message.topic, queue_id=receipt.queue_id, start=receipt.queue_offset)
    if [number_of(m) for m in back] != [number]:
        served.errors.append(f"the next put is not served: {back}")
