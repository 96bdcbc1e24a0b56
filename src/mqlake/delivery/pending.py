"""What waits for its time: pairs of numbers, when and where, 16 bytes each.

Two unordered heaps: `near` has what is due within the next seconds, `far` the rest. Taking what is due passes over the
near one; every few seconds one pass over the far one brings those that come near. A million cost 16 MB, and a few
milliseconds every ten seconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from mqlake.kernel import take_due

PAIR_SIZE = 16
WINDOW_MS = 10_000
NEVER = 2**63 - 1


class Pending:
    """Pairs of native int64 (due in ms, place). One thread at a time calls it."""

    def __init__(self, pairs: bytes = b"") -> None:
        self._near = bytearray()
        self._far = bytearray()
        self._near_next = self._far_next = NEVER
        self._window_end = 0
        self.add(pairs)

    def __len__(self) -> int:
        return (len(self._near) + len(self._far)) // PAIR_SIZE

    @property
    def next_ms(self) -> int:
        """When the first is due."""
        return min(self._near_next, self._far_next)

    def add(self, pairs: bytes) -> None:
        rest = bytearray(pairs)
        near, left, earliest = take_due(rest, len(rest) // PAIR_SIZE, self._window_end)
        if near:
            self._near += near
            self._near_next = min(self._near_next, memoryview(near).cast("q")[0])
        self._far += rest[: left * PAIR_SIZE]
        self._far_next = min(self._far_next, earliest)

    def take(self, now_ms: int) -> bytes:
        """Take out what is due at a time, sorted by when, then where."""
        if now_ms >= self._window_end:
            self._window_end = now_ms + WINDOW_MS
            near, left, self._far_next = take_due(self._far, len(self._far) // PAIR_SIZE, self._window_end)
            del self._far[left * PAIR_SIZE :]
            self._near += near
        due, left, self._near_next = take_due(self._near, len(self._near) // PAIR_SIZE, now_ms + 1)
        del self._near[left * PAIR_SIZE :]
        return due

    def drop(self, places: set[int]) -> None:
        """Take out those at some places. It looks at all of them: for openings, not for every day."""
        kept = array("q")
        for pair in self:
            if pair[1] not in places:
                kept.extend(pair)
        self.__init__(kept.tobytes())  # type: ignore[misc]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        numbers = memoryview(self.dump()).cast("q")
        return zip(numbers[::2], numbers[1::2], strict=True)

    def dump(self) -> bytes:
        """All pairs, in no order."""
        return bytes(self._near + self._far)
