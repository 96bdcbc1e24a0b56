"""The rows of the table `messages` as different engines read them, hash for hash."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from mqlake.files.place import place_of
from mqlake.lake import Lake
from mqlake.lake.delta_read import live_files
from tests.lake.test_delta import by_deltalake, by_duckdb, by_mqlake, by_polars, fingerprint, normalized

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK, DELTA = "pyspark>=4.2,<4.3", "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Delta's newest jar is for Spark 4.2: on 4.3 it lacks a method."""

PROGRAM = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
place, package, out, *versions = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars.packages", package)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    .config("spark.sql.session.timeZone", "UTC").getOrCreate()
)
for version in versions:
    rows = spark.read.format("delta").option("versionAsOf", version).load(place).toArrow()
    with pa.OSFile(f"{out}/{version}.arrow", "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
"""


def by_spark(spark: SparkSession, lake: Lake, version: int) -> str:
    """mqlake on Spark, without a jar."""
    from mqlake.spark.jobs.lake_table import LakeTable
    from mqlake.spark.options import parse_options

    options = parse_options({"path": "-", "includeInternal": "true"})
    return fingerprint(normalized(LakeTable(lake, lake.snapshot(version), None, options).frame(spark).toArrow()))


def by_spark_with_delta(folder: str, versions: Sequence[int]) -> list[str]:
    """Spark 4.2 with Delta's jar, which Spark fetches from Maven Central. Reads a folder: for a bucket it would need
    Hadoop's S3 client, of half a gigabyte."""
    python = spark_42()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    with tempfile.TemporaryDirectory() as out:
        command = [str(python), "-c", PROGRAM, f"{folder}/messages", DELTA, out, *map(str, versions)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]
        found = []
        for version in versions:
            with pa.OSFile(f"{out}/{version}.arrow") as file:
                found.append(fingerprint(normalized(pa.ipc.open_file(file).read_all())))
    return found


def spark_42() -> Path:
    """Return the Python of an environment with PySpark 4.2. It is made once."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mqlake" / "spark-4.2"
    python = home / "bin" / "python"
    if not _has_pyspark(python):
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", PYSPARK, "pyarrow>=16", "pandas<3"]
        done = subprocess.run(install, check=False, capture_output=True, text=True, timeout=900)
        if done.returncode:
            pytest.skip(f"no PySpark 4.2: {done.stderr[-300:]}")
    return python


def _has_pyspark(python: Path) -> bool:
    test = [str(python), "-c", "import pyspark, pyarrow"]
    return python.exists() and subprocess.run(test, check=False, capture_output=True).returncode == 0


def assert_engines_agree(
    spark: SparkSession, place: str, versions: Sequence[int], folder: str, options: dict[str, str] | None
) -> list[str]:
    """Read pinned versions with every engine. `folder` is where the lake's files are on this machine's disk."""
    lake = Lake.open(place)
    expected = [by_mqlake(lake, version) for version in versions]
    assert len(set(expected)) > 1 or len(versions) == 1
    seen: dict[str, Any] = {"mqlake on Spark": [by_spark(spark, lake, version) for version in versions]}
    seen["deltalake"] = [by_deltalake(place, version, options) for version in versions]
    seen["Polars"] = [by_polars(place, version, options) for version in versions]
    with local_files(lake, versions) as paths:
        seen["DuckDB"] = [by_duckdb(paths[version]) for version in versions]
    seen["Spark 4.2 with Delta"] = by_spark_with_delta(folder, versions)
    for engine, found in seen.items():
        assert found == expected, engine
    return expected


@contextmanager
def local_files(lake: Lake, versions: Sequence[int]) -> Iterator[dict[int, list[str]]]:
    """Yield the files that the Delta log lists for each version, for DuckDB: from a bucket they are copied, because
    its extension for S3 would have to be downloaded."""
    listed = {version: list(live_files(lake.storage, "messages", version)) for version in versions}
    if place_of(lake.place).is_local:
        yield {version: [f"{lake.place}/{path}" for path in paths] for version, paths in listed.items()}
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in {path for paths in listed.values() for path in paths}:
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_bytes(lake.storage.read(path))
        yield {version: [f"{folder}/{path}" for path in paths] for version, paths in listed.items()}
