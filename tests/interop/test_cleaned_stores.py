"""A store that mqlake cleaned opens in a real RocketMQ, 4.9 and 5.5, with the same messages and first offsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake import MessageStore, RetentionConfig, StoreConfig
from tests.helpers import covers
from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.rocketmq import RocketMQ
from tests.interop.test_shared_stores import (
    SETTINGS,
    VERSIONS,
    comparable,
    counts_of,
    dumped_by,
    messages,
    our_lines,
    plain_lines,
)

pytestmark = WITH_ROCKETMQ


def cleaned_store(path: Path) -> None:
    """Write more than eight log files and delete all but three.

    Some queues then begin in the middle of a file, and one has no messages left but keeps its queue offsets.
    """
    config = StoreConfig.from_properties(SETTINGS)
    with MessageStore.open(path, config=config, retention=RetentionConfig(enabled=False, pause_ms=0)) as store:
        for message in messages(11, 600):
            store.put(message)
        retained = store.retain(keep_bytes=2 * 65536)
        assert retained.file_count > 5


def with_messages(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a dump without the queues that have no message left, because the three programs differ on them.

    Here they are empty and continue with their next queue offset; RocketMQ 4.9 lets them begin at 0 with messages
    that it cannot read; 5.5 forgets them.
    """
    lines = [line for line in comparable(lines) if line["kind"] != "unreadable"]
    filled = {(line["cqTopic"], line["cqQueueId"]) for line in lines if line["kind"] == "message"}
    (store,) = (line for line in lines if line["kind"] == "store")
    store["queues"] = [queue for queue in store["queues"] if (queue["topic"], queue["queueId"]) in filled]
    return lines


@covers("O1")
@pytest.mark.parametrize("stop", ["clean", pytest.param("unclean", marks=pytest.mark.long)])
@pytest.mark.parametrize("version", VERSIONS)
def test_rocketmq_serves_a_cleaned_store_with_the_same_messages_and_first_offsets(
    version: str, stop: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cleaned_store(tmp_path / "store")
    ours = with_messages(our_lines(tmp_path / "store"))
    if stop == "unclean":
        (tmp_path / "store" / "abort").write_text("1")
    theirs = with_messages(dumped_by(version, tmp_path / "store", tmp_path))
    assert theirs == ours
    counts = counts_of(theirs)
    assert counts["messages"] > 50
    record_property(f"compared: RocketMQ {version} on a store that mqlake cleaned", counts)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_rocketmq_continues_writing_a_cleaned_store_and_mqlake_cleans_it_again(version: str, tmp_path: Path) -> None:
    cleaned_store(tmp_path / "store")
    RocketMQ(version).write(tmp_path / "store", SETTINGS, plain_lines(5, 200))
    with MessageStore.open(tmp_path / "store", config=StoreConfig.from_properties(SETTINGS)) as store:
        first = store.first_offset
        assert store.retain(keep_bytes=65536).file_count > 0
        assert store.first_offset > first
    ours = with_messages(our_lines(tmp_path / "store"))
    assert with_messages(dumped_by(version, tmp_path / "store", tmp_path)) == ours
