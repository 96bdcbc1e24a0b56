"""The log holds a staged batch exactly once: after a kill at every step, replays, other writers, lost files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqlake import CommitLogConfig, ConsumeQueueConfig, IndexConfig, Message, MessageStore, StoreConfig
from mqlake.errors import BadFile, InvalidConfig, OtherRows, StoreLocked, UnfinishedBatch
from mqlake.files.layout import Layout
from mqlake.ingest import batches, staging
from mqlake.ingest.batches import SINK_TOPIC, Batch, Fence, commit_parts
from mqlake.ingest.pack import Packer
from mqlake.ingest.staging import Part, Staging
from mqlake.logs import log_writer
from mqlake.logs.log_writer import LogWriter
from tests.helpers import LOG_FILE, QUEUE_FILE

CONFIG = StoreConfig(
    commit_log=CommitLogConfig(file_size_bytes=4096),
    consume_queue=ConsumeQueueConfig(file_size_bytes=QUEUE_FILE),
    index=IndexConfig(slot_count=100, entry_count=400),
)
BORN = 1_700_000_000_000


def batch_of(numbers: range, size: int = 600) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "topic": pa.array(["orders" if number % 3 else "payments" for number in numbers]),
            "body": pa.array([(b"%d " % number).ljust(size, b".") for number in numbers]),
            "born_timestamp": pa.array([BORN + number for number in numbers], pa.int64()),
        }
    )


def stage(path: Path, fence: Fence | None, *parts: range, config: StoreConfig = CONFIG) -> tuple[Staging, list[Part]]:
    """Stage parts, as the tasks of one attempt do."""
    layout = Layout(path)
    layout.own.mkdir(parents=True, exist_ok=True)
    job = Staging(layout, fence.job if fence is not None else "run")
    return job, [
        job.write(number, [batch_of(rows)], Packer(config.commit_log, "here"), durable=True)
        for number, rows in enumerate(parts)
    ]


def commit(path: Path, fence: Fence | None, *parts: range, wait_s: float = 0) -> int:
    job, staged = stage(path, fence, *parts)
    return commit_parts(path, CONFIG, job, staged, fence, wait_s)


def numbers_in(path: Path, *, ours: bool = True) -> list[int]:
    """Return the numbers of the messages in log order. The messages of other writers have a flag."""
    with MessageStore.open(path, config=CONFIG, read_only=True) as store:
        rows = [row for batch in store.scan(columns=["topic", "flag", "body"]) for row in batch.to_pylist()]
    return [int(row["body"].split()[0]) for row in rows if row["topic"] != SINK_TOPIC and (row["flag"] == 0) == ours]


FENCE = Fence("query-1", 7)
PARTS = (range(5), range(5, 5), range(5, 16))
ALL = list(range(16))


def test_a_batch_that_ended_is_not_written_again(tmp_path: Path) -> None:
    assert commit(tmp_path, FENCE, *PARTS) == 16
    assert commit(tmp_path, FENCE, *PARTS) == 0
    assert commit(tmp_path, Fence("query-1", 6), *PARTS) == 0, "nor is an older one"
    assert numbers_in(tmp_path) == ALL
    assert commit(tmp_path, Fence("query-1", 8), range(16, 26)) == 10
    assert commit(tmp_path, Fence("query-2", 7), range(26, 36)) == 10, "another source has its own numbers"
    assert numbers_in(tmp_path) == list(range(36))
    assert not list((tmp_path / "mqlake" / "staging").iterdir())


def test_an_ended_batch_is_known_without_its_markers_or_without_its_state_file(tmp_path: Path) -> None:
    """Retention deletes markers, and the state file can get lost."""
    commit(tmp_path, FENCE, *PARTS)
    memory = tmp_path / "mqlake" / "sinks" / "query-1.json"
    memory.unlink()
    assert commit(tmp_path, FENCE, *PARTS) == 0
    memory.write_text(json.dumps({"batch": 9, "marker": 1000}))
    assert commit(tmp_path, Fence("query-1", 9), *PARTS) == 0
    memory.write_text("{")
    with pytest.raises(BadFile, match="remove it"):
        commit(tmp_path, FENCE, *PARTS)


STEPS: list[tuple[Any, str]] = [
    (LogWriter, "_raise_if_refused"),  # before every record, because a chunk holds one record, and before a new file
    (Batch, "_mark"),
    (batches, "replace_file"),
    (staging, "replace_file"),
    (MessageStore, "flush"),
    (Staging, "remove"),
]


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that exits, without closing anything, before step `step`. Return whether it got there."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    steps = iter(range(1, 10_000))

    def counted(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(steps) == step:
                os._exit(9)
            return real(*arguments, **named)

        return call

    try:
        log_writer.PACKED_BYTES = 1  # type: ignore[misc]
        for owner, name in STEPS:
            setattr(owner, name, counted(getattr(owner, name)))
        work()
        os._exit(0)
    finally:
        os._exit(1)


def put_the_same(path: Path, number: int) -> None:
    """Put a message that equals ours, and one that differs in its flag, as another writer."""
    with MessageStore.open(path, config=CONFIG) as store:
        row = batch_of(range(number, number + 1)).to_pylist()[0]
        store.put(Message(row["topic"], row["body"], born_timestamp=row["born_timestamp"]))
        store.put(Message(row["topic"], row["body"], born_timestamp=row["born_timestamp"], flag=1))


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "meddling", ["by turns", pytest.param("always", marks=LONG), pytest.param("never", marks=LONG)]
)
def test_a_kill_at_any_step_leaves_every_row_once(tmp_path: Path, meddling: str) -> None:
    """The replay stages again, with other part sizes. With `meddling`, another writer puts a row like the next one."""
    step = 0
    while True:
        step += 1
        path = tmp_path / str(step)
        commit(path, Fence("query-1", 6), range(100, 103))
        job, staged = stage(path, FENCE, *PARTS)
        if not killed_at(step, lambda: commit_parts(path, CONFIG, job, staged, FENCE, 0)):  # noqa: B023
            break
        others: list[int] = []
        if meddling == "always" or (meddling == "by turns" and step % 2):
            reached = len(numbers_in(path)) - 3
            if reached < 16:
                put_the_same(path, reached)
                others = [reached]
        commit(path, FENCE, range(8), range(8, 16))
        found = numbers_in(path)
        assert sorted(found) == sorted([100, 101, 102, *ALL, *others]), f"killed before step {step}"
        assert commit(path, FENCE, *PARTS) == 0
        assert len(numbers_in(path)) == len(found)
        assert not list((path / "mqlake" / "staging").iterdir())
    assert step > 20, "every record is a step, and there are others"


def test_a_batch_is_completed_through_several_kills(tmp_path: Path) -> None:
    """Each replay gets a little further and continues after another begin marker."""
    stage(tmp_path, FENCE, *PARTS)
    kills = 0
    for step in (5, 4, 7, 3, 5):
        job, staged = stage(tmp_path, FENCE, *PARTS)
        kills += killed_at(step, lambda: commit_parts(tmp_path, CONFIG, job, staged, FENCE, 0))  # noqa: B023
        put_the_same(tmp_path, 15)
    commit(tmp_path, FENCE, *PARTS)
    assert kills == 5
    assert sorted(numbers_in(tmp_path)) == sorted(ALL + [15] * 5)


def test_a_batch_whose_tail_was_lost_is_completed(tmp_path: Path) -> None:
    """A power cut takes what was not synced: the log may end anywhere after the begin marker."""
    job, staged = stage(tmp_path, FENCE, *PARTS)
    assert killed_at(24, lambda: commit_parts(tmp_path, CONFIG, job, staged, FENCE, 0))
    have = numbers_in(tmp_path)
    assert len(have) > 12
    with MessageStore.open(tmp_path, config=CONFIG, read_only=True) as store:
        rows = [row for batch in store.scan(columns=["physical_offset", "size"]) for row in batch.to_pylist()]
    cut = rows[9]["physical_offset"] + rows[9]["size"] // 2
    for file in sorted((tmp_path / "commitlog").iterdir()):
        start = int(file.name)
        if start + 4096 > cut:
            content = file.read_bytes()[: max(cut - start, 0)]
            file.write_bytes(content.ljust(4096, b"\0")) if content else file.unlink()
    assert len(numbers_in(tmp_path)) == 8
    commit(tmp_path, FENCE, *PARTS)
    assert numbers_in(tmp_path) == ALL


def test_a_batch_that_was_begun_and_lost_its_staged_records_is_an_error(tmp_path: Path) -> None:
    job, staged = stage(tmp_path, FENCE, *PARTS)
    assert killed_at(10, lambda: commit_parts(tmp_path, CONFIG, job, staged, FENCE, 0))
    before = numbers_in(tmp_path)
    for path in job.directory.iterdir():
        path.unlink()
    lost = r"batch 7 of query-1 was begun at offset \d+ .* staged records are missing"
    with pytest.raises(UnfinishedBatch, match=lost):
        commit(tmp_path, FENCE, *PARTS)
    assert numbers_in(tmp_path) == before


def test_staged_records_that_changed_are_an_error(tmp_path: Path) -> None:
    job, staged = stage(tmp_path, FENCE, *PARTS)
    path = job.directory / staged[0].name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(BadFile, match="as they were staged"):
        commit_parts(tmp_path, CONFIG, job, staged, FENCE, 0)


def test_damage_after_the_begin_marker_is_an_error(tmp_path: Path) -> None:
    """It is then unknown how much of the batch is in the log, and guessing could write a record twice."""
    job, staged = stage(tmp_path, FENCE, *PARTS)
    assert killed_at(19, lambda: commit_parts(tmp_path, CONFIG, job, staged, FENCE, 0))
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.flush()
        rows = [row for batch in store.scan(columns=["physical_offset", "size"]) for row in batch.to_pylist()]
    at = rows[4]["physical_offset"] + rows[4]["size"] // 2
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    with pytest.raises(UnfinishedBatch, match="the log after it is damaged"):
        commit(tmp_path, FENCE, *PARTS)


def test_staging_without_a_decision_is_removed_by_age_and_decided_staging_stays(
    tmp_path: Path, monkeypatch: Any
) -> None:
    dead, _ = stage(tmp_path, Fence("dead", 1), range(3))
    decided, parts = stage(tmp_path, Fence("decided", 1), range(3))
    decided.decide(parts)
    done, parts = stage(tmp_path, Fence("query-1", 3), range(3))
    done.decide(parts)
    commit(tmp_path, FENCE, *PARTS)
    assert dead.directory.exists() and decided.directory.exists()
    assert not done.directory.exists(), "a later batch of its source has ended"
    monkeypatch.setattr(batches, "LEFT_OVER_S", -1.0)
    commit(tmp_path, Fence("query-1", 8), range(1))
    assert decided.directory.exists() and not dead.directory.exists()


def test_a_store_open_in_another_process_is_waited_for_and_the_process_named(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=CONFIG), pytest.raises(StoreLocked, match=str(os.getpid())):
        commit(tmp_path, FENCE, *PARTS, wait_s=0.1)
    assert commit(tmp_path, FENCE, *PARTS) == 16


def test_a_job_id_that_points_outside_the_staging_folder_is_refused(tmp_path: Path) -> None:
    for name in ("../up", ".", "", "a/b", "a b", "x" * 101):
        with pytest.raises(InvalidConfig):
            Staging(Layout(tmp_path), name)


def test_bulk_appends_write_what_puts_would_have_written(tmp_path: Path) -> None:
    """Queues in turn, queue offsets, files and markers: byte for byte, except for the store time."""
    rows = batch_of(range(300), size=700).to_pylist()
    config = StoreConfig(commit_log=CommitLogConfig(file_size_bytes=LOG_FILE), index=CONFIG.index)
    job, staged = stage(tmp_path / "bulk", None, range(0), config=config)
    packer = Packer(config.commit_log, "here")
    staged.append(job.write(1, [batch_of(range(300), size=700)], packer, durable=False))
    commit_parts(tmp_path / "bulk", config, job, staged, None, 0)
    with MessageStore.open(tmp_path / "puts", config=config) as store:
        for row in rows:
            store.put(Message(row["topic"], row["body"], born_timestamp=row["born_timestamp"]))
    seen = []
    for path in (tmp_path / "bulk", tmp_path / "puts"):
        with MessageStore.open(path, config=config, read_only=True) as store:
            batches_of = store.scan()
            rows_of = [row for batch in batches_of for row in batch.to_pylist()]
        for row in rows_of:
            del row["store_timestamp"]
        ends = [(file.name, file.read_bytes()[-8:]) for file in sorted((path / "commitlog").iterdir())]
        queues = {str(file.relative_to(path)): file.read_bytes() for file in path.glob("consumequeue/*/*/*")}
        seen.append((rows_of, ends, queues))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 300


# ---- jobs, whose rows are added up


def commit_job(path: Path, *parts: pa.RecordBatch) -> int:
    """Commit a batch whose rows are added up, in parts that arrive in this order."""
    layout = Layout(path)
    layout.own.mkdir(parents=True, exist_ok=True)
    job = Staging(layout, FENCE.job)
    staged = [
        job.write(number, [rows], Packer(CONFIG.commit_log, "here", adds_up=True), durable=True)
        for number, rows in enumerate(parts)
    ]
    try:
        return commit_parts(path, CONFIG, job, staged, FENCE, 0)
    except OtherRows:
        job.drop(staged)  # as the sink's abort does
        raise


def changed(rows: pa.RecordBatch, **columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({**dict(zip(rows.schema.names, rows.columns, strict=True)), **columns})


@pytest.mark.parametrize("memory", [True, False])
def test_the_same_rows_are_a_repetition_in_any_order_and_split(tmp_path: Path, memory: bool) -> None:
    assert commit_job(tmp_path, batch_of(range(16))) == 16
    if not memory:
        (tmp_path / "mqlake" / "sinks" / "query-1.json").unlink()
    assert commit_job(tmp_path, batch_of(range(9, 16)), batch_of(range(9)), batch_of(range(0))) == 0
    assert numbers_in(tmp_path) == ALL


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize(
    "rows",
    [
        batch_of(range(15)),
        batch_of(range(17)),
        batch_of(range(1, 17)),
        changed(batch_of(range(16)), born_timestamp=[BORN] * 16),
        changed(batch_of(range(16)), flag=[0] * 15 + [1]),
        changed(batch_of(range(16)), tags=[None] * 15 + ["a"]),
    ],
)
def test_other_rows_under_the_same_identity_are_an_error_that_names_both(
    tmp_path: Path, rows: pa.RecordBatch, memory: bool
) -> None:
    commit_job(tmp_path, batch_of(range(16)))
    if not memory:
        (tmp_path / "mqlake" / "sinks" / "query-1.json").unlink()
    with pytest.raises(
        OtherRows, match=rf"job 'query-1' wrote 16 rows of .* now it has {rows.num_rows} rows of .*"
    ) as e:
        commit_job(tmp_path, rows)
    assert "another jobId" in str(e.value)
    assert numbers_in(tmp_path) == ALL
    assert not list((tmp_path / "mqlake" / "staging").iterdir())


def test_rows_without_a_time_of_their_own_are_the_same_at_any_time(tmp_path: Path) -> None:
    rows = batch_of(range(16))
    timeless = rows.select(["topic", "body"])
    some = changed(rows, born_timestamp=pa.array([None if n % 2 else BORN for n in range(16)], pa.int64()))
    for number, made in enumerate((timeless, some)):
        path = tmp_path / str(number)
        assert commit_job(path, made) == 16
        time.sleep(0.005)
        assert commit_job(path, made) == 0
        with pytest.raises(OtherRows):
            commit_job(path, rows)


def test_an_interrupted_job_is_not_completed_by_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(self: Batch, parts: Any, begun: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Batch, "_complete", dies)
        commit_job(tmp_path, batch_of(range(16)))
    with pytest.raises(OtherRows, match="was interrupted while it wrote 16 rows"):
        commit_job(tmp_path, batch_of(range(17)))
    assert numbers_in(tmp_path) == []
    assert commit_job(tmp_path, batch_of(range(16))) == 16
    assert numbers_in(tmp_path) == ALL
