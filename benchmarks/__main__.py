"""Named workloads on mqlake and, in the same run, on the real RocketMQ store or on Spark's own sources.

    python -m benchmarks                 every row, five rounds, the median (about 25 minutes)
    python -m benchmarks put sync1       some rows
    python -m benchmarks spark_full      rows of the Spark source, which need no RocketMQ
    python -m benchmarks kafka_full      rows against a Kafka topic with the same messages, which download a broker
    python -m benchmarks consume timer1m rows of delivery, which need no RocketMQ either
    python -m benchmarks queues100k      rows of very many queues, which need no RocketMQ either
    python -m benchmarks replica         the rows of replication: also pair_sync16, pair_lag20k, pair_client16
    python -m benchmarks broker_sync16   rows of the broker with real Java clients, mqlake's and RocketMQ's by turns
    python -m benchmarks --quick         one round, smaller counts: a first impression, no figures to publish

Each measurement runs in its own process on a fresh store. The two sides take turns, because machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.broker_rows import broker_rows
from benchmarks.delivery_rows import delivery_rows
from benchmarks.machine import describe, touch_memory
from benchmarks.queue_rows import queue_rows
from benchmarks.replica_rows import replica_rows
from benchmarks.row import ROCKETMQ, Bench, Measure, Row, rate_of
from benchmarks.spark_rows import spark_rows
from tests.interop.rocketmq import available


def put_row(body: int, count: int) -> tuple[Measure, Measure]:
    def ours(bench: Bench) -> float:
        result = bench.ours("put", count=bench.count(count), body=body)
        bench.notes["our resident MB"] = result["residentMb"]
        bench.notes["our lag, ms"] = 1000 * result["maxLagBytes"] / result["bytesPerSecond"]
        return rate_of(result)

    def theirs(bench: Bench) -> float:
        result = bench.theirs("put", count=bench.count(count), body=body, seconds=60, warmup=3)
        bench.notes["their resident MB"] = result["residentMb"]
        return rate_of(result)

    return ours, theirs


def on_shared_store(workload: str, count: int, **options: int) -> Measure:
    """Return a measure of our workload on a store of a million messages, which is written once."""

    def measure(bench: Bench) -> float:
        if not (bench.directory / "million").exists():
            bench.ours("prepare", "million", count=bench.count(1_000_000), body=1024)
        return rate_of(bench.ours(workload, "million", count=bench.count(count), **options))

    return measure


def their_shared_store(workload: str, count: int) -> Measure:
    """Return a measure of RocketMQ's side, on a store of the same messages that it wrote itself."""

    def measure(bench: Bench) -> float:
        if not (bench.directory / "their-million").exists():
            bench.theirs("put", "their-million", count=bench.count(1_000_000), body=1024, seconds=120, warmup=0)
        return rate_of(bench.theirs(workload, "their-million", count=bench.count(count), seconds=60, warmup=2))

    return measure


def reopened(bench: Bench) -> float:
    """Reopen a store of 10 GiB whose writer died 64 MiB after its last checkpoint."""
    bench.ours("crash", "large", mib=int(10240 * bench.scale), since=64)
    result = bench.ours("reopen", "large")
    bench.notes["records walked"] = result["walked"]
    return rate_of(result)


def _uncleanly_stopped(bench: Bench) -> Path:
    """Return a fresh copy of a store that RocketMQ wrote: 1 GiB of 1 KiB messages, marked as uncleanly stopped."""
    original, copy = bench.directory / "their-gib", bench.directory / "unclean"
    if not original.exists():
        bench.theirs("put", "their-gib", count=bench.count(900_000), body=1024, seconds=120, warmup=0)
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["cp", "-r", "--sparse=auto", original, copy], check=True)
    (copy / "abort").touch()
    return copy


def opened_unclean(bench: Bench) -> float:
    return rate_of(bench.ours("reopen", _uncleanly_stopped(bench).name))


def their_opened_unclean(bench: Bench) -> float:
    result = bench.theirs("open", _uncleanly_stopped(bench).name, count=1, seconds=60)
    return float(result["startedMillis"][0]) / 1000


