"""What POP has handed out of one queue to one group, and how far the group is."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class PopQueue:
    """What a group has of one queue."""

    group: str
    topic: str
    queue_id: int
    next_offset: int
    handed_out: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Queue offset -> when it becomes visible again, and when it was popped."""
    by_pop: dict[int, set[int]] = field(default_factory=dict)
    """When it was popped -> queue offsets: a few, however many are handed out."""
    _lowest: list[int] = field(default_factory=list)
    """A heap of handed out offsets. One that was taken off stays until it is the lowest."""

    @property
    def progress(self) -> int:
        while self._lowest and self._lowest[0] not in self.handed_out:
            heapq.heappop(self._lowest)
        return self._lowest[0] if self._lowest else self.next_offset

    def hand_out(self, offset: int, due_ms: int, popped_ms: int) -> None:
        known = self.handed_out.get(offset)
        if known is None:
            heapq.heappush(self._lowest, offset)
        else:
            self._leave_pop(offset, known[1])
        self.handed_out[offset] = due_ms, popped_ms
        self.by_pop.setdefault(popped_ms, set()).add(offset)

    def take_off(self, offset: int, popped_ms: int) -> bool:
        """Forget a message, if it is still handed out by this pop: else it was delivered again meanwhile."""
        if self.handed_out.get(offset, (0, -1))[1] != popped_ms:
            return False
        del self.handed_out[offset]
        self._leave_pop(offset, popped_ms)
        return True

    def _leave_pop(self, offset: int, popped_ms: int) -> None:
        offsets = self.by_pop[popped_ms]
        offsets.discard(offset)
        if not offsets:
            del self.by_pop[popped_ms]
