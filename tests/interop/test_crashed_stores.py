"""After a crash of mqlake, a real RocketMQ, 4.9 and 5.5, has every acknowledged message, and the reverse."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake import MessageStore, StoreConfig
from tests.helpers import covers
from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.rocketmq import RocketMQ
from tests.interop.test_shared_stores import SETTINGS, VERSIONS, comparable, our_lines, plain_lines

pytestmark = WITH_ROCKETMQ

WRITER = """
import json, random, sys, threading
from mqlake import FlushConfig, Message, MessageStore, StoreConfig

settings, path, seed = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
flush = FlushConfig(sync=True, queue_interval_ms=20, queue_thorough_interval_ms=200)
store = MessageStore.open(path, config=StoreConfig.from_properties(settings), flush=flush)
out = threading.Lock()

def write(number):
    draw = random.Random(seed * 10 + number)
    for i in range(10_000_000):
        body = draw.randbytes(draw.choice([0, 10, 300, 4000]))
        receipt = store.put(Message("orders", body, keys=f"{number}-{i}", tags="t", queue_id=number))
        with out:
            print(json.dumps([receipt.physical_offset, receipt.queue_id, receipt.queue_offset, body.hex()]), flush=True)

for number in range(4):
    threading.Thread(target=write, args=(number,)).start()
"""


def killed_store(path: Path, seed: int, count: int) -> list[list[Any]]:
    """Make a store whose writer was killed after `count` acknowledgements. Return what it acknowledged."""
    command = [sys.executable, "-c", WRITER, json.dumps(SETTINGS), str(path), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(count)]
        writer.kill()
        lines += [line for line in writer.stdout if line.endswith("]\n")]
    return [json.loads(line) for line in lines]


@covers("N5", "N6")
@pytest.mark.parametrize("version", VERSIONS)
def test_rocketmq_serves_what_mqlake_acknowledged_before_it_was_killed(
    version: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = tmp_path / "ours"
    acknowledged = killed_store(path, seed=len(version), count=400)
    assert (path / "abort").exists()
    lines = RocketMQ(version).dump(path, SETTINGS)
    served = {
        (line["physicalOffset"], line["queueId"], line["queueOffset"], base64.b64decode(line["body"]).hex())
        for line in lines
        if line["kind"] == "record"
    }
    assert {tuple(receipt) for receipt in acknowledged} <= served
    assert comparable(our_lines(path)) == comparable(lines), "mqlake continues where RocketMQ's recovery ended"
    record_property(
        f"compared: RocketMQ {version} on a store of mqlake that was killed", {"messages": len(acknowledged)}
    )


@covers("N5", "N6")
@pytest.mark.parametrize("version", VERSIONS)
def test_mqlake_serves_what_rocketmq_acknowledged_before_it_was_halted(
    version: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = tmp_path / "theirs"
    given = plain_lines(7, 300)
    answers = RocketMQ(version).write(path, SETTINGS, given, halt=True)
    assert (path / "abort").exists()
    with MessageStore.open(path, config=StoreConfig.from_properties(SETTINGS)) as store:
        for message, answer in zip(given, answers, strict=True):
            assert answer["status"] == "PUT_OK"
            served = store.get(answer["physicalOffset"])
            assert base64.b64encode(served.body).decode() == message["body"]
            assert [found.physical_offset for found in store.find("orders", message["keys"])] == [
                served.physical_offset
            ]
        assert sum(queue.message_count for queue in store.queues("orders")) == len(given)
    record_property(f"compared: mqlake on a store of RocketMQ {version} that was halted", {"messages": len(answers)})
