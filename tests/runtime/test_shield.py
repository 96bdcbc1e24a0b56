"""Steps that no signal leaves half done."""

from __future__ import annotations

import itertools

from mqlake.runtime.shield import Shield
from mqlake.runtime.workers import Workers
from tests.interrupting import interrupt_at


def test_a_step_that_a_signal_interrupts_anywhere_is_done_before_the_next_one_or_never() -> None:
    workers = Workers()
    shield = Shield("shield", workers)
    shield.start()
    for number in itertools.count():
        done: list[str] = []
        was_interrupted = interrupt_at(
            number,
            lambda done=done: shield.run(lambda: done.append("first")),
            ("runtime/shield.py", "runtime/workers.py", "runtime/whole.py"),
        )
        left = shield._steps.copy()
        shield.run(lambda done=done: done.append("second"))  # type: ignore[misc]
        assert done in (["second"], ["first", "second"]), f"interrupted at line {number}"
        assert not left or done == ["second"], f"begun by the next step, after an interrupt at line {number}"
        if not was_interrupted:
            assert done == ["first", "second"]
            assert number > 5, "at least some lines were interrupted"
            break
    workers.stop()
