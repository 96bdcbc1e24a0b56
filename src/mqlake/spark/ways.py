"""Ways to find the selected messages in a byte range of the log. The way that reads least is taken.

Scan:   read all records of the range and drop the unwanted ones.
Queue:  read the entries of the topics' consume queues, then the records they point at.
Index:  read the offsets that the index has for the keys, then the records there. Scan the parts of the range before and
        after what the index covers.

Queues and index are derived data, used only if the store itself would trust them (`Follower.derived_holds`). All ways
return the same rows, because what they find is filtered exactly (`selection.py`).
"""

from __future__ import annotations

import array
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mqlake.codec.index_entry import key_hash, key_text
from mqlake.codec.queue_entry import ENTRY_SIZE, FILLER_SIZE
from mqlake.errors import BadFile, InvalidConfig
from mqlake.files.mapped_file import PAGE_SIZE
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.logs.key_index import KeyIndex
from mqlake.spark.boundaries import Boundaries
from mqlake.spark.options import SourceOptions
from mqlake.spark.split import QueueRun, Split
from mqlake.spark.topics import is_internal, wants
from mqlake.spark.windows import parts_in_time
from mqlake.store.follower import Follower
from mqlake.store.opening import index_numbers

SAMPLE = 64
"""Entries of a queue to sample for the mean size of its messages."""
OFFSETS_A_SPLIT = 16_384
NO_LIMIT = 1 << 30
END_OF_TIME = 2**63 - 1


@dataclass(frozen=True)
class Snapshot:
    """A store at one moment. Its log is [first, end)."""

    root: str
    first: int
    end: int
    follower: Follower

    def split(self, start: int, end: int, **how: object) -> Split:
        queue_file_size = self.follower.queues.file_size
        return Split(self.root, self.follower.log.file_size, queue_file_size, start, end, self.end, **how)  # type: ignore[arg-type]


class Way(ABC):
    """A way to read a range. `cost` estimates the bytes it reads, `reason` says why it is possible or chosen."""

    name: str
    cost: int
    reason: str

    @abstractmethod
    def cut(self, size: int) -> list[Split]:
        """Return splits of about `size` bytes."""


def choose(snapshot: Snapshot, options: SourceOptions, start: int, stop: int) -> Way:
    """Return the way that reads least, or the one that `via` names."""
    ways: dict[str, Way] = {}
    refused: dict[str, str] = {}
    topics = resolve_topics(snapshot.follower, options, start)
    for name, make in (("queue", QueueWay), ("index", IndexWay), ("scan", ScanWay)):
        try:
            ways[name] = make(snapshot, options, start, stop, topics)
        except NotPossible as reason:
            refused[name] = str(reason)
    if options.via != "auto":
        if options.via in refused:
            raise InvalidConfig("option via", options.via, f"not possible for this read: {refused[options.via]}")
        return ways[options.via]
    best = min(ways.values(), key=lambda way: way.cost)
    others = [f"{name} would read about {way.cost:,}" for name, way in ways.items() if way is not best]
    best.reason = "; ".join([best.reason, *others, *(f"no {name}: {why}" for name, why in refused.items())])
    return best


class NotPossible(Exception):
    """This way cannot serve the read. The text says why."""


def resolve_topics(follower: Follower, options: SourceOptions, start: int) -> tuple[str, ...] | None:
    """Return the topics that the read is limited to. None if it is not limited, or if they are not known yet."""
    if options.topics is not None:
        return options.topics
    if options.topics_pattern is None or not follower.derived_holds or options.include_internal:
        return None
    return tuple(topic for topic in topics_in_log(follower, start) if wants(options, topic))


def topics_in_log(follower: Follower, start: int) -> list[str]:
    """Return topics with queues, and deleted topics with messages in the log from `start` on: those are in no queue."""
    return sorted(
        {*follower.reader.topics(), *(topic for topic, end in follower.deleted_topics.ends.items() if end > start)}
    )


