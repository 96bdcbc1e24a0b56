"""JSON bodies of requests, up to a size: parsing one takes the event loop's time, and memory of many times its size."""

from __future__ import annotations

from typing import Any, Final

from mqlake.errors import BadRequest
from mqlake.kernel import Command
from mqlake.remoting.bodies import read_json

MAX_JSON_BYTES: Final = 1 << 20


def json_of(command: Command) -> dict[str, Any]:
    """Return the object in a request's body; BadRequest if it is too large or something else."""
    size = len(command.body)
    if size > MAX_JSON_BYTES:
        raise BadRequest("body", f"JSON of {size} bytes", f"at most {MAX_JSON_BYTES}")
    body: Any = read_json(command.body)
    if not isinstance(body, dict):
        raise BadRequest("body", f"JSON of the type {type(body).__name__}", "an object")
    return body
