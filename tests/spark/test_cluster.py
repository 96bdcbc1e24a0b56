"""On a real standalone cluster: as many workers as there are, and one of them killed, give the same rows exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.spark.cluster import Cluster, content_digest, digest, digest_while_killed
from tests.spark.tables import rows_of, splits_of, write_store

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(600)]
OPTIONS = {"splitSize": "10k"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "store"
    write_store(path)
    return path


def test_two_workers_and_one_killed_in_the_middle_read_every_message_exactly_once(tmp_path: Path, store: Path) -> None:
    expected = content_digest(rows_of(store))
    assert len(splits_of(store, **OPTIONS)) > 30
    with Cluster(tmp_path, workers=2) as cluster:
        found, *killed = cluster.call(digest_while_killed, str(store), OPTIONS, cluster.worker_pids)
    assert found == expected
    assert killed


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_the_same_rows(tmp_path: Path, store: Path, workers: int) -> None:
    with Cluster(tmp_path, workers=workers) as cluster:
        assert cluster.call(digest, str(store), OPTIONS) == content_digest(rows_of(store))
