"""Backups of stores that are written meanwhile start in real RocketMQ, 4.9 and 5.5, and it serves what mqlake does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake.inspect.backup import backup
from tests.helpers import message, open_small
from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.rocketmq import VERSIONS, RocketMQ
from tests.interop.test_repaired_stores import compare
from tests.interop.test_shared_stores import SETTINGS

pytestmark = WITH_ROCKETMQ


@pytest.mark.parametrize("version", VERSIONS)
def test_a_backup_of_a_live_store_is_served_by_rocketmq_and_written_on(
    version: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with open_small(tmp_path / "live") as store:
        for number in range(900):
            store.put(message(number, queue_id=number % 3, body=b"%d" % number * 90))
        made = backup(tmp_path / "live", tmp_path / "backup")
        for number in range(900, 950):
            store.put(message(number, queue_id=number % 3))
    count = compare(made.path, version, SETTINGS, tmp_path)
    assert count == 900
    (written,) = RocketMQ(version).write(made.path, SETTINGS, [{"topic": "orders", "queueId": 0}])
    assert (written["queueOffset"], written["physicalOffset"]) == (300, made.end_offset)
    record_property(f"compared: RocketMQ {version} on backups", {"stores": 1, "messages": count})


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_that_rocketmq_wrote_and_closed_is_backed_up_and_served_by_it(version: str, tmp_path: Path) -> None:
    given = [{"topic": "orders", "queueId": number % 2, "keys": f"k{number}"} for number in range(200)]
    receipts = RocketMQ(version).write(tmp_path / "theirs", SETTINGS, given)
    made = backup(tmp_path / "theirs", tmp_path / "backup")
    assert made.report.holds
    assert made.end_offset > receipts[-1]["physicalOffset"]
    assert compare(made.path, version, SETTINGS, tmp_path) == 200
