"""Bodies of requests and responses: property texts, batches, records, and JSON.

RocketMQ writes JSON with fastjson, which has forms of its own: map keys that are numbers without quotes, or whole
objects. `read_json` reads these, `object_map` writes the latter.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqlake.errors import BadRequest
from mqlake.kernel import decode_properties, messages_of_batch
from mqlake.kernel.types import Readable
from mqlake.message import Message, StoredMessage

NAME_END, VALUE_END = "\x01", "\x02"
BATCH_HEAD = struct.Struct(">iiiii")
"""Total size, magic, CRC (both 0), flag, body size."""


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return a property text, with the separator after the last value, as RocketMQ 5 writes it."""
    return "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items())


def parse_properties(text: str | None) -> dict[str, str]:
    """Return the properties of a text, with or without the last separator; malformed pairs are left out."""
    return decode_properties(text.encode("utf-8", "replace")) if text else {}


# ---- records


def decode_records(body: bytes) -> list[StoredMessage]:
    """Return the messages of a pull's, a query's or a view's answer: records, one after the other."""
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        if size < 8 or at + size > len(body):
            raise BadRequest("body", f"a record of {size} bytes at {at} of {len(body)}", "whole records")
        try:
            found.append(StoredMessage(body[at : at + size]))
        except ValueError as error:
            raise BadRequest("body", f"{error} at {at}", "whole records") from None
        at += size
    return found


# ---- batches


def encode_batch(messages: Iterable[Message]) -> bytes:
    """Return the body of SEND_BATCH_MESSAGE."""
    return b"".join(map(encode_part, messages))


def encode_part(message: Message) -> bytes:
    """Return what one message adds to a batch."""
    properties = encode_properties(message.properties).encode()
    size = BATCH_HEAD.size + len(message.body) + 2 + len(properties)
    head = BATCH_HEAD.pack(size, 0, 0, message.flag, len(message.body))
    return b"".join((head, message.body, struct.pack(">H", len(properties)), properties))


def decode_batch(body: Readable) -> list[tuple[int, bytes, dict[str, str]]]:
    """Return flag, body and properties of each message of a batch."""
    return [(each.flag, bytes(each.body), each.properties) for each in messages_of_batch(body, Message("", b""))]


# ---- JSON

_TEXT = r'"(?:[^"\\]|\\.)*+(?:"|\Z)'
_FORMS = re.compile(rf'{_TEXT}|([{{,]\s*+)(-?\d++|\{{(?:[^{{}}"]|{_TEXT})*+\}})(?=\s*+:)', re.DOTALL)
"""A text, which stays as it is, or a key of fastjson's: a number, or an object without others in it. Nothing is looked
at twice, so the cost is linear whatever a client sends."""


def write_json(value: Any) -> bytes:
    """Return compact JSON: the Go client cuts routes apart by string operations."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def read_json(body: Readable) -> Any:
    """Return the value of a JSON body, fastjson's forms included. An object as a key becomes its JSON text."""
    text = bytes(body).decode("utf-8", "replace")
    try:
        return _parsed(text)
    except (ValueError, RecursionError):
        pass
    try:
        return _parsed(_FORMS.sub(_quoted, text))
    except (ValueError, RecursionError) as error:
        raise BadRequest("body", f"no JSON ({error})", "JSON") from None


