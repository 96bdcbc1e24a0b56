"""The rows of delivery: consumers, delayed messages, stores of many topics. RocketMQ's store has nothing comparable."""

from __future__ import annotations

import shutil

from benchmarks.row import Bench, Measure, Row, rate_of

MANY = 1_000_000


def delivery_rows() -> list[Row]:
    beside = "put with 1,000,000 timed messages pending, relative to a put with none"
    late = "lateness of the latest, 10,000 due in each of 10 s, 1,000,000 pending"
    return [
        Row("consume", "consume, a commit every 32, 1 KiB", "200,000/s", tagged("consume", MANY), None),
        Row("tagfilter", "entries by tag, 1 % selected", "2,000,000/s", tagged("tag_filter", 10 * MANY), None),
        Row("timer1m", beside, "1.2, 100 MB", timers("pending"), None, "x"),
        Row("timer1m_reopen", "open with 1,000,000 timed messages", "2 s, 100 MB", timers("reopen"), None, "s"),
        Row("timer1m_late", late, "1,000 ms", timers("late", rate=10_000, seconds=10), None, "ms"),
        Row("topics10k", "open 10,000 topics of 8 queues", "3 s, 1 KB per queue", topics, None, "s"),
    ]


def tagged(workload: str, count: int) -> Measure:
    """Return a measure on a store of a million messages, 1 % of which have the tag."""

    def measure(bench: Bench) -> float:
        if not (bench.directory / "tagged").exists():
            bench.run("delivery", "prepare", "tagged", count=bench.count(MANY), body=1024)
        result = bench.run("delivery", workload, "tagged", count=bench.count(count))
        bench.notes["per CPU second"] = result["perCpuSecond"]
        return rate_of(result)

    return measure


def timers(workload: str, **numbers: int) -> Measure:
    def measure(bench: Bench) -> float:
        store = "timers" if workload != "late" else "late"
        if workload == "reopen" and not (bench.directory / store).exists():
            bench.run("timer", "pending", store, count=bench.count(MANY))
        elif workload != "reopen":
            shutil.rmtree(bench.directory / store, ignore_errors=True)
        result = bench.run("timer", workload, store, count=bench.count(MANY), **numbers)
        bench.notes.update({name: value for name, value in result.items() if name != "rate"})
        return rate_of(result)

    return measure


def topics(bench: Bench) -> float:
    count = bench.count(10_000)
    if not (bench.directory / "topics").exists():
        bench.run("delivery", "make_topics", "topics", topics=count, queues=8)
    result = bench.run("delivery", "open_topics", "topics", queues=8 * count)
    bench.notes["bytes per queue"] = result["bytesPerQueue"]
    bench.notes["CPU seconds"] = result["cpuSeconds"]
    return rate_of(result)
