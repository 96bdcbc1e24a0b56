"""Messages that a consumer could not process come back: to be delivered again later, or as dead letters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal
from mqlake.delivery.later.retry import retried
from mqlake.delivery.registry.groups import Group
from mqlake.delivery.registry.system_topics import DEAD_PREFIX
from mqlake.delivery.registry.topics import Topic
from mqlake.errors import StoreError
from mqlake.kernel import Command
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import SendBackHeader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler


class SendBacks:
    """Stores failed messages again."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back}

    def _send_back(self, connection: Connection, command: Command) -> None:
        header = SendBackHeader.read(command.fields)
        group = self._broker.members.known_group(header.group)
        self._broker.parts.topics.retry_topic(header.group)
        self._broker.run(connection, command, lambda: self._store(command, header, group))

    def _store(self, command: Command, header: SendBackHeader, group: Group) -> Command:
        """In the pool."""
        port = self._broker.port
        try:
            failed = port.reader.get(header.offset)
        except StoreError as error:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}: {error}"
            ) from None
        if header.max_reconsume_times is not None and header.max_reconsume_times >= 0:
            group = replace(group, max_retry_count=header.max_reconsume_times)
        again = retried(group, failed, header.delay_level)
        if again is not None:
            if again.topic.startswith(DEAD_PREFIX):
                self._broker.parts.topics.create(Topic(again.topic, 1, 1))
            port.put(again)
        return response(command)
