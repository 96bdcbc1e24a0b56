"""What `mqlake bench disk` advises: settings of a store for this disk, each with the figures that speak for it.

The published comparison, on which RocketMQ's defaults rest, found write calls ahead of mapped writes from 64 bytes
on, and no gain from blocks above 16 KiB, which is four pages. Another disk may say something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mqlake.cli import show
from mqlake.cli.bench_disk import PAGE, Measured

MESSAGES = (256, 1 << 10, 4 << 10)
"""Block sizes of usual records: the pool is judged by these."""
GAIN = 1.1
"""The pool must be faster by this factor and by more than the spread: it takes memory, and a kill loses its content."""
ENOUGH = 0.8
"""A block is large enough if it reaches this part of the best rate."""
MOST_PAGES = 64
"""A flush that waits for more leaves too much for a power cut."""
CHEAP_SYNC_MS = 1.0
NO_SYNC_MS = 0.02
"""No disk writes and confirms in less: this is memory, or a disk that does not wait."""


class Advice(NamedTuple):
    """One setting: its name for people, RocketMQ's settings, and why."""

    name: str
    choice: str
    settings: str
    reason: str


def advise(cases: Sequence[Measured]) -> list[Advice]:
    found = {(case.kind, case.way, case.block): case for case in cases if case.rates}
    advice = [_pool(found), _least_pages(found), _sync_mode(found)]
    return [one for one in advice if one is not None]


Found = dict[tuple[str, str, int], Measured]


def _pool(found: Found) -> Advice | None:
    """Compare what a program sees in the long run: writes of messages that are synced in the background."""
    pairs = [
        (found["end", "pool", block], found["end", "mapped", block])
        for block in MESSAGES
        if ("end", "pool", block) in found and ("end", "mapped", block) in found
    ]
    if not pairs:
        return None
    gain, (pool, mapped) = sorted(((pair[0].rate / pair[1].rate, pair) for pair in pairs), key=lambda each: each[0])[
        len(pairs) // 2
    ]
    noise = pool.spread + mapped.spread
    spread = f"spread ±{100 * noise:.0f} %" if len(pool.rates) > 1 else "one round, so the spread is unknown"
    figures = (
        f"writes of {block_name(pool.block)} with one sync at the end: pool {rate_text(pool.rate)}, "
        f"mapped {rate_text(mapped.rate)} MiB/s ({gain:.2f} times; {spread})"
    )
    if gain >= GAIN and gain - 1 > noise:
        cost = "a killed process loses what no commit had taken"
        return Advice("pool", "on", "transientStorePoolEnable=true", f"{figures}; the price: {cost}")
    why = "no gain" if gain < 1 else "too little gain, or too uncertain, for what a killed process would lose"
    return Advice("pool", "off", "transientStorePoolEnable=false", f"{figures}: {why}")


def _least_pages(found: Found) -> Advice | None:
    """Return the smallest write, in pages, that is about as fast as any."""
    writes = [
        case
        for (kind, way, block), case in found.items()
        if (kind, way) == ("end", "write") and block % PAGE == 0 and PAGE <= block <= MOST_PAGES * PAGE
    ]
    if not writes:
        return None
    best = max(writes, key=lambda case: case.rate)
    enough = min((case for case in writes if case.rate >= ENOUGH * best.rate), key=lambda case: case.block)
    pages = enough.block // PAGE
    reason = (
        f"write calls of {block_name(enough.block)} reach {rate_text(enough.rate)} MiB/s, "
        f"{100 * enough.rate / best.rate:.0f} % of the best ({block_name(best.block)}: {rate_text(best.rate)})"
    )
    reason += "; fewer pages leave less for a power cut"
    settings = f"flushCommitLogLeastPages={pages}, commitCommitLogLeastPages={pages}"
    return Advice("least pages", str(pages), settings, reason)


def _sync_mode(found: Found) -> Advice | None:
    synced = [found[key] for way in ("mapped", "write") if (key := ("block", way, PAGE)) in found]
    if not synced:
        return None
    fastest = max(synced, key=lambda case: case.rate)
    sync_ms = 1000 * PAGE / fastest.rate
    spread = f" (±{100 * fastest.spread:.0f} %)" if len(fastest.rates) > 1 else ""
    rate = f"one thread puts {show.count(round(1000 / sync_ms))} messages/s at most, more threads share syncs"
    if sync_ms < NO_SYNC_MS:
        reason = (
            f"a sync takes {1000 * sync_ms:.0f} µs, so this is memory or a disk that does not wait: measure another"
        )
        return Advice("sync mode", "unknown", "flushDiskType=ASYNC_FLUSH", reason)
    if sync_ms <= CHEAP_SYNC_MS:
        reason = f"a sync takes {sync_ms:.2f} ms{spread}: {rate}, and a power cut loses nothing"
        return Advice("sync mode", "sync", "flushDiskType=SYNC_FLUSH", reason)
    reason = f"a sync takes {sync_ms:.1f} ms{spread}: with it {rate}; SYNC_FLUSH if a power cut must lose nothing"
    return Advice("sync mode", "async", "flushDiskType=ASYNC_FLUSH", reason)


def crossings(cases: Sequence[Measured]) -> list[str]:
    """Return where the mapped file and where calls are ahead by more than the rounds differ."""
    lines = []
    for kind, way, name in (("none", "write", "Writes without a sync"), ("read", "read", "Reads from the page cache")):
        found = {(case.way, case.block): case.rates for case in cases if case.kind == kind and case.rates}
        blocks = sorted({block for _, block in found})
        ahead = {
            first: [block for block in blocks if min(found[first, block]) > max(found[second, block])]
            for first, second in (("mapped", way), (way, "mapped"))
        }
        parts = [
            f"{subject} ahead with {_ranges(blocks, ahead[of])}"
            for subject, of in (("the mapped file is", "mapped"), (f"{way} calls are", way))
            if ahead[of]
        ]
        if sum(map(len, ahead.values())) < len(blocks):
            parts.append("the rest is within the spread" if parts else "all differences are within the spread")
        lines.append(f"{name}: {'; '.join(parts)}.")
    return lines


def _ranges(blocks: Sequence[int], chosen: Sequence[int]) -> str:
    """Return block sizes as ranges of neighbours."""
    parts: list[list[int]] = []
    for place, block in enumerate(blocks):
        if block in chosen:
            if parts and place and parts[-1][-1] == blocks[place - 1]:
                parts[-1].append(block)
            else:
                parts.append([block])
    names = [block_name(p[0]) if len(p) == 1 else f"{block_name(p[0])} to {block_name(p[-1])}" for p in parts]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def block_name(block: int) -> str:
    """Return a block size. Most are powers of two, so they have no fraction."""
    return show.size(block).replace(".0 ", " ")


def rate_text(rate: float) -> str:
    """Return bytes per second in MiB, with three digits or so."""
    number = rate / (1 << 20)
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 1 else f"{number:.3f}"
