"""Request and reply, and the recall of timed messages.

A reply is pushed to the client that asked, and stored as RocketMQ does, in any topic that its sender could send to. Its
sender's answer says whether the push succeeded.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from typing import TYPE_CHECKING

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal, refuse
from mqlake.delivery.later.routing import new_key
from mqlake.delivery.properties import CANCELS, DELIVER_MS, UNIQUE_KEY
from mqlake.kernel import Command, Message, PutReceipt
from mqlake.remoting.bodies import encode_properties, parse_properties
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import request, response
from mqlake.remoting.headers import RecallHeader, ReplyHeader, SendHeader, SendHeaderV2, read_send_header

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

PUSH_TIMEOUT_S = 3.0
REPLY_TO = "REPLY_TO_CLIENT"
PUSHED_AT = "PUSH_REPLY_TIME"


class Replies:
    """Delivers replies."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = broker.settings
        self._common = {"MSG_REGION": settings.region, "TRACE_ON": "true" if settings.trace_on else "false"}

        self._nobody: asyncio.Future[Command] = broker.loop.create_future()
        """What became of a push to a client that is not connected."""
        self._nobody.cancel()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self._reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._reply,
            RequestCode.RECALL_MESSAGE: self._broker.blocking(self._recall),
        }

    def _reply(self, connection: Connection, command: Command) -> None:
        header = read_send_header(command.fields)
        self._broker.parts.topics.for_send(header, connection.address)
        properties = parse_properties(header.properties)
        self._broker.parts.sends.check_lights(properties)
        properties.setdefault(UNIQUE_KEY, new_key())
        pushed = self._push(connection, command, header, properties)

        def done(future: asyncio.Future[Command]) -> None:
            why = self._why_not(future, properties)
            if not self._broker.settings.store_replies:
                connection.answer(command, self._answer(command, header, None, why))
                return
            try:
                self._broker.run(connection, command, lambda: self._store(connection, command, header, properties, why))
            except Refusal as error:  # too many requests wait for the pool
                connection.answer(command, refuse(command, error, self._common))

        pushed.add_done_callback(done)

    def _push(
        self, connection: Connection, command: Command, header: SendHeader | SendHeaderV2, properties: dict[str, str]
    ) -> asyncio.Future[Command]:
        now_ms = time.time_ns() // 1_000_000
        receiver = self._broker.members.client(properties.get(REPLY_TO, ""))
        if receiver is None:
            return self._nobody
        pushed = ReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=encode_properties({**properties, PUSHED_AT: str(now_ms)}),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=header.unit_mode,
            born_host=connection.address,
            store_host=self._broker.address,
            store_timestamp=now_ms,
        )
        push = request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed.write(), command.body)
        return receiver.ask(push, PUSH_TIMEOUT_S)

    def _why_not(self, future: asyncio.Future[Command], properties: dict[str, str]) -> str | None:
        """Return why a reply did not reach its client; None if it did."""
        client = properties.get(REPLY_TO)
        if client is None:
            return f"reply message properties[{REPLY_TO}] is null"
        if not future.cancelled():
            code = future.result().code
            return None if code == ResponseCode.SUCCESS else f"push reply message to {client} fail: it answered {code}"
        if future is self._nobody:
            return f"push reply message fail, channel of <{client}> not found."
        return f"push reply message to {client} fail: it did not answer within {PUSH_TIMEOUT_S:.0f} s"

    def _store(
        self,
        connection: Connection,
        command: Command,
        header: SendHeader | SendHeaderV2,
        properties: dict[str, str],
        why: str | None,
    ) -> Command:
        """In the pool: a reply is stored even if it did not arrive; `why` not is the answer then."""
        properties = {**properties, "CLUSTER": self._broker.settings.cluster}
        message = Message(
            header.topic,
            command.body,
            queue_id=0,
            properties=properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=connection.address,
        )
        try:
            receipt = self._broker.port.put(message)
        except Exception as error:  # the reply arrived: only its record is missing
            return refuse(command, error, self._common)
        return self._answer(command, header, receipt, why)

    def _answer(
        self,
        command: Command,
        header: SendHeader | SendHeaderV2,
        receipt: PutReceipt | None,
        why: str | None,
    ) -> Command:
        fields = {
            **self._common,
            "msgId": receipt.message_id if receipt is not None else "0",
            "queueId": str(receipt.queue_id if receipt is not None else header.queue_id),
            "queueOffset": str(receipt.queue_offset if receipt is not None else 0),
        }
        code = ResponseCode.SUCCESS if why is None else ResponseCode.SYSTEM_ERROR
        return response(command, code, fields, remark=why)

    # ---- recall

    def _recall(self, connection: Connection, command: Command) -> Command:
        """In the pool: put a cancellation of the timed message that a handle names."""
        if not self._broker.settings.recall:
            raise Refusal(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        fields = command.fields
        name = fields.get("topic", "")
        if name not in self._broker.parts.topics.table:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{name}] not exist")
        if not fields.get("recallHandle"):
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
        header = RecallHeader.read(fields)
        topic, due_ms, key = self._handle(header)
        if due_ms <= time.time_ns() // 1_000_000:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        names_topic = self._broker.store.config.timer.cancel_names_topic
        properties = {
            DELIVER_MS: str(due_ms),
            CANCELS: f"{topic}+{key}" if names_topic else key,
            UNIQUE_KEY: key,
        }
        self._broker.port.put(Message(topic, b"0", queue_id=0, properties=properties, born_host=connection.address))
        return response(command, fields={"MSG_REGION": self._common["MSG_REGION"], "msgId": key})

    def _handle(self, header: RecallHeader) -> tuple[str, int, str]:
        """Return topic, due time and key of a handle; ILLEGAL_OPERATION if it is not one of this broker's.

        Only the key, which a producer may choose, can hold spaces."""
        try:
            version, topic, name, due, key = base64.urlsafe_b64decode(header.recall_handle).decode().split(" ", 4)
            due_ms = int(due)
        except (binascii.Error, ValueError):
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid") from None
        if version != "v1" or topic != header.topic:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if name != self._broker.settings.broker_name:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        return topic, due_ms, key
