"""Who is connected: clients, the groups they belong to, what they subscribe to.

A client is known by its heart beats. If the members of a consumer group change, or what they subscribe to, every
member is told to rebalance. A connection that closes takes its clients with it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mqlake.broker.bodies import json_of
from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Forbidden, Refusal, forbidden, no_group
from mqlake.delivery.consume.filters import SQL, TAG, Filter, Sql, Tags
from mqlake.delivery.registry.groups import Group
from mqlake.errors import InvalidConfig, InvalidFilter, UnknownGroup
from mqlake.kernel import Command
from mqlake.remoting.bodies import ConsumerData, Heartbeat, Subscription, write_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import GroupHeader, UnregisterHeader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

MAX_GROUPS: Final = 1_000
"""Groups of one connection, with the clients that share it counted separately: a heart beat tells all of them."""
MAX_SQL: Final = 16 << 10
"""Characters of an SQL expression that a client sends."""
PRODUCER, CONSUMER = "producer", "consumer"


@dataclass(slots=True)
class ConsumerGroup:
    """The connected members of one consumer group."""

    name: str
    members: dict[str, Connection] = field(default_factory=dict)
    """By client id."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    """By topic."""
    filters: dict[str, Filter] = field(default_factory=dict)
    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""
    newer: dict[str, float] = field(default_factory=dict)
    """By topic: since when pulls have had a newer version of the subscription than the heart beats."""
    fingerprint: int = 0
    """Of the last heart beat's subscriptions; 0: it had none."""

    def update(self, client_id: str, connection: Connection, data: ConsumerData, *, keep: bool) -> bool:
        """Take a member's heart beat; return whether members or subscriptions changed. `keep` forgets no topic."""
        changed = self.members.get(client_id) is not connection
        self.members[client_id] = connection
        self.consume_type, self.message_model = data.consume_type, data.message_model
        self.consume_from = data.consume_from
        for wanted in data.subscriptions:
            known = self.subscriptions.get(wanted.topic)
            if known is None or known.version < wanted.version:
                changed = changed or known is None or known.expression != wanted.expression
                self.subscriptions[wanted.topic] = wanted
                self.newer.pop(wanted.topic, None)
                self.filters.pop(wanted.topic, None)
        if not keep:
            for gone in self.subscriptions.keys() - {wanted.topic for wanted in data.subscriptions}:
                del self.subscriptions[gone]
                self.filters.pop(gone, None)
                changed = True
        return changed


def make_filter(expression: str | None, kind: str | None) -> Filter:
    """Return the filter of an expression as clients write it."""
    if kind in (None, "", TAG):
        return Tags(expression or "*")
    if kind == SQL:
        return _compiled(expression or "")
    raise InvalidFilter(expression or "", 0, f"an expression of type {kind}; known are {TAG} and {SQL}")


@functools.lru_cache(maxsize=64)
def _compiled(expression: str) -> Sql:
    """Compile an expression, or return what was made of it: some clients send theirs with every pull.

    Compiling takes the event loop's time, in proportion to the length.
    """
    if len(expression) > MAX_SQL:
        raise InvalidFilter(expression, MAX_SQL, f"it has {len(expression)} characters; the most is {MAX_SQL}")
    return Sql(expression)


