"""Output files that appear completely, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from mqlake.cli import show


@contextmanager
def whole_file(out: Path) -> Iterator[Path]:
    """Yield a path next to `out`; rename it to `out` if the block succeeds, else remove it.

    A link is followed. A device or a pipe is written itself: a rename would replace it with a file.
    """
    if out.exists() and not out.is_file():
        yield out
        return
    out = Path(os.path.realpath(out))
    if out.is_symlink():
        raise click.BadParameter(f"{str(out)!r} is a link that leads back to itself")
    if not out.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(out.parent)!r} for the file {out.name}; make it first")
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def written(out: Path) -> str:
    """Return the name of an output file, with its size. A device or a pipe does not know how much went through it."""
    return f"{show.size(out.stat().st_size)}: {out}" if out.is_file() else str(out)
