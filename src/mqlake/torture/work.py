"""Run the cases of one row in a separate process: a store that crashes or hangs must not take the table with it.

    python -m mqlake.torture.work JOB        JOB: the fields of `Job` as JSON

The process prints one JSON line when a case begins and one when it is done. It removes the folder of a case that broke
no promise. A case that takes too long ends the process, with the stack of every thread on standard error.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mqlake.torture.faults.shim import NoShim
from mqlake.torture.row import NotAllowed, Row
from mqlake.torture.rows import ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The task of one worker."""

    row: str
    folder: str
    seed: int
    seconds: float | None = None
    """Begin no case after this time. None runs all cases."""
    case: int | None = None
    """Run only this case, and keep its folder."""
    skip: int = 0
    """Cases to skip, in the order of the row, because they were already run."""


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def work(job: Job) -> None:
    row = ROWS[job.row](Path(job.folder), job.seed, keep=job.case is not None)
    order = row.order(full=job.seconds is None)
    say(cases=len(order))
    wanted = order[job.skip :] if job.case is None else [job.case]
    deadline = time.monotonic() + (job.seconds or 0)
    try:
        for number, case in enumerate(wanted):
            if job.seconds is not None and number and time.monotonic() > deadline:
                break
            run_case(row, case)
    except (NotAllowed, NoShim) as refusal:
        say(skipped=str(refusal))
    finally:
        row.close()


def run_case(row: Row, case: int) -> None:
    folder = row.folder / f"case-{case}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    say(begin=case)
    faulthandler.dump_traceback_later(row.stall_s, exit=True)
    outcome = row.run(case, folder)
    faulthandler.cancel_dump_traceback_later()
    if not outcome.broken and not row.keep:
        shutil.rmtree(folder)
    say(done=case, **dataclasses.asdict(outcome))


if __name__ == "__main__":
    work(Job(**json.loads(sys.argv[1])))
