"""A stretch of the commit log inside one file: what dispatch, scans and recovery walk over."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import NamedTuple


class Stretch(NamedTuple):
    """Records from `position` to `end` of a file's bytes; the file's first byte is offset `log_start` of the log."""

    data: mmap.mmap
    log_start: int
    position: int
    end: int
    file: Path
