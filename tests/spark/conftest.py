"""One Spark session for all tests of the folder, and stores to read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'mqlake[spark]'")

from tests.lake.s3 import options_of
from tests.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port of an S3 server that tests may start. Spark's processes must know it when Spark is started."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in options_of(port).items():
            patch.setenv(name, value)
        yield port


@pytest.fixture(scope="session")
def spark(s3_port: int) -> Iterator[SparkSession]:
    from mqlake.errors import MissingJava
    from mqlake.spark.session import session

    try:
        started = session(
            "local[2]",
            spark_ui_enabled="false",
            spark_sql_shuffle_partitions=2,
            spark_driver_memory="1g",
            spark_ui_showConsoleProgress="false",
            spark_sql_session_timeZone="UTC",
            spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # for a quick start
        )
    except MissingJava as reason:
        pytest.skip(str(reason))
    started.sparkContext.setLogLevel("OFF")
    yield started
    with contextlib.suppress(Exception):
        started.stop()
