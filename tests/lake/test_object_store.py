"""A lake in an object store: the same promises as in a folder, on a real S3 server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("obstore")
pytest.importorskip("deltalake")
pytest.importorskip("polars")
pytest.importorskip("duckdb")

from mqlake import MessageStore
from mqlake.errors import LakeConflict, StorageFailed, StoreError
from mqlake.lake import Lake
from mqlake.lake.delta_read import live_files
from mqlake.lake.find import find
from mqlake.lake.storage import Storage, storage_at
from mqlake.lake.vacuum import vacuum
from mqlake.lake.verify import verify
from mqlake.spark.jobs.archive import archive
from mqlake.spark.jobs.compact import compact
from tests.lake.jobs import NO_SPARK, here, rows_in
from tests.lake.s3 import KINDS, Server, bucket, bucket_of, running, server, servers
from tests.lake.test_delta import by_deltalake, by_duckdb, by_mqlake, by_polars
from tests.lake.test_lake import file_of, part
from tests.spark.tables import put_messages, rows_of, write_store

pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.timeout(300)]
__all__ = ["bucket", "here", "server", "servers"]


@pytest.fixture(params=["folder", *KINDS])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch
) -> Storage:
    if request.param == "folder":
        return storage_at(tmp_path / "lake")
    return storage_at(f"{bucket_of(servers(request.param), monkeypatch)}/some/lake")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", 400)
    return tmp_path / "store"


# ---- the seam


def test_a_name_is_created_by_one_caller_and_replaced_by_any(storage: Storage) -> None:
    begin, won = threading.Barrier(8), []

    def create(number: int) -> None:
        begin.wait()
        if storage.create("a/name", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and storage.read("a/name") == b"%d" % won[0]
    storage.replace("a/name", b"new")
    assert storage.read("a/name") == b"new" and storage.size("a/name") == 3
    for ask in (storage.read, storage.size):
        with pytest.raises(FileNotFoundError):
            ask("a/other")


def test_files_are_listed_below_a_folder_and_deleted_even_twice(storage: Storage) -> None:
    assert not list(storage.files("a/")) and not storage.top()
    for name in ("a/1", "a/b/2", "ab/3"):
        storage.replace(name, name.encode())
    listed = {file.name: file for file in storage.files("a/")}
    assert {name: file.size for name, file in listed.items()} == {"a/1": 3, "a/b/2": 5}
    assert all(abs(file.time - time.time()) < 60 for file in listed.values())
    assert [name for name in storage.top() or () if name != "_mqlake"] == ["a", "ab"]
    storage.delete(["a/1", "a/1", "a/none"])
    assert [file.name for file in storage.files("a/")] == ["a/b/2"]


@pytest.mark.parametrize("size", [0, 1000, 20 << 20])
def test_a_file_is_seen_whole_or_not_at_all(storage: Storage, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"end"
    made, dropped = storage.open_output("table/made"), storage.open_output("table/dropped")
    for first in range(0, len(content), 3 << 20):
        made.write(content[first : first + (3 << 20)])
        dropped.write(content[first : first + (3 << 20)])
    assert not {"table/made", "table/dropped"} & {file.name for file in storage.files("table/")}
    made.commit()
    dropped.drop()
    dropped.write(b"the footer of an abandoned file")
    assert [file.name for file in storage.files("table/")] == ["table/made"]
    with storage.open_input("table/made") as opened:
        assert opened.read() == content
        opened.seek(-3, 2)
        assert opened.read(9) == b"end"


# ---- the lake


def test_a_lake_in_a_bucket_holds_the_same_rows_as_one_in_a_folder(store: Path, bucket: str, tmp_path: Path) -> None:
    places = [f"{bucket}/a/lake", str(tmp_path / "lake")]
    for place in places:
        archive(NO_SPARK, str(store), place, split_size="40k", step_bytes=50_000, add_store=True)
    expected = rows_of(store, includeInternal="true")
    for place in places:
        assert rows_in(place) == expected
        lake = Lake.open(place)
        assert verify(lake) == []
        assert lake.snapshot().version > 2
        found = find(lake, expected[7]["topic"], expected[7]["keys"][0])
        assert expected[7]["physical_offset"] in found.column("physical_offset").to_pylist()
        done = compact(NO_SPARK, place)
        assert done.files_after == 2 and verify(Lake.open(place)) == []
        assert rows_in(place) == expected


def test_retention_and_reads_of_deleted_messages_work_with_a_bucket(store: Path, bucket: str) -> None:
    lake = f"{bucket}/lake"
    expected = rows_of(store)
    archive(NO_SPARK, str(store), lake, split_size="50k")
    with MessageStore.open(store) as opened:
        opened.retain(keep_bytes=0)
        assert opened.first_offset > 0
    read = rows_of(store, lake=lake)
    assert sorted(map(repr, read)) == sorted(map(repr, expected))


def test_every_engine_reads_the_same_rows_from_a_bucket_at_three_versions(
    store: Path, bucket: str, server: Server, tmp_path: Path
) -> None:
    place = f"{bucket}/lake"
    archive(NO_SPARK, str(store), place, split_size="50k")
    with MessageStore.open(store) as opened:
        put_messages(opened, 400, 300)
    archive(NO_SPARK, str(store), place, split_size="50k")
    compact(NO_SPARK, place)
    lake = Lake.open(place)
    assert lake.snapshot().version == 3
    for version in (1, 2, 3):
        expected = by_mqlake(lake, version)
        assert expected.startswith("400 rows" if version == 1 else "700 rows")
        assert by_deltalake(place, version, server.options) == expected
        assert by_polars(place, version, server.options) == expected
        copies = []
        for number, path in enumerate(live_files(lake.storage, "messages", version)):
            copies.append(str(tmp_path / f"{version}-{number}.parquet"))
            Path(copies[-1]).write_bytes(lake.storage.read(path))
        assert by_duckdb(copies) == expected, "its extension for S3 would have to be downloaded"


def test_of_two_jobs_that_commit_the_same_version_one_is_refused_and_can_go_on(bucket: str) -> None:
    place = f"{bucket}/lake"
    first, second = Lake.open(place, create=True), Lake.open(place)
    file, other = file_of(first, 0, 100, "one"), file_of(second, 0, 90, "two")
    assert second.snapshot().version == 0
    stale = second._manifest
    first.commit([part(0, 100)], [file])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stale, "load", lambda version=None: stale._known)
        with pytest.raises(LakeConflict, match="committed by another job"):
            second.commit([part(0, 90)], [other])
    assert Lake.open(place).snapshot().stores["/a"].end == 100
    second.commit([part(100, 190)], [file_of(second, 100, 190)])
    assert Lake.open(place).snapshot().version == 2
    assert set(live_files(first.storage, "messages", 2)) == {"messages/one.parquet", "messages/100.parquet"}


def test_a_commit_whose_answer_was_lost_is_not_taken_for_another_jobs(bucket: str, monkeypatch: Any) -> None:
    """The client repeats the request, and the server says that the name is taken: by this very commit."""
    lake = Lake.open(f"{bucket}/lake", create=True)
    import obstore

    put = obstore.put

    def twice(*given: Any, **named: Any) -> Any:
        put(*given, **named)
        return put(*given, **named)

    monkeypatch.setattr(obstore, "put", twice)
    assert lake.commit([part(0, 100)], [file_of(lake, 0, 100)]) == 1
    assert Lake.open(lake.place).snapshot().version == 1


def test_files_that_another_job_may_be_about_to_commit_are_not_deleted(bucket: str) -> None:
    lake = Lake.open(f"{bucket}/lake", create=True)
    written = file_of(lake, 0, 100)
    assert vacuum(lake, 0) == [], "a bucket has no lock"
    lake.commit([part(0, 100)], [written])
    assert verify_files(lake) == ["messages/0.parquet"]


def verify_files(lake: Lake) -> list[str]:
    return [file.name for file in lake.storage.files("messages/") if "_delta_log" not in file.name]


def test_a_bucket_that_does_not_exist_and_a_server_that_does_not_answer_are_errors_with_a_sentence(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match="no-such-bucket"):
        Lake.open("s3://no-such-bucket/lake", create=True)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("mqlake.lake.object_store.RETRY_S", 1)
    with pytest.raises(StorageFailed, match="check the address, the bucket and the credentials"):
        Lake.open("s3://another-bucket/lake")


# ---- a server that is killed


def test_an_archive_is_exact_although_the_server_is_killed_and_restarted_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running("versitygw", tmp_path) as server:
        for name, value in server.options.items():
            monkeypatch.setenv(name, value)
        lake, store, errors = f"s3://{server.new_bucket()}/lake", tmp_path / "store", []
        write_store(store, 300)
        done = threading.Event()

        def work() -> None:
            for number in range(300, 900, 60):
                with MessageStore.open(store) as opened:
                    put_messages(opened, number, 60)
                try:
                    archive(NO_SPARK, str(store), lake, split_size="20k", step_bytes=20_000)
                except StoreError as error:
                    errors.append(error)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        kills = 0
        while not done.wait(0.4):
            server.kill()
            time.sleep(0.1)
            server.start()
            kills += 1
        thread.join()
        archive(NO_SPARK, str(store), lake)
        assert kills and rows_in(lake) == rows_of(store, includeInternal="true"), errors
        opened = Lake.open(lake)
        assert verify(opened) == []
        newest = opened.snapshot().version
        assert by_deltalake(lake, newest, server.options) == by_mqlake(opened, newest)


@pytest.mark.parametrize("arrived", [True, False])
def test_a_create_whose_connection_broke_is_repeated(
    bucket: str, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    import obstore
    from obstore.exceptions import GenericError

    storage, put, failures = storage_at(f"{bucket}/lake"), obstore.put, [1, 2]

    def broken(*arguments: Any, **options: Any) -> Any:
        if failures:
            failures.pop()
            if arrived:
                put(*arguments, **options)
            raise GenericError("error sending request")
        return put(*arguments, **options)

    monkeypatch.setattr("mqlake.lake.object_store.obstore.put", broken)
    assert storage.create("a", b"mine") and storage.read("a") == b"mine" and not failures[:-1]
    assert not storage.create("a", b"another's") and storage.read("a") == b"mine"
