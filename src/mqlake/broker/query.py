"""Look-ups of messages: by physical offset, by key, by queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal
from mqlake.delivery.properties import UNIQUE_KEY
from mqlake.errors import StoreError
from mqlake.kernel import Command
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import QueryMessageHeader, ViewMessageHeader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

MAX_FOUND = 64
MAX_BYTES = 8 << 20
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
        limit = MAX_FOUND if header.unique_key else max(1, min(header.max_num, MAX_FOUND))
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
        for message in found:
            size += message.size
            if records and size > MAX_BYTES:
                break
            records.append(message.record)
        fields = {
            "indexLastUpdatePhyoffset": str(found[-1].physical_offset if found else 0),
            "indexLastUpdateTimestamp": str(found[-1].store_timestamp if found else 0),
        }
        if not records:
            remark = "can not find message, maybe time range not correct"
            return response(command, ResponseCode.QUERY_NOT_FOUND, fields, remark=remark)
        return response(command, fields=fields, body=b"".join(records))
