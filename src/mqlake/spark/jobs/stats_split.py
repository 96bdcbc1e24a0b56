"""Count one split into rows of statistics (`stats_rows.py`). Runs in a worker; no message body leaves it.

Every record of the split is counted, by whole columns: each message gets a group id by what it shares with others
(topic, queue, tag, minute), and values are summed by id. A split always gives the same rows. Memory is that of the
counted columns of a split, including keys: about a fifth of the split's bytes if bodies are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.spark.jobs.copies import copies
from mqlake.spark.jobs.sketch import INDEX_BITS, MAX_RANK, hash_texts, pack, ranks_of
from mqlake.spark.jobs.stats_rows import (
    MAX_LATENCY_MS,
    OTHER_TAGS,
    STEPS_MS,
    Numbers,
    latency_at,
    latency_buckets,
    merge,
    rows,
    size_buckets,
)
from mqlake.spark.options import SourceOptions
from mqlake.spark.read_split import SplitScan
from mqlake.spark.selection import HALF_OR_ROLLED_BACK
from mqlake.spark.split import Split
from mqlake.spark.topics import is_internal

COLUMNS = ("topic", "queue_id", "size", "sys_flag", "born_timestamp", "store_timestamp", "tags", "keys", "raw_body")
MINUTE_MS = 60_000
END_OF_TIME_MS = 253_402_300_799_999
"""The last moment of the year 9999. A time after it, or before 1970, is a producer's mistake and is clipped."""
TOP_KEYS = 20
TAGS_A_TOPIC = 100
"""If a topic has more tags in one split, only the most frequent get their own rows."""
PULSE_STEPS = 600
"""A split has at most this many, so the step is short if there is much traffic."""
TREND_STEPS = 60
"""The same for each topic. A split that would need longer steps than TREND_MS has no trend: its minutes will do."""
TREND_MS = 10_000
TOPIC_BITS = 64 - INDEX_BITS - MAX_RANK
"""The bits of a hash that remain for the topic when keys are counted by topic."""
DAMAGED_RANGES = 1_000
"""A split reports at most this many damaged ranges one by one."""


def stats_split(split: Split, store: str | None = None, *, trend: bool = True) -> pa.Table:
    """Return the rows of a split, which must be a scan. `store` is the store's name in the rows (default: its path).

    Without `trend`, rows of that kind are left out.
    """
    options = SourceOptions(paths=(split.store,), columns=("size",), include_internal=True)
    scan = SplitScan(options, split, COLUMNS)
    name = store if store is not None else split.store
    batches = [_without_bodies(batch) for batch in scan.of_split()]
    found = []
    if batches:
        messages = Messages.of(pa.Table.from_batches(batches).unify_dictionaries().combine_chunks())
        kinds = (_traffic, _pulse, *([_trend] if trend else []), _sizes, _latencies, _keys)
        found = [part for make in kinds for part in make(name, messages)]
        found += copies(name, options, split, messages.topics.unique().to_pylist())
    return merge([*found, *_damage(name, scan.damage)])


