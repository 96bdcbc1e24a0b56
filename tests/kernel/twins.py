"""Both kernels: the compiled one, if it is built, and the reference that defines it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from mqlake.kernel import reference as _reference

reference: Any = _reference


def compiled() -> Any:
    """Return the compiled kernel. In a pure build the test is skipped."""
    return pytest.importorskip("mqlake.kernel._compiled", reason="a pure build has no compiled kernel")


def both() -> list[Any]:
    """Return every kernel that is built, for tests that both must pass."""
    try:
        return [reference, importlib.import_module("mqlake.kernel._compiled")]
    except ImportError:
        return [reference]


Outcome = tuple[str, Any]


def outcome(call: Callable[[], Any]) -> Outcome:
    """Return the result of a call, or the type and the text of what it raises."""
    try:
        return "returned", call()
    except Exception as error:
        return type(error).__name__, str(error)


def require_agreement(function: str, *arguments: Any, **named: Any) -> Any:
    """Check that both kernels have the same outcome, and return it."""
    expected = outcome(lambda: getattr(reference, function)(*arguments, **named))
    found = outcome(lambda: getattr(compiled(), function)(*arguments, **named))
    assert found == expected
    return expected
