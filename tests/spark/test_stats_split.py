"""Rows of statistics: a split counts what a plain count of its messages gives, and rows add up."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mqlake import Message
from mqlake.spark.jobs import sketch
from mqlake.spark.jobs.stats_rows import MAX_LATENCY_MS, ROWS, latency_at, latency_buckets, merge, size_buckets
from mqlake.spark.jobs.stats_split import TAGS_A_TOPIC, TOP_KEYS, stats_split
from mqlake.spark.topics import is_internal
from tests.helpers import open_small
from tests.spark.tables import put_messages, rows_of, splits_of, write_store

Place = tuple[Any, ...]


def messages_of(path: Path) -> list[dict[str, Any]]:
    """Return every message of a store, with its times in ms."""
    found = rows_of(path, via="scan", includeInternal="true", columns="topic,queue_id,tags,keys,size,sys_flag,"
                    "born_timestamp,store_timestamp,raw_body")  # fmt: skip
    for row in found:
        row["minute"] = row["store_timestamp"].replace(second=0, microsecond=0)
        row["store_ms"], row["born_ms"] = (round(row[f"{w}_timestamp"].timestamp() * 1000) for w in ("store", "born"))
        row["latency"] = min(max(row["store_ms"] - row["born_ms"], 0), MAX_LATENCY_MS)
        row["internal"] = is_internal(row["topic"]) or bool(row["sys_flag"] & 4)
    return found


def counted(path: Path, **options: Any) -> pa.Table:
    splits = splits_of(path, via="scan", includeInternal="true", **options)
    return merge([stats_split(split) for split in splits])


def of_kind(table: pa.Table, kind: str) -> list[dict[str, Any]]:
    return [row for row in table.to_pylist() if row["kind"] == kind]


def varied_store(path: Path) -> None:
    """Write topics of RocketMQ's own, messages without keys, slow and fast clocks, odd texts, two minutes."""
    write_store(path, 400)
    with open_small(path) as store:
        for number in range(200):
            store.put(
                Message(
                    ("SCHEDULE_TOPIC_XXXX", "groesse", "a-RETRY")[number % 3],
                    b"x" * (number * 17),
                    tags=("ü", None, "t")[number % 3],
                    keys=[f"k{number % 7}", "all", "schlüssel"] if number % 5 else [],
                    queue_id=(0, 7, 100_000)[number % 3],
                    born_timestamp=(0, 2**42, 1)[number % 3] if number % 2 else None,
                )
            )


@pytest.mark.parametrize("split_size", ["128m", "16k"])
def test_traffic_is_what_a_plain_count_gives(tmp_path: Path, split_size: str) -> None:
    varied_store(tmp_path)
    expected: dict[Place, list[Any]] = defaultdict(lambda: [0, 0, 0, 1 << 30, 0, 0, 0])
    for row in messages_of(tmp_path):
        place = (str(tmp_path), row["internal"], row["topic"], row["queue_id"], row["tags"], row["minute"])
        sums = expected[place]
        size, latency = row["size"], row["latency"]
        expected[place] = [
            *(sums[0] + 1, sums[1] + size, sums[2] + len(row["raw_body"])),
            *(min(sums[3], size), max(sums[4], size), sums[5] + latency, max(sums[6], latency)),
        ]
    dimensions = ("store", "internal", "topic", "queue_id", "tags", "time")
    measures = ("messages", "bytes", "body_bytes", "min_size", "max_size", "latency_ms", "max_latency_ms")
    table = counted(tmp_path, splitSize=split_size)
    found = {tuple(row[d] for d in dimensions): [row[m] for m in measures] for row in of_kind(table, "traffic")}
    assert found == expected
    assert table.schema == ROWS


