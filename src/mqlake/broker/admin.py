"""What tools ask about groups and topics: settings, connections, progress, and questions to clients."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from mqlake.broker.bodies import json_of
from mqlake.broker.connection import Connection
from mqlake.broker.membership import ConsumerGroup
from mqlake.broker.refusals import Refusal
from mqlake.broker.versions import TableVersion
from mqlake.delivery.registry.groups import Group
from mqlake.delivery.registry.offsets import name_of
from mqlake.errors import BadRequest, InvalidConfig, StoreError, UnknownGroup
from mqlake.kernel import Command
from mqlake.remoting.bodies import MessageQueue, object_map, write_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import request, response
from mqlake.remoting.headers import GroupHeader, TopicHeader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

RELAY_TIMEOUT_S = 5.0


class Admin:
    """Answers the questions of tools."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._delivery = broker.delivery
        self._groups_version, self._offsets_version = TableVersion(), TableVersion()

    def handlers(self) -> dict[int, Handler]:
        blocking = self._broker.blocking
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: blocking(self._save_group),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: blocking(self._save_groups),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._one_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: blocking(self._delete_group),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self._all_producers,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: blocking(self._clean),
            RequestCode.DELETE_EXPIRED_COMMITLOG: blocking(self._clean),
            RequestCode.CLEAN_UNUSED_TOPIC: self._clean_topics,
            RequestCode.GET_TOPIC_STATS_INFO: blocking(self._topic_stats),
            RequestCode.GET_CONSUME_STATS: blocking(self._consume_stats),
            RequestCode.GET_BROKER_CONSUME_STATS: self._all_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._subscription,
            RequestCode.QUERY_CONSUME_TIME_SPAN: blocking(self._time_span),
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._relay,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._relay,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_progress,
        }

    # ---- groups

    def _save_group(self, connection: Connection, command: Command) -> Command:
        self._save(json_of(command))
        return response(command)

    def _save_groups(self, connection: Connection, command: Command) -> Command:
        body = json_of(command)
        found = body.get("groupConfigList")
        if not isinstance(found, list):
            raise BadRequest("body", str(body)[:80], "groupConfigList with the settings of groups")
        for each in found:
            self._save(each)
        return response(command)

    def _save(self, group: Any) -> None:
        if not isinstance(group, dict) or not group.get("groupName"):
            raise BadRequest("body", str(group)[:80], "a group's settings with groupName")
        self._delivery.require_writer()
        self._delivery.groups.save(Group.from_json(str(group["groupName"]), group))

    def _all_groups(self, connection: Connection, command: Command) -> Command:
        table = {group.name: group.to_json() for group in self._delivery.groups}
        version = self._groups_version.of(table)
        return response(command, body=write_json({"dataVersion": version, "subscriptionGroupTable": table}))

    def _one_group(self, connection: Connection, command: Command) -> Command:
        name = command.fields.get("group", "")
        try:
            known = self._delivery.know_group(name)
        except (InvalidConfig, UnknownGroup):
            remark = f"No group in this broker. group: {name}"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark) from None
        return response(command, body=write_json(known.to_json()))

    def _delete_group(self, connection: Connection, command: Command) -> Command:
        self._delivery.require_writer()
        name = command.fields.get("groupName", "")
        if name in self._delivery.groups:
            self._delivery.groups.delete(name)
        if command.fields.get("cleanOffset") == "true":
            self._delivery.offsets.forget(group=name)
            self._delivery.filters.forget(group=name)
            self._delivery.persist()
        return response(command)

    # ---- connections

    def _online(self, name: str) -> ConsumerGroup:
        group = self._broker.members.consumers.get(name)
        if group is None:
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        return group

    def _consumers(self, connection: Connection, command: Command) -> Command:
        group = self._online(GroupHeader.read(command.fields).consumer_group)
        body = {
            "connectionSet": [_connection(client_id, at) for client_id, at in group.members.items()],
            "consumeFromWhere": group.consume_from,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: each.to_json() for topic, each in group.subscriptions.items()},
        }
        return response(command, body=write_json(body))

    def _producers(self, connection: Connection, command: Command) -> Command:
        name = command.fields.get("producerGroup", "")
        members = self._broker.members.producers.get(name)
        if members is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = {"connectionSet": [_connection(client_id, at) for client_id, at in members.items()]}
        return response(command, body=write_json(body))

    def _all_producers(self, connection: Connection, command: Command) -> Command:
        now = self._broker.loop.time()
        table = {
            group: [
                {
                    "clientId": client_id,
                    "remoteIP": at.address,
                    "language": at.language,
                    "version": at.version,
                    "lastUpdateTimestamp": int(1000 * (time.time() - now + at.last_heard)),
                }
                for client_id, at in members.items()
            ]
            for group, members in self._broker.members.producers.items()
        }
        return response(command, body=write_json({"data": table}))

    # ---- cleaning

    def _clean(self, connection: Connection, command: Command) -> Command:
        """Delete log files that are due, and what queues and index hold of deleted ones, now instead of later."""
        self._broker.port.retention.clean()
        return response(command)

    def _clean_topics(self, connection: Connection, command: Command) -> Command:
        """Nothing is left to do: a topic's queues are deleted with it."""
        return response(command)

    # ---- queues and progress

    def queues(self, topic: str) -> list[MessageQueue]:
        known = self._broker.parts.topics.table.find(topic)
        if known is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        count = max(known.read_queue_count, known.write_queue_count)
        return [MessageQueue(topic, self._broker.settings.broker_name, queue_id) for queue_id in range(count)]

    def _topic_stats(self, connection: Connection, command: Command) -> Command:
        topic = TopicHeader.read(command.fields).topic
        offsets = self._broker.parts.offsets
        table = []
        for queue in self.queues(topic):
            found = offsets.range_of(topic, queue.queue_id)
            last = offsets.store_time(topic, queue.queue_id, found.end_offset - 1) if found.message_count else 0
            table.append(
                (
                    queue.to_json(),
                    {
                        "lastUpdateTimestamp": max(last, 0),
                        "maxOffset": found.end_offset,
                        "minOffset": found.first_offset,
                    },
                )
            )
        rate = self._broker.parts.stats.rate_of("TOPIC_PUT_NUMS", topic)
        return response(command, body=f'{{"offsetTable":{object_map(table)},"topicPutTps":{rate}}}'.encode())

    def _consume_stats(self, connection: Connection, command: Command) -> Command:
        group, topic = command.fields.get("consumerGroup", ""), command.fields.get("topic")
        topics = [topic] if topic else self.topics_read_by(group)
        table, rate = [], 0.0
        for name in topics:
            if name not in self._broker.parts.topics.table:
                continue
            rate += self._rate(group, name)
            table += self._progress_table(group, name)
        return response(command, body=_consume_stats_json(rate, table).encode())

    def _all_consume_stats(self, connection: Connection, command: Command) -> None:
        """Answer with the progress of every group in every topic that it reads, for topics in order alone if asked.

        A topic that an online group no longer subscribes to is left out.
        """
        is_order = command.fields.get("isOrder") == "true"
        subscribed = {group.name: set(group.subscriptions) for group in self._broker.members.consumers.values()}

        def gather() -> Command:
            groups, lag = [], 0
            for group in sorted(known.name for known in self._delivery.groups):
                found = []
                for name in self.topics_read_by(group):
                    topic = self._broker.parts.topics.table.find(name)
                    if topic is None or (is_order and not topic.ordered):
                        continue
                    if subscribed.get(group) and name not in subscribed[group]:
                        continue
                    table = self._progress_table(group, name)
                    lag += sum(each["brokerOffset"] - each["consumerOffset"] for _, each in table)
                    found.append(_consume_stats_json(self._rate(group, name), table))
                groups.append(f"{{{json.dumps(group)}:[{','.join(found)}]}}")
            totals = f'"totalDiff":{lag},"totalInflightDiff":0'
            address = json.dumps(self._broker.address)
            body = f'{{"brokerAddr":{address},"consumeStatsList":[{",".join(groups)}],{totals}}}'
            return response(command, body=body.encode())

        self._broker.run(connection, command, gather)

    def _rate(self, group: str, topic: str) -> float:
        return self._broker.parts.stats.rate_of("GROUP_GET_NUMS", f"{topic}@{group}")

    def _progress_table(self, group: str, topic: str) -> list[tuple[dict[str, Any], dict[str, int]]]:
        return [(queue.to_json(), self._progress(group, queue)) for queue in self.queues(topic)]

    def _progress(self, group: str, queue: MessageQueue) -> dict[str, int]:
        offsets = self._broker.parts.offsets
        found = offsets.range_of(queue.topic, queue.queue_id)
        known = self._delivery.offsets.get(name_of(queue.topic, group), queue.queue_id)
        reached = 0 if known is None or known < 0 else known
        last = offsets.store_time(queue.topic, queue.queue_id, reached - 1) if reached > found.first_offset else 0
        return {
            "brokerOffset": found.end_offset,
            "consumerOffset": reached,
            "lastTimestamp": max(last, 0),
            "pullOffset": reached,
        }

    def topics_read_by(self, group: str) -> list[str]:
        return sorted({known.topic for known in self._delivery.offsets.subscriptions() if known.group == group})

    def _groups_of_topic(self, connection: Connection, command: Command) -> Command:
        topic = TopicHeader.read(command.fields).topic
        online = {group.name for group in self._broker.members.consumers.values() if topic in group.subscriptions}
        having = {known.group for known in self._delivery.offsets.subscriptions() if known.topic == topic}
        return response(command, body=write_json({"groupList": sorted(online | having)}))

    def _topics_of_group(self, connection: Connection, command: Command) -> Command:
        topics = self.topics_read_by(command.fields.get("group", ""))
        body = {"brokerAddr": self._broker.address, "topicList": topics}
        return response(command, body=write_json(body))

    def _subscription(self, connection: Connection, command: Command) -> Command:
        name, topic = command.fields.get("group", ""), command.fields.get("topic", "")
        group = self._broker.members.consumers.get(name)
        known = group.subscriptions.get(topic) if group is not None else None
        data = None if known is None else known.to_json()
        return response(command, body=write_json({"group": name, "subscriptionData": data, "topic": topic}))

    def _time_span(self, connection: Connection, command: Command) -> Command:
        topic, group = command.fields.get("topic", ""), command.fields.get("group", "")
        offsets = self._broker.parts.offsets
        spans, now_ms = [], time.time_ns() // 1_000_000
        for queue in self.queues(topic):
            found = offsets.range_of(topic, queue.queue_id)
            reached = self._progress(group, queue)
            first = offsets.store_time(topic, queue.queue_id, found.first_offset) if found.message_count else -1
            last = offsets.store_time(topic, queue.queue_id, found.end_offset - 1) if found.message_count else -1
            place = max(reached["consumerOffset"], found.first_offset)
            delay = now_ms - offsets.store_time(topic, queue.queue_id, place) if place < found.end_offset else 0
            spans.append(
                {
                    "consumeTimeStamp": reached["lastTimestamp"] or first,
                    "delayTime": delay,
                    "maxTimeStamp": last,
                    "messageQueue": queue.to_json(),
                    "minTimeStamp": first,
                }
            )
        return response(command, body=write_json({"consumeTimeSpanSet": spans}))

    def _all_progress(self, connection: Connection, command: Command) -> Command:
        table = self._delivery.offsets
        offsets = {name_of(*known): table.of(name_of(*known)) for known in table.subscriptions()}
        version = self._offsets_version.of(offsets)
        return response(command, body=write_json({"dataVersion": version, "offsetTable": offsets}))

    # ---- questions that a client answers

    def _relay(self, connection: Connection, command: Command) -> None:
        """Pass a request on to the client that it names, and its answer back."""
        name, client_id = command.fields.get("consumerGroup", ""), command.fields.get("clientId", "")
        group = self._broker.members.consumers.get(name)
        client = group.members.get(client_id) if group is not None else None
        if client is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"The Consumer <{name}> <{client_id}> not online")
        fields, body = dict(command.fields), command.body
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            body = self._message_of(fields)
        asked = client.ask(request(command.code, fields, body), RELAY_TIMEOUT_S)

        def done(future: asyncio.Future[Command]) -> None:
            if future.cancelled():
                remark = f"consumer <{name}> <{client_id}> Timeout"
                answer = response(command, ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
            else:
                said = future.result()
                answer = response(command, said.code, said.fields, said.body, remark=said.remark)
            connection.answer(command, answer)

        asked.add_done_callback(done)

    def _message_of(self, fields: dict[str, str]) -> bytes:
        try:
            return self._broker.port.reader.get(fields.get("msgId", "")).record
        except (StoreError, ValueError) as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"message {fields.get('msgId')}: {error}") from None


def _consume_stats_json(rate: float, table: list[tuple[dict[str, Any], dict[str, int]]]) -> str:
    return f'{{"consumeTps":{rate},"offsetTable":{object_map(table)}}}'


def _connection(client_id: str, connection: Connection) -> dict[str, Any]:
    return {
        "clientAddr": connection.address,
        "clientId": client_id,
        "language": connection.language,
        "version": connection.version,
    }
