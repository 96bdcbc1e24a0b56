"""Sends what is in the outbox. A row is deleted once its message is stored, so none is lost; one may be sent twice."""

from __future__ import annotations

import asyncio
import logging

from examples.jobs import database
from mqlake import Message, StoreError
from mqlake.client import AsyncProducer

PAUSE_S = 0.2
_log = logging.getLogger(__name__)


async def send_outbox(producer: AsyncProducer) -> int:
    """Send the messages that wait; return how many there were."""
    rows = await asyncio.to_thread(database.outbox)
    messages = [Message(row["topic"], row["body"].encode(), keys=[row["key"]]) for row in rows]
    if messages:
        await producer.send_many(messages)
        await asyncio.to_thread(database.sent, [row["id"] for row in rows])
    return len(rows)


async def keep_sending(producer: AsyncProducer) -> None:
    """Send again and again. While no broker answers, messages wait in the outbox."""
    while True:
        try:
            if await send_outbox(producer):
                continue
        except StoreError as error:
            _log.warning("the outbox waits: %s", error)
        await asyncio.sleep(PAUSE_S)
