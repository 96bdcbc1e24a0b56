"""How a worker runs: what `MessageStore.run` and `mqlake.run` take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from mqlake.config import require_seconds
from mqlake.delivery.consume.filters import Filter
from mqlake.delivery.consume.progress import Start
from mqlake.errors import InvalidConfig
from mqlake.handling.tracking import OnProgress
from mqlake.message import StoredMessage

Handler = Callable[[StoredMessage], Any]
OnError = Callable[[StoredMessage, BaseException], None]


class RunOptions(TypedDict, total=False):
    """The options of a worker. `MessageStore.run` says what each means."""

    filter: Filter | str | None
    start: Start
    ordered: bool
    idle_s: float | None
    retry_level: int
    on_error: OnError | None
    on_progress: OnProgress | None
    stop: threading.Event | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the loop itself needs of them."""

    concurrency: int = 1
    idle_s: float | None = None
    retry_level: int = 0
    on_error: OnError | None = None
    on_progress: OnProgress | None = None
    stop: threading.Event | None = None

    def __post_init__(self) -> None:
        if isinstance(self.concurrency, bool) or not isinstance(self.concurrency, int) or self.concurrency < 1:
            raise InvalidConfig("concurrency", self.concurrency, "must be a whole number, 1 or more")
        if isinstance(self.retry_level, bool) or not isinstance(self.retry_level, int) or self.retry_level < -1:
            raise InvalidConfig("retry_level", self.retry_level, "must be a delay level, 0 or -1")
        if self.idle_s is not None:
            require_seconds("idle_s", self.idle_s)
        if self.stop is not None and not callable(getattr(self.stop, "is_set", None)):
            raise InvalidConfig("stop", self.stop, "must be a threading.Event")
        for name in ("on_error", "on_progress"):
            if getattr(self, name) is not None:
                require_callable(name, getattr(self, name))


def divide(handler: Handler, concurrency: int, more: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Return the loop's options, and the settings of its consumer.

    A handler that cannot be called is refused: else each message would fail, and be a dead letter in the end.
    """
    require_callable("handler", handler)
    for name in more:
        if name not in RunOptions.__annotations__:
            raise TypeError(f"run() has no option {name!r}; it has {', '.join(RunOptions.__annotations__)}")
    own = {each.name for each in fields(Options)}
    options = Options(concurrency=concurrency, **{name: value for name, value in more.items() if name in own})
    return options, {name: value for name, value in more.items() if name not in own} | {"auto_commit": False}


def require_callable(name: str, value: object) -> None:
    if not callable(value):
        raise InvalidConfig(name, value, "must be a function, or an object that can be called")
