"""Decide how far one batch of a stream reads: to the end, or up to a limit of bytes or records.

The limit is shared among the stores in proportion to how much each has to read. Each store with new records advances by
at least one record. So a record larger than the limit blocks nothing, and no store starves next to a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from mqlake.spark.boundaries import Boundaries
from mqlake.spark.offsets import Positions


def admit(starts: Positions, ends: Positions, limit: ReadLimit, boundaries: Mapping[str, Boundaries]) -> Positions:
    """Return where a batch that begins at `starts` ends: at `ends`, or before if the limit says so."""
    if not isinstance(limit, (ReadMaxBytes, ReadMaxRows)):
        return ends
    left = limit.max_bytes if isinstance(limit, ReadMaxBytes) else limit.max_rows
    lags = {store: ends[store] - starts[store] for store in starts if ends[store] > starts[store]}
    total = sum(lags.values())
    reached = dict(starts)
    for store in sorted(lags, key=lambda store: lags[store]):  # small ones first: large ones get what they leave over
        share = max(1, left * lags[store] // total)
        start, known = starts[store], boundaries[store]
        if isinstance(limit, ReadMaxBytes):
            end = known.at_or_before(min(start + share, ends[store]), start)
            end = end if end > start else known.at_or_after(start + 1)
            used = end - start
        else:
            end, used = known.after_records(start, share)
        reached[store] = min(end, ends[store])
        left = max(0, left - used)
        total -= lags[store]
    return reached