def rows() -> list[Row]:
    def sync(threads: int, count: int) -> tuple[Measure, Measure]:
        return (
            lambda b: rate_of(b.ours("put_sync", count=b.count(count), body=1024, threads=threads)),
            lambda b: rate_of(
                b.theirs("putsync", count=b.count(count), body=1024, threads=threads, seconds=60, warmup=2)
            ),
        )

    def tasks(number: int, count: int) -> Measure:
        return lambda b: rate_of(b.ours("put_tasks", count=b.count(count), body=1024, tasks=number))

    their_batch: Measure = lambda b: rate_of(  # noqa: E731
        b.theirs("putbatch", count=b.count(1_000_000), body=1024, batch=32, seconds=60, warmup=3)
    )
    return [
        Row("put", "put, 1 thread, async, 1 KiB", "1.0 ×", *put_row(1024, 1_000_000)),
        Row("put128", "put, 1 thread, async, 128 B", "0.7 ×", *put_row(128, 2_000_000)),
        Row(
            "batch",
            "put_many of 32, async, 1 KiB",
            "2 ×",
            lambda b: rate_of(b.ours("put_many", count=b.count(1_000_000), body=1024, batch=32)),
            their_batch,
        ),
        Row("sync1", "put, 1 thread, sync, 1 KiB", "1.3 ×", *sync(1, 20_000)),
        Row(
            "sqlite",
            "put, 1 thread, sync, 1 KiB, to SQLite",
            "1.0 ×",
            sync(1, 20_000)[0],
            lambda b: rate_of(b.ours("sqlite", count=b.count(20_000), body=1024)),
        ),
        Row("sync16", "16 threads, sync, 1 KiB", "1.5 ×", *sync(16, 64_000)),
        Row("tasks16", "16 asyncio tasks, sync, 1 KiB", "1.5 ×", tasks(16, 64_000), sync(16, 64_000)[1]),
        Row("tasks256", "256 asyncio tasks, sync, 1 KiB", "5 ×", tasks(256, 256_000), sync(16, 64_000)[1]),
        Row(
            "key",
            "key look-up, 1,000,000 messages, decoded",
            "1.0 ×",
            on_shared_store("query", 100_000),
            their_shared_store("queryDecoded", 100_000),
        ),
        Row(
            "keyraw",
            "key look-up, to RocketMQ's undecoded",
            "",
            on_shared_store("query", 100_000),
            their_shared_store("query", 100_000),
        ),
        Row("time", "time look-up", "50,000/s", on_shared_store("seek", 50_000), their_shared_store("time", 100_000)),
        Row(
            "read",
            "read, batches of 32, CRC checked",
            "1.0 ×",
            on_shared_store("read", 1_000_000),
            their_shared_store("readDecoded", 1_000_000),
        ),
        Row(
            "readraw",
            "read, to RocketMQ's undecoded and unchecked",
            "1.0 ×",
            on_shared_store("read", 1_000_000),
            their_shared_store("read", 1_000_000),
        ),
        Row("scan", "scan into Arrow, all columns, CRC", "800 MB/s", lambda b: scan_rate(b), None, "MB/s"),
        Row("reopen", "reopen after a crash, 10 GiB, 64 MiB since the checkpoint", "1 s", reopened, None, "s"),
        Row(
            "unclean",
            "open RocketMQ's 1 GiB after an unclean stop",
            "0.2 ×",
            opened_unclean,
            their_opened_unclean,
            "s",
        ),
        Row("first", "import, open, first durable put", "0.3 s", lambda b: rate_of(b.ours("first_put")), None, "s"),
    ]


def scan_rate(bench: Bench) -> float:
    if not (bench.directory / "million").exists():
        bench.ours("prepare", "million", count=bench.count(1_000_000), body=1024)
    return rate_of(bench.ours("scan", "million", count=1))


def measure(row: Row, bench: Bench, rounds: int, console: Console) -> dict[str, Any]:
    """Run the two sides in turn. Return their medians and the ratio."""
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(row.ours(bench))
        if row.theirs is not None:
            theirs.append(row.theirs(bench))
    mine = statistics.median(ours)
    other = statistics.median(theirs) if theirs else None
    result = {
        "name": row.name,
        "title": row.title,
        "goal": row.goal,
        "unit": row.unit,
        "ours": mine,
        "theirs": other,
        "ratio": mine / other if other else None,
        "all": {"ours": ours, "theirs": theirs},
        "notes": dict(bench.notes),
    }
    bench.notes.clear()
    console.print(
        f"[dim]{row.title}: {show(mine, row.unit)}"
        + (f", {show(other, row.unit)}, {mine / other:.2f} ×" if other else "")
    )
    return result


def show(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3f} {unit}"


def table_of(results: list[dict[str, Any]]) -> Table:
    table = Table(title=f"mqlake compared with RocketMQ {ROCKETMQ}'s store, and with others on Spark")
    for name in ("workload", "must reach", "mqlake", "other", "ratio"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for r in results:
        other = show(r["theirs"], r["unit"]) if r["theirs"] else ""
        table.add_row(
            r["title"], r["goal"], show(r["ours"], r["unit"]), other, f"{r['ratio']:.2f} ×" if r["ratio"] else ""
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help="names of rows (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each side; the median counts")
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the work")
    parser.add_argument("--dir", type=Path, help="where stores are written (default: a temporary folder)")
    parser.add_argument("--out", type=Path, default=Path("bench-out/store.json"), help="file for the results as JSON")
    options = parser.parse_args()
    console = Console()
    alone = {row.name for row in (*delivery_rows(), *queue_rows(), *replica_rows(), *spark_rows())}
    known = [*rows(), *broker_rows(), *delivery_rows(), *queue_rows(), *replica_rows(), *spark_rows()]
    unknown = set(options.rows) - {row.name for row in known}
    if unknown:
        parser.error(f"no such rows: {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in known)}")
    chosen = [row for row in known if not options.rows or row.name in options.rows]
    reason = available()
    if reason and any(row.name not in alone for row in chosen):
        console.print(f"RocketMQ cannot run here: {reason}")
        return 1
    for name, value in describe().items():
        console.print(f"{name}: {value}")
    console.print(f"command: python -m benchmarks {' '.join(sys.argv[1:])}")
    rounds, scale = (1, 0.1) if options.quick else (options.rounds, 1.0)
    touch_memory(8 << 30)
    results = []
    with tempfile.TemporaryDirectory(prefix="mqlake-bench-", dir=options.dir) as directory:
        for row in chosen:
            results.append(measure(row, Bench(Path(directory), scale), rounds, console))
    console.print(table_of(results))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**describe(), "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
