"""The rows of replication: how fast a slave takes a master's log, and how soon it confirms."""

from __future__ import annotations

from benchmarks.row import Bench, Row, rate_of

MIB = 1024


def replica_rows() -> list[Row]:
    return [
        Row("replica", "a slave catches up over loopback", "300 MB/s", caught_up, None, "MB/s"),
        Row("pair_sync16", "16 threads, each put confirmed by disk and slave", "", confirmed, None),
        Row("pair_lag20k", "p99 until a slave confirmed, at 20,000 messages/s", "", lagging, None, "ms"),
    ]


def caught_up(bench: Bench) -> float:
    name = "replica-master"
    if not (bench.directory / name).exists():
        bench.run("replica", "fill", name, mib=max(64, int(MIB * bench.scale)))
    result = bench.run("replica", "catch_up", name)
    bench.notes["MB/s until dispatched"] = result["dispatchedRate"]
    return rate_of(result)


def confirmed(bench: Bench) -> float:
    return rate_of(bench.run("pair", "sync", "", producers=16, seconds=max(3, int(20 * bench.scale))))


def lagging(bench: Bench) -> float:
    result = bench.run("pair", "lag", "", rate=20_000, seconds=max(3, int(20 * bench.scale)))
    bench.notes["p50 of the lag, ms"] = result["p50"]
    bench.notes["messages/s put"] = result["rate"]
    return float(result["p99"])
