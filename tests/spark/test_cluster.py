"""A real standalone cluster gives exactly the same results with any number of workers, and if one of them is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from mqlake.torture.faults.damage import damage
from tests.spark.cluster import Cluster, content_digest, digest
from tests.spark.cluster_jobs import job_digests, job_digests_here, read_and_work
from tests.spark.tables import rows_of, splits_of, write_store

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(600)]
OPTIONS = {"splitSize": "10k"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with some damage, so that an audit finds something."""
    path = tmp_path_factory.mktemp("cluster") / "store"
    write_store(path)
    for seed in range(3):
        damage(path, seed, files="commitlog/*", kind="flip_bit")
    return path


@pytest.fixture(scope="module")
def expected(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What jobs return without Spark."""
    found = job_digests_here(store, tmp_path_factory.mktemp("here"))
    assert not [name for name, text in found.items() if text.startswith("0,")], "a result is empty"
    return found


def test_a_cluster_whose_worker_is_killed_still_gives_every_message_once_and_the_same_results(
    tmp_path: Path, store: Path, expected: dict[str, str]
) -> None:
    assert len(splits_of(store, **OPTIONS)) > 30
    with Cluster(tmp_path, workers=2) as cluster:
        call = cluster.call(read_and_work, str(store), OPTIONS, cluster.worker_pids, str(tmp_path))
    found, killed, jobs, written = call
    assert found == content_digest(rows_of(store))
    assert killed
    assert jobs == expected
    assert written == [len(rows_of(store)), 2 * len(rows_of(store))]


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_the_same_rows_and_job_results(
    tmp_path: Path, store: Path, expected: dict[str, str], workers: int
) -> None:
    with Cluster(tmp_path, workers=workers) as cluster:
        assert cluster.call(digest, str(store), OPTIONS) == content_digest(rows_of(store))
        assert cluster.call(job_digests, str(store), str(tmp_path)) == expected
