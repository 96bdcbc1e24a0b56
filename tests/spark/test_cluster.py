"""On a real standalone cluster: as many workers as there are, and one of them killed, give the same results exactly."""

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
    """Damaged in a few places, so that an audit has something to find."""
    path = tmp_path_factory.mktemp("cluster") / "store"
    write_store(path)
    for seed in range(3):
        damage(path, seed, files="commitlog/*", kind="flip_bit")
    return path


@pytest.fixture(scope="module")
def expected(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What jobs give without a cluster, and without Spark."""
    found = job_digests_here(store, tmp_path_factory.mktemp("here"))
    assert not [name for name, told in found.items() if told.startswith("0,")], "there is something to compare"
    return found


def test_two_workers_and_one_killed_in_the_middle_give_every_message_once_and_jobs_their_results(
    tmp_path: Path, store: Path, expected: dict[str, str]
) -> None:
    assert len(splits_of(store, **OPTIONS)) > 30
    with Cluster(tmp_path, workers=2) as cluster:
        found, killed, jobs = cluster.call(read_and_work, str(store), OPTIONS, cluster.worker_pids, str(tmp_path))
    assert found == content_digest(rows_of(store))
    assert killed
    assert jobs == expected


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_the_same_rows_and_results(
    tmp_path: Path, store: Path, expected: dict[str, str], workers: int
) -> None:
    with Cluster(tmp_path, workers=workers) as cluster:
        assert cluster.call(digest, str(store), OPTIONS) == content_digest(rows_of(store))
        assert cluster.call(job_digests, str(store), str(tmp_path)) == expected
