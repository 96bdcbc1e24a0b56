"""How far groups are, as tools change it: set back or on, copied to another group, and asked of a group's members."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal, refuse
from mqlake.delivery.registry.offsets import name_of
from mqlake.errors import StoreError
from mqlake.kernel import Command
from mqlake.remoting.bodies import object_map, read_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import request, response
from mqlake.remoting.headers import ResetOffsetHeader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

ASK_TIMEOUT_S = 5.0


class Progress:
    """Changes what `Offsets` knows."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._delivery = broker.delivery

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.CLONE_GROUP_OFFSET: self._clone,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._status,
        }

    # ---- resets

    def _reset(self, connection: Connection, command: Command) -> None:
        header = ResetOffsetHeader.read(command.fields)
        queues = self._broker.parts.admin.queues(header.topic)
        if header.group not in self._delivery.groups:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
        if header.queue_id >= 0:
            queues = [queue for queue in queues if queue.queue_id == header.queue_id]
            if not queues:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic[{header.topic}] has no queue {header.queue_id}")
        loop, parts = self._broker.loop, self._broker.parts

        def apply(places: dict[int, int]) -> None:
            """In the loop: a member that commits sees both or neither."""
            for queue_id, offset in places.items():
                parts.offsets.commit(header.group, header.topic, queue_id, offset)
            parts.pulls.reset(header.group, header.topic, places)

        def reset() -> Command:
            places = {queue.queue_id: self._place(header, queue.queue_id) for queue in queues}
            loop.call_soon_threadsafe(apply, places)
            table = [(queue.to_json(), places[queue.queue_id]) for queue in queues]
            return response(command, body=f'{{"offsetTable":{object_map(table)}}}'.encode())

        self._broker.run(connection, command, reset)

    def _place(self, header: ResetOffsetHeader, queue_id: int) -> int:
        """Return the queue offset that a reset asks for, inside of the queue."""
        reader, found = self._broker.port.reader, self._broker.parts.offsets.range_of(header.topic, queue_id)
        if header.offset is not None and header.offset != -1:
            if not found.first_offset <= header.offset <= found.end_offset:
                inside = f"[{found.first_offset}-{found.end_offset}]"
                remark = f"Target offset {header.offset} not in consume queue range {inside}"
                raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
            wanted = header.offset
        elif header.timestamp == -1:
            wanted = found.end_offset
        else:
            try:
                wanted = reader.seek_time(header.topic, queue_id, header.timestamp)
            except StoreError:
                wanted = 0
        wanted = min(max(wanted, found.first_offset), found.end_offset)
        known = self._delivery.offsets.get(name_of(header.topic, header.group), queue_id)
        if not header.is_force and known is not None and 0 <= known < wanted and header.offset in (None, -1):
            return known
        return wanted

    # ---- copies

    def _clone(self, connection: Connection, command: Command) -> Command:
        """Give one group the progress of another, in one topic or in all that this one reads.

        A topic that an online group no longer subscribes to is left out, unless it counts as offline.
        """
        fields, parts = command.fields, self._broker.parts
        source, target = fields.get("srcGroup", ""), fields.get("destGroup", "")
        self._broker.members.known_group(target)
        online = self._broker.members.consumers.get(source)
        for topic in [fields["topic"]] if fields.get("topic") else parts.admin.topics_read_by(source):
            is_left = online is not None and topic not in online.subscriptions
            if topic not in parts.topics.table or (is_left and fields.get("offline") != "true"):
                continue
            for queue_id, offset in self._delivery.offsets.of(name_of(topic, source)).items():
                parts.offsets.commit(target, topic, queue_id, offset)
        return response(command)

    # ---- what members know

    def _status(self, connection: Connection, command: Command) -> None:
        """Ask the members of a group, or the one that is named, how far they are in a topic."""
        topic, name = command.fields.get("topic", ""), command.fields.get("group", "")
        group, wanted = self._broker.members.consumers.get(name), command.fields.get("clientAddr")
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{name}]"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        question = {"topic": topic, "group": name}
        asked = {
            client_id: member.ask(request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question), ASK_TIMEOUT_S)
            for client_id, member in group.members.items()
            if not wanted or wanted == client_id
        }
        gathered = asyncio.gather(*asked.values(), return_exceptions=True)

        def done(future: asyncio.Future[list[Command | BaseException]]) -> None:
            if future.cancelled():
                return
            try:
                answer = response(command, body=_status_body(dict(zip(asked, future.result(), strict=True))))
            except Exception as error:  # a member's answer is no map of queues
                answer = refuse(command, error)
            connection.answer(command, answer)

        gathered.add_done_callback(done)


def _status_body(said: dict[str, Command | BaseException]) -> bytes:
    """Return what members answered, without those that did not; queues are the keys of Java's objects."""
    tables = []
    for client_id, answer in said.items():
        if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS and answer.body:
            found = read_json(answer.body).get("messageQueueTable") or {}
            queues = object_map((json.loads(queue), offset) for queue, offset in found.items())
            tables.append(f"{json.dumps(client_id)}:{queues}")
    return f'{{"consumerTable":{{{",".join(tables)}}},"messageQueueTable":{{}}}}'.encode()
