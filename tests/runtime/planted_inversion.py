"""Not collected: `test_locks.py` runs this module to see the run fail."""

from __future__ import annotations

from mqlake.runtime.locks import make_lock


def test_two_locks_are_taken_in_the_wrong_order() -> None:
    with make_lock("log"), make_lock("checkpoint"):
        pass
