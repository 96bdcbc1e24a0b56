"""Frames of RocketMQ's remoting protocol: bytes -> commands -> bytes."""

from __future__ import annotations

import json
import struct
from copy import copy
from typing import Any

from mqlake.errors import BadFrame, BadRequest
from mqlake.kernel.headers import INT32, LANGUAGES, OTHER_LANGUAGE, decode_json_header
from mqlake.kernel.reference.message import Message
from mqlake.kernel.reference.record import decode_properties
from mqlake.kernel.types import Readable

MAX_HEADER = 1 << 20
FIXED = struct.Struct(">hBhiii")
BINARY_FIXED = 21
BATCH_HEAD = struct.Struct(">iiiii")
"""size, magic, CRC, flag, size of the body"""
RESPONSE_FLAG, ONEWAY_FLAG = 1, 2


class Command:
    """One request or response: RocketMQ's RemotingCommand."""

    __slots__ = ("binary", "body", "code", "fields", "flag", "language", "opaque", "remark", "version")

    def __init__(
        self,
        code: int,
        *,
        language: str = "PYTHON",
        version: int = 513,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        binary: bool = False,
    ) -> None:
        for number in (code, version, opaque, flag):
            if number not in INT32:
                raise OverflowError("value too large to convert to int32_t")
        self.code = code
        self.language = language
        self.version = version
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.fields: dict[str, str] = {} if fields is None else fields
        self.body = body
        self.binary = bool(binary)

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY_FLAG != 0

    def parts(self) -> tuple[Any, ...]:
        """Everything that is compared."""
        return (
            *(self.code, self.language, self.version, self.opaque, self.flag, self.remark, self.fields),
            *(bytes(self.body), self.binary),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Command) and self.parts() == other.parts()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Command({self.code}, opaque={self.opaque}, flag={self.flag}, remark={self.remark!r}, "
            f"fields={self.fields!r}, {len(self.body)} bytes)"
        )


def decode_commands(data: Readable, position: int, max_frame: int) -> tuple[list[Command], int]:
    """Decode the whole frames from `position` on; return the commands and where the first incomplete frame begins.

    Raises BadFrame if the first frame is none. If a later one is none, decoding stops before it.
    """
    view = memoryview(data)
    if not 0 <= position <= len(view):
        raise ValueError(f"{position} is not inside {len(view)} bytes")
    found: list[Command] = []
    while len(view) - position >= 4:
        total = int.from_bytes(view[position : position + 4], "big", signed=True)
        try:
            if not 4 <= total <= max_frame:
                raise BadFrame("total length", str(total), f"4 to {max_frame}")
            if total > len(view) - position - 4:
                break
            found.append(_decode_frame(bytes(view[position + 4 : position + 4 + total])))
        except BadFrame:
            if found:
                break
            raise
        position += 4 + total
    return found, position


def _decode_frame(frame: bytes) -> Command:
    """Decode a frame without its length field."""
    kind, size = frame[0], int.from_bytes(frame[1:4], "big")
    if size > len(frame) - 4 or size > MAX_HEADER:
        raise BadFrame("header length", str(size), f"at most {min(len(frame) - 4, MAX_HEADER)}")
    header, body = frame[4 : 4 + size], frame[4 + size :]
    if kind == 0:
        parts = decode_json_header(header)
    elif kind == 1:
        parts = _decode_binary_header(header)
    else:
        raise BadFrame("serialize type", str(kind), "0 (JSON) or 1 (ROCKETMQ)")
    code, language, version, opaque, flag, remark, fields = parts
    return Command(
        code,
        language=language,
        version=version,
        opaque=opaque,
        flag=flag,
        remark=remark,
        fields=fields,
        body=body,
        binary=kind == 1,
    )


