"""A command: one request or one response, with the small functions that make them.

The opaque number of a request comes back in its response. Requests of the two directions of a connection are numbered
independently of each other; bit 0 of the flag tells a response from a request.
"""

from __future__ import annotations

import itertools

from mqlake.kernel import Command, encode_command, encode_head
from mqlake.remoting.codes import ResponseCode

__all__ = ["Command", "encode_command", "encode_head", "next_opaque", "oneway", "request", "response", "single"]

RESPONSE_FLAG, ONEWAY_FLAG = 1, 2
_opaques = itertools.count(1)


def next_opaque() -> int:
    """Return a number for a request, unique in this process until 2^31 of them are used."""
    return next(_opaques) & 0x7FFFFFFF


def request(
    code: int, fields: dict[str, str] | None = None, body: bytes = b"", *, opaque: int | None = None
) -> Command:
    """Return a request that wants a response."""
    return Command(code, fields=fields, body=body, opaque=next_opaque() if opaque is None else opaque)


def oneway(code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
    """Return a request that gets no response."""
    return Command(code, fields=fields, body=body, opaque=next_opaque(), flag=ONEWAY_FLAG)


def response(
    asked: Command,
    code: int = ResponseCode.SUCCESS,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    remark: str | None = None,
) -> Command:
    """Return the response to a request. It is written with a JSON header, as RocketMQ 5 does: every client reads it."""
    return Command(code, fields=fields, body=body, remark=remark, opaque=asked.opaque, flag=RESPONSE_FLAG)


def single(frame: bytes) -> Command:
    """Return the command of exactly one frame; for tests and tools."""
    from mqlake.remoting.frames import FrameReader

    (command,) = FrameReader(max_frame_bytes=len(frame)).feed(frame)
    return command
