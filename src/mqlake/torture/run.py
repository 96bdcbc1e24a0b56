"""Run the rows: divide the time, restart a worker that a case took down, and add up.

A failed case is reported as a sentence and the command that runs this case alone. Nothing is left on disk unless a
promise was broken: then the folders of those cases stay.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqlake.torture.row import COUNTS, VERDICTS, Outcome
from mqlake.torture.rows import ROWS
from mqlake.torture.work import Job

STOP_S = 10.0
RESTARTS = 5
"""Cases of one row that may take their worker down before the row is abandoned."""


@dataclass(slots=True)
class Failure:
    """A case that broke a promise."""

    row: str
    case: int
    broken: list[str]
    folder: Path

    def as_json(self) -> dict[str, Any]:
        return {"case": self.case, "broken": self.broken, "folder": str(self.folder)}


@dataclass(slots=True)
class Result:
    """One row of the table."""

    row: str
    total: Outcome = field(default_factory=Outcome)
    cases: int = 0
    tried: int = 0
    took_s: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    skipped: str | None = None
    """Why this row was not run."""

    @property
    def is_good(self) -> bool:
        return not any(getattr(self.total, column) for column in VERDICTS)

    def as_json(self) -> dict[str, Any]:
        counts = {name: getattr(self.total, name) for name in COUNTS}
        return {
            "row": self.row,
            "cases": self.tried,
            **counts,
            "seconds": round(self.took_s, 1),
            "skipped": self.skipped,
        }


Progress = Callable[[Result], None]
"""Called after each case."""


class Torture:
    """One run over the chosen rows, in its own folder."""

    def __init__(self, folder: Path, seed: int, jobs: int = 1) -> None:
        """`jobs`: rows that run at the same time, each in its own process."""
        self.folder = folder
        self.seed = seed
        self.progress: Progress = lambda result: None
        self._jobs = jobs
        self.results: list[Result] = []
        """Rows that were begun, in their order. After an interrupt they hold the cases that were finished."""
        self._workers: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def run(self, rows: list[str], seconds: float | None, case: int | None = None) -> None:
        """Run rows within a time that is divided by their shares. Time that a row leaves goes to the rows after it."""
        try:
            self._run_rows(rows, seconds, case)
        finally:
            self.results.sort(key=lambda result: rows.index(result.row))
            if all(result.is_good for result in self.results) and case is None:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _run_rows(self, rows: list[str], seconds: float | None, case: int | None) -> None:
        deadline = time.monotonic() + (seconds or 0)

        def run(at: int) -> None:
            left_s = deadline - time.monotonic()
            share = ROWS[rows[at]].share / sum(ROWS[row].share for row in rows[at:])
            self.run_row(rows[at], None if seconds is None else left_s * min(1.0, share * self._jobs), case)

        with ThreadPoolExecutor(self._jobs) as threads:  # which take the rows in their order
            try:
                list(threads.map(run, range(len(rows))))
            except BaseException:
                self._stop()
                raise

    def _stop(self) -> None:
        """Interrupt the workers, which remove their mounts and namespaces first."""
        self._stopping = True
        workers = list(self._workers)
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        for worker in workers:
            try:
                worker.wait(STOP_S)
            except subprocess.TimeoutExpired:
                worker.kill()

    def run_row(self, name: str, seconds: float | None, case: int | None = None) -> Result:
        result = Result(name)
        self.results.append(result)
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        for _ in range(RESTARTS):
            spent = time.monotonic() - began
            left = None if seconds is None else max(0.0, seconds - spent)
            job = Job(row=name, folder=str(folder), seed=self.seed, seconds=left, case=case, skip=result.tried)
            if self._work(job, result) or case is not None or self._stopping:
                break
        result.took_s = time.monotonic() - began
        if case is None and result.tried == result.cases and not (result.total.faults or result.skipped):
            result.total.errors += 1
            result.failures.append(Failure(name, 0, ["no case had a fault, so this row shows nothing"], folder))
        if result.is_good and case is None:
            shutil.rmtree(folder)
        return result

    def _work(self, job: Job, result: Result) -> bool:
        """Run one worker. Return False if it died in a case, which then counts as an error."""
        said = Path(job.folder) / "worker.txt"
        running: int | None = None
        command = [sys.executable, "-m", "mqlake.torture.work", json.dumps(dataclasses.asdict(job))]
        with said.open("ab") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as worker:
            self._workers.add(worker)
            if self._stopping:
                worker.kill()
            for line in _lines(worker):
                if self._stopping:
                    continue  # a case that is interrupted breaks no promise, whatever it says
                if "begin" in line:
                    running = line["begin"]
                elif "done" in line:
                    running = None
                    self._enter(result, line)
                elif "cases" in line:
                    result.cases = line["cases"]
                else:
                    result.skipped = line["skipped"]
        self._workers.discard(worker)
        if worker.returncode == 0 or self._stopping:
            return True
        reason = f"the process that opened the store ended with {worker.returncode}; see {said}"
        self._enter(result, {"done": running, "faults": 1, "errors": 1, "broken": [reason]})
        return running is None

    def _enter(self, result: Result, fields: dict[str, Any]) -> None:
        case = fields.pop("done")
        outcome = Outcome(**fields)
        result.total.add(outcome)
        result.tried += 1
        if outcome.broken:
            folder = self.folder / result.row / f"case-{case}"
            result.failures.append(Failure(result.row, case, outcome.broken, folder))
        self.progress(result)


def _lines(worker: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert worker.stdout is not None
    for line in worker.stdout:
        yield json.loads(line)
