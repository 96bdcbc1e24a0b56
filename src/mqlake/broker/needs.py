"""Which rights each request needs: the one table.

Names are taken from the very fields and bodies that the handlers read, so a request cannot show one name here and use
another. A request that is not in the table needs an administrator. A retry topic belongs to its group: it needs the
group's right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from mqlake.broker.accounts import Kind, Need, Right
from mqlake.broker.bodies import json_of
from mqlake.delivery.properties import REAL_TOPIC
from mqlake.delivery.registry.system_topics import RETRY_PREFIX
from mqlake.errors import BadRequest, StoreError
from mqlake.kernel import Command
from mqlake.remoting.bodies import Heartbeat, Subscription, acks_of, queues_of
from mqlake.remoting.codes import RequestCode as Code
from mqlake.remoting.codes import request_code

if TYPE_CHECKING:
    from mqlake.broker.server import Broker

Needs = Callable[["Broker", Command], Iterator[Need]]
"""Returns the rights that one request needs."""


def topic(name: str, right: Right) -> Need:
    """Return a need of a topic, or of the group if it is a retry topic."""
    if name.startswith(RETRY_PREFIX):
        return group(name.removeprefix(RETRY_PREFIX).partition("+")[0])
    return Need(Kind.TOPIC, name, right)


def group(name: str) -> Need:
    return Need(Kind.GROUP, name, Right.SUB)


def _named(
    topic_field: str | None, group_field: str | None = None, right: Right = Right.SUB, *, is_optional: bool = False
) -> Needs:
    """Needs of the topic and the group that fields name. An optional one that is missing needs nothing."""

    def needs(broker: Broker, command: Command) -> Iterator[Need]:
        if topic_field is not None and (not is_optional or command.fields.get(topic_field)):
            yield topic(command.fields.get(topic_field, ""), right)
        if group_field is not None and (not is_optional or command.fields.get(group_field)):
            yield group(command.fields.get(group_field, ""))

    return needs


def _nothing(broker: Broker, command: Command) -> Iterator[Need]:
    """Any known key may ask."""
    return iter(())


def _sent(broker: Broker, command: Command) -> Iterator[Need]:
    """A send: its topic is where `read_send_header` finds it."""
    yield topic(command.fields.get("b" if "a" in command.fields else "topic", ""), Right.PUB)


def is_open(broker: Broker, command: Command) -> bool:
    """Return whether anyone may ask, without a key: for a route, as with RocketMQ's name servers.

    So a client with a wrong key learns that from its first send, rather than that there is no route. The route of a
    retry topic that does not exist is for its group alone, because asking creates it.
    """
    if command.code != Code.GET_ROUTEINFO_BY_TOPIC:
        return False
    name = command.fields.get("topic", "")
    return not name.startswith(RETRY_PREFIX) or broker.parts.topics.table.find(name) is not None


def _stored(field: str, right: Right, *, real: bool = False) -> Needs:
    """The topic of the message at an offset, whatever the request says it is; nothing if there is no message."""

    def needs(broker: Broker, command: Command) -> Iterator[Need]:
        try:
            found = broker.port.record(int(command.fields[field]))
        except KeyError:
            raise BadRequest(field, "no such field", "this request needs it") from None
        except ValueError:
            raise BadRequest(field, "something else", "a whole number") from None
        except StoreError:
            return
        yield topic(found.properties.get(REAL_TOPIC, found.topic) if real else found.topic, right)

    return needs


def _sent_back(broker: Broker, command: Command) -> Iterator[Need]:
    yield group(command.fields.get("group", ""))
    yield from _stored("offset", Right.SUB)(broker, command)


def _beat(broker: Broker, command: Command) -> Iterator[Need]:
    for consumer in Heartbeat.from_json(json_of(command)).consumers:
        yield group(consumer.group)
        for wanted in consumer.subscriptions:
            yield topic(wanted.topic, Right.SUB)


def _queues(broker: Broker, command: Command) -> Iterator[Need]:
    body = json_of(command)
    yield group(str(body.get("consumerGroup", "")))
    for each in queues_of(body):
        yield topic(each.topic, Right.SUB)


def _assigned(broker: Broker, command: Command) -> Iterator[Need]:
    body = json_of(command)
    yield group(str(body.get("consumerGroup", "")))
    yield topic(str(body.get("topic", "")), Right.SUB)


def _checked(broker: Broker, command: Command) -> Iterator[Need]:
    body = json_of(command)
    yield group(str(body.get("group", "")))
    yield topic(Subscription.from_json(body.get("subscriptionData")).topic, Right.SUB)


def _acknowledged(broker: Broker, command: Command) -> Iterator[Need]:
    for each in acks_of(json_of(command)):
        yield group(each.group)
        yield topic(each.topic, Right.SUB)


_READ = _named("topic", "consumerGroup")
_READ_SHORT = _named("topic", "group")
_OF_TOPIC = _named("topic", right=Right.ANY)

NEEDS: Final[dict[int, Needs | None]] = {
    # what is stored
    **dict.fromkeys((Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE), _sent),
    **dict.fromkeys((Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2), _sent),
    Code.RECALL_MESSAGE: _named("topic", right=Right.PUB),
    Code.END_TRANSACTION: _stored("commitLogOffset", Right.PUB, real=True),
    Code.CONSUMER_SEND_MSG_BACK: _sent_back,
    # what is read
    **dict.fromkeys((Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.POP_MESSAGE), _READ),
    **dict.fromkeys((Code.ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME), _READ),
    Code.BATCH_ACK_MESSAGE: _acknowledged,
    Code.QUERY_MESSAGE: _named("topic"),
    Code.VIEW_MESSAGE_BY_ID: _stored("offset", Right.SUB),
    # groups
    Code.HEART_BEAT: _beat,
    Code.UNREGISTER_CLIENT: _named(None, "consumerGroup", is_optional=True),
    Code.GET_CONSUMER_LIST_BY_GROUP: _named(None, "consumerGroup"),
    Code.CHECK_CLIENT_CONFIG: _checked,
    **dict.fromkeys((Code.QUERY_CONSUMER_OFFSET, Code.UPDATE_CONSUMER_OFFSET), _READ),
    **dict.fromkeys((Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ), _queues),
    **dict.fromkeys((Code.QUERY_ASSIGNMENT, Code.SET_MESSAGE_REQUEST_MODE), _assigned),
    **dict.fromkeys((Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.QUERY_CONSUME_TIME_SPAN), _READ_SHORT),
    # questions about one topic or group
    **dict.fromkeys((Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET), _OF_TOPIC),
    **dict.fromkeys((Code.GET_EARLIEST_MSG_STORETIME, Code.GET_TOPIC_CONFIG), _OF_TOPIC),
    **dict.fromkeys((Code.GET_TOPIC_STATS_INFO, Code.QUERY_TOPIC_CONSUME_BY_WHO), _OF_TOPIC),
    Code.QUERY_CONSUME_QUEUE: _named("topic", "consumerGroup", Right.ANY, is_optional=True),
    **dict.fromkeys((Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_CONSUMER_RUNNING_INFO), _named(None, "consumerGroup")),
    **dict.fromkeys((Code.GET_SUBSCRIPTIONGROUP_CONFIG, Code.QUERY_TOPICS_BY_CONSUMER), _named(None, "group")),
    **dict.fromkeys((Code.QUERY_SUBSCRIPTION_BY_CONSUMER, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS), _READ_SHORT),
    Code.GET_CONSUME_STATS: _named(None, "consumerGroup"),
    # the name server (most routes are open), and lists
    Code.GET_ROUTEINFO_BY_TOPIC: _named("topic"),
    **dict.fromkeys((Code.GET_BROKER_CLUSTER_INFO, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), _nothing),
    Code.GET_BROKER_MEMBER_GROUP: _nothing,
    **dict.fromkeys((Code.GET_TOPICS_BY_CLUSTER, Code.GET_SYSTEM_TOPIC_LIST_FROM_NS), _nothing),
    **dict.fromkeys((Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.GET_BROKER_RUNTIME_INFO), _nothing),
    **dict.fromkeys((Code.GET_KV_CONFIG, Code.GET_KVLIST_BY_NAMESPACE, Code.GET_PRODUCER_CONNECTION_LIST), _nothing),
    # administrators
    **dict.fromkeys((Code.UPDATE_AND_CREATE_TOPIC, Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_TOPIC_IN_NAMESRV), None),
    **dict.fromkeys((Code.REGISTER_TOPIC_IN_NAMESRV, Code.GET_ALL_TOPIC_CONFIG), None),
    **dict.fromkeys((Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST), None),
    **dict.fromkeys((Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER, Code.UPDATE_NAMESRV_CONFIG), None),
    **dict.fromkeys((Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC, Code.DELETE_EXPIRED_COMMITLOG), None),
    **dict.fromkeys((Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.GET_ALL_PRODUCER_INFO), None),
    **dict.fromkeys((Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.DELETE_SUBSCRIPTIONGROUP), None),
    **dict.fromkeys((Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_ALL_CONSUMER_OFFSET), None),
    **dict.fromkeys((Code.UPDATE_BROKER_CONFIG, Code.GET_BROKER_CONFIG, Code.GET_NAMESRV_CONFIG), None),
    **dict.fromkeys((Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG, Code.GET_ALL_MESSAGE_REQUEST_MODE), None),
    **dict.fromkeys((Code.VIEW_BROKER_STATS_DATA, Code.GET_BROKER_CONSUME_STATS), None),
    Code.GET_COLD_DATA_FLOW_CTR_INFO: None,
    **dict.fromkeys((Code.GET_ALL_DELAY_OFFSET, Code.GET_TIMER_CHECK_POINT, Code.GET_TIMER_METRICS), None),
    **dict.fromkeys((Code.CONSUME_MESSAGE_DIRECTLY, Code.GET_BROKER_HA_STATUS, Code.CLONE_GROUP_OFFSET), None),
}
"""Request code -> its needs; None: an administrator."""


def needs_of(code: int) -> Needs | None:
    """Return what a request needs. Codes of POP may be cut to 16 bits by the binary header."""
    return NEEDS.get(request_code(code))
