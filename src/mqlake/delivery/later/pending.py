"""The timed messages that are not yet due, as pairs of due time and physical offset, 16 bytes each.

There are two unsorted arrays: `near` holds what is due within the next ten seconds, `far` the rest. `take` scans the
near array; every ten seconds it scans the far array once and moves what is due soon to the near one. A million messages
cost 16 MB, and a few milliseconds every ten seconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from mqlake.kernel import take_due

PAIR_SIZE = 16
WINDOW_MS = 10_000
NEVER = 2**63 - 1


class Pending:
    """A set of (due ms, place) pairs of native int64. The caller ensures that one thread at a time calls it."""

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
        """When the first message is due."""
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
        """Remove and return the pairs that are due at `now_ms`, sorted by due time, then by place."""
        if now_ms >= self._window_end:
            self._window_end = now_ms + WINDOW_MS
            near, left, self._far_next = take_due(self._far, len(self._far) // PAIR_SIZE, self._window_end)
            del self._far[left * PAIR_SIZE :]
            self._near += near
        due, left, self._near_next = take_due(self._near, len(self._near) // PAIR_SIZE, now_ms + 1)
        del self._near[left * PAIR_SIZE :]
        return due

    def drop(self, places: set[int]) -> None:
        """Remove the pairs at these places. It scans all pairs, so it is only used when a store is opened."""
        kept = array("q")
        for pair in self:
            if pair[1] not in places:
                kept.extend(pair)
        self.__init__(kept.tobytes())  # type: ignore[misc]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        numbers = memoryview(self.dump()).cast("q")
        return zip(numbers[::2], numbers[1::2], strict=True)

    def dump(self) -> bytes:
        """Return all pairs, unsorted."""
        return bytes(self._near + self._far)
