"""How a workload in a process of its own returns its result: as one marked line of its output.

Other programs write to the same output, before and after that line: Maven and pip on the first run, Java whenever it
likes. So the line is found by its mark and not by its place.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

MARK = "mqlake-result:"
SHOWN = 2000
"""How many characters of a failed program's output are shown."""


def tell(result: Mapping[str, Any]) -> None:
    """Print a result. It begins a line of its own, whatever was printed before without an end of line."""
    print(f"\n{MARK} {json.dumps(result)}", flush=True)


def result_of(what: str, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the result that a program told. Raises RuntimeError with what it printed if it told none."""
    _, marked, text = done.stdout.rpartition(MARK)
    try:
        if done.returncode == 0 and marked:
            result, _ = json.JSONDecoder().raw_decode(text.lstrip())
            return dict(result)
    except ValueError:
        pass
    printed = "\n".join(tail for tail in (done.stdout[-SHOWN:], done.stderr[-SHOWN:]) if tail.strip())
    raise RuntimeError(f"{what} ended with status {done.returncode} and no result; it printed:\n{printed or 'nothing'}")