class Members:
    """All connected clients by their groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.producers: dict[str, dict[str, Connection]] = {}
        """By group and client id."""
        self.consumers: dict[str, ConsumerGroup] = {}
        self._brought: dict[Connection, set[tuple[str, str, str]]] = {}
        """What each connection told of itself: kind and name of a group, client id."""

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self._heart_beat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list,
            RequestCode.CHECK_CLIENT_CONFIG: self._check,
        }

    # ---- heart beats

    def _heart_beat(self, connection: Connection, command: Command) -> Command:
        beat = Heartbeat.from_json(json_of(command))
        self._note(connection, beat)
        connection.language, connection.version = command.language, command.version
        for group in beat.producer_groups:
            self.producers.setdefault(group, {})[beat.client_id] = connection
        changed = beat.fingerprint == 0
        for data in beat.consumers:
            changed = self._join(beat, data, connection) or changed
        fields = {"IS_SUB_CHANGE": str(changed).lower(), "IS_SUPPORT_HEART_BEAT_V2": "true"}
        return response(command, fields=fields)

    def _note(self, connection: Connection, beat: Heartbeat) -> None:
        """Note what a connection brings, so that it alone is looked at when the connection closes."""
        brought = {(PRODUCER, group, beat.client_id) for group in beat.producer_groups}
        brought |= {(CONSUMER, data.group, beat.client_id) for data in beat.consumers}
        brought |= self._brought.get(connection, set())
        if len(brought) > MAX_GROUPS:
            remark = f"one connection may belong to {MAX_GROUPS} groups, this one asks for {len(brought)}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        self._brought[connection] = brought

    def _join(self, beat: Heartbeat, data: ConsumerData, connection: Connection) -> bool:
        """Take one group of a heart beat; return whether its client must send its subscriptions with the next.

        So it must after a restart: RocketMQ's broker would go on without them.
        """
        broker = self._broker
        broker.delivery.know_group(data.group)
        broker.parts.topics.retry_topic(data.group, unit=data.unit_mode)
        group = self.consumers.setdefault(data.group, ConsumerGroup(data.group))
        if group.update(beat.client_id, connection, data, keep=beat.without_subscriptions):
            self._tell(group)
        known, group.fingerprint = group.fingerprint, beat.fingerprint
        return known != beat.fingerprint if known else beat.without_subscriptions

    def require_group(self, name: str) -> Group:
        """Return the settings of a group that consumes, creating it if that is allowed; refuse as RocketMQ does."""
        known = self.known_group(name)
        if not known.enabled:
            raise forbidden(Forbidden.GROUP, f"subscription group no permission, {name}")
        return known

    def known_group(self, name: str) -> Group:
        """Return the settings of a group, enabled or not, creating it if that is allowed."""
        try:
            return self._broker.delivery.know_group(name)
        except (InvalidConfig, UnknownGroup):
            raise no_group(name) from None

    def filter_of(self, group: ConsumerGroup, topic: str) -> Filter:
        """Return the filter of a group's subscription; InvalidFilter if its expression does not parse.

        It is made when the first pull needs it: a heart beat may bring many. An SQL filter is recorded then, so that a
        RocketMQ broker on this store finds it.
        """
        found = group.filters.get(topic)
        if found is None:
            wanted = group.subscriptions[topic]
            found = group.filters[topic] = make_filter(wanted.expression, wanted.expression_type)
            self._broker.delivery.filters.note(topic, group.name, found)
        return found

    def _tell(self, group: ConsumerGroup) -> None:
        known = self._broker.delivery.groups.find(group.name)
        if known is not None and known.more.get("notifyConsumerIdsChangedEnable") is False:
            return
        for connection in set(group.members.values()):
            connection.notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, GroupHeader(group.name).write())

    # ---- leaving

    def _unregister(self, connection: Connection, command: Command) -> Command:
        header = UnregisterHeader.read(command.fields)
        if header.producer_group:
            self._leave_producers(header.producer_group, header.client_id)
        if header.consumer_group:
            self._leave_consumers(header.consumer_group, header.client_id)
        return response(command)

    def _leave_producers(self, group: str, client_id: str) -> None:
        members = self.producers.get(group, {})
        left = members.pop(client_id, None)
        if not members:
            self.producers.pop(group, None)
        if left is not None:
            self._brought.get(left, set()).discard((PRODUCER, group, client_id))

    def _leave_consumers(self, name: str, client_id: str) -> None:
        group = self.consumers.get(name)
        left = group.members.pop(client_id, None) if group is not None else None
        if group is None or left is None:
            return
        self._brought.get(left, set()).discard((CONSUMER, name, client_id))
        if group.members:
            self._tell(group)
        else:
            del self.consumers[name]
            for topic, wanted in group.subscriptions.items():
                if wanted.expression_type == SQL:
                    self._broker.delivery.filters.end(topic, name)

    def disconnected(self, connection: Connection) -> None:
        """A closed connection takes its clients out of their groups."""
        for kind, name, client_id in self._brought.pop(connection, ()):
            group = self.consumers.get(name)
            if kind == PRODUCER and self.producers.get(name, {}).get(client_id) is connection:
                self._leave_producers(name, client_id)
            elif kind == CONSUMER and group is not None and group.members.get(client_id) is connection:
                self._leave_consumers(name, client_id)

    # ---- questions

    def _list(self, connection: Connection, command: Command) -> Command:
        name = GroupHeader.read(command.fields).consumer_group
        group = self.consumers.get(name)
        if group is None or not group.members:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return response(command, body=write_json({"consumerIdList": list(group.members)}))

    def _check(self, connection: Connection, command: Command) -> Command:
        """Check a subscription before its consumer starts."""
        wanted = Subscription.from_json(json_of(command).get("subscriptionData"))
        if wanted.expression_type != TAG and not self._broker.settings.property_filter:
            raise no_sql(wanted.expression_type)
        make_filter(wanted.expression, wanted.expression_type)
        return response(command)

    def producer(self, group: str) -> Connection | None:
        """Return the connection of some member of a producer group."""
        members = self.producers.get(group)
        return next((each for each in members.values() if each.is_open), None) if members else None

    def client(self, client_id: str) -> Connection | None:
        """Return the connection of a producer by its client id."""
        for members in self.producers.values():
            if client_id in members:
                return members[client_id]
        return None


def no_sql(kind: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}")
