"""Statistics that a pipeline keeps in the lake equal those of the log. Each byte is counted once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("mqlake.lake")

from mqlake.lake import Lake, harvest
from mqlake.lake.entries import LakeFile
from mqlake.lake.notes import Notes
from mqlake.lake.stores import admit
from mqlake.spark.jobs.report import report_of
from mqlake.spark.jobs.stats import Stats, plans_of
from mqlake.spark.jobs.stats_lake import chain_of, keep_stats
from tests.helpers import open_small
from tests.spark.tables import put_messages, stats_here, write_store

ADDITIVE = ("traffic", "size", "latency")


def keep(store: Path, lake: Path, first: int, last: int) -> None:
    """Commit splits [first, last) of a store with their statistics, as a pipeline does."""
    opened = Lake.open(lake, create=True)
    (member,) = admit(opened, [store])
    (made,) = plans_of(str(store), None, 16 << 10)
    for split in made.splits[first:last]:
        _, files = harvest(keep_stats(opened.place, member, split))
        opened.commit([member.range(split.start, split.end, (), None)], files)


def same(one: Stats, other: Stats) -> bool:
    def chosen(found: Stats) -> pa.Table:
        return found.rows.filter(pc.is_in(found.rows["kind"], pa.array(ADDITIVE)))

    return bool(chosen(one) == chosen(other))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", 300)
    return tmp_path / "store"


def test_lake_and_log_together_count_every_byte_once(store: Path, tmp_path: Path) -> None:
    keep(store, tmp_path / "lake", 0, 3)
    with open_small(store) as opened:
        put_messages(opened, 300, 20)
    found = stats_here(str(store), lake=str(tmp_path / "lake"))
    assert same(found, stats_here(str(store)))
    in_lake, in_log = found.counted[0], found.counted[1]
    assert (in_lake.source, in_log.source) == ("lake", "log")
    assert (in_lake.start, in_lake.end, in_log.end) == (0, in_log.start, found.logs[str(store)][1])


def test_a_lake_alone_returns_what_it_has_counted(store: Path, tmp_path: Path) -> None:
    keep(store, tmp_path / "lake", 0, 100)
    assert same(stats_here((), lake=str(tmp_path / "lake")), stats_here(str(store)))


def test_a_lake_keeps_minutes_of_topics_and_no_finer_steps(store: Path, tmp_path: Path) -> None:
    keep(store, tmp_path / "lake", 0, 2)
    found = stats_here(str(store), lake=str(tmp_path / "lake"))
    (newer, all_of_them) = (pc.sum(found.kind(kind)["messages"]).as_py() for kind in ("trend", "traffic"))
    assert 0 < newer < all_of_them
    for topic in report_of(found).topics:
        assert sum(topic.trend) == topic.messages, "no line is drawn from a part of its messages"


def test_a_range_that_was_not_counted_ends_the_chain() -> None:
    def file(start: int, end: int) -> LakeFile:
        return LakeFile("stats", f"stats/{start}", "s", start, end, 1, 1, 0)

    assert chain_of([file(0, 5), file(5, 9), file(12, 20)]) == [file(0, 5), file(5, 9)]
    assert chain_of([]) == []


def test_a_report_shows_what_the_lake_has_and_what_its_pipeline_noted(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    keep(store, lake, 0, 2)
    notes = Notes(state="failed", started=3, batches=2, last_error="no", latest={str(store): 1 << 20})
    notes.took("stats", 60, 40_000, 0.5)
    notes.save(Lake.open(lake))
    facts = report_of(stats_here(str(store), lake=str(lake)), lake=str(lake)).lake
    assert facts is not None
    assert facts.version == 2 and [(t.name, t.file_count) for t in facts.tables] == [("stats", 2)]
    assert [part.name for part in facts.stores] == [str(store)]
    assert facts.run is not None and facts.run._replace(at_ms=0) == ("failed", 3, 0, 2, "no")
    stages = {stage.name: (stage.messages, stage.bytes, stage.rows_per_s, stage.lag_bytes) for stage in facts.stages}
    assert list(stages) == ["check", "archive", "index", "stats"]
    assert stages["stats"] == (60, 40_000, 120.0, (1 << 20) - facts.stores[0].end)
    assert facts.check is None, "nothing was checked"
    (lake / "_mqlake" / "pipeline.json").write_text("[1]")
    again = report_of(stats_here(str(store), lake=str(lake)), lake=str(lake)).lake
    assert again is not None and again.run is None and again.stages == []
