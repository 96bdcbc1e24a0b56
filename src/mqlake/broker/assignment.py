"""Server-side rebalance: a consumer asks which queues are its own, instead of dividing them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqlake.broker.bodies import json_of
from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal
from mqlake.delivery.registry.system_topics import RETRY_PREFIX
from mqlake.kernel import Command
from mqlake.remoting.bodies import MessageQueue, write_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

BROADCASTING = "BROADCASTING"
PULL, POP = "PULL", "POP"
ALL_QUEUES = -1


class Assignments:
    """Which queues a member of a group reads, and whether by pulls."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._modes: dict[tuple[str, str], dict[str, Any]] = {}
        """What SET_MESSAGE_REQUEST_MODE said, by topic and group."""

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self._query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self._set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._all_modes,
        }

    def _query(self, connection: Connection, command: Command) -> Command:
        body = json_of(command)
        topic, name = str(body.get("topic", "")), str(body.get("consumerGroup", ""))
        known = self._broker.parts.topics.for_read(topic)
        queues = [MessageQueue(topic, self._broker.settings.broker_name, i) for i in range(known.read_queue_count)]
        if self._modes.get((topic, name), {}).get("mode") == POP and not topic.startswith(RETRY_PREFIX):
            every = MessageQueue(topic, self._broker.settings.broker_name, ALL_QUEUES)
            assigned = [{"messageQueue": every.to_json(), "mode": POP}]
            return response(command, body=write_json({"messageQueueAssignments": assigned}))
        if body.get("messageModel") != BROADCASTING:
            queues = self._share(queues, name, str(body.get("clientId", "")), str(body.get("strategyName", "AVG")))
        assigned = [{"messageQueue": queue.to_json(), "mode": PULL} for queue in queues]
        return response(command, body=write_json({"messageQueueAssignments": assigned}))

    def _share(self, queues: list[MessageQueue], name: str, client_id: str, strategy: str) -> list[MessageQueue]:
        """Return a member's part of the queues: every member must get the same division."""
        group = self._broker.members.consumers.get(name)
        members = sorted(group.members) if group is not None else []
        if client_id not in members:
            return []
        place, count = members.index(client_id), len(members)
        if strategy == "AVG_BY_CIRCLE":
            return queues[place::count]
        if strategy != "AVG":
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"AllocateMessageQueueStrategy is not found: {strategy}")
        each, more = divmod(len(queues), count)
        start = place * each + min(place, more)
        return queues[start : start + each + (place < more)]

    def _set_mode(self, connection: Connection, command: Command) -> Command:
        body = json_of(command)
        topic, name = str(body.get("topic", "")), str(body.get("consumerGroup", ""))
        if topic.startswith(RETRY_PREFIX):
            raise Refusal(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        self._modes[topic, name] = body
        return response(command)

    def _all_modes(self, connection: Connection, command: Command) -> Command:
        table: dict[str, dict[str, Any]] = {}
        for (topic, name), body in self._modes.items():
            table.setdefault(topic, {})[name] = body
        return response(command, body=write_json({"messageRequestModeMap": table}))
