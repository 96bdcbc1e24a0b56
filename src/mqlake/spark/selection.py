"""Filter the rows of a scanned batch: what neither the kernel nor the plan can decide alone.

The plan narrows a read to byte ranges, queue entries or index hits, which may hold more than was selected. This filter
is exact, whichever way the rows were found.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.spark.options import SourceOptions
from mqlake.spark.schema import DAMAGE, STORE
from mqlake.spark.topics import wants
from mqlake.store.scan import HALF_OR_ROLLED_BACK

__all__ = ["HALF_OR_ROLLED_BACK", "Selection"]


class Selection:
    """Filter scanned batches. `columns` lists what the scan must provide for that."""

    def __init__(self, options: SourceOptions, topics: tuple[str, ...] | None) -> None:
        """`topics` are those that the scan itself lets through; None means all."""
        self._options = options
        self._by_topic = topics is None and (options.topics_pattern is not None or not options.include_internal)
        self._known: dict[str, bool] = {}
        self.columns = self._scan_columns()

    def _scan_columns(self) -> tuple[str, ...]:
        options = self._options
        needed = {
            "topic": self._by_topic,
            "sys_flag": not options.include_internal,
            "queue_id": options.queues is not None,
            "store_timestamp": options.start_time is not None or options.end_time is not None,
            "tags": options.tags is not None,
            "keys": options.keys is not None,
        }
        wanted = [name for name in options.columns if name not in (STORE, DAMAGE)]
        wanted += [name for name, need in needed.items() if need and name not in wanted]
        return tuple(wanted) or ("size",)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows in their order."""
        masks = [mask for mask in self._masks(batch) if mask is not None]
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        if masks and masks[0].true_count < batch.num_rows:  # avoid a copy if all rows are wanted
            batch = batch.filter(masks[0])
        return batch if self._options.keys is None else batch.take(self._with_keys(batch))

    def _masks(self, batch: pa.RecordBatch) -> list[pa.Array | None]:
        options = self._options
        masks: list[pa.Array | None] = []
        if self._by_topic:
            masks.append(self._topic_mask(batch.column("topic")))
        if not options.include_internal:
            flags = batch.column("sys_flag").to_numpy()
            if np.bitwise_or.reduce(flags) & HALF_OR_ROLLED_BACK:  # few batches have such messages
                masks.append(pa.array(flags & HALF_OR_ROLLED_BACK == 0))
        if options.queues is not None:
            masks.append(_among(batch.column("queue_id"), options.queues, pa.int32()))
        if options.tags is not None:
            masks.append(_among(batch.column("tags"), options.tags, pa.string()))
        for compare, bound in ((pc.greater_equal, options.start_time), (pc.less, options.end_time)):
            if bound is not None:
                times = batch.column("store_timestamp")
                masks.append(compare(times, pa.scalar(bound, times.type)))
        return masks

    def _topic_mask(self, topics: pa.DictionaryArray) -> pa.Array | None:
        """Return the mask by topic, decided once per distinct name. None if all topics are wanted."""
        names = topics.dictionary.to_pylist()
        self._known |= {name: wants(self._options, name) for name in names if name not in self._known}
        wanted = [number for number, name in enumerate(names) if self._known[name]]
        if len(wanted) == len(names):
            return None
        return pc.is_in(topics.indices, value_set=pa.array(wanted, topics.indices.type))

    def _with_keys(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the indices of the rows that have one of the keys."""
        keys = batch.column("keys")
        assert self._options.keys is not None
        hits = _among(pc.list_flatten(keys), self._options.keys, pa.string())
        return pc.unique(pc.list_parent_indices(keys).filter(hits))


def _among(column: pa.Array, values: tuple[object, ...], kind: pa.DataType) -> pa.Array:
    return pc.is_in(column, value_set=pa.array(values, kind))
