"""A real RocketMQ serves every message of a store that batches were appended to, and appends after them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from mqlake import MessageStore, StoreConfig
from mqlake.files.layout import Layout
from mqlake.ingest.batches import Fence, commit_parts
from mqlake.ingest.pack import Packer
from mqlake.ingest.staging import Staging
from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.rocketmq import RocketMQ
from tests.interop.test_shared_stores import (
    SETTINGS,
    comparable,
    counts_of,
    dumped_by,
    messages,
    our_lines,
    plain_lines,
)

pytestmark = WITH_ROCKETMQ
CONFIG = StoreConfig.from_properties(SETTINGS)


def rows(seed: int, count: int) -> pa.RecordBatch:
    """Return messages of many kinds, as columns."""
    made = messages(seed, count)
    return pa.record_batch(
        {
            "topic": [m.topic for m in made],
            "body": pa.array([bytes(m.body) for m in made], pa.binary()),
            "properties": pa.array([list(m.properties.items()) for m in made], pa.map_(pa.string(), pa.string())),
            "queue_id": pa.array([m.queue_id for m in made], pa.int32()),
            "flag": pa.array([m.flag for m in made], pa.int32()),
            "sys_flag": pa.array([m.sys_flag for m in made], pa.int32()),
            "born_host": [m.born_host or "127.0.0.1:10911" for m in made],
            "born_timestamp": pa.array([m.born_timestamp for m in made], pa.int64()),
            "reconsume_times": pa.array([m.reconsume_times for m in made], pa.int32()),
            "prepared_offset": pa.array([m.prepared_offset for m in made], pa.int64()),
        }
    )


def write_batch(path: Path, number: int) -> None:
    fence = Fence("query", number)
    layout = Layout(path)
    layout.own.mkdir(parents=True, exist_ok=True)
    staging = Staging(layout, fence.job)
    parts = [
        staging.write(part, [rows(10 * number + part, 150)], Packer(CONFIG.commit_log, "here"), durable=True)
        for part in range(2)
    ]
    assert commit_parts(path, CONFIG, staging, parts, fence, 0) == 300


@pytest.mark.parametrize("version", ["5.5.1", pytest.param("4.9.8", marks=pytest.mark.long)])
def test_rocketmq_serves_what_a_sink_wrote_and_appends_to_it(
    version: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = tmp_path / "ours"
    assert CONFIG.commit_log.file_size_bytes == 65536
    write_batch(path, 0)
    RocketMQ(version).write(path, SETTINGS, plain_lines(2, 60))
    write_batch(path, 1)
    ours = comparable(our_lines(path))
    assert comparable(dumped_by(version, path, tmp_path)) == ours
    counts = counts_of(ours)
    assert counts["records"] == 2 * 300 + 60 + 4, "including the markers of two batches"
    record_property(f"compared: RocketMQ {version} on a store that batches were appended to", counts)
    with MessageStore.open(path, config=CONFIG) as store:
        assert [queue.end_offset for queue in store.queues("MQLAKE_SINK")] == [4]
