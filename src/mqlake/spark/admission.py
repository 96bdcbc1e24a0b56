"""How far one batch of a stream goes: all that is there, or so many bytes or records of it.

A limit is shared among the stores by what each has to be read; each that has anything moves on by one record at least,
so a record larger than the limit stops nothing, and no store waits for ever behind a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from mqlake.spark.boundaries import Boundaries
from mqlake.spark.offsets import Positions


def admit(starts: Positions, ends: Positions, limit: ReadLimit, boundaries: Mapping[str, Boundaries]) -> Positions:
    """Where a batch from `starts` on ends: at `ends`, or before them where the limit says so."""
    if not isinstance(limit, (ReadMaxBytes, ReadMaxRows)):
        return ends
    left = limit.max_bytes if isinstance(limit, ReadMaxBytes) else limit.max_rows
    lags = {store: ends[store] - starts[store] for store in starts if ends[store] > starts[store]}
    total = sum(lags.values())
    reached = dict(starts)
    for store in sorted(lags, key=lambda store: lags[store]):  # what the small ones leave is for the large
        share = max(1, left * lags[store] // total)
        start, known = starts[store], boundaries[store]
        if isinstance(limit, ReadMaxBytes):
            end = known.at_or_before(min(start + share, ends[store]), start)
            end = end if end > start else known.at_or_behind(start + 1)
            used = end - start
        else:
            end, used = known.behind_records(start, share)
        reached[store] = min(end, ends[store])
        left = max(0, left - used)
        total -= lags[store]
    return reached
