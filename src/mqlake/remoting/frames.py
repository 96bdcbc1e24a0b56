"""Bytes of a connection in, commands out.

Invariant: what is kept between two calls is one incomplete frame, so at most `max_frame_bytes` and the bytes of the
last call. A length is checked before a byte of the frame is kept: a header that names a billion costs nothing.
"""

from __future__ import annotations

from typing import Final

from mqlake.kernel import Command, decode_commands

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""RocketMQ's own limit (com.rocketmq.remoting.frameMaxLength)."""


class FrameReader:
    """The reading side of one connection. BadFrame is final: nothing after it can be understood."""

    __slots__ = ("_kept", "_max", "_needed")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max = max_frame_bytes
        self._kept = bytearray()
        self._needed = 0
        """Bytes that the kept frame needs; until then there is nothing to decode."""

    @property
    def kept_bytes(self) -> int:
        """How many bytes of an incomplete frame are kept."""
        return len(self._kept)

    def feed(self, data: bytes) -> list[Command]:
        """Return the commands that are complete with these bytes.

        BadFrame is raised by the call that finds the bad frame first; commands before it are returned by the call
        that brought them, so a bad frame after good ones is reported by the next `feed`, which may be an empty one.
        """
        kept = self._kept
        if not kept:
            commands, position = decode_commands(data, 0, self._max)
            if position < len(data):
                self._keep(data[position:])
            return commands
        kept += data
        if len(kept) < self._needed:
            return []
        commands, position = decode_commands(kept, 0, self._max)
        if position == len(kept):
            self._kept = bytearray()
        elif position:
            self._keep(bytes(memoryview(kept)[position:]))
        else:
            self._needed = self._size_of(kept)
        return commands

    def _keep(self, rest: bytes) -> None:
        self._kept = bytearray(rest)
        self._needed = self._size_of(self._kept)

    def _size_of(self, kept: bytearray) -> int:
        """Return how many bytes the frame has; 4 as long as its length is not here, or if it is refused for it."""
        total = int.from_bytes(kept[:4], "big") if len(kept) >= 4 else 0
        return 4 + total if 4 <= total <= self._max else 4

    @property
    def has_more(self) -> bool:
        """Whether kept bytes can be decoded, or refused, without further ones."""
        return 4 <= self._needed <= len(self._kept)