def _without_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace bodies by their sizes, and add the hashes of the keys."""
    offsets = np.frombuffer(batch.column("raw_body").buffers()[1], np.int32)[: batch.num_rows + 1]
    body_size = pa.array(np.diff(offsets))
    hashes = pa.array(hash_texts(pc.list_flatten(batch.column("keys"))))
    hashed = pa.ListArray.from_arrays(batch.column("keys").offsets, hashes)
    kept = batch.drop_columns(["raw_body"])
    return kept.append_column("body_size", body_size).append_column("hashes", hashed)


class Messages(NamedTuple):
    """The columns of a split. A class is a topic, divided into internal messages and others."""

    classes: Numbers
    topics: pa.Array
    """The topic of each class."""
    internal: Numbers
    """Whether each class is internal."""
    queue_ids: Numbers
    tags: pa.DictionaryArray
    store_ms: Numbers
    latencies: Numbers
    sizes: Numbers
    body_sizes: Numbers
    keys: pa.ListArray
    hashes: pa.ListArray

    @classmethod
    def of(cls, table: pa.Table) -> Messages:
        column = {name: table.column(name).chunk(0) for name in table.column_names}
        topics = column["topic"].dictionary
        own = np.array([is_internal(name) for name in topics.to_pylist()], np.int64)
        codes = column["topic"].indices.to_numpy()
        hidden = (column["sys_flag"].to_numpy() & HALF_OR_ROLLED_BACK) != 0
        store_ms, born_ms = (
            np.clip(column[name].cast(pa.int64()).to_numpy(), 0, END_OF_TIME_MS)
            for name in ("store_timestamp", "born_timestamp")
        )
        return cls(
            classes=codes * np.int64(2) + (hidden | (own[codes] == 1)),
            topics=topics.take(pa.array(np.repeat(np.arange(len(topics)), 2))),
            internal=np.tile([False, True], len(topics)),
            queue_ids=column["queue_id"].to_numpy(),
            tags=column["tags"].dictionary_encode(),
            store_ms=store_ms,
            latencies=np.clip(store_ms - born_ms, 0, MAX_LATENCY_MS),
            sizes=column["size"].to_numpy(),
            body_sizes=column["body_size"].to_numpy(),
            keys=column["keys"],
            hashes=column["hashes"],
        )

    def named(self, classes: Numbers) -> dict[str, pa.Array]:
        """Return topic and internal flag for rows of these classes."""
        return {"topic": self.topics.take(pa.array(classes)), "internal": pa.array(self.internal[classes])}


# ---- counting


def _numbered(*columns: Numbers) -> tuple[Numbers, int]:
    """Return a group id for each row, by its values in all columns, and the number of groups."""

    def pair(codes: Numbers, column: Numbers) -> Numbers:
        span = int(column.max()) + 1
        if int(codes.max()) * span >= 1 << 62:
            codes = _encoded(codes)[0]
        return codes * np.int64(span) + column

    codes, values = _encoded(reduce(pair, columns))
    return codes, len(values)


def _encoded(column: Numbers) -> tuple[Numbers, Numbers]:
    """Return the index of each value and the distinct values: by a table if they are dense, else by hash."""
    lowest, highest = int(column.min()), int(column.max())
    if highest - lowest < 4 * len(column):
        near = column - lowest
        (values,) = np.nonzero(np.bincount(near))
        table = np.empty(highest - lowest + 1, np.int64)
        table[values] = np.arange(len(values))
        return table[near], values + lowest
    encoded = pa.array(column).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_numpy()


def _first_rows(codes: Numbers, count: int) -> Numbers:
    """Return the first row of each group."""
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def _sum(codes: Numbers, count: int, column: Numbers) -> Numbers:
    total = np.zeros(count, np.int64)
    np.add.at(total, codes, column.astype(np.int64))
    return total


def _extreme(codes: Numbers, column: Numbers, first: Numbers, ufunc: np.ufunc) -> Numbers:
    found = column[first]
    ufunc.at(found, codes, column)
    return found


# ---- the kinds of rows


def _traffic(store: str, messages: Messages) -> Iterator[pa.Table]:
    minutes = messages.store_ms // MINUTE_MS
    queues = _encoded(messages.queue_ids)[0]
    tags, tag_names = _few_tags(messages)
    codes, count = _numbered(messages.classes, queues, tags, _encoded(minutes)[0])
    first = _first_rows(codes, count)
    yield rows(
        "traffic",
        store,
        **messages.named(messages.classes[first]),
        queue_id=messages.queue_ids[first],
        tags=tag_names.take(pa.array(tags[first])),
        time=_times(minutes[first] * MINUTE_MS),
        messages=np.bincount(codes, minlength=count),
        bytes=_sum(codes, count, messages.sizes),
        body_bytes=_sum(codes, count, messages.body_sizes),
        min_size=_extreme(codes, messages.sizes, first, np.minimum),
        max_size=_extreme(codes, messages.sizes, first, np.maximum),
        latency_ms=_sum(codes, count, messages.latencies),
        max_latency_ms=_extreme(codes, messages.latencies, first, np.maximum),
    )


def _few_tags(messages: Messages) -> tuple[Numbers, pa.Array]:
    """Return each message's tag as an index, and the tags. If a topic has too many, its rare tags become one."""
    tags = messages.tags.indices.fill_null(len(messages.tags.dictionary)).to_numpy().astype(np.int64)
    names = pa.concat_arrays([messages.tags.dictionary, pa.nulls(1, pa.string()), pa.array([OTHER_TAGS])])
    if len(names) <= TAGS_A_TOPIC:
        return tags, names
    codes, count = _numbered(messages.classes, tags)
    first = _first_rows(codes, count)
    of_class = messages.classes[first]
    order = np.lexsort((tags[first], -np.bincount(codes, minlength=count), of_class))
    is_rare = np.empty(count, bool)
    is_rare[order] = _places(of_class[order]) >= TAGS_A_TOPIC
    return np.where(is_rare[codes], len(names) - 1, tags), names


