"""Counters of the broker: messages and bytes in and out, in total and by topic and group, with rates.

A rate is what was counted in the last whole window of ten seconds. Only the event loop's thread counts, so that a
count costs an addition.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left

WINDOW_S = 10.0


class Counter:
    """A count with a rate."""

    __slots__ = ("_at_tick", "count", "rate")

    def __init__(self) -> None:
        self.count = 0
        self.rate = 0.0
        """Events a second, in the window before this one."""
        self._at_tick = 0

    def tick(self) -> None:
        """End a window."""
        self.rate = (self.count - self._at_tick) / WINDOW_S
        self._at_tick = self.count


class Traffic:
    """Messages and bytes."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = Counter()
        self.bytes = Counter()

    def tick(self) -> None:
        self.messages.tick()
        self.bytes.tick()


class Histogram:
    """How many values were at most each bound, as Prometheus has it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values between the bounds; the last ones are above all."""
        self.total = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


PUT_BOUNDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
NAMES = {
    "TOPIC_PUT_NUMS": ("stored_by_topic", "messages"),
    "TOPIC_PUT_SIZE": ("stored_by_topic", "bytes"),
    "GROUP_GET_NUMS": ("delivered_by_group", "messages"),
    "GROUP_GET_SIZE": ("delivered_by_group", "bytes"),
}
"""RocketMQ's names of statistics: which table here, and what of it."""


class Stats:
    """All counters."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.put = Traffic()
        self.get = Traffic()
        self.put_seconds = Histogram(PUT_BOUNDS)
        self.stored_by_topic: dict[str, Traffic] = {}
        self.delivered_by_group: dict[str, Traffic] = {}
        """By `topic@group`."""
        self._loop = loop
        self._timer = loop.call_later(WINDOW_S, self._tick)

    def stored(self, topic: str, count: int, size: int) -> None:
        for each in (self.put, self.stored_by_topic.get(topic) or self.stored_by_topic.setdefault(topic, Traffic())):
            each.messages.count += count
            each.bytes.count += size

    def delivered(self, topic: str, group: str, count: int, size: int) -> None:
        key = f"{topic}@{group}"
        for each in (self.get, self.delivered_by_group.get(key) or self.delivered_by_group.setdefault(key, Traffic())):
            each.messages.count += count
            each.bytes.count += size

    def find(self, name: str, key: str) -> Counter | None:
        """Return a counter by RocketMQ's name and key; None if nothing was counted under it."""
        table, what = NAMES.get(name, ("", ""))
        known: Traffic | None = getattr(self, table).get(key) if table else None
        found: Counter | None = getattr(known, what) if known is not None else None
        return found

    def rate_of(self, name: str, key: str) -> float:
        known = self.find(name, key)
        return 0.0 if known is None else known.rate

    def _tick(self) -> None:
        for each in (self.put, self.get, *self.stored_by_topic.values(), *self.delivered_by_group.values()):
            each.tick()
        self._timer = self._loop.call_later(WINDOW_S, self._tick)

    def close(self) -> None:
        self._timer.cancel()
