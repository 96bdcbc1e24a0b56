"""The pipeline and the lake, compared with an older checkout by turns, and what only the newer code has.

    git worktree add --detach OLD COMMIT && make -C OLD setup
    python -m benchmarks.versus OLD [ROW…] [--dir DIR] [--out FILE] [--rounds 3] [--mib 1024]

Each side is one process with a session of its own (`versus_side.py`). They take turns on the same stores, after a first
turn that does not count. A round in which other programs used more than 5 % of the processors is made again, up to four
times the rounds asked for; the quietest count. All rows take about ten minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.lake_metadata import commit_ms, open_s
from benchmarks.result import result_of
from benchmarks.spark_store import gib_of, store_in, write
from benchmarks.turns import MOST_ROUNDS, QUIET, busy_s, put_aside, used_s
from benchmarks.versus_side import MARK
from mqlake import CommitLogConfig

SMALL, LARGE = 180, 896
HERE = Path(__file__).resolve().parents[1]
NOON, ONE = "2040-01-01T12:00:00", "2040-01-01T13:00:00"


class Side:
    """A process with a session. `do` runs one workload."""

    def __init__(self, tree: Path) -> None:
        command = [str(tree / ".venv" / "bin" / "python"), "-P", str(HERE / "benchmarks" / "versus_side.py")]
        environment = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")
        }
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._answer()

    def do(self, workload: str, **arguments: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": workload, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                found: dict[str, float] = json.loads(line.removeprefix(MARK))
                return found
        raise RuntimeError(f"a side ended with status {self._process.wait()}")

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


class Bench(NamedTuple):
    """Where a run writes, how much it does, and its sides."""

    directory: Path
    mib: int
    rounds: int
    sides: dict[str, Side]

    def store(self, body: int) -> Path:
        return store_in(self.directory, {"mib": self.mib, "body": body})

    def by_turns(
        self, workload: str, arguments: Mapping[str, str | None], before: Callable[[], object] = lambda: None
    ) -> Figures:
        """Run a workload on all sides by turns. `{side}` in an argument stands for the side's name."""
        made: list[tuple[float, dict[str, dict[str, float]]]] = []
        for number in range(1 + MOST_ROUNDS * self.rounds):
            others, total, took = 0.0, 0.0, {}
            for name, side in self.sides.items():
                before()
                used, busy, began = used_s(), busy_s(), time.perf_counter()
                given = {key: text and text.format(side=name) for key, text in arguments.items()}
                took[name] = side.do(workload, **given)
                total += time.perf_counter() - began
                others += busy_s() - busy - sum(used_s().since(used))
            if number:
                made.append((others / (total * (os.cpu_count() or 1)), took))
            if sum(share <= QUIET for share, _ in made) >= self.rounds:
                break
        before()
        quiet = sorted(made, key=lambda one: one[0])[: self.rounds]
        sides = {
            name: {key: statistics.median(took[name][key] for _, took in quiet) for key in quiet[0][1][name]}
            for name in self.sides
        }
        return Figures(sides, statistics.median(share for share, _ in quiet))

    def new_only(self) -> Bench:
        return self._replace(sides={"new": self.sides["new"]})


class Figures(NamedTuple):
    """Medians of each side, and the share of the processors that others used."""

    sides: dict[str, dict[str, float]]
    others: float


class Result(NamedTuple):
    """A line of the table."""

    row: str
    must: str
    old: float | None
    new: float
    unit: str
    ratio: float | None
    others: float

    def __str__(self) -> str:
        old = "" if self.old is None else f"{self.old:,.3f}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} ×"
        return f"| {self.row} | {self.must} | {old} | {self.new:,.3f} {self.unit} | {ratio} | {self.others:.0%} |"


def compared(row: str, must: str, figures: Figures, unit: str, value: Callable[[dict[str, float]], float]) -> Result:
    old, new = value(figures.sides["old"]), value(figures.sides["new"])
    return Result(row, must, old, new, unit, new / old, figures.others)


def archive_row(bench: Bench, body: int, what: str) -> Iterator[Result]:
    store, target = bench.store(body), bench.directory / "target"
    with put_aside(target) as before:
        figures = bench.by_turns("archive", {"store": str(store), "target": str(target)}, before)
    gib = gib_of(store)
    yield compared(f"archive, {what}, s/GiB", "0.75 × old", figures, "s/GiB", lambda found: found["s"] / gib)
    yield compared(f"files after one pass, {what}", "≤ 20", figures, "files", lambda found: found["files"])


def read_rows(bench: Bench) -> Iterator[Result]:
    store = bench.store(SMALL)
    gib = gib_of(store)
    for workload, title in (("group", "group by topic"), ("count", "count with one column")):
        figures = bench.by_turns(workload, {"store": str(store)})
        yield compared(f"{title}, s/GiB", "0.85 × old", figures, "s/GiB", lambda found: found["s"] / gib)


def hour_row(bench: Bench) -> Iterator[Result]:
    """One hour of a day from a log of many files."""
    store = bench.directory / "day"
    if not store.exists():
        write(store, bench.mib, SMALL, commit_log=CommitLogConfig(file_size_bytes=64 << 20))
    whole = bench.new_only().by_turns("read", {"store": str(store)}).sides["new"]["s"]
    figures = bench.by_turns("read", {"store": str(store), "startTime": NOON, "endTime": ONE})
    most = 1.5 / 24 * whole + 1
    yield compared("one hour of a day from the log", f"{most:.2f} s", figures, "s", lambda found: found["s"])