class ScanWay(Way):
    """Read every record of the range."""

    name = "scan"

    def __init__(
        self, snapshot: Snapshot, options: SourceOptions, start: int, stop: int, topics: tuple[str, ...] | None
    ) -> None:
        self._snapshot, self._topics = snapshot, topics
        if options.topics is None and options.topics_pattern is not None:
            self._topics = None  # records of topics whose queues were deleted match too
        self._parts = parts_in_time(snapshot.root, snapshot.follower.log.file_size, start, stop, options)
        self.cost = sum(high - low for low, high in self._parts)
        self.reason = "all records of the range"
        if self.cost < stop - start:
            self.reason = f"all records of {len(self._parts)} parts of the range: the others have no record in time"
        elif not options.rising_times and (options.start_time is not None or options.end_time is not None):
            self.reason += ", of which no part is known to be outside the times"

    def cut(self, size: int) -> list[Split]:
        return [split for low, high in self._parts for split in self._cut(low, high, size)]

    def _cut(self, start: int, stop: int, size: int) -> list[Split]:
        boundaries = Boundaries(self._snapshot.follower.log, self._snapshot.first, self._snapshot.end)
        count = max(1, -(-(stop - start) // size))
        step = -(-(stop - start) // count)
        cuts = [boundaries.at_or_after(start + number * step) for number in range(1, count)]
        cuts = sorted({start, *(cut for cut in cuts if cut < stop), stop})
        return [self._snapshot.split(low, high, topics=self._topics) for low, high in itertools.pairwise(cuts)]


class QueueWay(Way):
    """Read the entries of the topics' queues."""

    name = "consume queue"

    def __init__(
        self, snapshot: Snapshot, options: SourceOptions, start: int, stop: int, topics: tuple[str, ...] | None
    ) -> None:
        follower = snapshot.follower
        if topics is None:
            raise NotPossible("no topics are named")
        if options.include_internal:
            raise NotPossible("includeInternal: queues have no half messages and no rolled-back ones")
        if not follower.derived_holds:
            raise NotPossible("the last stop was unclean, so queues cannot be trusted")
        self._snapshot, self._start, self._stop, self._topics = snapshot, start, stop, topics
        self._queues = {
            (topic, queue_id): follower.queues.get(topic, queue_id)
            for topic in topics
            for queue_id in self._queue_ids(follower, topic, start)
            if options.queues is None or queue_id in options.queues
        }
        self._runs = self._runs_between(start, stop)
        count = sum(run.stop - run.first for run in self._runs)
        touched = sum((run.stop - run.first) * (self._mean_size(run) + PAGE_SIZE) for run in self._runs)
        self.cost = count * ENTRY_SIZE + min(touched, stop - start)
        self.reason = f"{count:,} entries of {len(self._runs)} queues of {len(topics)} topics"

    @staticmethod
    def _queue_ids(follower: Follower, topic: str, start: int) -> list[int]:
        if follower.deleted_topics.ends.get(topic, 0) > start:
            raise NotPossible(f"{topic} was deleted, and the log still has messages of it, which are in no queue")
        if topic in follower.batch_queues.topics():
            raise NotPossible(f"{topic} has batch queues")
        queue_ids = follower.queues.queue_ids(topic)
        if not queue_ids:
            raise NotPossible(f"{topic} has no queue")
        return queue_ids

    def _runs_between(self, start: int, stop: int) -> list[QueueRun]:
        runs = [QueueRun(*name, entry_at(queue, start), entry_at(queue, stop)) for name, queue in self._queues.items()]
        return [run for run in runs if run.first < run.stop]

    def _mean_size(self, run: QueueRun) -> int:
        queue, step = self._queues[run.topic, run.queue_id], max(1, (run.stop - run.first) // SAMPLE)
        entries = [queue.entry(number) for number in range(run.first, run.stop, step)]
        sizes = [entry.size for entry in entries if entry is not None and entry.size != FILLER_SIZE]
        return sum(sizes) // len(sizes) if sizes else 0

    def cut(self, size: int) -> list[Split]:
        if not self._runs:
            return []
        longest = max(self._runs, key=lambda run: run.stop - run.first)
        queue = self._queues[longest.topic, longest.queue_id]
        count = min(max(1, -(-self.cost // size)), longest.stop - longest.first)
        numbers = [longest.first + number * (longest.stop - longest.first) // count for number in range(1, count)]
        places = [entry.physical_offset for number in numbers if (entry := queue.entry(number)) is not None]
        cuts = sorted({self._start, *(place for place in places if self._start < place < self._stop), self._stop})
        return [
            self._snapshot.split(start, end, topics=self._topics, runs=tuple(runs))
            for start, end in itertools.pairwise(cuts)
            if (runs := self._runs_between(start, end))
        ]


class IndexWay(Way):
    """Read what the index has for the keys, and scan what it does not cover."""

    name = "index"

    def __init__(
        self, snapshot: Snapshot, options: SourceOptions, start: int, stop: int, topics: tuple[str, ...] | None
    ) -> None:
        follower = snapshot.follower
        if options.keys is None:
            raise NotPossible("no keys are named")
        if options.include_internal:
            raise NotPossible("includeInternal: the index has no rolled-back messages")
        if not follower.derived_holds:
            raise NotPossible("the last stop was unclean, so the index cannot be trusted")
        self._snapshot, self._topics = snapshot, topics
        index = KeyIndex(follower.layout.index, *index_numbers(follower.layout)[:2], writable=False)
        try:
            index.load()
        except BadFile as error:
            raise NotPossible(str(error)) from None
        covered = index.covered
        if covered is None:
            raise NotPossible("the index is empty")
        boundaries = Boundaries(follower.log, snapshot.first, snapshot.end)
        begin = min(stop, max(start, boundaries.at_or_after(max(snapshot.first, covered[0]))))
        end = min(stop, max(begin, boundaries.at_or_after(max(snapshot.first, covered[1] + 1))))
        names = topics if topics is not None else [t for t in topics_in_log(follower, start) if not is_internal(t)]
        self._offsets = self._find(index, names, options.keys, begin, end)
        self._scans = [ScanWay(snapshot, options, *part, topics) for part in ((start, begin), (end, stop))]
        self._scans = [scan for scan in self._scans if scan.cost]
        uncovered = sum(scan.cost for scan in self._scans)
        self._range = begin, end
        self.cost = len(self._offsets) * 2 * PAGE_SIZE + uncovered
        self.reason = f"{len(self._offsets):,} candidates for {len(options.keys)} keys of {len(names)} topics"
        if uncovered:
            self.reason += f", and {uncovered:,} bytes that the index does not cover"

    @staticmethod
    def _find(index: KeyIndex, topics: Sequence[str], keys: Sequence[str], begin: int, end: int) -> list[int]:
        hashes = {key_hash(key_text(topic, key)) for topic in topics for key in keys}
        found = {offset for number in hashes for offset in index.find(number, 0, END_OF_TIME, NO_LIMIT)}
        return sorted(offset for offset in found if begin <= offset < end)

    def cut(self, size: int) -> list[Split]:
        splits = [split for scan in self._scans for split in scan.cut(size)]
        for first in range(0, len(self._offsets), OFFSETS_A_SPLIT):
            offsets = array.array("q", self._offsets[first : first + OFFSETS_A_SPLIT]).tobytes()
            splits.append(self._snapshot.split(*self._range, topics=self._topics, offsets=offsets))
        return splits


def entry_at(queue: ConsumeQueue, offset: int) -> int:
    """Return the queue offset of the first entry at or after a physical offset. Offsets rise along the queue."""
    low, high = queue.files.first_offset // ENTRY_SIZE, queue.end
    while low < high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        if entry is None or entry.physical_offset < offset:
            low = middle + 1
        else:
            high = middle
    return low
