"""Programs that run in a process of their own, so that a deadlock fails one test and holds up no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELUDE = """
import faulthandler, os, signal, sys, threading, time
from pathlib import Path
faulthandler.enable()
from mqlake import *
from tests.helpers import eventually, message, open_small
path = Path(sys.argv[1])
"""
"""What every program begins with. `path` is the store."""
LIMIT_S = 30.0
"""No program takes a tenth of it. One that hangs is ended, with the stacks of its threads."""


def start(program: str, *arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a program in a process group of its own. The caller waits for it with `finish`, or kills it."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program), *map(str, arguments)],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> str:
    """Wait until a program ends and return what it printed. It must not fail, and must not hang."""
    try:
        out, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler prints where its threads stand
        out, errors = process.communicate()
        raise AssertionError(f"it hangs\n{out}\n{errors}") from None
    finally:
        kill(process)
    assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{errors}"
    return out


def run(program: str, *arguments: object, env: dict[str, str] | None = None, limit_s: float = LIMIT_S) -> str:
    """Run a program to its end and return what it printed."""
    return finish(start(program, *arguments, env=env), limit_s)


def kill(process: subprocess.Popen[str]) -> None:
    """End a program and what it forked, as a power cut would, without a word."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line that a running program prints."""
    assert process.stdout is not None, "its output is a pipe"
    line = process.stdout.readline()
    if not line:
        kill(process)
        assert process.stderr is not None, "its errors are a pipe"
        raise AssertionError(f"it ended without a word\n{process.stderr.read()}")
    return line.rstrip("\n")
