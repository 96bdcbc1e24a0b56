"""A store closes, whatever its parts raise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqlake.store.life import Life
from tests.interrupting import Interrupted, interrupted_once


def test_a_part_that_cannot_be_closed_keeps_no_other_open_and_its_error_is_raised(tmp_path: Path) -> None:
    calls: list[str] = []

    def broken() -> None:
        calls.append("broken")
        raise ValueError("a table cannot be written")

    life = Life(tmp_path, [broken, lambda: calls.append("lock")], lambda: None, lambda: False, lambda: None)
    with pytest.raises(ValueError, match="a table cannot be written"):
        life.close()
    assert calls == ["broken", "broken", "lock"]
    life.close()
    assert calls == ["broken", "broken", "lock"], "it is closed"


def test_a_part_whose_closing_a_handler_interrupts_is_closed_all_the_same(tmp_path: Path) -> None:
    calls: list[str] = []

    def interrupted_once() -> None:
        calls.append("part")
        if len(calls) == 1:
            raise TimeoutError("a handler's own")

    life = Life(tmp_path, [interrupted_once, lambda: calls.append("lock")], lambda: None, lambda: False, lambda: None)
    with pytest.raises(TimeoutError):
        life.close()
    assert calls == ["part", "part", "lock"]


def test_a_close_that_a_signal_interrupts_as_it_begins_is_finished_by_the_next(tmp_path: Path) -> None:
    class Closers(set[int]):
        add: Any = interrupted_once(set.add)

    calls: list[str] = []
    life = Life(tmp_path, [lambda: calls.append("lock")], lambda: None, lambda: False, lambda: None)
    life._closers = Closers()
    with pytest.raises(Interrupted):
        life.close()
    life.close()
    assert calls == ["lock"]
