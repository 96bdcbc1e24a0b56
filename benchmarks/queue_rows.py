"""The rows of very many queues, each under `ulimit -n 1024`; what is beside them is the same with a hundred queues."""

from __future__ import annotations

from benchmarks.row import Bench, Measure, Row, rate_of

MANY = 100_000
FEW = 100
MESSAGES = 400_000


def queue_rows() -> list[Row]:
    hot = "put and dispatch to 100 queues of 100,000, to those of 100"
    turns = "put and dispatch to 100,000 queues by turns, to 100"
    bare_files = "the same, to a bare loop that opens, writes and closes the queue file of each message"
    return [
        Row("queues100k_hot", hot, "0.9 ×", again(MANY, FEW), again(FEW, FEW)),
        Row("queues100k", turns, "0.9 ×", again(MANY, MANY), again(FEW, FEW)),
        Row("queues100k_bare", bare_files, "", again(MANY, MANY), bare),
        Row("queues100k_open", "open 100,000 queues, closed cleanly", "5 s, 1 KB a queue", opened("reopen"), None, "s"),
        Row("queues100k_follow", "open 100,000 queues to read them", "5 s", opened("follow"), None, "s"),
    ]


def again(queues: int, used: int) -> Measure:
    """Messages to `used` queues of a store that has `queues`."""

    def measure(bench: Bench) -> float:
        store = _filled(bench, queues)
        result = bench.run("queues", "again", store, queues=min(used, _count(bench, queues)), count=MESSAGES)
        bench.notes[f"puts to {used} of {queues}"] = result["putRate"]
        bench.notes["descriptors"] = result["descriptors"]
        return rate_of(result)

    return measure


def bare(bench: Bench) -> float:
    """The writes of the queue files alone, nothing put."""
    return rate_of(bench.run("queues", "bare", _filled(bench, MANY), queues=_count(bench, MANY), count=MESSAGES))


def opened(workload: str) -> Measure:
    def measure(bench: Bench) -> float:
        store = _filled(bench, MANY)
        result = bench.run("queues", workload, store, queues=_count(bench, MANY))
        bench.notes.update({name: value for name, value in result.items() if name != "rate"})
        return rate_of(result)

    return measure


def _count(bench: Bench, queues: int) -> int:
    return queues if queues == FEW else bench.count(queues)


def _filled(bench: Bench, queues: int) -> str:
    name = f"queues-{queues}"
    if not (bench.directory / name).exists():
        bench.run("queues", "fill", name, queues=_count(bench, queues), count=4 * _count(bench, queues))
    return name