def _parsed(text: str) -> Any:
    """Return the value of a JSON text. A surrogate without its partner becomes U+FFFD, as in headers.

    It has no UTF-8, so no answer could name what it is part of.
    """
    value = json.loads(text, strict=False)
    if "\\ud" not in text and "\\uD" not in text:
        return value
    written = json.dumps(value, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
    return json.loads(written.decode("utf-16-le", "replace"), strict=False)


def _quoted(found: re.Match[str]) -> str:
    """Return a key as a JSON text: `{{"a":1}:2}` becomes `{"{\\"a\\":1}":2}`."""
    before, key = found.groups()
    return found.group() if key is None else before + json.dumps(key)


def object_map(entries: Iterable[tuple[Mapping[str, Any], Any]]) -> str:
    """Return the JSON of a map whose keys are objects, as fastjson writes and reads it."""
    dumps = json.dumps
    return (
        "{"
        + ",".join(
            f"{dumps(key, separators=(',', ':'), ensure_ascii=False)}:{dumps(value, separators=(',', ':'))}"
            for key, value in entries
        )
        + "}"
    )


# ---- heart beats

CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


@dataclass(slots=True)
class Subscription:
    """What a consumer wants of a topic."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0
    tags: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        from mqlake.kernel import java_hash

        return {
            "classFilterMode": False,
            "codeSet": [java_hash(tag) for tag in self.tags],
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, value: Any) -> Subscription:
        _require_object("subscriptionDataSet", value)
        return cls(
            topic=str(value.get("topic", "")),
            expression=_str(value.get("subString"), "*"),
            expression_type=_str(value.get("expressionType"), "TAG"),
            version=_int(value.get("subVersion")),
            tags=tuple(str(tag) for tag in _list_in(value, "tagsSet")),
        )


@dataclass(slots=True)
class ConsumerData:
    """One consumer group of a client."""

    group: str
    subscriptions: list[Subscription] = field(default_factory=list)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    unit_mode: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": self.consume_from,
            "consumeType": self.consume_type,
            "groupName": self.group,
            "messageModel": self.message_model,
            "subscriptionDataSet": [each.to_json() for each in self.subscriptions],
            "unitMode": self.unit_mode,
        }

    @classmethod
    def from_json(cls, value: Any) -> ConsumerData:
        _require_object("consumerDataSet", value)
        return cls(
            group=str(value.get("groupName", "")),
            subscriptions=[Subscription.from_json(each) for each in _list_in(value, "subscriptionDataSet")],
            consume_type=_enum(value.get("consumeType"), CONSUME_TYPES, 1),
            message_model=_enum(value.get("messageModel"), MESSAGE_MODELS, 1),
            consume_from=_enum(value.get("consumeFromWhere"), CONSUME_FROM, 0),
            unit_mode=bool(value.get("unitMode", False)),
        )


@dataclass(slots=True)
class Heartbeat:
    """The body of HEART_BEAT: who the client is, and which groups it belongs to."""

    client_id: str
    producer_groups: list[str] = field(default_factory=list)
    consumers: list[ConsumerData] = field(default_factory=list)
    without_subscriptions: bool = False
    fingerprint: int = 0
    """Of the subscriptions; 0 from a client that always sends them."""

    def encode(self) -> bytes:
        return write_json(
            {
                "clientID": self.client_id,
                "consumerDataSet": [each.to_json() for each in self.consumers],
                "heartbeatFingerprint": self.fingerprint,
                "producerDataSet": [{"groupName": group} for group in self.producer_groups],
                "withoutSub": self.without_subscriptions,
            }
        )

    @classmethod
    def decode(cls, body: Readable) -> Heartbeat:
        return cls.from_json(read_json(body))

    @classmethod
    def from_json(cls, value: Any) -> Heartbeat:
        _require_object("heart beat", value)
        return cls(
            client_id=str(value.get("clientID", "")),
            producer_groups=[
                str(each["groupName"]) for each in _objects_in(value, "producerDataSet") if "groupName" in each
            ],
            consumers=[ConsumerData.from_json(each) for each in _list_in(value, "consumerDataSet")],
            without_subscriptions=bool(value.get("withoutSub", False)),
            fingerprint=_int(value.get("heartbeatFingerprint")),
        )


# ---- acknowledgements


@dataclass(slots=True)
class BatchAck:
    """Acknowledges messages of one pop from one queue."""

    group: str
    topic: str
    is_retry: bool
    queue_id: int
    start: int
    popped_ms: int
    bits: bytes
    """Bit i, from the lowest of the first byte on, is the message at `start + i`."""

    def has(self, offset: int) -> bool:
        place = offset - self.start
        return 0 <= place < 8 * len(self.bits) and bool(self.bits[place >> 3] >> (place & 7) & 1)

    @classmethod
    def from_json(cls, value: Any) -> BatchAck:
        _require_object("acks", value)
        return cls(
            group=_text_in(value, "c"),
            topic=_text_in(value, "t"),
            is_retry=str(value.get("r", "0")) != "0",
            queue_id=_whole_in(value, "q"),
            start=_whole_in(value, "so"),
            popped_ms=_whole_in(value, "pt"),
            bits=_bits(value.get("b")),
        )


def acks_of(value: Any) -> list[BatchAck]:
    """Return the acknowledgements in the body of BATCH_ACK_MESSAGE."""
    _require_object("body", value)
    acks = value.get("acks", [])
    if not isinstance(acks, list):
        raise BadRequest("acks", f"JSON of the type {type(acks).__name__}", "a list of objects")
    return [BatchAck.from_json(each) for each in acks]


def _text_in(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise BadRequest(f"acks: {name}", repr(found)[:80], "a text")
    return found


def _whole_in(value: dict[str, Any], name: str) -> int:
    found = value.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise BadRequest(f"acks: {name}", repr(found)[:80], "a whole number")
    return found


def _bits(value: Any) -> bytes:
    """Return the bytes of a bit set, which is written in base64 or as a list of bytes, with or without a sign."""
    try:
        return base64.b64decode(value) if isinstance(value, str) else bytes(each & 0xFF for each in value or ())
    except (TypeError, ValueError):
        raise BadRequest("acks: b", repr(value)[:80], "base64 or a list of bytes") from None


def _require_object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise BadRequest(name, f"JSON of the type {type(value).__name__}", "an object")


def _list_in(value: dict[str, Any], name: str) -> list[Any]:
    """Return a list in an object; an empty one if it is missing or null."""
    found = value.get(name)
    if found is not None and not isinstance(found, list):
        raise BadRequest(name, f"JSON of the type {type(found).__name__}", "a list")
    return found or []


def _objects_in(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = _list_in(value, name)
    for each in found:
        _require_object(name, each)
    return found


def _str(value: Any, default: str) -> str:
    return default if value is None else str(value)


def _int(value: Any) -> int:
    try:
        return int(value or 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def _enum(value: Any, names: Sequence[str], default: int) -> str:
    """Return an enum's name: Java sends it, C++ sends its place."""
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else names[default]
    return names[default] if value is None else str(value)


# ---- routes


@dataclass(slots=True)
class QueueData:
    """How many queues of a topic one broker has."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    permission: int
    sys_flag: int = 0


@dataclass(slots=True)
class BrokerData:
    """Where a broker is: addresses by broker id, 0 is the master."""

    cluster: str
    broker_name: str
    addresses: dict[int, str]


@dataclass(slots=True)
class Route:
    """The body of GET_ROUTEINFO_BY_TOPIC's answer."""

    queues: list[QueueData]
    brokers: list[BrokerData]
    order_topic_conf: str | None = None

    def encode(self, *, standard: bool = True) -> bytes:
        """Return the JSON. Without `standard`, broker ids have no quotes: so RocketMQ answers clients before 4.9.4."""
        brokers = ",".join(_broker_json(each, standard) for each in self.brokers)
        queues = write_json(
            [
                {
                    "brokerName": each.broker_name,
                    "perm": each.permission,
                    "readQueueNums": each.read_queue_count,
                    "topicSysFlag": each.sys_flag,
                    "writeQueueNums": each.write_queue_count,
                }
                for each in self.queues
            ]
        ).decode()
        order = f',"orderTopicConf":{json.dumps(self.order_topic_conf)}' if self.order_topic_conf is not None else ""
        return f'{{"brokerDatas":[{brokers}],"filterServerTable":{{}}{order},"queueDatas":{queues}}}'.encode()

    @classmethod
    def decode(cls, body: Readable) -> Route:
        value = read_json(body)
        _require_object("route", value)
        return cls(
            queues=[
                QueueData(
                    broker_name=str(each["brokerName"]),
                    read_queue_count=_int(each.get("readQueueNums")),
                    write_queue_count=_int(each.get("writeQueueNums")),
                    permission=_int(each.get("perm")),
                    sys_flag=_int(each.get("topicSysFlag")),
                )
                for each in value.get("queueDatas") or ()
            ],
            brokers=[
                BrokerData(
                    cluster=str(each.get("cluster", "")),
                    broker_name=str(each["brokerName"]),
                    addresses={int(number): str(at) for number, at in (each.get("brokerAddrs") or {}).items()},
                )
                for each in value.get("brokerDatas") or ()
            ],
            order_topic_conf=value.get("orderTopicConf"),
        )


def _broker_json(broker: BrokerData, standard: bool) -> str:
    quote = '"' if standard else ""
    addresses = ",".join(f"{quote}{number}{quote}:{json.dumps(at)}" for number, at in broker.addresses.items())
    return (
        f'{{"brokerAddrs":{{{addresses}}},"brokerName":{json.dumps(broker.broker_name)},'
        f'"cluster":{json.dumps(broker.cluster)},"enableActingMaster":false}}'
    )


@dataclass(frozen=True, slots=True)
class MessageQueue:
    """One queue of a topic on one broker, as queue locks and statistics name it."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_json(cls, value: Any) -> MessageQueue:
        _require_object("mqSet", value)
        return cls(str(value.get("topic", "")), str(value.get("brokerName", "")), _int(value.get("queueId")))


def queues_of(value: dict[str, Any]) -> list[MessageQueue]:
    """Return the queues in the body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""
    return [MessageQueue.from_json(each) for each in _list_in(value, "mqSet")]