def stream_rows(bench: Bench) -> Iterator[Result]:
    checkpoint = str(bench.directory / "checkpoint-{side}")
    places = {"store": str(bench.store(SMALL)), "checkpoint": checkpoint}
    figures = bench.by_turns("catchup", places)
    rate: Callable[[dict[str, float]], float] = lambda found: found["rows"] / found["s"]  # noqa: E731
    yield compared("stream catch-up, rows/s", "1.2 × old", figures, "rows/s", rate)
    figures = bench.by_turns("first_row", places)
    yield compared("stream, start to first row", "0.3 s", figures, "s", lambda found: found["s"])
    tailed = bench._replace(rounds=1)
    figures = tailed.by_turns("tail", {**places, "store": str(bench.directory / "tail-{side}")})
    yield compared("stream, live tail, median", "0.13 s", figures, "s", lambda found: found["s"])


def lake_rows(bench: Bench) -> Iterator[Result]:
    """One topic, key and hour from a lake, and all of it for the share."""
    store, lake, new = str(bench.store(SMALL)), str(bench.directory / "lake"), bench.new_only()
    new.sides["new"].do("archive", store=store, target=lake, index=True)
    whole = new.by_turns("select", {"store": None, "lake": lake})
    selections = {
        "one topic of 100": ({"topics": "topic-7"}, 1 / 100),
        "one key": ({"keys": "k777"}, 0.0),
        "one hour of a day": ({"startTime": NOON, "endTime": ONE}, 1 / 24),
    }
    for title, (options, share) in selections.items():
        figures = new.by_turns("select", {"store": None, "lake": lake, **options})
        most = 1.5 * share * whole.sides["new"]["s"] + 0.5
        took = figures.sides["new"]["s"]
        yield Result(f"{title} from the lake", f"{most:.2f} s", None, took, "s", took / most, figures.others)


def union_row(bench: Bench) -> Iterator[Result]:
    """Log and lake as one, compared with each alone."""
    new, lake = bench.new_only(), str(bench.directory / "half-lake")
    store = bench.directory / "half"
    if not store.exists():
        write(store, bench.mib // 4, SMALL)
        new.sides["new"].do("archive", store=str(store), target=lake)
        write(store, bench.mib // 4, SMALL)
    from mqlake.lake import Lake

    (state,) = Lake.open(lake).snapshot().stores.values()
    parts: list[dict[str, str]] = [{}, {"endOffset": str(state.end)}, {"startOffset": str(state.end)}]
    both, archived, log = (new.by_turns("select", {"store": str(store), "lake": lake, **part}) for part in parts)
    total = archived.sides["new"]["s"] + log.sides["new"]["s"]
    took = both.sides["new"]["s"]
    yield Result("union of log and lake, to its parts", "1.1 ×", total, took, "s", took / total, both.others)


def metadata_rows(bench: Bench) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(dir=bench.directory) as folder:
        busy, used, began = busy_s(), used_s(), time.perf_counter()
        took = commit_ms(Path(folder) / "commits", 1000)
        opened = open_s(Path(folder) / "large", 1 << 40)
        others = (busy_s() - busy - sum(used_s().since(used))) / ((time.perf_counter() - began) * (os.cpu_count() or 1))
    yield Result("commit with 1,000 earlier commits", "200 ms", None, took, "ms", took / 200, others)
    yield Result("a lake of 1 TiB in metadata, opened", "2 s", None, opened, "s", opened / 2, others)


def s3_rows(bench: Bench) -> Iterator[Result]:
    for body, what in ((SMALL, "300 B"), (LARGE, "1 KiB")):
        bench.store(body)
        command = [sys.executable, "-m", "benchmarks.spark_s3", "archive", str(bench.directory)]
        command += [f"mib={bench.mib}", f"body={body}", f"rounds={bench.rounds}"]
        found = result_of("spark_s3", subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE))
        local, remote = (found[side] / found["gib"] for side in ("theirs", "ours"))
        row = f"S3 archive, {what}, to the folder"
        yield Result(row, "1.5 ×", local, remote, "s/GiB", remote / local, found["others"])


ROWS: dict[str, Callable[[Bench], Iterator[Result]]] = {
    "archive": lambda bench: archive_row(bench, SMALL, "300 B, 100 topics"),
    "archive1k": lambda bench: archive_row(bench, LARGE, "1 KiB"),
    "read": read_rows,
    "hour": hour_row,
    "stream": stream_rows,
    "lake": lake_rows,
    "union": union_row,
    "metadata": metadata_rows,
    "s3": s3_rows,
}


@contextmanager
def sides_of(old: Path) -> Iterator[dict[str, Side]]:
    sides: dict[str, Side] = {}
    try:
        for name, tree in (("old", old), ("new", HERE)):
            sides[name] = Side(tree)
        yield sides
    finally:
        for side in sides.values():
            side.end()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versus", description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="a checkout of the older code with its own .venv")
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)} (default: all)")
    parser.add_argument("--dir", type=Path, help="where stores and lakes are written (default: a temporary folder)")
    parser.add_argument("--out", type=Path, default=Path("bench-out/versus.json"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=1024)
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"no such rows: {', '.join(sorted(unknown))}")
    results: list[Result] = []
    print("| workload | must reach | old, or what it is compared with | new | ratio | others |")
    print("|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="mqlake-versus-", dir=options.dir) as directory:
        with sides_of(options.old.resolve()) as sides:
            bench = Bench(Path(directory), options.mib, options.rounds, sides)
            for name in options.rows or [row for row in ROWS if row != "s3"]:
                if name != "s3":
                    for result in ROWS[name](bench):
                        results.append(result)
                        print(result, flush=True)
        if not options.rows or "s3" in options.rows:
            for result in s3_rows(bench):  # after the sides have ended: the server needs their memory and processors
                results.append(result)
                print(result, flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([one._asdict() for one in results], indent=1))


if __name__ == "__main__":
    main()