def _decode_binary_header(header: bytes) -> tuple[int, str, int, int, int, str | None, dict[str, str]]:
    if len(header) < BINARY_FIXED:
        raise BadFrame("header length", str(len(header)), f"at least {BINARY_FIXED} for a binary header")
    code, number, version, opaque, flag, size = FIXED.unpack_from(header)
    at = FIXED.size
    _require("remark length", size, len(header) - at - 4)
    remark = header[at : at + size].decode("utf-8", "replace") if size else None
    at += size
    size = int.from_bytes(header[at : at + 4], "big", signed=True)
    at += 4
    _require("extFields length", size, len(header) - at)
    stop = at + size
    fields: dict[str, str] = {}
    while at < stop:
        if stop - at < 2:
            raise BadFrame("extFields", f"{stop - at} bytes at the end", "whole entries")
        size = int.from_bytes(header[at : at + 2], "big", signed=True)
        at += 2
        _require("key length", size, stop - at - 4)
        name = header[at : at + size].decode("utf-8", "replace")
        at += size
        size = int.from_bytes(header[at : at + 4], "big", signed=True)
        at += 4
        _require("value length", size, stop - at)
        fields[name] = header[at : at + size].decode("utf-8", "replace")
        at += size
    language = LANGUAGES[number] if number < len(LANGUAGES) else OTHER_LANGUAGE
    return code, language, version, opaque, flag, remark, fields


def _require(what: str, size: int, most: int) -> None:
    if not 0 <= size <= most:
        raise BadFrame(what, str(size), f"0 to {most}")


def encode_head(command: Command, body_size: int) -> bytes:
    """Return a frame up to its body, of which only the size counts here."""
    header = _binary_header(command) if command.binary else _json_header(command)
    if len(header) > 0xFFFFFF or 4 + len(header) + body_size > 2**31 - 1:
        raise BadFrame("header length", str(len(header)), "at most 16777215, and a frame of at most 2147483647")
    mark = (int(command.binary) << 24) | len(header)
    return struct.pack(">ii", 4 + len(header) + body_size, mark) + header


def encode_command(command: Command) -> bytes:
    """Return the whole frame of a command."""
    return encode_head(command, len(command.body)) + bytes(command.body)


def _json_header(command: Command) -> bytes:
    header: dict[str, Any] = {
        "code": command.code,
        "extFields": command.fields,
        "flag": command.flag,
        "language": command.language,
        "opaque": command.opaque,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    header |= {"serializeTypeCurrentRPC": "JSON", "version": command.version}
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def _binary_header(command: Command) -> bytes:
    number = LANGUAGES.index(command.language) if command.language in LANGUAGES else 7
    fields = b"".join(_binary(name, 2) + _binary(value, 4) for name, value in command.fields.items())
    return b"".join(
        (
            (command.code & 0xFFFF).to_bytes(2, "big"),
            bytes([number]),
            (command.version & 0xFFFF).to_bytes(2, "big"),
            struct.pack(">ii", command.opaque, command.flag),
            _binary(command.remark or "", 4),
            struct.pack(">i", len(fields)),
            fields,
        )
    )


def _binary(text: str, width: int) -> bytes:
    """Return a text after its size in 2 or 4 bytes."""
    data = text.encode()
    if width == 2 and len(data) > 32767:
        raise BadFrame("key length", str(len(data)), "at most 32767")
    return len(data).to_bytes(width, "big") + data


def messages_of_batch(body: Readable, pattern: Message) -> list[Message]:
    """Return the messages in the body of a batch. All but flag, body and properties is the pattern's."""
    found: list[Message] = []
    at, end = 0, len(body)
    while at < end:
        size, flag, body_size = 0, 0, -1
        if end - at >= BATCH_HEAD.size:
            size, _, _, flag, body_size = BATCH_HEAD.unpack_from(body, at)
        body_at = at + BATCH_HEAD.size
        rest = size - BATCH_HEAD.size - body_size - 2
        properties_at = body_at + body_size + 2
        is_whole = size <= end - at and body_size >= 0 and rest >= 0
        if not is_whole or rest != int.from_bytes(body[properties_at - 2 : properties_at], "big"):
            raise BadRequest("batch", f"{end - at} bytes at {at}", "whole messages")
        message = copy(pattern)
        message.flag, message.body = flag, bytes(body[body_at : body_at + body_size])
        message.properties = decode_properties(body[properties_at : properties_at + rest])
        found.append(message)
        at += size
    return found
