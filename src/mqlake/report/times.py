"""Points in time for people: texts as fine as needed, round ticks, and an axis that fits the data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from mqlake.report.data import Step

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
WIDTHS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 20 * SECOND, 30 * SECOND),
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 20 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY, 3650 * DAY, 36_500 * DAY),
)
MAX_BARS = 120
MIN_BARS = 10
FEW = 1_000
"""One message in so many, at each end, may lie outside the axis …"""
ENOUGH = 500
"""… and one alone of so many …"""
FAR = 20
"""… if the axis would have to be so many times as long to show them: clocks that were wrong for a moment."""


# ---- texts


def moment(ms: int, *, exact: bool = False) -> str:
    """Return a point in time, in UTC: to the second, or to the millisecond if `exact`."""
    try:
        text = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return f"{text}.{ms % 1000:03}" if exact else text


def moments(times: Sequence[int]) -> list[str]:
    """Return points in time, with milliseconds if two neighbours differ in nothing else."""
    exact = any(a != b and a // SECOND == b // SECOND for a, b in itertools.pairwise(times))
    return [moment(ms, exact=exact) for ms in times]


def time_ticks(start_ms: int, end_ms: int, wanted: int = 6) -> list[tuple[int, str]]:
    """Return round points in time in [start, end], and their texts."""
    span = max(end_ms - start_ms, 1)
    width = next((w for w in WIDTHS_MS if span / w <= wanted), WIDTHS_MS[-1])
    form = "%H:%M:%S" if width < MINUTE else "%H:%M" if width < DAY else "%Y-%m-%d"
    if width < DAY and span > DAY:
        form = "%m-%d %H:%M"
    places = range(-(-start_ms // width) * width, end_ms + 1, width)
    if width < SECOND:
        return [(place, f"{_text(place, '%M:%S')}.{place % SECOND:03}") for place in places]
    return [(place, _text(place, form)) for place in places]


def _text(ms: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(ms // SECOND, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return str(ms)


# ---- the axis


class Unit(NamedTuple):
    """What a rate is counted by."""

    ms: int
    name: str
    sign: str


UNITS = (Unit(SECOND, "second", "s"), Unit(MINUTE, "minute", "min"), Unit(HOUR, "hour", "h"), Unit(DAY, "day", "d"))


def rate_unit(most: int, width_ms: int) -> Unit | None:
    """Return the shortest unit that the fullest step, of `most` messages, has one message of.

    None if a step is shorter than a second, whose rate per second would be a number that never was, or if there is
    less than one message a day: what is in each step is shown then.
    """
    fitting = (unit for unit in UNITS if most * unit.ms >= width_ms)
    return None if width_ms < SECOND else next(fitting, None)


class Axis(NamedTuple):
    """Equal steps of `width` ms in [start, end), and how many messages lie outside."""

    start: int
    end: int
    width: int
    before: int = 0
    after: int = 0

    @property
    def step_count(self) -> int:
        return (self.end - self.start) // self.width


def axis_of(steps: Sequence[Step], step_ms: int, *, most: int = MAX_BARS, least: int = MIN_BARS) -> Axis:
    """Return an axis of `least` to `most` steps that fits these messages: from the first of them to the last.

    Its steps are multiples of `step_ms`. A few messages that lie very far from all others are left out.
    """
    if not steps:
        return Axis(0, step_ms * least, step_ms)
    steps = sorted(steps)
    low, high = _core(steps)
    first, last = steps[low].time_ms, steps[high].time_ms
    fitting = (w for w in WIDTHS_MS if w >= step_ms and w % step_ms == 0 and last // w - first // w < most)
    width = next(fitting, max(step_ms, WIDTHS_MS[-1]))
    start, end = first // width, last // width + 1
    padding = max(0, least - (end - start))
    before, after = (sum(step.messages for step in part) for part in (steps[:low], steps[high + 1 :]))
    return Axis((start - padding // 2) * width, (end + padding - padding // 2) * width, width, before, after)


def _core(steps: Sequence[Step]) -> tuple[int, int]:
    """Return the first and the last step to show: all of them, unless a few lie far away."""
    total = sum(step.messages for step in steps)
    few = max(total // FEW, int(total >= ENOUGH))
    low = _skipped([step.messages for step in steps], few)
    high = len(steps) - 1 - _skipped([step.messages for step in reversed(steps)], few)
    whole, core = (steps[end].time_ms - steps[start].time_ms for start, end in ((0, len(steps) - 1), (low, high)))
    return (low, high) if (core + 1) * FAR < whole else (0, len(steps) - 1)


def _skipped(counts: Sequence[int], few: int) -> int:
    """Return how many of the first counts add up to `few` at most."""
    return sum(total <= few for total in itertools.accumulate(counts))


def rebinned(steps: Sequence[Step], step_ms: int) -> tuple[list[Step], Axis]:
    """Merge steps into those of the axis that fits them. Return them, without a hole, and the axis."""
    axis = axis_of(steps, step_ms)
    if not steps:
        return [], axis
    sums = dict.fromkeys(range(axis.start, axis.end, axis.width), (0, 0))
    for time_ms, messages, nbytes in steps:
        if axis.start <= time_ms < axis.end:
            at = time_ms // axis.width * axis.width
            sums[at] = sums[at][0] + messages, sums[at][1] + nbytes
    return [Step(at, *sums[at]) for at in sums], axis