def _places(groups: Numbers) -> Numbers:
    """Return the position of each row in its group. Rows of a group are adjacent."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    place: Numbers = np.arange(len(groups)) - np.repeat(starts, np.diff(starts, append=len(groups)))
    return place


def _pulse(store: str, messages: Messages) -> Iterator[pa.Table]:
    span = int(messages.store_ms.max()) - int(messages.store_ms.min())
    step = next((step for step in STEPS_MS if span // step < PULSE_STEPS), STEPS_MS[-1])
    at = messages.store_ms // step
    hidden = messages.internal[messages.classes]
    codes, count = _numbered(_encoded(at)[0], hidden.astype(np.int64))
    first = _first_rows(codes, count)
    yield rows(
        "pulse",
        store,
        internal=pa.array(hidden[first]),
        time=_times(at[first] * step),
        at=np.full(count, step),
        messages=np.bincount(codes, minlength=count),
        bytes=_sum(codes, count, messages.sizes),
    )


def _trend(store: str, messages: Messages) -> Iterator[pa.Table]:
    span = int(messages.store_ms.max()) - int(messages.store_ms.min())
    step = next((step for step in STEPS_MS if span // step < TREND_STEPS), STEPS_MS[-1])
    if step > TREND_MS:
        return
    at = messages.store_ms // step
    codes, count = _numbered(messages.classes, _encoded(at)[0])
    first = _first_rows(codes, count)
    yield rows(
        "trend",
        store,
        **messages.named(messages.classes[first]),
        time=_times(at[first] * step),
        at=np.full(count, step),
        messages=np.bincount(codes, minlength=count),
    )


def _sizes(store: str, messages: Messages) -> Iterator[pa.Table]:
    buckets = size_buckets(messages.sizes)
    codes, count = _numbered(messages.classes, buckets)
    first = _first_rows(codes, count)
    classes = messages.named(messages.classes[first])
    yield rows("size", store, **classes, at=1 << buckets[first], messages=np.bincount(codes, minlength=count))


def _latencies(store: str, messages: Messages) -> Iterator[pa.Table]:
    buckets = latency_buckets(messages.latencies)
    codes, count = _numbered(messages.classes, buckets)
    first = _first_rows(codes, count)
    classes, counts = messages.named(messages.classes[first]), np.bincount(codes, minlength=count)
    yield rows("latency", store, **classes, at=latency_at(buckets[first]), messages=counts)


def _keys(store: str, messages: Messages) -> Iterator[pa.Table]:
    """Count as many topics at a time as fit into the bits left over by the hash."""
    if not len(messages.keys.values):
        return
    classes = np.repeat(messages.classes, np.diff(messages.keys.offsets.to_numpy()))
    hashes = messages.hashes.values.to_numpy()
    for base in range(0, int(classes.max()) + 1, 1 << TOPIC_BITS):
        chosen = (classes >= base) & (classes < base + (1 << TOPIC_BITS))
        if not chosen.any():
            continue
        upper = (classes[chosen] - base).astype(np.uint64) << np.uint64(64 - TOPIC_BITS)
        codes = upper | (hashes[chosen] >> np.uint64(TOPIC_BITS))
        counted = CountedKeys.of(codes, base)
        yield counted.sketches(store, messages)
        yield counted.most_frequent(store, messages, messages.keys.values.filter(pa.array(chosen)), codes)


class CountedKeys(NamedTuple):
    """The distinct keys of many topics, ordered by (class, hash), and how often each occurs."""

    codes: Numbers
    """The class, minus `base`, in the upper bits, and as much of the hash as fits in the others."""
    counts: Numbers
    classes: Numbers
    base: int
    frequent: Numbers
    """The keys that get their own rows: the TOP_KEYS of each class, without keys that occur once."""
    left_out: Numbers
    """For each class from `base` on, the highest count of a key without a row."""

    @classmethod
    def of(cls, codes: Numbers, base: int) -> CountedKeys:
        found = np.sort(codes)
        starts = np.flatnonzero(np.concatenate(([True], found[1:] != found[:-1])))
        counts, found = np.diff(starts, append=len(found)), found[starts]
        classes = (found >> np.uint64(64 - TOPIC_BITS)).astype(np.int64) + base
        (often,) = np.nonzero(counts > 1)
        order = often[np.lexsort((found[often], -counts[often], classes[often]))]
        frequent = np.sort(order[_places(classes[order]) < TOP_KEYS])
        others = counts.copy()
        others[frequent] = 0
        left_out = np.zeros(int(classes[-1]) - base + 1, np.int64)
        np.maximum.at(left_out, classes - base, others)
        return cls(found, counts, classes, base, frequent, left_out)

    def sketches(self, store: str, messages: Messages) -> pa.Table:
        """Return the sketch rows. The first code of a register has the smallest rest of its hash: it is the rarest."""
        hashes = self.codes << np.uint64(TOPIC_BITS)
        registers = (hashes >> np.uint64(64 - INDEX_BITS)).astype(np.int64)
        first = np.flatnonzero(np.diff((self.classes << INDEX_BITS) + registers, prepend=-1))
        registers, ranks, of_class = registers[first], ranks_of(hashes[first]), self.classes[first]
        starts = np.flatnonzero(np.diff(of_class, prepend=-1))
        classes, ends = of_class[starts], np.append(starts[1:], len(first))
        parts = zip(starts.tolist(), ends.tolist(), strict=True)
        return rows(
            "keys",
            store,
            **messages.named(classes),
            messages=_sum(self.classes - self.base, len(self.left_out), self.counts)[classes - self.base],
            error=self.left_out[classes - self.base],
            sketch=pa.array([pack(registers[start:end], ranks[start:end]) for start, end in parts], pa.binary()),
        )

    def most_frequent(self, store: str, messages: Messages, keys: pa.Array, codes: Numbers) -> pa.Table:
        """Return rows for the frequent keys. `keys` are the texts that `codes` stand for."""
        places = pc.index_in(pa.array(codes), value_set=pa.array(self.codes[self.frequent]))
        found = pc.indices_nonzero(pc.is_valid(places)).to_numpy()
        texts = found[_first_rows(places.drop_null().to_numpy(), len(self.frequent))]
        classes = self.classes[self.frequent]
        return rows(
            "key",
            store,
            **messages.named(classes),
            name=keys.take(pa.array(texts)),
            messages=self.counts[self.frequent],
            error=self.left_out[classes - self.base],
        )


def _damage(store: str, damage: list[tuple[int, int, str]]) -> Iterator[pa.Table]:
    listed, rest = damage[:DAMAGED_RANGES], damage[DAMAGED_RANGES:]
    parts = [(at, 1, size, reason) for at, size, reason in listed]
    if rest:
        parts.append((rest[0][0], len(rest), sum(size for _, size, _ in rest), "more damaged ranges from here on"))
    if parts:
        at, count, size, reason = (list(column) for column in zip(*parts, strict=True))
        yield rows("damage", store, at=at, messages=count, bytes=size, name=pa.array(reason))


def _times(ms: Numbers) -> pa.Array:
    return pa.array(ms).cast(pa.timestamp("ms", "UTC"))
