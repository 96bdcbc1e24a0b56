"""Hadoop's settings for S3 name a lake's server and keys, where the environment does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from mqlake.lake.settings import missing_in
from mqlake.spark.reach import s3a_settings
from tests.lake.s3 import ACCESS, SECRET, running, versitygw
from tests.spark.tables import write_store

pytestmark = pytest.mark.timeout(400)
PREFIX = "spark.hadoop.fs.s3a."


def settings(**given: str) -> dict[str, str]:
    named = {PREFIX + name.replace("_", "."): value for name, value in given.items()}
    return s3a_settings("data", named.get)


def test_hadoops_names_become_those_of_the_environment() -> None:
    assert settings() == {}
    assert settings(access_key="a", secret_key="s", session_token="t", endpoint_region="eu-1") == {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_SESSION_TOKEN": "t",
        "AWS_REGION": "eu-1",
    }
    assert settings(endpoint="s3.example.org") == {"AWS_ENDPOINT_URL": "https://s3.example.org"}
    plain = {"AWS_ENDPOINT_URL": "http://h:9000", "AWS_ALLOW_HTTP": "true"}
    assert settings(endpoint="http://h:9000/") == plain
    assert settings(endpoint="h:9000", connection_ssl_enabled="false", path_style_access="true") == plain
    assert settings(endpoint="s3.example.org", path_style_access="false") == {
        "AWS_ENDPOINT_URL": "https://data.s3.example.org",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }


def test_the_settings_of_a_bucket_come_first() -> None:
    named = {f"{PREFIX}access.key": "all", f"{PREFIX}bucket.data.access.key": "own", f"{PREFIX}bucket.x.endpoint": "no"}
    assert s3a_settings("data", named.get) == {"AWS_ACCESS_KEY_ID": "own"}


def test_the_environment_comes_first_and_keys_are_never_mixed() -> None:
    given = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-1"}
    assert missing_in({}, given) == given
    assert missing_in({"AWS_REGION": "us-1"}, given) == {name: given[name] for name in list(given)[:2]}
    assert missing_in({"AWS_ACCESS_KEY_ID": "mine"}, given) == {"AWS_REGION": "eu-1"}


PROGRAM = """
import logging, sys
logging.basicConfig()
logging.getLogger("mqlake").setLevel(logging.DEBUG)  # py4j logs all that is said to the JVM, settings too
import mqlake.spark
from mqlake.lake import Lake
store, lake, port, access, secret = sys.argv[1:]
spark = mqlake.spark.session("local[2]", spark_ui_enabled="false", **{
    "spark_hadoop_fs_s3a_endpoint": f"http://127.0.0.1:{port}", "spark_hadoop_fs_s3a_access_key": access,
    "spark_hadoop_fs_s3a_secret_key": secret, "spark_hadoop_fs_s3a_path_style_access": "true",
    "spark_hadoop_fs_s3a_endpoint_region": "us-east-1"})
mqlake.spark.archive(spark, store, lake)
mqlake.spark.compact(spark, lake)
print("union", mqlake.spark.union(spark, store, lake, includeInternal=True).count())
rows = spark.read.format("mqlake").option("includeInternal", "true").option("lake", lake).load(store)
print("source", rows.select("topic").count())
"""


@pytest.mark.xdist_group("spark")
def test_a_session_with_hadoops_settings_reaches_a_lake_and_logs_no_secret(tmp_path: Path) -> None:
    write_store(tmp_path / "store", 300)
    with running("versitygw" if versitygw() else "moto", tmp_path) as server:
        lake = f"s3a://{server.new_bucket()}/lake"
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), lake, str(server.port), ACCESS, SECRET]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "union 300" in done.stdout and "source 300" in done.stdout
    assert SECRET not in done.stdout + done.stderr
