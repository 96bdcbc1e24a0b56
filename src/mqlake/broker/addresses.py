"""White lists of client addresses, as `plain_acl.yml` writes them.

192.168.0.7          one address                 192.168.0.{1,2}      these two
192.168.0.*          any last part               192.168.1-10.*       a range, and any last part
10.0.0.1,10.0.0.2    a list                      *                    everyone
2001:db8::1          the same forms for IPv6, with parts in hexadecimal
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from mqlake.errors import InvalidConfig

EVERYONE = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_Part = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WhiteList:
    """Addresses that need no key."""

    patterns: tuple[tuple[_Part, ...], ...] = ()
    everyone: bool = False

    @classmethod
    def parse(cls, texts: Sequence[str]) -> WhiteList:
        """Read patterns; InvalidConfig names the one that is none."""
        patterns: list[tuple[_Part, ...]] = []
        everyone = False
        for text in texts:
            if text in EVERYONE:
                everyone = True
                continue
            for one in _alternatives(text):
                patterns.append(_pattern(one, text))
        return cls(tuple(patterns), everyone)

    def __contains__(self, host: object) -> bool:
        if self.everyone or not self.patterns:
            return self.everyone
        parts = _parts_of(str(host))
        return any(
            len(parts) == len(pattern)
            and all(low <= part <= high for part, (low, high) in zip(parts, pattern, strict=True))
            for pattern in self.patterns
        )


def _alternatives(text: str) -> list[str]:
    if text.endswith("}"):
        head, brace, tail = text[:-1].partition("{")
        if not brace or not head.endswith((".", ":")):
            raise _wrong(text)
        return [head + each.strip() for each in tail.split(",")]
    return [each.strip() for each in text.split(",")]


def _pattern(one: str, text: str) -> tuple[_Part, ...]:
    base, count, most = (16, 8, 0xFFFF) if ":" in one else (10, 4, 255)
    parts = one.split(":" if base == 16 else ".")
    if base == 16 and "::" in one:
        if one.count("::") > 1:
            raise _wrong(text)
        left, right = (side.split(":") if side else [] for side in one.split("::"))
        parts = left + ["0"] * (count - len(left) - len(right)) + right
    if len(parts) != count:
        raise _wrong(text)
    return tuple(_part(part, base, most, text) for part in parts)


def _part(part: str, base: int, most: int, text: str) -> _Part:
    if part == "*":
        return 0, most
    first, dash, last = part.partition("-")
    try:
        low = int(first, base)
        high = int(last, base) if dash else low
    except ValueError:
        raise _wrong(text) from None
    if not 0 <= low <= high <= most:
        raise _wrong(text)
    return low, high


def _parts_of(host: str) -> tuple[int, ...]:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ()
    packed = address.packed
    return tuple(packed) if len(packed) == 4 else tuple(int.from_bytes(packed[i : i + 2]) for i in range(0, 16, 2))


def _wrong(text: str) -> InvalidConfig:
    return InvalidConfig("address", text, "must be an address, or a pattern like 10.0.0.*, 10.0.1-9.* or 10.0.0.{1,2}")
