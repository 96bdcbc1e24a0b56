"""What a slave asks its master's broker for, beside the log."""

from __future__ import annotations

import asyncio
import json

import pytest

from mqlake.errors import RequestRefused
from mqlake.kernel import Command, encode_command
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.replication.metadata import YOUNG_PAUSES_S, MasterFacts, ask_facts
from tests.client.test_connection import Server


def asked(monkeypatch: pytest.MonkeyPatch, refusals: int) -> MasterFacts:
    """Ask a broker that refuses the first questions as RocketMQ's does in its first second."""
    monkeypatch.setattr("mqlake.replication.metadata.YOUNG_PAUSES_S", [0.01] * len(YOUNG_PAUSES_S))
    table = {"table": {"commitLogMinOffset": "100", "commitLogMaxOffset": "900"}}

    async def serve(writer: asyncio.StreamWriter, command: Command) -> None:
        nonlocal refusals
        if command.code == RequestCode.GET_BROKER_CONFIG:
            answer = response(command, body=b"mappedFileSizeCommitLog=4096\n")
        elif refusals:
            refusals -= 1
            answer = response(command, ResponseCode.SYSTEM_ERROR, remark="java.util.NoSuchElementException")
        else:
            answer = response(command, body=json.dumps(table).encode())
        writer.write(encode_command(answer))

    async def main() -> MasterFacts:
        async with Server(serve) as server:
            return await asyncio.to_thread(ask_facts, server.address)

    return asyncio.run(main())


def test_a_master_that_has_just_started_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, refusals=2) == MasterFacts(100, 900, 4096, in_controller_mode=False)


def test_a_master_that_goes_on_refusing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestRefused, match="NoSuchElement"):
        asked(monkeypatch, refusals=9)
