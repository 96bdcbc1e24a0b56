"""Estimate the number of distinct keys with a HyperLogLog sketch, whole columns at a time.

A key's hash selects one of 4096 registers and says how rare the key is; a register keeps the rarest. So the sketch of
two parts together is the maximum of each register, whatever the parts have in common, and a key that occurs a thousand
times counts once. The estimate (Ertl's, which needs no correction for small counts) has a standard error of 1.6 %.

A sketch is stored as bytes: all registers or, if few are set, only those, three bytes each. The length says which.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[Any]]

INDEX_BITS = 12
REGISTERS = 1 << INDEX_BITS
MAX_RANK = 41
"""Higher ranks would need bits of the hash that `stats_split` uses for the topic."""
STANDARD_ERROR = 1.04 / math.sqrt(REGISTERS)
SPARSE = np.dtype([("register", "<u2"), ("rank", "u1")])
MULTIPLIER = 0x9E3779B97F4A7C15
INVERSE = pow(MULTIPLIER, -1, 1 << 64)


def hash_texts(texts: pa.Array) -> Numbers:
    """Return a 64-bit hash of each text: a polynomial over its bytes, mixed as in MurmurHash3. Equal in every process.

    The sum over one text is the difference of two running sums over all texts, scaled back to the text's position.
    """
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    values = texts.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    size = last - first
    rising, falling = _powers(1 << max(10, size.bit_length()))
    sums = np.zeros(size + 1, np.uint64)
    if size:
        letters = _letters()[np.frombuffer(values, np.uint8)[first:last]]
        np.cumsum(letters * rising[:size], out=sums[1:])
    places = offsets - first
    ends = sums[places]
    return _mixed((ends[1:] - ends[:-1]) * falling[places[:-1]] + np.diff(places).astype(np.uint64))


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[Numbers, Numbers]:
    """Return powers of the multiplier and of its inverse, modulo 2^64."""
    factors = np.ones((2, count), np.uint64)
    factors[0, 1:], factors[1, 1:] = MULTIPLIER, INVERSE
    rising, falling = np.cumprod(factors, axis=1)
    return rising, falling


@lru_cache(maxsize=1)
def _letters() -> Numbers:
    """Return a number for each byte value. No number is 0, so zero bytes count too."""
    return _mixed(np.arange(1, 257, dtype=np.uint64) * np.uint64(MULTIPLIER))


def _mixed(numbers: Numbers) -> Numbers:
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    mixed: Numbers = numbers ^ (numbers >> np.uint64(33))
    return mixed


def ranks_of(hashes: Numbers) -> Numbers:
    """Return how rare hashes are: the leading zeroes after the bits that name the register, plus one."""
    rest = (hashes << np.uint64(INDEX_BITS)) >> np.uint64(64 - MAX_RANK)
    return (MAX_RANK + 1 - np.frexp(rest.astype(np.float64))[1]).astype(np.uint8)


def pack(registers: Numbers, ranks: Numbers) -> bytes:
    """Pack a sketch from the registers that are set, each given once."""
    if len(registers) * SPARSE.itemsize < REGISTERS:
        sparse = np.empty(len(registers), SPARSE)
        sparse["register"], sparse["rank"] = registers, ranks
        return sparse.tobytes()
    dense = np.zeros(REGISTERS, np.uint8)
    dense[registers] = ranks
    return dense.tobytes()


def merged(sketches: Iterable[bytes]) -> bytes:
    """Return the sketch of everything that several sketches have seen."""
    registers = _registers(sketches)
    (used,) = np.nonzero(registers)
    return pack(used, registers[used])


def _registers(sketches: Iterable[bytes]) -> Numbers:
    registers = np.zeros(REGISTERS, np.uint8)
    for sketch in sketches:
        if len(sketch) == REGISTERS:
            np.maximum(registers, np.frombuffer(sketch, np.uint8), out=registers)
        else:
            sparse = np.frombuffer(sketch, SPARSE)
            np.maximum.at(registers, sparse["register"], sparse["rank"])
    return registers


def estimate(sketch: bytes) -> int:
    """Return about how many distinct keys a sketch has seen."""
    counts = np.bincount(_registers([sketch]), minlength=MAX_RANK + 2)
    total = REGISTERS * _tau(1 - counts[MAX_RANK + 1] / REGISTERS)
    for rank in range(MAX_RANK, 0, -1):
        total = (total + counts[rank]) / 2
    total += REGISTERS * _sigma(counts[0] / REGISTERS)
    return 0 if math.isinf(total) else round(REGISTERS * REGISTERS / (2 * math.log(2)) / total)


def _sigma(x: float) -> float:
    """Return Ertl's sigma, the correction for registers that are not set."""
    if x == 1:
        return math.inf
    y, z = 1.0, x
    while True:
        x, before = x * x, z
        z += x * y
        y += y
        if z == before:
            return z


def _tau(x: float) -> float:
    """Return Ertl's tau, the correction for registers that are at their maximum."""
    if x in (0, 1):
        return 0.0
    y, z = 1.0, 1 - x
    while True:
        x, before = math.sqrt(x), z
        y /= 2
        z -= (1 - x) ** 2 * y
        if z == before:
            return z / 3