def test_histograms_and_pulse_count_every_message_once(tmp_path: Path) -> None:
    varied_store(tmp_path)
    sizes: Counter[Place] = Counter()
    latencies: Counter[Place] = Counter()
    pulse: Counter[Place] = Counter()
    table = counted(tmp_path)
    (step,) = {row["at"] for row in of_kind(table, "pulse")}
    for row in messages_of(tmp_path):
        sizes[row["internal"], row["topic"], 1 << (row["size"].bit_length() - 1)] += 1
        bucket = latency_at(latency_buckets(np.array([row["latency"]])))
        latencies[row["internal"], row["topic"], int(bucket[0])] += 1
        pulse[row["internal"], row["store_ms"] // step * step] += row["size"]
    for kind, expected in (("size", sizes), ("latency", latencies)):
        found = {(row["internal"], row["topic"], row["at"]): row["messages"] for row in of_kind(table, kind)}
        assert found == expected
    steps = {(row["internal"], round(row["time"].timestamp() * 1000)): row["bytes"] for row in of_kind(table, "pulse")}
    assert steps == pulse


def test_the_trend_of_a_short_time_has_every_message_and_that_of_a_long_one_is_left_to_its_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    varied_store(tmp_path)
    expected: Counter[Place] = Counter()
    table = counted(tmp_path)
    (step,) = {row["at"] for row in of_kind(table, "trend")}
    for row in messages_of(tmp_path):
        expected[row["internal"], row["topic"], row["store_ms"] // step * step] += 1
    trend = of_kind(table, "trend")
    assert expected == {
        (row["internal"], row["topic"], round(row["time"].timestamp() * 1000)): row["messages"] for row in trend
    }
    monkeypatch.setattr("mqlake.spark.jobs.stats_split.TREND_MS", step - 1)
    assert of_kind(counted(tmp_path), "trend") == []


@pytest.mark.parametrize("options", [{}, {"splitSize": "4k"}])
def test_retries_and_dead_letters_count_for_the_topic_of_their_original(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with open_small(tmp_path) as store:
        for number in range(90):
            topic = ("orders", "%RETRY%billing", "%DLQ%billing", "%RETRY%search")[number % 4]
            original = {"RETRY_TOPIC": ("orders", "bills")[number // 4 % 2]} if number < 80 and number % 4 else {}
            store.put(Message(topic, b"x" * number, properties=original))
    table = counted(tmp_path, **options)
    found = {
        (row["kind"], row["topic"], row["name"]): row["messages"]
        for kind in ("retry", "dead")
        for row in of_kind(table, kind)
    }
    assert found == {
        **{("retry", topic, group): 10 for topic in ("orders", "bills") for group in ("billing", "search")},
        **{("dead", topic, "billing"): 10 for topic in ("orders", "bills")},
        ("retry", "%RETRY%billing", "billing"): 3,  # their originals are not named
        ("retry", "%RETRY%search", "search"): 2,
        ("dead", "%DLQ%billing", "billing"): 2,
    }


def test_top_keys_are_exact_in_one_split_and_bounded_over_several(tmp_path: Path) -> None:
    rng = random.Random(5)
    names = [f"key-{min(int(rng.paretovariate(0.7)), 5000)}" for _ in range(6000)]
    with open_small(tmp_path) as store:
        for number, name in enumerate(names):
            store.put(Message(f"t{number % 2}", b"", keys=name))
    exact = [Counter(names[0::2]), Counter(names[1::2])]
    for options in ({}, {"splitSize": "64k"}):
        table = counted(tmp_path, **options)
        errors = {row["topic"]: row["error"] for row in of_kind(table, "keys")}
        top = of_kind(table, "key")
        for row in top:
            true = exact[int(row["topic"][1:])][row["name"]]
            assert row["messages"] <= true <= row["messages"] + errors[row["topic"]] - row["error"]
        if not options:
            for topic in (0, 1):
                found = sorted((row["messages"] for row in top if row["topic"] == f"t{topic}"), reverse=True)
                assert found == [count for _, count in exact[topic].most_common(TOP_KEYS)]
                assert errors[f"t{topic}"] == exact[topic].most_common(TOP_KEYS + 1)[-1][1]
        else:
            assert {row["name"] for row in top} >= {name for name, _ in exact[0].most_common(5)}
    assert sum(row["messages"] for row in of_kind(table, "keys")) == len(names)


def test_a_key_that_occurs_once_has_no_row_and_keys_of_any_number_of_topics_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqlake.spark.jobs import stats_split as module

    write_store(tmp_path, 300)
    before = counted(tmp_path)
    assert not any(row["name"].startswith("key-") for row in of_kind(before, "key"))
    monkeypatch.setattr(module, "TOPIC_BITS", 2)
    assert counted(tmp_path) == before


def test_rows_of_parts_add_up_to_the_rows_of_the_whole_in_any_order(tmp_path: Path) -> None:
    varied_store(tmp_path)
    splits = splits_of(tmp_path, via="scan", includeInternal="true", splitSize="16k")
    parts = [stats_split(split) for split in splits]
    assert len(parts) > 10
    at_once = merge(parts)
    random.Random(1).shuffle(parts)
    in_steps = merge([merge(parts[:4]), merge([merge(parts[4:7]), *parts[7:]])])
    assert in_steps == at_once
    whole = counted(tmp_path)
    for kind in ("traffic", "size", "latency"):
        assert of_kind(at_once, kind) == of_kind(whole, kind)
    assert [row["sketch"] for row in of_kind(at_once, "keys")] == [row["sketch"] for row in of_kind(whole, "keys")]


def test_a_topic_with_too_many_tags_keeps_the_most_frequent_and_sums_the_rest(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        for number in range(TAGS_A_TOPIC * 3):
            for _ in range(2 if number % 3 == 0 else 1):
                store.put(Message("many", b"", tags=f"t{number}"))
        store.put(Message("few", b"", tags="t1"))
    table = counted(tmp_path)
    found: Counter[Place] = Counter()
    for row in of_kind(table, "traffic"):
        found[row["topic"], row["tags"]] += row["messages"]
    assert found["few", "t1"] == 1
    assert len(found) == TAGS_A_TOPIC + 2
    assert all(found["many", f"t{number}"] == 2 for number in range(0, TAGS_A_TOPIC * 3, 3))
    assert found["many", "*"] == TAGS_A_TOPIC * 2


def test_damage_is_counted_at_its_offset(tmp_path: Path) -> None:
    write_store(tmp_path, 100)
    row = rows_of(tmp_path, via="scan", columns="physical_offset,size")[40]
    file = tmp_path / "commitlog" / f"{row['physical_offset'] // 65536 * 65536:020d}"
    with file.open("r+b") as log:
        log.seek(row["physical_offset"] % 65536 + 100)
        log.write(b"!")
    table = counted(tmp_path)
    (damage,) = of_kind(table, "damage")
    assert (damage["at"], damage["bytes"], damage["messages"]) == (row["physical_offset"], row["size"], 1)
    assert sum(row["messages"] for row in of_kind(table, "traffic")) == 99


def test_an_empty_store_and_a_store_of_one_message(tmp_path: Path) -> None:
    open_small(tmp_path).close()
    assert counted(tmp_path).num_rows == 0
    with open_small(tmp_path) as store:
        put_messages(store, 1, 1)
    assert [row["kind"] for row in counted(tmp_path).to_pylist()] == [
        "keys",
        "latency",
        "pulse",
        "size",
        "traffic",
        "trend",
    ]


def test_impossible_times_are_clipped(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        for born in (2**63 - 1, -(2**63), 2**62):
            store.put(Message("t", b"", born_timestamp=born))
    found = {row["at"]: row["messages"] for row in of_kind(counted(tmp_path), "latency")}
    assert found == {0: 2, MAX_LATENCY_MS: 1}


# ---- buckets and sketches


def test_buckets_hold_every_value_between_their_bounds() -> None:
    values = np.array([0, 1, 2, 7, 8, 9, 10, 11, 12, 15, 16, 17, 1000, 86_400_000, MAX_LATENCY_MS - 1, MAX_LATENCY_MS])
    buckets = latency_buckets(values)
    assert (latency_at(buckets) <= values).all() and (values < latency_at(buckets + 1)).all()
    bounds = latency_at(np.arange(122))
    assert all(low < high for low, high in itertools.pairwise(bounds.tolist()))
    assert (latency_buckets(bounds) == np.arange(122)).all()
    sizes = np.array([1, 2, 3, 4, 1023, 1024, 2**31 - 1])
    assert size_buckets(sizes).tolist() == [0, 1, 1, 2, 9, 10, 30]


def sketch_of(texts: list[str]) -> bytes:
    hashes = np.sort(sketch.hash_texts(pa.array(texts, pa.string())))
    registers = (hashes >> np.uint64(64 - sketch.INDEX_BITS)).astype(np.int64)
    first = np.flatnonzero(np.diff(registers, prepend=-1))
    return sketch.pack(registers[first], sketch.ranks_of(hashes[first]))


@pytest.mark.parametrize("count", [0, 1, 2, 100, 1_500, 10_000, 100_000])
def test_a_sketch_is_off_by_no_more_than_four_standard_errors(count: int) -> None:
    for prefix in ("", "order-2026-", "ü"):
        found = sketch.estimate(sketch_of([f"{prefix}{number}" for number in range(count)]))
        assert abs(found - count) <= 4 * sketch.STANDARD_ERROR * count


def test_a_merged_sketch_equals_the_sketch_of_all_keys_whatever_the_parts_share() -> None:
    for few, many in ((range(300), range(200, 500)), (range(300), range(200, 50_000)), (range(9_000), range(8_000))):
        texts = [[f"k{number}" for number in part] for part in (few, many)]
        assert sketch.merged(map(sketch_of, texts)) == sketch_of(sorted({*texts[0], *texts[1]}))


def test_a_hash_depends_on_the_text_alone_and_not_on_its_place() -> None:
    texts = ["", "a", "b", "ab", "ba", "a\0", "\0", "\0\0", "ü", "a" * 1000]
    hashes = sketch.hash_texts(pa.array(texts))
    assert len(set(hashes.tolist())) == len(texts)
    assert (sketch.hash_texts(pa.array(["zz", *texts, "q"]).slice(1, len(texts))) == hashes).all()
    assert [int(sketch.hash_texts(pa.array([text]))[0]) for text in texts] == hashes.tolist()
