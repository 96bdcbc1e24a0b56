"""Progress of groups, and the ends of queues."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal
from mqlake.delivery.registry.offsets import name_of
from mqlake.errors import StoreError, UnknownTopic
from mqlake.kernel import Command
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import QueryOffsetHeader, QueueHeader, SearchOffsetHeader, UpdateOffsetHeader
from mqlake.store.read import QueueRange

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

NOT_FOUND: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
NOT_ZERO: Final = "Not found, do not set to zero, maybe this group boot first"
RESET_BEFORE: Final = "Offset has been previously reset"
IN_MEMORY_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 40 // 100
"""How much of the log's end counts as in memory (accessMessageInMemoryMaxRatio)."""


class Offsets:
    """Answers questions about queue offsets."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reader = broker.port.reader
        self._table = broker.delivery.offsets
        broker.delivery.keep()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self._settled(self._query),
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update,
            RequestCode.GET_MAX_OFFSET: self._settled(self._max),
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._broker.blocking(self._search),
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest,
        }

    # ---- progress

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group's progress in memory; the file follows."""
        self._table.set(name_of(topic, group), queue_id, offset)

    def _query(self, connection: Connection, command: Command) -> Command:
        header = QueryOffsetHeader.read(command.fields)
        known = self._table.get(name_of(header.topic, header.consumer_group), header.queue_id)
        if known is not None and known >= 0:
            return response(command, fields={"offset": str(known)})
        if header.set_zero_if_not_found is False:
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, NOT_ZERO)
        if self.is_young(header.topic, header.queue_id):
            return response(command, fields={"offset": "0"})
        raise Refusal(ResponseCode.QUERY_NOT_FOUND, NOT_FOUND)

    def is_young(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue still has its first message, and that one is in memory."""
        found = self._reader.range_or_empty(topic, queue_id)
        if found.first_offset > 0 or found.end_offset == 0:
            return False
        try:
            first = self._reader.read(topic, queue_id, 0, 1, 1)
        except StoreError:
            return False
        return bool(first) and self._broker.port.ends.visible - first[0].physical_offset < IN_MEMORY_BYTES

    def _update(self, connection: Connection, command: Command) -> Command:
        header = UpdateOffsetHeader.read(command.fields)
        if header.consumer_group not in self._broker.delivery.groups:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
        if self._broker.parts.topics.table.find(header.topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
        if self._broker.parts.pulls.is_reset(header.consumer_group, header.topic, header.queue_id):
            return response(command, remark=RESET_BEFORE)
        if header.commit_offset >= 0:
            self.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return response(command)

    # ---- queues

    def range_of(self, topic: str, queue_id: int) -> QueueRange:
        try:
            return self._reader.range_of(topic, queue_id)
        except UnknownTopic:
            return QueueRange(topic, queue_id, 0, 0)

    def _settled(self, handler: Callable[[Connection, Command], Command]) -> Handler:
        """Return a handler that runs another one once dispatch has reached all that was acknowledged before.

        A client that begins with a group asks for progress (14), then for a queue's end (30): if one of them did not
        see a message that the other sees, the client would pass over it.
        """
        port, run = self._broker.port, self._broker.run

        def settle(connection: Connection, command: Command) -> Command:
            port.settle()
            return handler(connection, command)

        def start(connection: Connection, command: Command) -> Command | None:
            if port.ends.dispatched >= port.ends.promised:
                return handler(connection, command)
            run(connection, command, lambda: settle(connection, command))
            return None

        return start

    def _max(self, connection: Connection, command: Command) -> Command:
        header = QueueHeader.read(command.fields)
        return response(command, fields={"offset": str(self.range_of(header.topic, header.queue_id).end_offset)})

    def _min(self, connection: Connection, command: Command) -> Command:
        header = QueueHeader.read(command.fields)
        return response(command, fields={"offset": str(self.range_of(header.topic, header.queue_id).first_offset)})

    def _search(self, connection: Connection, command: Command) -> Command:
        header = SearchOffsetHeader.read(command.fields)
        try:
            if (header.boundary_type or "LOWER").upper() == "UPPER":
                offset = max(0, self._reader.seek_time(header.topic, header.queue_id, header.timestamp + 1) - 1)
            else:
                offset = self._lower(header)
        except UnknownTopic:
            offset = 0
        return response(command, fields={"offset": str(offset)})

    def _lower(self, header: SearchOffsetHeader) -> int:
        return self._reader.seek_time(header.topic, header.queue_id, header.timestamp)

    def _earliest(self, connection: Connection, command: Command) -> Command:
        header = QueueHeader.read(command.fields)
        found = self.range_of(header.topic, header.queue_id)
        timestamp = self.store_time(header.topic, header.queue_id, found.first_offset) if found.message_count else -1
        return response(command, fields={"timestamp": str(timestamp)})

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message was stored; -1 if it cannot be read."""
        try:
            found = self._reader.read(topic, queue_id, offset, 1, 1)
        except StoreError:
            return -1
        return found[0].store_timestamp if found else -1
