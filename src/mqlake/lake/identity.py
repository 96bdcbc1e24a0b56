"""The identity of a store: the file `mqlake/identity`, random, written once and never changed.

A path does not identify a store: stores are moved, and another store can take over a path. A copy has the identity of
its original. The lake tells the two apart by the seam, and by whether the original is still at its path.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from mqlake.errors import BadFile
from mqlake.files.layout import Layout
from mqlake.files.small_files import create_file


def identity_of(store: Path) -> str | None:
    """Return a store's identity. None if it has none yet, or if there is no store."""
    path = Layout(store).identity
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(text) != 32 or set(text) - set("0123456789abcdef"):
        raise BadFile(path, repr(text[:40]), "32 hexadecimal digits; restore the file from a backup")
    return text


def make_identity(store: Path) -> str:
    """Return a store's identity, creating it if there is none. If two processes create it, the first one wins."""
    layout = Layout(store)
    if not layout.identity.exists():
        layout.own.mkdir(exist_ok=True)
        create_file(layout.identity, secrets.token_hex(16).encode() + b"\n", layout.scratch)
    identity = identity_of(store)
    assert identity is not None
    return identity
