"""A message as a producer sends it: its unique key, its compressed body, its header; and the answer as a receipt."""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass
from typing import Final

from mqlake.client.routes import NEW_TOPIC_QUEUES, TEMPLATE
from mqlake.codec.compression import COMPRESSED
from mqlake.codec.message_id import decode_message_id
from mqlake.delivery.later.routing import new_key
from mqlake.delivery.properties import UNIQUE_KEY
from mqlake.errors import InvalidMessage
from mqlake.kernel import Command, Message
from mqlake.remoting.bodies import NAME_END, VALUE_END, MessageQueue, encode_properties
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.headers import SendHeaderV2, SendResult

COMPRESS_FROM: Final = 4096
"""Bodies of this size and more are compressed, as RocketMQ's Java client does."""
MAX_BODY: Final = 4 << 20
MAX_PROPERTIES: Final = 32_767
ZLIB: Final = 0x300
ZLIB_LEVEL: Final = 5
STORED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)


class SendStatus(enum.StrEnum):
    """What a broker promised of a message that it stored."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Stored, but its sync did not end in time: a power cut may take it."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Where a broker stored a message. Of a delayed message or a half one: where it waits."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    message_id: str
    """RocketMQ's offset message id: the broker's address and the physical offset."""
    unique_key: str
    """The id that the producer gave the message: consumers see it, and `Admin.get` finds it."""
    status: SendStatus = SendStatus.OK
    recall_handle: str | None = None
    """By which a timed message can be recalled."""

    @property
    def physical_offset(self) -> int:
        return decode_message_id(self.message_id)[1]


def prepared(message: Message, more: dict[str, str] | None = None, *, compress: bool = True) -> Message:
    """Return a copy to send: with a unique key, checked, and with `compress` its body compressed if it is large."""
    _require_text("topic", message.topic)
    properties = {**message.properties, **(more or {})}
    properties.setdefault(UNIQUE_KEY, new_key())
    body, sys_flag = _body_of(message), message.sys_flag
    if len(body) > MAX_BODY:
        raise InvalidMessage("body", f"{len(body)} bytes", f"at most {MAX_BODY}")
    if compress and len(body) >= COMPRESS_FROM and not sys_flag & COMPRESSED:
        packed = zlib.compress(body, ZLIB_LEVEL)
        if len(packed) < len(body):
            body, sys_flag = packed, sys_flag | COMPRESSED | ZLIB
    _check(properties)
    return Message(
        message.topic,
        body,
        queue_id=message.queue_id,
        properties=properties,
        flag=message.flag,
        sys_flag=sys_flag,
        born_timestamp=message.born_timestamp,
        reconsume_times=message.reconsume_times,
    )


def _body_of(message: Message) -> bytes:
    """Return the body; InvalidMessage if it is not bytes-like: `bytes` would make zeros of a number."""
    try:
        return bytes(memoryview(message.body))
    except (TypeError, BufferError):
        raise InvalidMessage("body", repr(type(message.body)), "bytes or another bytes-like object") from None


def _check(properties: dict[str, str]) -> None:
    for name, value in properties.items():
        for text in (name, value):
            _require_text("properties", text)
            if NAME_END in text or VALUE_END in text:
                raise InvalidMessage("properties", repr(text), "texts without the characters 1 and 2, which end them")
    size = len(encode_properties(properties).encode())
    if size > MAX_PROPERTIES:
        raise InvalidMessage("properties", f"{size} bytes", f"at most {MAX_PROPERTIES}")


def _require_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidMessage(what, repr(text), "a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(what, repr(text), "text without lone surrogates") from None


def header_of(message: Message, group: str, queue: MessageQueue, *, batch: bool = False) -> dict[str, str]:
    """Return the fields of a send."""
    return SendHeaderV2(
        producer_group=group,
        topic=message.topic,
        default_topic=TEMPLATE,
        default_topic_queue_nums=NEW_TOPIC_QUEUES,
        queue_id=queue.queue_id,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=encode_properties(message.properties),
        reconsume_times=message.reconsume_times,
        batch=batch,
        broker_name=queue.broker_name,
    ).write()


def receipts_of(answer: Command, queue: MessageQueue, keys: list[str]) -> list[SendReceipt]:
    """Return the receipts of the messages that one send stored, in their order."""
    result = SendResult.read(answer.fields)
    status = SendStatus.OK if answer.code == ResponseCode.SUCCESS else SendStatus(ResponseCode(answer.code).name)
    ids = result.msg_id.split(",")
    if len(ids) != len(keys):  # a batch stored as one message: all of it is where that one is
        ids = [ids[0]] * len(keys)
    return [
        SendReceipt(
            queue.topic,
            queue.broker_name,
            result.queue_id,
            result.queue_offset + place,
            message_id,
            key,
            status,
            result.recall_handle,
        )
        for place, (message_id, key) in enumerate(zip(ids, keys, strict=True))
    ]
