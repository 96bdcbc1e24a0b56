"""Predicates as options: never narrower than the predicate, and nothing if its form is not understood."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from mqlake.spark.predicate import options_of

DAY = 1_767_225_600_000  # 2026-01-01 in UTC


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("topic = 'orders'", {"topics": '["orders"]'}),
        ("Topic == 'a' AND tags IN ('x', 'y,z')", {"topics": '["a"]', "tags": '["x", "y,z"]'}),
        ("topic in ('a', 'b') and topic = 'b'", {"topics": '["b"]'}),
        ("topic = 'a' and topic = 'b'", {"topics": '["a"]'}),
        ("queue_id in (1, 2)", {"queues": '["1", "2"]'}),
        ("array_contains(keys, 'k 1')", {"keys": '["k 1"]'}),
        ("store_timestamp >= '2026-01-01'", {"startTime": str(DAY)}),
        ("store_timestamp < timestamp '2026-01-01 00:00:00Z'", {"endTime": str(DAY + 1)}),
        ("store_timestamp > '2026-01-01T00:00:00.0009'", {"startTime": str(DAY)}),
        ("store_timestamp = '2026-01-01'", {"startTime": str(DAY), "endTime": str(DAY + 1)}),
        (
            "physical_offset >= 10 and physical_offset < 20 and physical_offset < 30",
            {"startOffset": "10", "endOffset": "21", "failOnDataLoss": "false"},
        ),
        ("topic = 'a' and length(body) > 3 and tags like 'x%'", {"topics": '["a"]'}),
        ("topic = 'a' and (tags = 'x' or tags = 'y')", {"topics": '["a"]'}),
        ("topic = 'a' and not tags = 'x' and tags <> 'y' and tags is null", {"topics": '["a"]'}),
    ],
)
def test_understood_parts_become_options(where: str, options: dict[str, str]) -> None:
    assert options_of(where, "UTC") == options


@pytest.mark.parametrize(
    "where",
    [
        "topic = 'a' or tags = 'x'",
        "topic = 'a' and tags = 'x' OR queue_id = 1",
        "not (topic = 'a')",
        "case when size > 1 and topic = 'a' and tags = 'x' then true else false end",
        "size between 1 and 2 and topic = 'a'",
        "topic = 'a' -- and so on",
        "topic = 'a' /* and */",
        "topic not in ('a')",
        "topic <=> 'a'",
        "topic = tags",
        "topic = 'it''s'",
        "topic = 'a\\'b'",
        'topic = "a"',
        "topic = 5",
        "queue_id = 1.5",
        "queue_id = 99999999999",
        "upper(topic) = 'A'",
        "topic = 'a' || 'b'",
        "t.topic = 'a'",
        "store_timestamp >= '2026-02-31'",
        "store_timestamp >= 'today'",
        "tags = ''",
        "(topic = 'a'",
    ],
)
def test_other_parts_are_left_to_spark(where: str) -> None:
    assert options_of(where, "UTC") == {}


def test_times_are_in_the_sessions_zone_and_widened_when_clocks_change() -> None:
    assert options_of("store_timestamp >= '2026-01-01'", "Europe/Berlin") == {"startTime": str(DAY - 3_600_000)}
    twice = options_of("store_timestamp = '2026-10-25 02:30:00'", "Europe/Berlin")  # this hour occurs twice
    assert int(twice["endTime"]) - int(twice["startTime"]) == 3_600_001
    odd = options_of("store_timestamp >= '2026-01-01'", "GMT+1:00")
    assert int(odd["startTime"]) <= DAY - 3_600_000
