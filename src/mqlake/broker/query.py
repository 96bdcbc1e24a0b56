"""Look-ups of messages: by physical offset, by key, by queue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal
from mqlake.delivery.properties import UNIQUE_KEY
from mqlake.errors import StoreError, UnknownTopic
from mqlake.kernel import Command
from mqlake.remoting.bodies import Subscription, write_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import QueryMessageHeader, QueueEntriesHeader, ViewMessageHeader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

MAX_FOUND = 64
MAX_BYTES = 8 << 20
"""An answer holds the newest messages up to this size, and at least one. RocketMQ's may exceed a frame."""
MAX_ENTRIES = 10_000
"""So many queue entries one answer has. RocketMQ stops at the end of a file, which may exceed a frame."""
BY_TAG = "T"


class Queries:
    """Finds messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        blocking = self._broker.blocking
        return {
            RequestCode.VIEW_MESSAGE_BY_ID: blocking(self._view),
            RequestCode.QUERY_MESSAGE: blocking(self._query),
            RequestCode.QUERY_CONSUME_QUEUE: self._entries,
        }

    def _view(self, connection: Connection, command: Command) -> Command:
        header = ViewMessageHeader.read(command.fields)
        try:
            found = self._broker.port.reader.get(header.offset)
        except StoreError as error:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}: {error}"
            ) from None
        return response(command, body=found.record)

    def _query(self, connection: Connection, command: Command) -> Command:
        header = QueryMessageHeader.read(command.fields)
        port = self._broker.port
        port.settle()
        limit = MAX_FOUND if header.unique_key else max(0, min(header.max_num, MAX_FOUND))
        found = port.reader.find(
            header.topic,
            header.key,
            limit,
            max(0, header.begin_timestamp),
            max(0, header.end_timestamp),
            tag=header.index_type == BY_TAG,
        )
        if header.unique_key:
            found = [message for message in found if message.properties.get(UNIQUE_KEY) == header.key] or found
        records: list[bytes] = []
        size = 0
        for message in reversed(found):
            size += message.size
            if records and size > MAX_BYTES:
                break
            records.append(message.record)
        records.reverse()
        fields = {
            "indexLastUpdatePhyoffset": str(found[-1].physical_offset if found else 0),
            "indexLastUpdateTimestamp": str(found[-1].store_timestamp if found else 0),
        }
        if not records:
            remark = "can not find message, maybe time range not correct"
            return response(command, ResponseCode.QUERY_NOT_FOUND, fields, remark=remark)
        return response(command, fields=fields, body=b"".join(records))

    # ---- entries of a queue

    def _entries(self, connection: Connection, command: Command) -> None:
        header = QueueEntriesHeader.read(command.fields)
        group = self._broker.members.consumers.get(header.consumer_group or "")
        subscription = group.subscriptions.get(header.topic) if group is not None else None
        self._broker.run(connection, command, lambda: self._entries_of(command, header, subscription))

    def _entries_of(self, command: Command, header: QueueEntriesHeader, subscription: Subscription | None) -> Command:
        """Answer with entries as they are in the queue's files; outside of the queue with none, and a remark."""
        port, topic, queue_id = self._broker.port, header.topic, header.queue_id
        port.settle()
        try:
            queue = port.reader.range_of(topic, queue_id)
            found = port.reader.entries(topic, queue_id, header.index, max(0, min(header.count, MAX_ENTRIES)))
        except UnknownTopic:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!") from None
        body: dict[str, Any] = {"maxQueueIndex": queue.end_offset, "minQueueIndex": queue.first_offset}
        body["queueData"] = [
            {"eval": False, "physicOffset": each.physical_offset, "physicSize": each.size, "tagsCode": each.tags_code}
            for each in found
        ]
        if header.consumer_group is not None:
            body["filterData"] = f"{header.consumer_group}@{topic} is not online!"
        if header.consumer_group is not None and subscription is not None:
            known = self._broker.delivery.filters.get(topic, header.consumer_group)
            body["filterData"] = json.dumps(known, indent="\t", ensure_ascii=False)
            body["subscriptionData"] = subscription.to_json()
        inside = queue.first_offset <= header.index < queue.end_offset
        remark = None if inside else f"Index {header.index} of {queue_id}@{topic} is not exist!"
        return response(command, body=write_json(body), remark=remark)
