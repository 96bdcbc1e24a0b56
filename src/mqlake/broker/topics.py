"""Topics over the wire: created by a first message or by a request, changed, deleted, listed.

A topic that is created by its first message gets its settings from the topic that the producer names as template,
normally TBW102, if that one may be inherited from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mqlake.broker.bodies import json_of
from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Forbidden, Refusal, forbidden, no_topic
from mqlake.broker.settings import AUTO_CREATE_KEY
from mqlake.broker.versions import TableVersion
from mqlake.config import Role
from mqlake.delivery.registry.system_topics import (
    HALF_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    UNDECIDED_TOPIC,
    is_system_topic,
)
from mqlake.delivery.registry.topics import Permission, Topic
from mqlake.errors import BadRequest, InvalidMessage
from mqlake.kernel import Command
from mqlake.logs.topic_table import ALLOWED, LIGHT_PREFIX, require_topic
from mqlake.remoting.bodies import write_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import CreateTopicHeader, SendHeader, SendHeaderV2, TopicHeader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

READ_WRITE = Permission.READ | Permission.WRITE
TEMPLATE_QUEUES, CLUSTER_QUEUES = 8, 16
UNIT, UNIT_RETRY = 1, 2
"""topicSysFlag of a topic that producers of a unit made, and of the retries of such consumers."""
NOT_FOR_SENDING = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, UNDECIDED_TOPIC, TIMER_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
)
"""System topics that no client may send to."""


class TopicRequests:
    """The registry of topics as clients see it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._delivery = broker.delivery
        self.table = broker.delivery.topics
        self._version = TableVersion()
        self.system = self._system_topics()
        for topic in self.system.values():
            self.table.note(topic)
        if broker.store.config.replication.role is not Role.SLAVE:
            self._note_stored()
        self._delivery.keep()

    def handlers(self) -> dict[int, Handler]:
        blocking = self._broker.blocking
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: blocking(self._create),
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: blocking(self._create_list),
            RequestCode.DELETE_TOPIC_IN_BROKER: blocking(self._delete),
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all,
            RequestCode.GET_TOPIC_CONFIG: self._one,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_list,
        }

    def _system_topics(self) -> dict[str, Topic]:
        """Return the topics that a RocketMQ broker has from the start."""
        settings = self._broker.settings
        levels = len(self._broker.store.config.delays_ms)
        template = READ_WRITE | (Permission.INHERIT if self._delivery.config.auto_create_topics else Permission(0))
        counts = {
            "SELF_TEST_TOPIC": 1,
            "BenchmarkTest": 1024,
            "OFFSET_MOVED_EVENT": 1,
            SCHEDULE_TOPIC: levels,
            HALF_TOPIC: 1,
            OP_TOPIC: 1,
            UNDECIDED_TOPIC: 1,
            TIMER_TOPIC: 1,
            f"{settings.cluster}_REPLY_TOPIC": 1,
            f"rmq_sys_REVIVE_LOG_{settings.cluster}": 8,
            "RMQ_SYS_TRACE_TOPIC": 1,
        }
        topics = [Topic(name, count, count, READ_WRITE) for name, count in counts.items()]
        topics.append(Topic(AUTO_CREATE_KEY, TEMPLATE_QUEUES, TEMPLATE_QUEUES, template))
        for name, count in ((settings.cluster, CLUSTER_QUEUES), (settings.broker_name, 1)):
            topics.append(Topic(name, count, count, READ_WRITE | Permission.INHERIT))
        return {topic.name: topic for topic in topics}

    def _note_stored(self) -> None:
        """Know every topic that has messages. One that a send created shortly before a kill may be in no file."""
        for name in self._broker.store.topics():
            if name not in self.table and not name.startswith(LIGHT_PREFIX):
                count = max(self._broker.port.reader.queue_ids(name), default=0) + 1
                if not is_system_topic(name):
                    count = max(count, self._broker.port.queue_count(name))
                self.table.note(Topic(name, count, count, READ_WRITE))

    # ---- for other parts

    def for_send(self, header: SendHeader | SendHeaderV2, sender: str) -> Topic:
        """Return the settings of the topic that a message is for, creating it if that is allowed.

        Whatever a client has stored passes here, so none of it enters the topics that hold messages of others.
        """
        topic = self._wanted(header)
        if header.queue_id >= topic.write_queue_count and header.queue_id >= topic.read_queue_count:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, {_described(topic)} Producer: {sender}",
            )
        return topic

    def _wanted(self, header: SendHeader | SendHeaderV2) -> Topic:
        topic = header.topic
        if topic in NOT_FOR_SENDING:
            raise Refusal(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        known = self.table.find(topic)
        if known is not None:
            if known.ordered and not self._broker.settings.permission & Permission.WRITE:
                address = self._broker.address
                raise Refusal(ResponseCode.NO_PERMISSION, f"the broker[{address}] sending message is forbidden")
            return known
        self._require_name(topic)
        if topic.startswith(RETRY_PREFIX):
            return self.retry_topic(topic.removeprefix(RETRY_PREFIX))
        pattern = self.table.find(header.default_topic)
        if pattern is None or Permission.INHERIT not in pattern.permission:
            raise no_topic(topic)
        count = max(1, min(header.default_topic_queue_nums, pattern.write_queue_count))
        more = {"topicSysFlag": UNIT} if header.unit_mode else {}
        return self.create(Topic(topic, count, count, pattern.permission & ~Permission.INHERIT, more=more))

    def create(self, topic: Topic) -> Topic:
        """Create a topic by use: in memory at once, in the file a little later."""
        made = self.table.note(topic)
        self._delivery.keep()
        return made

    def retry_topic(self, group: str, *, unit: bool = False) -> Topic:
        """Return the topic of a group's retries, creating it; `unit`: for consumers of a unit."""
        name = RETRY_PREFIX + group
        known = self.table.find(name)
        if known is not None:
            if unit and known.more.get("topicSysFlag") != UNIT_RETRY:  # it was made when a route was asked for
                self._delivery.keep()
                return self.table.amend(replace(known, more={"topicSysFlag": UNIT_RETRY}))
            return known
        count = max(1, self._delivery.know_group(group).retry_queue_count)
        return self.create(Topic(name, count, count, READ_WRITE, more={"topicSysFlag": UNIT_RETRY} if unit else {}))

    def announced(self, topic: Topic) -> Topic:
        """Return a topic's settings as routes show them: with no more permission than the broker itself gives.

        So clients stop sending to a broker without WRITE. As with RocketMQ it takes what they send nevertheless, for
        example retries, except for topics in order.
        """
        permission = topic.permission & (Permission(self._broker.settings.permission & 7) | Permission.INHERIT)
        return topic if permission == topic.permission else replace(topic, permission=permission)

    def for_read(self, topic: str) -> Topic:
        """Return the settings of a topic that is read; the refusal that clients understand if there is none."""
        if not self._broker.settings.permission & Permission.READ:
            address = self._broker.address
            raise forbidden(Forbidden.BROKER, f"the broker[{address}] pulling message is forbidden")
        known = self.table.find(topic)
        if known is None:
            raise no_topic(topic)
        if Permission.READ not in known.permission:
            raise forbidden(Forbidden.TOPIC, f"the topic[{topic}] pulling message is forbidden")
        return known

    @staticmethod
    def _require_name(topic: str) -> None:
        try:
            require_topic(topic)
        except InvalidMessage as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, _name_remark(topic, error)) from None

    def _require_own(self, topic: str) -> None:
        """Refuse to change a topic that the broker itself needs."""
        if topic in self.system or topic.startswith("rmq_sys_"):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")

    # ---- requests

    def _create(self, connection: Connection, command: Command) -> Command:
        self._save(CreateTopicHeader.read(command.fields))
        return response(command)

    def _create_list(self, connection: Connection, command: Command) -> Command:
        body = json_of(command)
        found = body.get("topicConfigList")
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise BadRequest("body", str(body)[:80], "topicConfigList with the settings of topics")
        headers = []
        for each in found:
            fields = {name: str(value) for name, value in each.items() if value is not None}
            headers.append(CreateTopicHeader.read({**fields, "topic": fields.get("topicName", "")}))
            self._require_name(headers[-1].topic)
            self._require_own(headers[-1].topic)
        for header in headers:
            self._save(header)
        return response(command)

    def _save(self, header: CreateTopicHeader) -> None:
        self._delivery.require_writer()
        self._require_name(header.topic)
        self._require_own(header.topic)
        more = {"topicFilterType": header.topic_filter_type, "topicSysFlag": header.topic_sys_flag}
        topic = Topic(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            Permission(header.perm & 7),
            header.order,
            {name: value for name, value in more.items() if value is not None},
        )
        self.table.save(topic)
        self._broker.port.log.ask_again(topic.name)

    def _delete(self, connection: Connection, command: Command) -> Command:
        topic = TopicHeader.read(command.fields).topic
        if not topic:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        self._require_own(topic)
        known = self.table.find(topic)
        queue_ids = {*range(known.read_queue_count if known else 0), *self._broker.port.reader.queue_ids(topic)}
        if known is not None or queue_ids:
            self._broker.store.delete_topic(topic)
            self._broker.loop.call_soon_threadsafe(self._deleted, topic, queue_ids)
        return response(command)

    def _deleted(self, topic: str, queue_ids: set[int]) -> None:
        """Lead groups that read a deleted topic to the beginning of the next topic of its name.

        Their members still have offsets of the deleted one. What they commit counts again once they are told.
        """
        parts = self._broker.parts
        self._delivery.offsets.forget(topic=topic)  # committed since, if it is there again already
        parts.pops.begin_again(topic)
        for group in self._broker.members.consumers.values():
            if topic in group.subscriptions:
                parts.pulls.reset(group.name, topic, dict.fromkeys(queue_ids, 0))

    def _all(self, connection: Connection, command: Command) -> Command:
        table = {topic.name: topic.to_json() for topic in self.table}
        version = self._version.of(table)
        return response(command, body=write_json({"dataVersion": version, "topicConfigTable": table}))

    def _one(self, connection: Connection, command: Command) -> Command:
        topic = TopicHeader.read(command.fields).topic
        known = self.table.find(topic)
        if known is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return response(command, body=write_json(known.to_json()))

    def _system_list(self, connection: Connection, command: Command) -> Command:
        return response(command, body=write_json({"topicList": sorted(self.system)}))


def _name_remark(topic: str, error: InvalidMessage) -> str:
    """Return in RocketMQ's words why a topic cannot have its name: tools and their users look for them."""
    if not topic.strip():
        return "The specified topic is blank."
    if not ALLOWED.fullmatch(topic):
        return f"The specified topic: {topic}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return f"The specified topic: {topic[:256]}, is longer than topic max length: 127; {error}"


def _described(topic: Topic) -> str:
    """Return a topic's settings as RocketMQ prints them."""
    bits = "".join(letter if topic.permission & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
    return (
        f"TopicConfig [topicName={topic.name}, readQueueNums={topic.read_queue_count}, "
        f"writeQueueNums={topic.write_queue_count}, perm={bits}, topicFilterType=SINGLE_TAG, "
        f"topicSysFlag={topic.more.get('topicSysFlag', 0)}, order={str(topic.ordered).lower()}, attributes={{}}]"
    )
