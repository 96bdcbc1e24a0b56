"""Run an audit without a Spark session: every task in this process, in random order."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

from mqlake import StoreConfig
from mqlake.files.layout import Layout
from mqlake.inspect.check import CheckReport, Examination
from mqlake.inspect.findings import Finding
from mqlake.spark.jobs.audit import Work, look, put_together


def audit_here(path: Path, *, grid: int, part_size: int, config: StoreConfig | None = None) -> CheckReport:
    examined = Examination(Layout(path), config or StoreConfig(), grid=grid)
    works: list[Work] = [(0, examined.how, work) for work in examined.chain_works()]
    works += [(0, examined.how, part) for part in examined.parts(part_size)]
    works += [(0, examined.how, work) for work in examined.seals.works(part_size)]
    random.Random(part_size).shuffle(works)
    answers = [pickle.loads(pickle.dumps(look(pickle.loads(pickle.dumps(work))))) for work in works]
    return put_together([examined], zip(works, answers, strict=True))[0]


def check_here(path: Path, *, grid: int, config: StoreConfig | None = None) -> tuple[Finding, ...]:
    return Examination(Layout(path), config or StoreConfig(), grid=grid).walk().report().findings
