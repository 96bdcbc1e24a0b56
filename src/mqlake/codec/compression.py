"""Compressed bodies: RocketMQ's three codecs, selected by three bits of the system flag."""

from __future__ import annotations

import zlib
from typing import Any

from mqlake.errors import CorruptBody, MissingExtra

COMPRESSED = 0x1
TYPE_MASK = 0x700
LZ4 = 0x100
ZSTD = 0x200
MAX_INFLATED = 64 * 1024 * 1024
"""Largest body after decompression: a few kilobytes can expand to gigabytes."""


def decompress_body(body: bytes, sys_flag: int, limit: int = MAX_INFLATED) -> bytes:
    """Return the body as the producer sent it, or unchanged if the flag says it is not compressed.

    Raises CorruptBody if the bytes do not decompress, or to more than `limit` bytes.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & TYPE_MASK
    try:
        if kind == LZ4:
            inflated = _inflate_lz4(body, limit)
        elif kind == ZSTD:
            inflated = _inflate_zstd(body, limit)
        else:  # old clients write 0, new ones 0x300: both mean zlib
            inflated = _inflate_zlib(body, limit)
    except (RuntimeError, zlib.error) as error:
        raise CorruptBody(str(error)) from None
    if len(inflated) > limit:
        raise CorruptBody(f"it inflates beyond {limit} bytes")
    return inflated


def _inflate_zlib(body: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    data = inflater.decompress(body, limit + 1)
    if len(data) <= limit and not inflater.eof:
        raise CorruptBody("it ends early")
    return data


def _inflate_lz4(body: bytes, limit: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise MissingExtra("an LZ4 body", "compression") from None
    inflater = lz4.frame.LZ4FrameDecompressor()
    data: bytes = inflater.decompress(body, max_length=limit + 1)
    if len(data) <= limit and not inflater.eof:
        raise CorruptBody("it ends early")
    return data


def _inflate_zstd(body: bytes, limit: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("a Zstd body", "compression") from None
    try:
        inflater = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        size = zstandard.frame_content_size(body)  # -1 if the frame does not give its size
        if size > limit:
            raise CorruptBody(f"it inflates beyond {limit} bytes")
        data: bytes = inflater.decompress(body) if size >= 0 else _inflate_unsized(zstandard, body, limit)
        if size >= 0 and not inflater.eof:
            raise CorruptBody("it ends early")
    except zstandard.ZstdError as error:
        raise CorruptBody(str(error)) from None
    return data


def _inflate_unsized(zstandard: Any, body: bytes, limit: int) -> bytes:
    """Decompress a frame without a size, as streams write it: piece by piece, up to the limit."""
    inflater = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj(write_size=1 << 16)
    pieces, total = [], 0
    for at in range(0, len(body), 1 << 12):
        pieces.append(inflater.decompress(body[at : at + (1 << 12)]))
        total += len(pieces[-1])
        if total > limit:
            raise CorruptBody(f"it inflates beyond {limit} bytes")
        if inflater.eof:
            return b"".join(pieces)
    raise CorruptBody("it ends early")
