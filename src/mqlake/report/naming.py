"""What a page is called: the name of its store, of its stores, or of its lake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

COMMON = {"store", "data", "rocketmq", "lake", "mqlake"}
"""Names of folders that say nothing alone: RocketMQ's own store is ~/store. The folder above is named too."""
MOST = 3


def title_of(stores: Sequence[str], lake: str | None = None) -> str:
    """Return a title for a page about these stores."""
    names = [_name(path) for path in stores] or ([_name(lake)] if lake is not None else [])
    if len(names) > MOST or len(set(names)) < len(names):
        return f"{len(names)} stores"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) or "Message report"


def _name(path: str) -> str:
    """Return the last part of a path or an address; two parts if the last is a common name."""
    parts = [part for part in PurePath(path).parts if part not in ("/", ".", "..")]
    return "/".join(parts[-2:] if parts[-1:] and parts[-1].lower() in COMMON else parts[-1:]) or path
