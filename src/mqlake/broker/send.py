"""Sends: one message, a batch, with and without an answer.

A send is answered OK only when its level of durability is reached: the page cache with asynchronous flush, the disk
with synchronous flush, disk and slaves of a SYNC_MASTER, unless the message itself says that it does not wait. What is
only a copy happens in the event loop. The rest (the first message of a queue, a delay, the next file) goes to the pool.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal, refuse
from mqlake.broker.stats import Stats
from mqlake.delivery.later.routing import new_key
from mqlake.delivery.properties import DELAY_LEVEL, PREPARED, TIMED, UNIQUE_KEY
from mqlake.delivery.registry.system_topics import RETRY_PREFIX, TIMER_TOPIC, dead_letter_topic
from mqlake.delivery.registry.topics import Topic
from mqlake.errors import BadRequest, StoreError
from mqlake.kernel import Command, Message, PutReceipt, decode_properties, messages_of_batch
from mqlake.logs.topic_table import LIGHT_OFFSETS, LIGHT_PREFIX, LIGHT_QUEUES
from mqlake.message import Durability
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RESPONSE_FLAG, response
from mqlake.remoting.headers import SendHeader, SendHeaderV2, read_send_header

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

WAITS = "WAIT"
DELAYS = (DELAY_LEVEL, *TIMED)
HANDLE_VERSION = "v1"


class Sends:
    """Stores what producers send."""

    def __init__(self, broker: Broker, stats: Stats) -> None:
        self._broker = broker
        self._count = stats.stored
        self._note_time = stats.put_seconds.note
        self._port = broker.port
        self._unforced, self._usual = broker.port.unforced, broker.port.usual
        self._log = broker.port.log
        self._append = broker.port.log.append_quickly
        settings = broker.settings
        self._trace = "true" if settings.trace_on else "false"
        self._common = {"MSG_REGION": settings.region, "TRACE_ON": self._trace}
        self._region, self._cluster = settings.region, settings.cluster
        self._has_lights = settings.light_queues and settings.multi_dispatch

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send_batch,
        }

    # ---- one message

    def send(self, connection: Connection, command: Command) -> Command | None:
        begun = time.perf_counter()
        try:
            header = read_send_header(command.fields)
            topic = self._broker.parts.topics.for_send(header, connection.address)
            message = self._message(connection, command, header, topic)
            if message.properties.get(PREPARED) == "true" and self._is_transaction(message):
                self._broker.parts.transactions.prepare(connection, command, message, self._common)
                return None
            level = self._usual if message.properties.get(WAITS) != "false" else self._unforced
            receipt = self._append(message, level)
            if receipt is None:
                self._broker.run(connection, command, lambda: self._slowly(command, [message], level, begun))
                return None
            if level < Durability.DISK and receipt.topic == message.topic:
                return self._at_once(command, message, receipt, begun)
            return self._stored(connection, command, message, (receipt,), level, begun)
        except Exception as error:
            return refuse(command, error, self._common)

    def _message(
        self, connection: Connection, command: Command, header: SendHeader | SendHeaderV2, topic: Topic
    ) -> Message:
        text = header.properties
        properties = decode_properties(text.encode("utf-8", "replace")) if text else {}
        properties.pop("POP_CK", None)
        self.check_lights(properties)
        for delay in DELAYS:
            if properties.get(delay, "").startswith("-"):
                properties[delay] = "0"  # in the past: RocketMQ delivers at once
        if UNIQUE_KEY not in properties:
            properties[UNIQUE_KEY] = new_key()
        properties["MSG_REGION"] = self._region
        properties["TRACE_ON"] = self._trace
        properties["CLUSTER"] = self._cluster
        name, queue_id = header.topic, header.queue_id
        if name.startswith(RETRY_PREFIX):
            name, queue_id = self._retried(header, properties)
        return Message(
            name,
            command.body,
            queue_id=queue_id if queue_id >= 0 else None,
            properties=properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=connection.address,
            reconsume_times=header.reconsume_times or 0,
        )

    def check_lights(self, properties: dict[str, str]) -> None:
        """Leave a message to its own queue, unless light queues are on; other topics are never light queues.

        Their offsets in these queues are the store's to give.
        """
        properties.pop(LIGHT_OFFSETS, None)
        names = properties.get(LIGHT_QUEUES)
        if names is None:
            return
        if not self._has_lights:
            del properties[LIGHT_QUEUES]
        elif not all(name.startswith(LIGHT_PREFIX) for name in names.split(",")):
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"{LIGHT_QUEUES} may name queues of {LIGHT_PREFIX} only")

    def _retried(self, header: SendHeader | SendHeaderV2, properties: dict[str, str]) -> tuple[str, int]:
        """Return where a message goes that its consumer sends to its retry topic itself."""
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._broker.delivery.know_group(name)
        most = group.max_retry_count if header.max_reconsume_times is None else header.max_reconsume_times
        if (header.reconsume_times or 0) <= most and not self._broker.parts.locks.is_locked(name):
            return header.topic, header.queue_id
        properties[DELAY_LEVEL] = "0"
        return dead_letter_topic(name), 0

    @staticmethod
    def _is_transaction(message: Message) -> bool:
        """A retry of a committed message still has the property, but also a count and a delay."""
        return not (message.reconsume_times > 0 and message.properties.get(DELAY_LEVEL, "0") != "0")

    # ---- a batch

    def send_batch(self, connection: Connection, command: Command) -> Command | None:
        begun = time.perf_counter()
        try:
            header = read_send_header(command.fields)
            topic = self._broker.parts.topics.for_send(header, connection.address)
            if header.topic.startswith(RETRY_PREFIX):
                raise Refusal(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group")
            messages = self._messages(connection, command, header, topic)
            if any(DELAY_LEVEL in each.properties for each in messages):
                raise Refusal(ResponseCode.MESSAGE_ILLEGAL, "batch messages do not support delays")
            level = self._usual
            receipts = self._log.append_many_quickly(messages, level)
            if receipts is None:
                self._broker.run(connection, command, lambda: self._slowly(command, messages, level, begun))
                return None
            return self._stored(connection, command, messages[0], receipts, level, begun)
        except Exception as error:
            return refuse(command, error, self._common)

    def _messages(
        self, connection: Connection, command: Command, header: SendHeader | SendHeaderV2, topic: Topic
    ) -> list[Message]:
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._port.topics.states[topic.name].turn if topic.name in self._port.topics.states else 0
        pattern = Message(
            header.topic,
            b"",
            queue_id=queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=connection.address,
            reconsume_times=header.reconsume_times or 0,
        )
        messages = messages_of_batch(command.body, pattern)
        if not messages:
            raise BadRequest("batch", "no messages", "at least one")
        for each in messages:
            self.check_lights(each.properties)
        return messages

    # ---- answers

    def _at_once(self, command: Command, message: Message, receipt: PutReceipt, begun: float) -> Command:
        """Count a message and return its answer, if it is neither delayed nor waits for the disk: the usual send."""
        self._count(message.topic, 1, receipt.size)
        self._note_time(time.perf_counter() - begun)
        fields = {
            "MSG_REGION": self._region,
            "TRACE_ON": self._trace,
            "msgId": receipt.message_id,
            "queueId": str(receipt.queue_id),
            "queueOffset": str(receipt.queue_offset),
            "transactionId": message.properties[UNIQUE_KEY],
        }
        return Command(ResponseCode.SUCCESS, fields=fields, opaque=command.opaque, flag=RESPONSE_FLAG)

    def _slowly(self, command: Command, messages: list[Message], level: Durability, begun: float) -> Command:
        """In the pool: append, wait for the disk there, and return the answer."""
        message = messages[0]
        try:
            if len(messages) == 1:
                receipts = [self._log.append_slowly(message, level)]
            else:
                receipts = self._log.append_many_slowly(messages, level)
            answer = self._success(command, message, receipts)
            if level >= Durability.DISK:
                try:
                    self._port.wait_reached(receipts[-1].end, level)
                except StoreError as error:
                    self._mark(command, answer, error)
        except Exception as error:
            return refuse(command, error, self._common)
        told = self._broker.loop.call_soon_threadsafe
        told(self._count, message.topic, len(receipts), receipts[-1].end - receipts[0].physical_offset)
        told(self._note_time, time.perf_counter() - begun)
        return answer

    def _stored(
        self,
        connection: Connection,
        command: Command,
        message: Message,
        receipts: Sequence[PutReceipt],
        level: Durability,
        begun: float,
    ) -> Command | None:
        self._count(message.topic, len(receipts), receipts[-1].end - receipts[0].physical_offset)
        if level < Durability.DISK:
            self._note_time(time.perf_counter() - begun)
            return self._success(command, message, receipts)

        def reached(future: asyncio.Future[None]) -> None:
            if future.cancelled():  # nothing is known of the message: no answer is a true one
                return
            self._note_time(time.perf_counter() - begun)
            error = future.exception()
            answer = self._success(command, message, receipts)
            if error is not None:
                self._mark(command, answer, error)
            connection.answer(command, answer)

        self._port.when_reached(receipts[-1].end, level, self._broker.loop).add_done_callback(reached)
        return None

    def _mark(self, command: Command, answer: Command, error: BaseException) -> None:
        """Say in the answer to a stored message what it did not reach."""
        refusal = refuse(command, error, self._common)
        answer.code, answer.remark = refusal.code, refusal.remark

    def _success(self, command: Command, message: Message, receipts: Sequence[PutReceipt]) -> Command:
        first = receipts[0]
        properties = message.properties
        ids = first.message_id if len(receipts) == 1 else ",".join([each.message_id for each in receipts])
        is_waiting = first.topic != message.topic
        fields = {
            **self._common,
            "msgId": ids,
            "queueId": str(message.queue_id if is_waiting and message.queue_id is not None else first.queue_id),
            "queueOffset": str(first.queue_offset),
        }
        key = self._key_of(command, properties, len(receipts))
        if key:
            fields["transactionId"] = key
        if first.topic == TIMER_TOPIC:
            fields["recallHandle"] = self._handle(message, first)
        return response(command, fields=fields)

    @staticmethod
    def _key_of(command: Command, properties: dict[str, str], count: int) -> str | None:
        if count == 1 and command.code != RequestCode.SEND_BATCH_MESSAGE:
            return properties.get(UNIQUE_KEY)
        text = command.fields.get("i") or command.fields.get("properties")
        return decode_properties(text.encode("utf-8", "replace")).get(UNIQUE_KEY) if text else None

    def _handle(self, message: Message, receipt: PutReceipt) -> str:
        """Return the text by which a timed message can be recalled."""
        waiting = self._port.record(receipt.physical_offset)
        due_ms = int(waiting.properties["TIMER_OUT_MS"]) + 1
        name = self._broker.settings.broker_name
        text = f"{HANDLE_VERSION} {message.topic} {name} {due_ms} {message.properties[UNIQUE_KEY]}"
        return base64.urlsafe_b64encode(text.encode()).decode()
