"""Runs a client's driver once for all its cases and keeps what it says of each."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from tests.clients.endpoints import Endpoint
from tests.clients.wire import create_topic

DRIVER_TIMEOUT = 600.0


def topics_for(endpoint: Endpoint, prefix: str, cases: Sequence[str]) -> None:
    """Make the topics of the cases, and of their groups' retries, so that no client waits for a route."""
    for case in cases:
        create_topic(endpoint.broker, f"{prefix}-{case}")
        create_topic(endpoint.broker, f"%RETRY%{prefix}-{case}", queues=1)


def run_cases(
    command: Sequence[str],
    endpoint: Endpoint,
    prefix: str,
    cases: Sequence[str],
    parallel: int,
) -> dict[str, dict[str, Any]]:
    """Run ``command NAME_SERVER PREFIX PARALLEL CASE...``; return its JSON lines by case.

    ``{home}`` in the command is an empty folder, the client's home: some keep logs and offsets of broadcasts there.
    """
    topics_for(endpoint, prefix, cases)
    with tempfile.TemporaryDirectory(prefix="mqlake-clients-home-") as home:
        told = [part.replace("{home}", home) for part in command]
        said, complained, status = _run([*told, endpoint.name_server, prefix, str(parallel), *cases], home)
    results: dict[str, dict[str, Any]] = {}
    for line in said.splitlines():
        if line.startswith('{"case"'):
            result = json.loads(line)
            results[result["case"]] = result
    for case in cases:
        missing = {"ok": False, "counts": {}, "detail": f"the driver said nothing; {status}; {complained[-300:]}"}
        results.setdefault(case, {"case": case, **missing})
    return results


def _run(arguments: Sequence[str], home: str) -> tuple[str, str, str]:
    """Return the output, the complaints and the end of a driver."""
    try:
        done = subprocess.run(
            arguments,
            env={**os.environ, "HOME": home},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=DRIVER_TIMEOUT,
            check=False,
        )
        return done.stdout, done.stderr, f"status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        return _text(error.stdout), _text(error.stderr), f"no end within {DRIVER_TIMEOUT:.0f} s"


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
