"""A byte range of the commit log inside one file. Dispatch, scans and recovery walk over these."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import NamedTuple


class Stretch(NamedTuple):
    """The records in [position, end) of a file's bytes. The file's first byte has physical offset `log_start`."""

    data: mmap.mmap
    log_start: int
    position: int
    end: int
    file: Path
