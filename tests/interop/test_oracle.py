"""A real RocketMQ reads the golden stores as it did when they were made, and what it has written itself."""

from __future__ import annotations

import base64
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.interop.rocketmq import VERSIONS, RocketMQ, available, property_table

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "data"
SETTINGS = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "200"}
RELEASES = {"v4": "4.9.8", "v5": "5.5.1"}

pytestmark = [
    pytest.mark.skipif(available() is not None, reason=available() or ""),
    pytest.mark.timeout(900),  # the first run builds the Java project
]


@pytest.mark.parametrize(
    "name",
    ["v4-mixed", "v4-crash-torn-tail", "v4-empty-next-file", "v5-mixed", "v5-inner-batch", "v5-crash-no-queues"],
)
def test_a_dump_equals_the_golden_dump(name: str, tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    settings = _read_properties(tmp_path / f"{name}.properties")

    dumped = RocketMQ(RELEASES[name[:2]]).dump(tmp_path / name, settings)

    with lzma.open(GOLDEN / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        assert dumped == [json.loads(line) for line in lines]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("halt", [False, True], ids=["clean stop", "crash"])
def test_written_messages_are_dumped(version: str, halt: bool, tmp_path: Path) -> None:
    rocketmq = RocketMQ(version)
    store = tmp_path / "store"
    given = [_message(number) for number in range(5)]

    answers = rocketmq.write(store, SETTINGS, given, halt=halt)

    assert [answer["status"] for answer in answers] == ["PUT_OK"] * len(given)
    assert (store / "abort").exists() == halt
    records = [line for line in rocketmq.dump(store, SETTINGS) if line["kind"] == "record"]
    assert [record["physicalOffset"] for record in records] == [answer["physicalOffset"] for answer in answers]
    for record, message in zip(records, given, strict=True):
        same = ("topic", "queueId", "body", "flag", "bornTimestamp", "sysFlag")
        assert {field: record[field] for field in same} == {field: message[field] for field in same}
        expected = {**message["properties"], "TAGS": message["tags"], "KEYS": message["keys"]}
        assert expected.items() <= record["properties"].items()


def test_the_list_of_properties_is_complete() -> None:
    assert (Path(__file__).parent / "rocketmq-properties.txt").read_text("utf-8") == property_table()


def _message(number: int) -> dict[str, Any]:
    return {
        "topic": "orders",
        "queueId": number % 2,
        "body": base64.b64encode(f"body {number}".encode()).decode("ascii"),
        "tags": "TagA",
        "keys": f"key-{number}",
        "flag": number,
        "properties": {"名前": f"値-{number}"},
        "bornTimestamp": 1700000000000 + number,
        "sysFlag": 0,
    }


def _read_properties(path: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in path.read_text("utf-8").splitlines())
    return {name: value for name, _, value in pairs if name}
