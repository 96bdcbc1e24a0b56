"""Write the lake's key index of one split of a log. Runs in a worker.

The entries are those that dispatch puts into the store's own index: for each key of a message, and for its client id
(UNIQ_KEY), the hash of `topic#key` with the record's offset and store time. Rows are sorted by hash, so a look-up reads
few row groups. It then compares the key itself in the message (`lake.find`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mqlake.kernel import dispatch_records
from mqlake.kernel.types import BLANK, REACHED_END
from mqlake.lake.entries import done
from mqlake.lake.index import KEY, write_index
from mqlake.lake.storage import storage_at
from mqlake.lake.stores import Member
from mqlake.spark.jobs.archive_split import WHOLE_LOG
from mqlake.spark.read_split import SplitScan
from mqlake.spark.split import Split
from mqlake.store.scan import next_whole

STEP_BYTES = 8 << 20


def index_split(lake: str, member: Member, split: Split) -> pa.Table:
    """Write the index of a split, even if it is empty: a range without a file counts as not indexed."""
    keys = np.concatenate([np.empty(0, KEY), *IndexScan(WHOLE_LOG, split, ("size",)).keys()])
    file = write_index(storage_at(lake), member.name, member.identity, split.start, split.end, keys)
    return done([file])


class IndexScan(SplitScan):
    """Walk a split as dispatch does."""

    def keys(self) -> list[np.ndarray]:
        found, offset = [], self._split.start
        while offset < self._split.end:
            stretch = self._stretch(offset, self._split.end)
            at = stretch.position
            while at < stretch.end:
                step = dispatch_records(stretch.data, at, stretch.end, stretch.log_start, STEP_BYTES, (), True, False)
                found.append(np.frombuffer(step.keys, KEY))
                at = step.position
                if step.why == BLANK:
                    at = stretch.end
                elif step.why != REACHED_END:
                    at = next_whole(stretch, at, step.why, True)
            offset = stretch.log_start + stretch.end
        return found
