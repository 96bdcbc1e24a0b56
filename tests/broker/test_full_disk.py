"""A full disk: the client sees SERVICE_NOT_AVAILABLE and why, nothing acknowledged is lost, and sending resumes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mqlake.broker.in_thread import BrokerThread
from mqlake.config import StoreConfig
from mqlake.torture.faults.smalldisk import NotPermitted, small_disk
from tests.broker.wire import Wire

SETTINGS = {"mappedFileSizeCommitLog": "1048576", "mappedFileSizeConsumeQueue": "6000", "maxHashSlotNum": "100"}
SETTINGS |= {"maxIndexNum": "400"}


def test_a_full_disk_is_told_and_sending_works_again_when_space_is_back(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "disk", size="24M") as disk:
            fill_and_free(disk)
    except NotPermitted as error:
        pytest.skip(str(error))


def fill_and_free(disk: Path) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * (8 << 20))
    stored: list[tuple[str, bytes]] = []
    with BrokerThread(disk / "store", config=StoreConfig.from_properties(SETTINGS)) as broker:
        with Wire(broker.address) as wire:
            refused = send_until(wire, stored, wanted=14)
            assert "No space left" in refused or "full" in refused, refused
            assert len(stored) > 100
            ballast.unlink()
            count = len(stored)
            send_until(wire, stored, wanted=0)
            assert len(stored) == count + 1, "sending works again on the same connection"
        for message_id, body in stored:
            assert bytes(broker.store.get(int(message_id[-16:], 16)).body) == body


def send_until(wire: Wire, stored: list[tuple[str, bytes]], wanted: int) -> str:
    """Send until a send is answered with this code, and return its remark."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        body = b"%d-" % len(stored) * 2000
        answer = wire.put("T", body, queue_id=len(stored) % 4)
        assert answer.code in (0, 14), answer
        if answer.code == 0:
            stored.append((answer.fields["msgId"], body))
        if answer.code == wanted:
            return answer.remark or ""
    raise AssertionError(f"no send was answered {wanted}")
