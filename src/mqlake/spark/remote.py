"""Read from a broker instead of from files: `option("endpoint", "127.0.0.1:9876")`, through mqlake's own client.

The plan asks where each queue begins and ends; that is the snapshot. A split is a range of one queue, and a task that
gets fewer messages than planned fails with ChangedUnderRead. A broker gives records as its log has them, so every
column is there, with the same values as a read of the files.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mqlake.client import AsyncAdmin
from mqlake.errors import ChangedUnderRead, OffsetOutOfRange
from mqlake.logs.stretch import Stretch
from mqlake.remoting.bodies import MessageQueue
from mqlake.spark.jobs.tasks import settle
from mqlake.spark.options import SourceOptions
from mqlake.spark.schema import Table
from mqlake.spark.selection import Selection
from mqlake.spark.split import RemoteSplit
from mqlake.spark.topics import wants
from mqlake.store.scan import BATCH_BYTES, Scan

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS_A_CORE = 2
LEAST_ROWS = 10_000
"""Splits are not made smaller than this just to get more of them."""
PULL_COUNT = 32
OFFSET_AT = 28
"""Where a record has its physical offset."""
OFFSET = struct.Struct(">q")
SIZE = struct.Struct(">i")


# ---- beside the driver


def plan_remote(options: SourceOptions) -> list[RemoteSplit]:
    """Return the splits of a read from a broker: ranges of the queues of the wanted topics."""
    assert options.endpoint is not None
    return asyncio.run(_plan(options, options.endpoint))


async def _plan(options: SourceOptions, endpoint: str) -> list[RemoteSplit]:
    async with AsyncAdmin(endpoint) as admin:
        names = options.topics if options.topics is not None else await admin.topics()
        ranges: dict[MessageQueue, tuple[int, int]] = {}
        for topic in names:
            if wants(options, topic):
                ranges |= await admin.ranges(topic)
    wanted = {
        queue: ends for queue, ends in ranges.items() if options.queues is None or queue.queue_id in options.queues
    }
    total = sum(end - first for first, end in wanted.values())
    count = options.min_partitions or SPLITS_A_CORE * (os.cpu_count() or 1)
    least = 1 if options.min_partitions else LEAST_ROWS
    rows = max(least, -(-total // count))
    return [
        RemoteSplit(endpoint, queue.topic, queue.broker_name, queue.queue_id, at, min(at + rows, end))
        for queue, (first, end) in wanted.items()
        for at in range(first, end, rows)
    ]


# ---- in a worker


def read_remote(options: SourceOptions, schema: pa.Schema, split: RemoteSplit) -> Iterator[pa.RecordBatch]:
    """Yield the wanted messages of a split as batches of the table, in queue order."""
    settle()
    selection = Selection(options, (split.topic,))
    table = Table(split.endpoint, schema)
    with_offset = tuple(dict.fromkeys((*selection.columns, "physical_offset")))
    scan = Scan(with_offset, BATCH_BYTES, True, None, "fail", True)
    for records in _pieces(split):
        for batch in _batches(scan, split, records):
            batch = selection.of(batch)
            if batch.num_rows:
                yield table.of_messages(batch)


def _pieces(split: RemoteSplit) -> Iterator[bytearray]:
    """Yield the split's records in pieces of about one batch."""
    queue = MessageQueue(split.topic, split.broker_name, split.queue_id)
    piece = bytearray()
    with asyncio.Runner() as runner:
        admin = runner.run(_connected(split.endpoint))
        at = split.first
        while at < split.stop:
            try:
                records, after, _ = runner.run(admin.records(queue, at, min(PULL_COUNT, split.stop - at)))
            except OffsetOutOfRange as error:
                raise ChangedUnderRead(split.endpoint, at, str(error), f"{queue} up to {split.stop}") from None
            if after <= at:
                raise ChangedUnderRead(split.endpoint, at, "the end of the queue", f"{queue} up to {split.stop}")
            piece += records
            at = after
            if len(piece) >= BATCH_BYTES:
                yield piece
                piece = bytearray()
        runner.run(admin.close())
    if piece:
        yield piece


async def _connected(endpoint: str) -> AsyncAdmin:
    return AsyncAdmin(endpoint)


def _batches(scan: Scan, split: RemoteSplit, records: bytearray) -> Iterator[pa.RecordBatch]:
    """Yield records as batches of a scan.

    A scan proves that each record is where it says; these are not, so they say so while they are scanned, and get
    their real physical offsets back in the batch.
    """
    import pyarrow as pa

    places, offsets, at = [], [], 0
    while at < len(records):
        places.append(at)
        offsets.append(OFFSET.unpack_from(records, at + OFFSET_AT)[0])
        OFFSET.pack_into(records, at + OFFSET_AT, at)
        at += max(SIZE.size, SIZE.unpack_from(records, at)[0])
    of_place = np.array(offsets, np.int64)
    where = Path(f"{split.endpoint}/{split.topic}/{split.queue_id}")
    for batch in scan.batches(Stretch(bytes(records), 0, 0, len(records), where), lambda _: None):  # type: ignore[arg-type]
        column = batch.schema.get_field_index("physical_offset")
        numbers = np.searchsorted(places, batch.column(column).to_numpy())
        yield batch.set_column(column, batch.schema.field(column), pa.array(of_place[numbers]))
