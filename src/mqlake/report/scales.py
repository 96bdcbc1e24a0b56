"""Numbers for people: short texts, round axis ticks, buckets that double. Points in time are in `times.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mqlake.report.data import Bucket
from mqlake.report.times import DAY, HOUR, MINUTE, SECOND

MIN_BUCKETS = 7
"""With fewer, bars would be too wide: empty buckets are added on both sides."""
NBSP = "\N{NO-BREAK SPACE}"
Text = Callable[[float], str]
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


# ---- texts


def count(number: float) -> str:
    """Return a number with all its digits."""
    return f"{number:,.0f}"


def short(number: float) -> str:
    """Return a number in at most three digits and a letter."""
    for unit in ("", "k", "M", "G"):
        if abs(number) < 999.5:
            return _three(number) + unit
        number /= 1000
    return _three(number) + "T"


def size(number: float) -> str:
    """Return a size in bytes, KiB, MiB and so on."""
    for unit in UNITS[:-1]:
        if abs(number) < 1023.5:
            return f"{_three(number)}{NBSP}{unit}"
        number /= 1024
    return f"{_three(number)}{NBSP}{UNITS[-1]}"


def duration(ms: float) -> str:
    """Return a duration with its unit."""
    for limit, unit, name in ((SECOND, 1, "ms"), (MINUTE, SECOND, "s"), (HOUR, MINUTE, "min"), (2 * DAY, HOUR, "h")):
        if abs(ms) < limit:
            return f"{_three(ms / unit)}{NBSP}{name}"
    return f"{_three(ms / DAY)}{NBSP}d"


def percent(share: float) -> str:
    return f"{100 * share:.1f}{NBSP}%" if share >= 0.001 or share == 0 else f"<{NBSP}0.1{NBSP}%"


def _three(number: float) -> str:
    """Return at most three significant digits, without trailing zeroes."""
    decimals = 0 if abs(number) >= 99.95 or number == int(number) else 1 if abs(number) >= 9.995 else 2
    text = f"{number:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# ---- ticks


def ticks(highest: float, wanted: int = 4, *, base: int = 10, whole: bool = False) -> list[float]:
    """Return round values from 0 to at least `highest`: round in KiB, MiB … if base is 1024, integers if `whole`."""
    unit = 1024 ** min(len(UNITS) - 1, int(math.log(max(highest, 1), 1024))) if base == 1024 else 1
    rough = max(highest, 1e-9) / unit / wanted
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    step = max(1, math.ceil(step)) if whole else step
    number = max(1, math.ceil(highest / unit / step - 1e-9))
    return [place * step * unit for place in range(number + 1)]


# ---- aggregation


def doublings(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Merge buckets so that each ends at twice its start. No bucket between the first and the last is missing."""
    sums: dict[int, int] = {}
    for bucket in buckets:
        if bucket.messages:
            low = 1 << (bucket.low.bit_length() - 1) if bucket.low else 0
            sums[low] = sums.get(low, 0) + bucket.messages
    if not sums:
        return []
    first, last = (low.bit_length() for low in (min(sums), max(sums)))
    short = max(0, MIN_BUCKETS - 1 - (last - first))
    first = max(0, first - short // 2)
    last = max(last, first + MIN_BUCKETS - 1)
    lows = [1 << (number - 1) if number else 0 for number in range(first, last + 1)]
    return [Bucket(low, max(1, 2 * low), sums.get(low, 0)) for low in lows]


def percentile(buckets: Sequence[Bucket], share: float) -> Bucket | None:
    """Return the bucket of the smallest value that at least this share of all values does not exceed."""
    total = sum(bucket.messages for bucket in buckets)
    seen = 0
    for bucket in sorted(buckets):
        seen += bucket.messages
        if total and seen >= share * total:
            return bucket
    return None
