"""Files that are there whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(out: Path) -> Iterator[Path]:
    """A path beside `out` to write to; moved into place when the block ends well, removed when it does not."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        yield partial
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
