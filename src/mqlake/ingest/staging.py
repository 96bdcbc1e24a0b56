"""Packed records that wait for the writer: `mqlake/staging/JOB/PART`.

One task writes a part, completely, under a name that no other task uses, and never changes it. The writer lists the
parts of a job in `decided.json`: from then on the job consists of these records, in this order, however often its
tasks run again. A part that is in no decision is left over and may be removed.

After a crash: parts and decision are on disk before the log holds any of their records.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mqlake.errors import BadFile, InvalidConfig
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import sync_directory
from mqlake.files.small_files import replace_file
from mqlake.kernel import crc32

if TYPE_CHECKING:
    import pyarrow as pa

    from mqlake.ingest.pack import Packer

DECIDED = "decided.json"
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Part:
    """The result of one task."""

    name: str
    number: int
    rows: int
    size: int
    crc: int
    checksum: int | None = None
    """The checksum of the rows, in any order; None if it was not asked for."""


class Staging:
    """The staging folder of one job."""

    def __init__(self, layout: Layout, job: str) -> None:
        if not NAME.fullmatch(job):
            raise InvalidConfig("jobId", job, "1 to 100 ASCII letters, digits and the characters . _ -")
        self._layout = layout
        self.directory = layout.staging / job

    def write(self, number: int, batches: Iterable[pa.RecordBatch], packer: Packer, *, durable: bool) -> Part:
        """Pack and stage the rows of a task. They must be durable if a decision will name them."""
        name = f"{number:06d}-{uuid.uuid4().hex[:12]}"
        size = crc = 0
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            with (self.directory / name).open("wb", buffering=0) as file:
                for batch in batches:
                    left = memoryview(packer.pack(batch))
                    size, crc = size + len(left), crc32(left, crc)
                    while left:
                        left = left[file.write(left) :]
                if durable:
                    os.fsync(file.fileno())
        except BaseException:
            (self.directory / name).unlink(missing_ok=True)
            raise
        if durable:
            for directory in (self.directory, self._layout.staging, self._layout.own):
                sync_directory(directory)
        return Part(name, number, packer.rows, size, crc, packer.checksum)

    def decide(self, parts: Sequence[Part]) -> list[Part]:
        """Fix the parts of the job, in the order of their numbers."""
        ordered = sorted(parts, key=lambda part: part.number)
        content = json.dumps([asdict(part) for part in ordered]).encode()
        self.directory.mkdir(parents=True, exist_ok=True)
        replace_file(self.directory / DECIDED, content, self._layout.scratch)
        return ordered

    def decided(self) -> list[Part] | None:
        try:
            return [Part(**part) for part in json.loads((self.directory / DECIDED).read_bytes())]
        except FileNotFoundError:
            return None

    def open(self, parts: Iterable[Part]) -> Iterator[mmap.mmap]:
        """Yield the records of each part that has some. Raises BadFile if a part is not as it was staged."""
        for part in parts:
            if part.size == 0:
                continue
            path = self.directory / part.name
            try:
                with path.open("rb") as file:
                    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (FileNotFoundError, ValueError):
                raise BadFile(path, "no file, or an empty one", f"{part.size} bytes of staged records") from None
            if len(pages) != part.size or crc32(pages) != part.crc:
                raise BadFile(path, f"{len(pages)} bytes, or another CRC", f"{part.size} bytes as they were staged")
            yield pages

    def drop(self, parts: Iterable[Part]) -> None:
        """Remove parts that are in no decision."""
        kept = {part.name for part in self.decided() or ()}
        for part in parts:
            if part.name not in kept:
                (self.directory / part.name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it has other parts, or is already removed
            self.directory.rmdir()

    def remove(self) -> None:
        """Remove the job's files. The decision goes last: even without its parts it shows that there was one."""
        for path in self.directory.glob("*-*"):
            path.unlink(missing_ok=True)
        (self.directory / DECIDED).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def clean_staging(layout: Layout, older_than_s: float, has_ended: Callable[[str, int], bool]) -> None:
    """Remove the folders of jobs that ended, and of jobs without a decision and without a new part for that long.

    `has_ended` is called with the source and the number of a batch.
    """
    with contextlib.suppress(FileNotFoundError):
        for job in list(layout.staging.iterdir()):
            source, _, number = job.name.rpartition(".")
            with contextlib.suppress(FileNotFoundError):
                if (job / DECIDED).exists():
                    left_over = number.isdecimal() and has_ended(source, int(number))
                else:
                    newest = max(path.stat().st_mtime for path in (job, *job.iterdir()))
                    left_over = time.time() - newest > older_than_s
                if left_over:
                    shutil.rmtree(job, ignore_errors=True)
