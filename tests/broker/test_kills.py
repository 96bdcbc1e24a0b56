"""kill -9 of `mqlake serve` under load: what was acknowledged is there after the restart, in its place, once."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from mqlake.broker.in_thread import BrokerThread
from mqlake.config import StoreConfig
from tests.broker.test_serve import start
from tests.broker.wire import Wire

SENDERS = 4
SETTINGS = {"mappedFileSizeCommitLog": "4194304", "mappedFileSizeConsumeQueue": "60000"}
"""Small files, so that kills also meet new ones."""


class Sender(threading.Thread):
    """Sends until the broker dies, and keeps what was acknowledged: message id, queue, queue offset, body."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(daemon=True)
        self._address, self._name = address, name
        self.acknowledged: list[tuple[str, int, int, bytes]] = []
        self.refused: list[str] = []

    def run(self) -> None:
        number = 0
        try:
            with Wire(self._address) as wire:
                while True:
                    body = f"{self._name}-{number}-".encode() * (1 + number % 40)
                    answer = wire.put("T", body, queue_id=number % 4)
                    if answer.code != 0:
                        self.refused.append(f"{answer.code} {answer.remark}")
                        return
                    place = int(answer.fields["queueId"]), int(answer.fields["queueOffset"])
                    self.acknowledged.append((answer.fields["msgId"], *place, body))
                    number += 1
        except (OSError, EOFError):
            return  # the kill


def kill_under_load(store: Path, round_number: int, chance: random.Random) -> list[tuple[str, int, int, bytes]]:
    """Serve, send, kill after a random time; return what was acknowledged."""
    config = store.parent / "broker.conf"
    config.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    process, _, address = start(store, "--config", str(config))
    senders = [Sender(address, f"{round_number}.{number}") for number in range(SENDERS)]
    try:
        for sender in senders:
            sender.start()
        deadline = time.monotonic() + 20
        while not all(sender.acknowledged or not sender.is_alive() for sender in senders):
            assert time.monotonic() < deadline, "no send was answered"
            time.sleep(0.01)
        time.sleep(chance.random())
    finally:
        process.kill()
        process.wait()
    for sender in senders:
        sender.join(20)
        assert not sender.is_alive() and not sender.refused, sender.refused
    return [each for sender in senders for each in sender.acknowledged]


def kill_often(tmp_path: Path, count: int) -> int:
    """Kill a broker so often, on one store; return how many messages were acknowledged. All of them are there."""
    chance = random.Random(count)
    store, total = tmp_path / "store", 0
    places: set[tuple[int, int]] = set()
    for round_number in range(count):
        acknowledged = kill_under_load(store, round_number, chance)
        with BrokerThread(store, config=StoreConfig.from_properties(SETTINGS)) as again:
            again.store.wait_dispatched()
            for message_id, queue_id, queue_offset, body in acknowledged:
                found = again.store.get(int(message_id[-16:], 16))
                assert (found.queue_id, found.queue_offset, bytes(found.body)) == (queue_id, queue_offset, body)
                (delivered,) = again.store.read("T", queue_id=queue_id, start=queue_offset, limit=1)
                assert delivered.physical_offset == found.physical_offset
                assert (queue_id, queue_offset) not in places, "a queue offset was given twice"
                places.add((queue_id, queue_offset))
        total += len(acknowledged)
    return total


def test_three_kills_under_load_lose_nothing_acknowledged(tmp_path: Path) -> None:
    assert kill_often(tmp_path, 3) >= 3 * SENDERS


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_hundred_kills_under_load_lose_nothing_acknowledged(tmp_path: Path) -> None:
    total = kill_often(tmp_path, 100)
    print(f"\n100 kills, {total} acknowledged messages, all there")
    assert total >= 100 * SENDERS
