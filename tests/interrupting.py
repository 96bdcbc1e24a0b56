"""Raises in the middle of a call, as a signal handler may, before each of its lines of Python in turn."""

from __future__ import annotations

import functools
import itertools
import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """What a signal handler raises."""


def interrupt_at(event_number: int, call: Any, files: tuple[str, ...] = ("",)) -> bool:
    """Call, and raise before the given line of Python that runs in it. False if it has fewer.

    `files`: only lines of files whose path ends so count.
    """
    left = itertools.count(event_number, -1)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if (
            event == "line"
            and frame.f_code is not interrupt_at.__code__
            and frame.f_code.co_filename.endswith(files)
            # A tracer is called once more before the end of a `with`; there, no signal handler is.
            and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
            and next(left) == 0
        ):
            raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def interrupted_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same, and raises after the first time: Python runs handlers as a call returns."""
    calls = itertools.count()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs)
        if next(calls) == 0:
            raise Interrupted
        return answer

    return call
