"""Where a consumer's queues begin, and where their progress is kept: with the broker, or by the consumer itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from mqlake.client.remote_queue import RemoteQueue
from mqlake.client.session import Session
from mqlake.delivery.consume.progress import Progress, Start
from mqlake.delivery.registry.offsets import name_of
from mqlake.delivery.registry.system_topics import RETRY_PREFIX
from mqlake.errors import NotConnected
from mqlake.remoting.bodies import MessageQueue, read_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers import QueryOffsetHeader, QueueHeader, SearchOffsetHeader, UpdateOffsetHeader

FOUND_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


async def address_of(session: Session, queue: MessageQueue) -> str:
    """Return the address of a queue's broker."""
    route = await session.routes.get(queue.topic)
    address = route.address_of(queue.broker_name)
    if address is None:
        session.routes.expire(queue.topic)
        raise NotConnected(queue.broker_name, "the name server knows no address of this broker")
    return address


async def ends_of(session: Session, queue: MessageQueue) -> tuple[int, int]:
    """Return a queue's first offset and its end."""
    address = await address_of(session, queue)
    fields = QueueHeader(queue.topic, queue.queue_id).write()
    fields["bname"] = queue.broker_name
    first, end = await asyncio.gather(
        session.call(address, RequestCode.GET_MIN_OFFSET, dict(fields)),
        session.call(address, RequestCode.GET_MAX_OFFSET, dict(fields)),
    )
    return int(first.fields["offset"]), int(end.fields["offset"])


async def offset_at(session: Session, queue: MessageQueue, start: Start) -> int:
    """Return the queue offset that `start` means in a queue, inside of it."""
    first, end = await ends_of(session, queue)
    if isinstance(start, Mapping):
        start = start.get(queue.queue_id, "first")
    if start == "last":
        return end
    if isinstance(start, datetime):
        header = SearchOffsetHeader(queue.topic, queue.queue_id, int(start.timestamp() * 1000))
        fields = {"bname": queue.broker_name, **header.write()}
        address = await address_of(session, queue)
        answer = await session.call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        return min(max(int(answer.fields["offset"]), first), end)
    return min(max(start, first), end) if isinstance(start, int) else first


class Positions(Protocol):
    """Where progress is kept."""

    async def get(self, queue: MessageQueue) -> int:
        """Return where to begin."""

    async def tell(self, queues: Iterable[RemoteQueue]) -> None:
        """Record the progress of queues."""

    def close(self) -> None: ...


class GroupPositions:
    """Progress that the brokers keep, for the whole group."""

    def __init__(self, session: Session, group: str, start: Start) -> None:
        self._session = session
        self._group = group
        self._start = start

    async def get(self, queue: MessageQueue) -> int:
        address = await address_of(self._session, queue)
        header = QueryOffsetHeader(self._group, queue.topic, queue.queue_id, set_zero_if_not_found=False)
        fields = {"bname": queue.broker_name, **header.write()}
        answer = await self._session.call(address, RequestCode.QUERY_CONSUMER_OFFSET, fields, accept=FOUND_OR_NOT)
        start = "first" if queue.topic.startswith(RETRY_PREFIX) else self._start
        if answer.code == ResponseCode.SUCCESS:
            offset = int(answer.fields["offset"])
            if offset or start == "first" or await self._is_known(address, queue):
                return offset
        return await offset_at(self._session, queue, start)

    async def _is_known(self, address: str, queue: MessageQueue) -> bool:
        """Return whether progress of 0 is the group's. RocketMQ 4 also answers 0 for a young queue without progress."""
        if not self._session.is_old(address):
            return True
        answer = await self._session.call(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        found: Any = read_json(answer.body)
        table = (found.get("offsetTable") or {}).get(name_of(queue.topic, self._group)) or {}
        return str(queue.queue_id) in table

    async def tell(self, queues: Iterable[RemoteQueue]) -> None:
        await asyncio.gather(*(self._tell(each) for each in queues if 0 <= each.committed != each.told))

    async def _tell(self, each: RemoteQueue) -> None:
        queue, offset = each.queue, each.committed
        address = await address_of(self._session, queue)
        header = UpdateOffsetHeader(self._group, queue.topic, queue.queue_id, offset)
        fields = {"bname": queue.broker_name, **header.write()}
        await self._session.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        each.told = offset

    def close(self) -> None:
        """The brokers have it."""


class OwnPositions:
    """Progress of a broadcast consumer: in memory, or in a file that is locked while it is used."""

    def __init__(self, session: Session, group: str, start: Start, where: str | os.PathLike[str]) -> None:
        self._session = session
        self._group = group
        self._start = start
        self._progress = Progress.own(where, group)

    def _name(self, queue: MessageQueue) -> str:
        """Return the entry of a queue; its broker is part of it, because each counts its queues from 0."""
        return name_of(queue.topic, f"{self._group}%{queue.broker_name}")

    async def get(self, queue: MessageQueue) -> int:
        known = self._progress.table.get(self._name(queue), queue.queue_id)
        return known if known is not None else await offset_at(self._session, queue, self._start)

    async def tell(self, queues: Iterable[RemoteQueue]) -> None:
        for each in queues:
            if 0 <= each.committed != each.told:
                self._progress.table.set(self._name(each.queue), each.queue.queue_id, each.committed)
                each.told = each.committed
        await asyncio.to_thread(self._progress.table.sync)

    def close(self) -> None:
        self._progress.close()
