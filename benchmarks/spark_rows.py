"""The rows on Spark. Each names the other side. Less is better, except for rates."""

from __future__ import annotations

from benchmarks.row import Bench, Measure, Row, rate_of

SMALL, LARGE = 180, 896
"""Bodies that make records of about 300 bytes and of 1 KiB."""


def spark_rows() -> list[Row]:
    share = "1.5 × its share + 1 s"
    return [
        pair("spark_full", "Spark, all columns to noop, vs. Parquet", "2.0 × at most", "spark", "full"),
        pair("spark_full1k", "the same with 1 KiB", "2.0 × at most", "spark", "full", LARGE),
        pair("spark_count", "Spark, count with one column, vs. Parquet", "1.2 s/GiB", "spark", "count"),
        pair("spark_group", "Spark, group by topic with one column, vs. Parquet", "1.2 s/GiB", "spark", "group"),
        pair("spark_topic", "Spark, one topic of 100, vs. Parquet", share, "spark", "topic", per_gib=False),
        pair("spark_hour", "Spark, one hour of a day, vs. Parquet", share, "spark", "hour", per_gib=False),
        pair("spark_key", "Spark, one key, vs. Parquet", share, "spark", "key", per_gib=False),
        pair("spark_archive", "archive, vs. write.parquet", "4 s/GiB, 1/3 × at most", "spark", "archive"),
        pair("spark_archive1k", "the same with 1 KiB", "4 s/GiB, 1/3 × at most", "spark", "archive", LARGE),
        pair("spark_rebuild", "rebuild, vs. opening without queues", "3 s/GiB", "spark_jobs", "rebuild"),
        pair("spark_rebuild1k", "the same with 1 KiB", "3 s/GiB", "spark_jobs", "rebuild", LARGE),
        pair("spark_audit", "audit, vs. mqlake check", "2 s/GiB", "spark_jobs", "audit"),
        pair("spark_audit1k", "the same with 1 KiB", "2 s/GiB", "spark_jobs", "audit", LARGE),
        pair("spark_stats", "statistics of everything, vs. Parquet", "", "spark_stats", "stats"),
        Row("spark_catchup", "stream, catch-up, rows", "600,000/s", streamed("catchup"), None),
        Row("spark_tail", "stream, append to processed", "0.4 s", streamed("tail"), None, "s"),
        sink("spark_sink", "rows into a store, vs. Parquet"),
        Row("spark_memory", "8 GiB in a 1 GiB driver: largest worker", "600 MB", worker_memory, None, "MB"),
        pair("kafka_full", "full rows, vs. a Kafka topic", "1/1.5 × at most", "kafka.compare", "full", LARGE),
        pair("kafka_count", "count, vs. a Kafka topic", "1/5 × at most", "kafka.compare", "count", LARGE),
        pair("kafka_group", "group by topic, vs. a Kafka topic", "1/5 × at most", "kafka.compare", "group", LARGE),
        pair("kafka_parquet", "to Parquet, vs. a Kafka topic", "1/3 × at most", "kafka.compare", "parquet", LARGE),
        pair("kafka_same", "catch-up, same columns", "1/2 × at most", "kafka.compare", "catchup_same", LARGE),
        pair("kafka_catchup", "catch-up, vs. a Kafka topic", "1/2 × at most", "kafka.compare", "catchup", LARGE),
    ]


def pair(
    name: str, title: str, goal: str, module: str, workload: str, body: int = SMALL, *, per_gib: bool = True
) -> Row:
    """Return a row whose two sides take turns in one process."""
    last: dict[str, float] = {}

    def ours(bench: Bench) -> float:
        last.update(bench.spark(module, workload, body=body))
        bench.notes["others"] = last["others"]
        return last["ours"] / (last["gib"] if per_gib else 1)

    def theirs(bench: Bench) -> float:
        return last["theirs"] / (last["gib"] if per_gib else 1)

    return Row(name, title, goal, ours, theirs, "s/GiB" if per_gib else "s")


def streamed(workload: str) -> Measure:
    def measure(bench: Bench) -> float:
        result = bench.spark("spark_stream", workload, body=SMALL)
        bench.notes |= {name: value for name, value in result.items() if name in ("cpu", "p99", "gib", "others")}
        return rate_of(result)

    return measure


def sink(name: str, title: str) -> Row:
    last: dict[str, float] = {}

    def ours(bench: Bench) -> float:
        last.update(bench.spark("spark_sink", body=SMALL))
        bench.notes["others"] = last["others"]
        bench.notes["our CPU, s/GiB"] = (last["oursJava"] + last["oursPython"]) / last["gib"]
        bench.notes["their CPU, s/GiB"] = (last["theirsJava"] + last["theirsPython"]) / last["gib"]
        return last["rows"] / last["ours"]

    return Row(name, title, "", ours, lambda bench: last["rows"] / last["theirs"], "rows/s")


def worker_memory(bench: Bench) -> float:
    """Return the memory of the largest worker in a read of 8 GiB. The JVM's goes to the notes."""
    result = bench.spark("spark_memory", mib=8192)
    bench.notes["JVM resident MB"] = result["jvmMb"]
    return float(result["workerMb"])
