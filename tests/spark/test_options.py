"""Options: an unknown name or value is refused, and the error lists what is allowed."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from mqlake.errors import InvalidConfig
from mqlake.spark.options import PARSERS, parse_options


def test_option_names_are_case_insensitive() -> None:
    options = parse_options({"PATH": "s", "TOPICS": "a, b,a", "splitsize": "64MiB", "ondamage": "FAIL"})
    assert (options.paths, options.topics) == (("s",), ("a", "b"))
    assert (options.split_size, options.on_damage) == (64 << 20, "fail")


def test_a_json_list_may_hold_commas() -> None:
    assert parse_options({"path": "s", "keys": '["a,b", "c"]'}).keys == ("a,b", "c")


def test_several_paths_are_accepted_as_spark_sends_them() -> None:
    assert parse_options({"paths": '["a", "b"]'}).paths == ("a", "b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2026-01-01", 1_767_225_600_000),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
        ("2026-01-01 00:00:00.0015", 1_767_225_600_002),
    ],
)
def test_times_are_milliseconds_or_iso(text: str, expected: int) -> None:
    assert parse_options({"path": "s", "startTime": text}).start_time == expected


def test_an_unknown_name_is_refused_and_the_error_lists_the_known_ones() -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_options({"path": "s", "topicz": "orders"})
    assert "topicz" in str(caught.value) and "orders" in str(caught.value)
    assert all(name in str(caught.value) for name in PARSERS)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("onDamage", "ignore", "skip, fail, rows"),
        ("via", "guess", "auto, scan, queue, index"),
        ("includeInternal", "yes", "true, false"),
        ("splitSize", "0", "above 0"),
        ("splitSize", "many", "128MiB"),
        ("minPartitions", "0", "1 or above"),
        ("queues", "1,x", "whole number"),
        ("queues", "4294967296", "at most 2147483647"),
        ("startOffset", "-1", "whole number"),
        ("startTime", "yesterday", "ISO"),
        ("topics", "a,,b", "commas"),
        ("topics", "[1]", "JSON list"),
        ("keys", "[", "JSON list"),
        ("topicsPattern", "(", "regular expression"),
        ("columns", "topic,nothing", "queue_offset"),
        ("columns", "damage", "onDamage=rows"),
        ("path", "", "folder"),
    ],
)
def test_an_invalid_value_is_refused_and_the_error_lists_the_valid_ones(name: str, value: str, allowed: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_options({"path": "s", name: value})
    assert name in str(caught.value)
    assert allowed in str(caught.value)


def test_a_read_without_a_path_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="name the store's folder"):
        parse_options({"topics": "a"})


def test_ranges_that_end_before_they_start_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="endTime"):
        parse_options({"path": "s", "startTime": "2", "endTime": "1"})
    with pytest.raises(InvalidConfig, match="topicsPattern"):
        parse_options({"path": "s", "topics": "a", "topicsPattern": "b"})
