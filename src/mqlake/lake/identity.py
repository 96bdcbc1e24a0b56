"""Which store is this: `mqlake/identity` in it, random, made once, kept for ever.

A path is no identity: another store can be put in its place, and a store can be moved. A copy has the identity of its
original; the lake then looks at the seam, and at whether the original is still in its place.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from mqlake.errors import BadFile
from mqlake.files.layout import Layout
from mqlake.files.small_files import create_file


def identity_of(store: Path) -> str | None:
    """The identity of a store; None where it has none yet, or there is no store."""
    path = Layout(store).identity
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(text) != 32 or set(text) - set("0123456789abcdef"):
        raise BadFile(path, repr(text[:40]), "32 hexadecimal digits; bring it back from a copy")
    return text


def make_identity(store: Path) -> str:
    """The same, made where there is none. Whoever comes second takes what the first one made."""
    layout = Layout(store)
    if not layout.identity.exists():
        layout.own.mkdir(exist_ok=True)
        create_file(layout.identity, secrets.token_hex(16).encode() + b"\n", layout.scratch)
    identity = identity_of(store)
    assert identity is not None
    return identity
