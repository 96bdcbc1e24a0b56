"""The store's own consumer, as the asyncio loop calls one."""

from __future__ import annotations

import asyncio

from mqlake.delivery.consume.consumer import Consumer
from mqlake.message import StoredMessage


class LocalConsumer:
    """What may wait for the disk runs in a thread; a commit only moves a number."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    @property
    def is_closed(self) -> bool:
        return self._consumer.is_closed

    @property
    def is_ordered(self) -> bool:
        return self._consumer.is_ordered

    async def poll(self, timeout_s: float = 0.0, limit: int = 32) -> list[StoredMessage]:
        return await self._consumer.poll_async(timeout_s, limit)

    async def commit(self, message: StoredMessage | None = None, *, durable: bool = False) -> None:
        self._consumer.commit(message, durable=durable)

    async def fail(self, message: StoredMessage, level: int = 0) -> object:
        return await asyncio.to_thread(self._consumer.fail, message, level)

    async def close(self) -> None:
        self._consumer.close()
