"""Output files that appear completely, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(out: Path) -> Iterator[Path]:
    """Yield a path next to `out`; rename it to `out` if the block succeeds, else remove it."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        yield partial
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
