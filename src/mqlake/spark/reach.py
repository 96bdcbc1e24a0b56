"""Let the driver and its workers reach a lake in an object store, with what the environment or Spark says about it.

The usual variables (`AWS_…`, `GOOGLE_…`, `AZURE_…`) come first. Where they are absent, `spark.hadoop.fs.s3a.…` of the
session stands for them, or `spark.hadoop.fs.s3a.bucket.NAME.…` for one bucket, as Hadoop has it. Workers get them with
their tasks, as environment variables. Nothing is logged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqlake.files.place import place_of
from mqlake.lake import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_OBJECT_STORES = ("AWS_", "GOOGLE_", "AZURE_")
"""How the environment variables begin that name object stores and credentials."""
S3A = "spark.hadoop.fs.s3a"
NAMES = {
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
    "endpoint.region": "AWS_REGION",
}
Get = Callable[[str], str | None]


def reach(spark: SparkSession | None, lake: str) -> None:
    """Call this before a job opens a lake. Over Spark Connect, workers have only what their own machines say."""
    place = place_of(lake)
    if place.is_local or spark is None:
        return
    given = (
        s3a_settings(place.path.partition("/")[0], lambda name: spark.conf.get(name, None))
        if place.scheme == "s3"
        else {}
    )
    settings.give(given)
    environment = getattr(getattr(spark, "_sc", None), "environment", None)
    if environment is None:
        return
    before = dict(environment)
    environment.update({name: value for name, value in os.environ.items() if name.startswith(OF_OBJECT_STORES)})
    environment.update(settings.added_settings())
    if environment != before and given:
        from mqlake.spark.registration import register

        register(spark)  # the source has the environment of the moment at which it was registered


def s3a_settings(bucket: str, get: Get) -> dict[str, str]:
    """Return what Hadoop's settings say about a bucket, under the names of the environment variables."""

    def find(name: str) -> str | None:
        return get(f"{S3A}.bucket.{bucket}.{name}") or get(f"{S3A}.{name}") or None

    found = {variable: value for name, variable in NAMES.items() if (value := find(name))}
    endpoint = find("endpoint")
    if endpoint is not None:
        secure = (find("connection.ssl.enabled") or "true").strip().lower() != "false"
        scheme, there_is_one, host = endpoint.strip().rstrip("/").rpartition("://")
        scheme = scheme if there_is_one else ("https" if secure else "http")
        if (find("path.style.access") or "true").strip().lower() == "false":
            host = f"{bucket}.{host}"
            found["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
        found["AWS_ENDPOINT_URL"] = f"{scheme}://{host}"
        if scheme == "http":
            found["AWS_ALLOW_HTTP"] = "true"
    return found
