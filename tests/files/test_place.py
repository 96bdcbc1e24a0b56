"""Every path of a store or a lake is parsed in one place; schemes that are not supported are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.errors import InvalidConfig
from mqlake.files.place import local_path, place_of


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("/data/lake", "/data/lake"),
        ("file:///data/lake", "/data/lake"),
        ("file:/data/lake", "/data/lake"),
        ("FILE:///data/lake", "/data/lake"),
        ("data/lake", str(Path("data/lake").absolute())),
        ("./s3:/data", str(Path("./s3:/data").absolute())),
        ("a:b", str(Path("a:b").absolute())),
        ("s3://bucket/a/lake/", "s3://bucket/a/lake"),
        ("s3a://bucket/lake", "s3://bucket/lake"),
        ("S3://bucket", "s3://bucket"),
        ("gs://bucket/lake", "gs://bucket/lake"),
        ("az://container/lake", "az://container/lake"),
    ],
)
def test_a_lake_is_a_folder_or_a_prefix_of_an_object_store(text: str, parsed: str) -> None:
    assert str(place_of(text)) == parsed
    assert place_of(parsed) == place_of(text)
    assert place_of(text).is_local == ("://" not in parsed)


@pytest.mark.parametrize(
    "text",
    [
        "hdfs://host/lake",
        "hdfs:/lake",
        "abfss://c@a/lake",
        "http://host/x",
        "s3:/bucket/x",
        "s3://",
        "s3:///x",
        "",
        "file://host/x",
    ],
)
def test_other_schemes_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^lake = "):
        place_of(text)


def test_a_store_is_a_folder() -> None:
    assert local_path("file:///data/store") == Path("/data/store")
    assert local_path("/brokers/*/store") == Path("/brokers/*/store")
    for text in ("s3a://bucket/store", "s3://bucket/store", "hdfs://host/store", "gs:/bucket"):
        with pytest.raises(InvalidConfig, match="a folder of a file system that every worker can see"):
            local_path(text)
