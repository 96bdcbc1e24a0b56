"""A store closes, whatever its parts raise."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.store.life import Life


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
