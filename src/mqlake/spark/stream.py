"""Read the log as a stream: `spark.readStream.format("mqlake").load(path)`.

A batch is a byte range of each store's log, between two positions in Spark's checkpoint (`offsets.py`). The code of
batch reads plans and reads exactly these bytes, so a repeated batch reads the same rows. Both ends of a range are
record boundaries before the visible end, and the next batch begins where the last one ended. After a crash of the
driver or a worker nothing is missing and nothing comes twice.

A position also holds what was before it in the log (`seam.py`), which is checked before the stream continues: a store
that was replaced, or restored from a backup, is reported and not skipped over.

A new store enters a stream with its position alone; the following batch is the first to read it. So the checkpoint
records where the store began, whatever is deleted or written before its first batch finishes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from mqlake.errors import InvalidConfig
from mqlake.spark.admission import admit
from mqlake.spark.offsets import Positions, beginning, offset_of, positions_of, reported_positions, seams_of
from mqlake.spark.options import MIB, SourceOptions, StreamOptions
from mqlake.spark.plan import cut
from mqlake.spark.split import Split
from mqlake.spark.tails import Tails, boundaries_of, given_offsets, retry_if_deleted
from mqlake.spark.ways import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery

DEFAULT_MAX_BYTES = 256 * MIB
"""Bytes of log per batch. Smaller batches cost more to start, larger ones take long to repeat."""

Offset = dict[str, Any]


class MqlakeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process next to the driver while the query runs. A copy without open stores reads in the workers."""

    def __init__(self, options: SourceOptions, stream: StreamOptions, schema: pa.Schema) -> None:
        self._options = options
        self._stream = stream
        self._schema = schema
        self._tails = Tails(options, stream)
        self._ends_by_itself = False
        """Whether the query's trigger is availableNow."""
        self._target: Positions | None = None
        """Where such a query ends: what its first look found."""

    # ---- positions

    def initialOffset(self) -> Offset:
        start = self._stream.starting_timestamp
        return beginning(json.dumps(self._stream.starting_offsets if start is None else start))

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._stream.max_rows_per_trigger is not None:
            return ReadMaxRows(self._stream.max_rows_per_trigger)
        return ReadMaxBytes(self._stream.max_bytes_per_trigger or DEFAULT_MAX_BYTES)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends_by_itself, self._target = True, None

    def reportLatestOffset(self) -> Offset:
        return offset_of(retry_if_deleted(lambda: ends_of(self._tails.look({}))))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return where a batch that begins at `start` ends. Returns `start` itself if there is nothing new."""
        return retry_if_deleted(lambda: self._latest(start, limit))

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        positions, seams = positions_of(start), seams_of(start)
        snapshots, target = self._look(positions)
        if positions is None:
            self._require_known(snapshots)
            begun = {root: self._tails.begin(snapshot) for root, snapshot in snapshots.items()}
            return offset_of(begun, self._tails.seams(snapshots, begun))
        starts, ends, entered = {}, {}, {}
        for root, snapshot in snapshots.items():
            if root in positions:
                starts[root] = self._tails.settle(snapshot, positions[root], seams.get(root))
                ends[root] = max(starts[root], min(snapshot.end, target.get(root, 0)))
            elif root in target:
                entered[root] = self._tails.enter(snapshot)
        for root in positions.keys() - snapshots.keys():
            self._tails.missing(root, positions[root])
        boundaries = {root: boundaries_of(snapshots[root]) for root in starts}
        reached = {**admit(starts, ends, limit, boundaries), **entered}
        # A position that stays must keep its text, or Spark would take it for a new one.
        moved = {root: at for root, at in reached.items() if not at == starts.get(root) == positions.get(root)}
        kept = {root: seam for root, seam in seams.items() if root not in moved}
        return offset_of({**positions, **moved}, {**kept, **self._tails.seams(snapshots, moved)})

    def _look(self, positions: Positions | None) -> tuple[dict[str, Snapshot], Positions]:
        """Return a snapshot of every store, and up to where the query reads them."""
        if self._ends_by_itself and self._target is None:
            snapshots = self._tails.look_at_all(positions)
            self._target = ends_of(snapshots)
        else:
            snapshots = self._tails.look(positions)
        return snapshots, ends_of(snapshots) if self._target is None else self._target

    def _require_known(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Raise InvalidConfig if offsets were given for a store that the stream does not read."""
        given = self._stream.starting_offsets
        if isinstance(given, dict):
            strangers = given_offsets(given).keys() - {Path(root).resolve() for root in snapshots}
            if strangers:
                expected = f"this stream reads {', '.join(snapshots)}"
                raise InvalidConfig("option startingOffsets", ", ".join(map(str, sorted(strangers))), expected)

    # ---- batches

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return retry_if_deleted(lambda: self._splits(start, end))

    def _splits(self, start: Offset, end: Offset) -> list[Split]:
        starts, ends = positions_of(start) or {}, positions_of(end) or {}
        first_seams, last_seams = seams_of(start), seams_of(end)
        moved = [
            root
            for root in ends
            if root in starts and (starts[root], first_seams.get(root)) != (ends[root], last_seams.get(root))
        ]
        snapshots = self._tails.look(starts) if moved else {}
        parts = []
        for root in moved:
            if root not in snapshots:
                self._tails.missing(root, starts[root])
                continue
            first = self._tails.settle(snapshots[root], starts[root], first_seams.get(root))
            stop = self._tails.settle(snapshots[root], ends[root], last_seams.get(root))
            if first < stop:
                parts.append((snapshots[root], first, stop))
        # A batch ends with its last task. One task per core: starting more costs more than an even share saves.
        options = replace(self._options, min_partitions=self._options.min_partitions or os.cpu_count())
        if options.via == "auto" and sum(stop - first for _, first, stop in parts) <= options.smallest_split:
            options = replace(options, via="scan")  # looking for a cheaper way would cost more than the scan
        return [split for store in cut(parts, options) for split in store.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Split):
            return iter(())
        from mqlake.spark.read_split import read_split

        return read_split(self._options, self._schema, partition)

    def stop(self) -> None:
        self._tails.close()


def ends_of(snapshots: Mapping[str, Snapshot]) -> Positions:
    return {root: snapshot.end for root, snapshot in snapshots.items()}


def lag(query: StreamingQuery) -> dict[str, int]:
    """Return the bytes of each store's log that a query had not read at its last progress report."""
    progress = query.lastProgress
    lags: dict[str, int] = {}
    for source in progress["sources"] if progress is not None else ():
        reached = reported_positions(source["endOffset"])
        latest = reported_positions(source["latestOffset"])
        lags |= {root: max(0, end - reached.get(root, 0)) for root, end in latest.items()}
    return lags
