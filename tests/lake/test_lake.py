"""The manifest: commits continue where the lake ends, are atomic, and never overwrite another commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from mqlake.errors import BadFile, LakeConflict, LakeInUse, NotALake
from mqlake.lake import Gap, Lake, LakeFile, LakeRange, LakeSnapshot, Seam, done, harvest, identity_of, make_identity
from mqlake.lake.manifest import SNAPSHOT_EVERY, Manifest
from mqlake.lake.parquet import write_table
from mqlake.lake.snapshot import commit_json

ID = "0" * 32
MANIFEST = "_mqlake/manifest"


def part(start: int, end: int, store: str = "/a", identity: str = ID) -> LakeRange:
    return LakeRange(store, identity, store, start, end, (Gap(end - 1, end, "marker"),), Seam(start, end - 1, 7))


def file_of(lake: Lake, start: int, end: int, name: str = "") -> LakeFile:
    path = f"messages/{name or start}.parquet"
    written = write_table(lake.storage, path, pa.table({"n": [start]}))
    return LakeFile("messages", path, "/a", start, end, *written, 1, 2, start, end - 1, "t", "u", ("t", "u"))


def test_a_commit_is_visible_to_the_next_reader(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    file = file_of(lake, 0, 100)
    assert lake.commit([part(0, 100)], [file]) == 1

    seen = Lake.open(tmp_path / "lake").snapshot()
    assert (
        seen.version == 1
        and [replace(f, added=0) for f in seen.files("messages")] == [file]
        and seen.files("index") == []
    )
    state = seen.stores["/a"]
    assert (state.start, state.end, state.gaps, state.seam) == (0, 100, (Gap(99, 100, "marker"),), Seam(0, 99, 7))


def test_a_repeated_commit_changes_nothing(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    ranges, files = [part(0, 100), part(100, 150)], [file_of(lake, 0, 100), file_of(lake, 100, 150)]
    assert lake.commit(ranges, files) == 1
    assert lake.commit(ranges, files) == 1
    assert lake.commit(ranges[1:], files[1:]) == 1
    assert len(lake.snapshot().by_path) == 2 and lake.snapshot().stores["/a"].end == 150


@pytest.mark.parametrize("start", [99, 101, 0])
def test_a_commit_that_does_not_start_at_the_lakes_end_is_refused(tmp_path: Path, start: int) -> None:
    lake = Lake.open(tmp_path, create=True)
    lake.commit([part(0, 100)], [])
    with pytest.raises(LakeConflict, match="starts at 100"):
        lake.commit([part(start, 200)], [])
    assert lake.snapshot().version == 1


def test_a_commit_with_another_identity_under_a_known_name_is_refused(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    lake.commit([part(0, 100)], [])
    with pytest.raises(LakeConflict, match="identity"):
        lake.commit([part(100, 200, identity="1" * 32)], [])


def test_a_commit_of_a_file_that_is_missing_or_has_another_size_is_refused(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    file = file_of(lake, 0, 100)
    (tmp_path / file.path).write_bytes(b"short")
    with pytest.raises(LakeConflict, match="5 bytes"):
        lake.commit([part(0, 100)], [file])
    (tmp_path / file.path).unlink()
    with pytest.raises(LakeConflict, match="no file"):
        lake.commit([part(0, 100)], [file])


def test_one_commit_swaps_files_and_lists_the_old_ones_until_they_are_forgotten(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    small = [file_of(lake, 0, 50), file_of(lake, 50, 100)]
    lake.commit([part(0, 100)], small)
    large = file_of(lake, 0, 100, "large")
    lake.commit([], [large], [file.path for file in small])
    seen = lake.snapshot()
    assert [f.path for f in seen.files("messages")] == [large.path] and set(seen.removed) == {
        file.path for file in small
    }
    with pytest.raises(LakeConflict, match="removed"):
        lake.commit([], [], [small[0].path])
    lake.commit([], [], forget=[small[0].path])
    assert set(lake.snapshot().removed) == {small[1].path}


def test_only_one_of_two_commits_of_a_version_wins_even_without_the_lock(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    manifest = Manifest(lake.storage)
    won: list[int] = []
    begin = threading.Barrier(8)

    def commit(number: int) -> None:
        made = commit_json(1, 0, [part(0, 100 + number)], [], [], [])
        begin.wait()
        try:
            manifest.write(made, LakeSnapshot().after(made))
            won.append(number)
        except LakeConflict:
            pass

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and lake.snapshot().stores["/a"].end == 100 + won[0]


def test_a_stale_commit_does_not_win_a_version_whose_file_was_deleted(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    with lake.lock():
        for number in range(3 * SNAPSHOT_EVERY):
            lake.commit([part(number, number + 1)], [])
    manifest = Manifest(lake.storage)
    made = commit_json(2, 0, [part(1, 2)], [], [], [])
    with pytest.raises(LakeConflict):
        manifest.write(made, LakeSnapshot(1).after(made))
    assert lake.snapshot().version == 3 * SNAPSHOT_EVERY


def test_loading_reads_few_files_after_any_number_of_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake.open(tmp_path, create=True)
    with lake.lock():
        for number in range(5 * SNAPSHOT_EVERY + 3):
            lake.commit([part(number, number + 1)], [])
    reads: list[str] = []
    opened = Lake.open(tmp_path)
    read = opened.storage.read

    def counted(name: str) -> bytes:
        reads.append(name)
        return read(name)

    monkeypatch.setattr(opened.storage, "read", counted)
    seen = opened.snapshot()
    assert len(reads) == 1 + 3, "the newest snapshot and the commits after it"
    assert opened.snapshot() is seen and len(reads) == 4, "what is known is not read again"
    assert seen.version == 5 * SNAPSHOT_EVERY + 3 and len(seen.stores["/a"].gaps) == seen.version


def test_a_damaged_snapshot_falls_back_to_the_one_before_and_a_damaged_commit_is_an_error(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    with lake.lock():
        for number in range(2 * SNAPSHOT_EVERY + 2):
            lake.commit([part(number, number + 1)], [])
    before = lake.snapshot()
    newest = max((tmp_path / MANIFEST).glob("*.snapshot"))
    newest.write_bytes(newest.read_bytes().replace(b'"version":128', b'"version":129'))
    assert Lake.open(tmp_path).snapshot() == before
    commit = max((tmp_path / MANIFEST).glob("*.json"))
    commit.write_bytes(commit.read_bytes()[:-3])
    with pytest.raises(BadFile, match="checksum"):
        Lake.open(tmp_path).snapshot()


def test_a_missing_commit_in_the_middle_is_an_error(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    for number in range(3):
        lake.commit([part(number, number + 1)], [])
    (tmp_path / MANIFEST / f"{2:020d}.json").unlink()
    with pytest.raises(BadFile, match="no gap"):
        Lake.open(tmp_path).snapshot()


def test_a_folder_that_holds_something_else_cannot_become_a_lake(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(NotALake, match=r"thesis\.tex"):
        Lake.open(tmp_path, create=True)
    with pytest.raises(NotALake, match="no lake"):
        Lake.open(tmp_path)
    with pytest.raises(NotALake, match="no such folder"):
        Lake.open(tmp_path / "nowhere")
    with pytest.raises(NotALake, match="is a file"):
        Lake.open(tmp_path / "thesis.tex", create=True)


def test_an_interrupted_creation_of_a_lake_is_finished(tmp_path: Path) -> None:
    (tmp_path / "_mqlake" / "scratch").mkdir(parents=True)
    (tmp_path / "_mqlake" / "scratch" / "lake.json.1.1.new").write_text("{")
    lake = Lake.open(tmp_path, create=True)
    assert Lake.open(tmp_path).identity == lake.identity


def test_a_lake_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    assert lake.snapshot().version == 0
    (tmp_path / "_mqlake" / "lake.json").write_text(json.dumps({"format": 3, "id": "x"}))
    with pytest.raises(NotALake, match="format is 3"):
        Lake.open(tmp_path)
    (tmp_path / "_mqlake" / "lake.json").write_text(json.dumps({"format": 1, "id": "x"}))
    with pytest.raises(NotALake, match="mqlake lake convert"):
        Lake.open(tmp_path)


def test_a_second_job_is_refused_and_the_error_names_the_holder(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    with lake.lock():
        with pytest.raises(LakeInUse, match=f"process {os.getpid()} on"), Lake.open(tmp_path).lock():
            pass
        program = f"from mqlake.lake import Lake\nwith Lake.open({str(tmp_path)!r}).lock(): pass"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "LakeInUse" in done.stderr and f"process {os.getpid()} on" in done.stderr
    with Lake.open(tmp_path).lock():
        pass


def test_a_tasks_result_reaches_the_driver_unchanged() -> None:
    file = LakeFile("messages", "messages/x.parquet", "/a", 0, 9, 1, 2, 3, None, None, 0, 8, "t", "u", ("t", "u"))
    bare = LakeRange("/a", ID, "/a", 0, 9)
    table = pa.concat_tables([done([file], [part(0, 9)]), done([], [bare])])
    assert harvest(table) == ([part(0, 9), bare], [file])


def test_a_store_gets_one_identity_if_many_threads_create_it(tmp_path: Path) -> None:
    assert identity_of(tmp_path) is None and identity_of(tmp_path / "nowhere") is None
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(make_identity(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and set(found) == {identity_of(tmp_path)}
    (tmp_path / "mqlake" / "identity").write_text("")
    with pytest.raises(BadFile, match="hexadecimal"):
        identity_of(tmp_path)
