"""A producer: sends messages to the brokers of their topics.

A send returns when a broker stored the message. If the broker does not answer or cannot be reached, it is sent again
until the time limit: so a message may be stored twice (with the same unique key), but none is lost that was
acknowledged. A refusal that another try cannot change is raised at once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Self

from mqlake.client.requests import Replies
from mqlake.client.routes import TopicRoute
from mqlake.client.security import Credentials
from mqlake.client.sending import STORED, SendReceipt, header_of, prepared, receipts_of
from mqlake.client.session import Asked, Session
from mqlake.client.transactions import AsyncTransaction, Check, Decisions
from mqlake.config import require_seconds
from mqlake.delivery.properties import DELAY_LEVEL, DELAY_MS, DELAY_SEC, DELIVER_MS, UNIQUE_KEY
from mqlake.errors import InvalidConfig, NoRoute, NotConnected, RemoteError, RequestRefused, RequestTimeout
from mqlake.kernel import Message, java_hash
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import Heartbeat, MessageQueue, encode_part
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers import RecallHeader

SEND_S: Final = 10.0
"""How long a send tries, all attempts together."""
ATTEMPT_S: Final = 3.0
MAX_REFUSALS: Final = 3
FIRST_PAUSE_S: Final = 0.02
MAX_PAUSE_S: Final = 0.5
BATCH_BYTES: Final = 1 << 20
"""The most that a batch's records may take: brokers refuse those of more than about 4 MiB."""
RECORD_BYTES: Final = 128
"""What a record has more than a message of a batch, without the topic, rounded up."""
DELAYS: Final = frozenset({DELAY_LEVEL, DELAY_MS, DELAY_SEC, DELIVER_MS})
MAY_PASS: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals that another try may change."""
ELSEWHERE: Final = MAY_PASS | {ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST}
"""Refusals that another broker may not give."""


class AsyncProducer:
    """Sends messages, for asyncio programs. Made in a running event loop.

    The end of the block closes it:

        async with AsyncProducer("127.0.0.1:9876") as producer:
            await producer.send(Message("orders", b"..", tags="created", keys=["17"]))
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str = "mqlake-producer",
        *,
        check: Check | None = None,
        timeout_s: float = SEND_S,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | bool = False,
    ) -> None:
        """`name_servers`: `HOST:PORT`, several separated by `;`. `check` tells a broker that asks about a transaction
        whether it is to be committed (True), rolled back (False) or not decided yet (None)."""
        require_seconds("timeout_s", timeout_s)
        self.group = group
        self._timeout_s = timeout_s
        self._session = Session(name_servers, credentials=credentials, tls=tls, beat=self._beat)
        self._decisions = Decisions(self._session, group, check)
        self._replies = Replies(self._session, group)
        self._turn = 0
        self._session.start()

    def _beat(self) -> Heartbeat:
        return Heartbeat(self._session.client_id, [self.group])

    # ---- sending

    async def send(
        self, message: Message, *, ordered_by: str | None = None, timeout_s: float | None = None
    ) -> SendReceipt:
        """Send a message; return when a broker stored it. Messages with equal `ordered_by` go to the same queue.

        A message with a `queue_id` goes to that queue, others to the topic's queues in turn.
        """
        out = prepared(message)
        (receipt,) = await self._store(RequestCode.SEND_MESSAGE_V2, out, [out], ordered_by, timeout_s)
        return receipt

    async def send_many(
        self, messages: Iterable[Message], *, ordered_by: str | None = None, timeout_s: float | None = None
    ) -> list[SendReceipt]:
        """Send messages in batches of up to 1 MiB, each to one queue of its topic; return the receipts in order.

        A batch is stored whole or not at all; if one fails, those before it are stored. Delayed messages go alone.
        """
        receipts: list[SendReceipt] = []
        for batch, parts in _batches(messages):
            if len(batch) == 1:
                receipts.append(await self.send(batch[0], ordered_by=ordered_by, timeout_s=timeout_s))
                continue
            whole = Message(batch[0].topic, b"".join(parts), queue_id=batch[0].queue_id)
            whole.properties[UNIQUE_KEY] = batch[0].properties[UNIQUE_KEY]
            receipts += await self._store(RequestCode.SEND_BATCH_MESSAGE, whole, batch, ordered_by, timeout_s)
        return receipts

    async def send_oneway(self, message: Message, *, ordered_by: str | None = None) -> None:
        """Send a message without waiting for an answer: nobody learns whether it was stored."""
        out = prepared(message)
        code = RequestCode.SEND_MESSAGE_V2
        async with self._session.within(self._timeout_s, code):
            queue, address = await self._choose(out, ordered_by, set(), self._timeout_s)
            await self._session.send_oneway(address, code, header_of(out, self.group, queue), out.body)

    async def _store(
        self, code: RequestCode, out: Message, parts: Sequence[Message], ordered_by: str | None, limit_s: float | None
    ) -> list[SendReceipt]:
        """Send until a broker stored it, the refusal is final, or the time is over."""
        limit_s = self._timeout_s if limit_s is None else limit_s
        async with self._session.within(limit_s, code) as asked:
            deadline = asyncio.get_running_loop().time() + limit_s
            return await self._try(code, out, parts, ordered_by, deadline, asked)

    async def _try(
        self,
        code: RequestCode,
        out: Message,
        parts: Sequence[Message],
        ordered_by: str | None,
        deadline: float,
        asked: Asked,
    ) -> list[SendReceipt]:
        loop = asyncio.get_running_loop()
        refusals, pause, avoid = 0, FIRST_PAUSE_S, set[str]()
        while True:
            broker_name = ""
            try:
                queue, address = await self._choose(out, ordered_by, avoid, deadline - loop.time())
                broker_name, asked.address = queue.broker_name, address
                attempt_s = max(0.001, min(ATTEMPT_S, deadline - loop.time()))
                is_batch = code == RequestCode.SEND_BATCH_MESSAGE
                fields = header_of(out, self.group, queue, batch=is_batch)
                answer = await self._session.call(address, code, fields, out.body, timeout_s=attempt_s, accept=STORED)
            except (NotConnected, RequestTimeout, RequestRefused) as error:
                refusals += isinstance(error, RequestRefused)
                avoid.add(broker_name)
                if not self._may_pass(error, out, avoid, refusals) or loop.time() + pause >= deadline:
                    raise
                self._session.routes.expire(out.topic)
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_S)
                continue
            self._stored(out.topic)
            return receipts_of(answer, queue, [part.properties[UNIQUE_KEY] for part in parts])

    def _may_pass(self, error: RemoteError, out: Message, avoid: set[str], refusals: int) -> bool:
        if not isinstance(error, RequestRefused):
            return True
        if refusals >= MAX_REFUSALS:
            return False
        known = self._session.routes.known(out.topic)
        others = known is not None and bool(set(known.brokers) - avoid)
        return error.code in (ELSEWHERE if others else MAY_PASS)

    def _stored(self, topic: str) -> None:
        """The topic exists now: its real route may have other queues than the one it was created from."""
        known = self._session.routes.known(topic)
        if known is not None and known.is_template:
            self._session.routes.expire(topic)

    async def _choose(
        self, message: Message, ordered_by: str | None, avoid: set[str], limit_s: float
    ) -> tuple[MessageQueue, str]:
        """Return the queue for a message and its broker's address; not one of the brokers that failed, if possible."""
        if ordered_by is not None and not isinstance(ordered_by, str):
            raise InvalidConfig("ordered_by", ordered_by, "must be a text")
        route = await self._session.routes.get(message.topic, for_send=True, limit_s=limit_s)
        queues = route.writable
        if message.queue_id is not None:
            queues = [each for each in queues if each.queue_id == message.queue_id]
            if not queues and route.writable:
                count = 1 + max(each.queue_id for each in route.writable)
                raise InvalidConfig("queue_id", message.queue_id, f"{message.topic} has {count} queues")
        if avoid and ordered_by is None:
            queues = [each for each in queues if each.broker_name not in avoid] or queues
        if not queues:
            raise NoRoute(self._session.name_servers, message.topic, is_known=True)
        if ordered_by is None:
            self._turn += 1
            queue = queues[self._turn % len(queues)]
        else:
            queue = queues[abs(java_hash(ordered_by)) % len(queues)]
        address = _master(route, queue.broker_name)
        return queue, address

    # ---- transactions

    async def transaction(self, message: Message, *, timeout_s: float | None = None) -> AsyncTransaction:
        """Send a message that consumers see only once its transaction is committed.

            async with await producer.transaction(message):
                ...  # what must happen together with the message

        The block's end commits; an error rolls back. If the decision does not reach the broker, it asks `check`.
        """
        out = prepared(message, self._decisions.properties)
        out.sys_flag |= Decisions.PREPARED_FLAG
        (receipt,) = await self._store(RequestCode.SEND_MESSAGE_V2, out, [out], None, timeout_s)
        route = self._session.routes.known(message.topic)
        assert route is not None, "the message was just sent by it"
        return AsyncTransaction(self._decisions, _master(route, receipt.broker_name), receipt)

    # ---- requests and replies

    async def request(self, message: Message, timeout_s: float = SEND_S) -> StoredMessage:
        """Send a message and return the reply of the consumer that gets it; RequestTimeout if none comes in time."""
        require_seconds("timeout_s", timeout_s)
        return await self._replies.request(
            message.topic, timeout_s, lambda more: self.send(_with(message, more), timeout_s=timeout_s)
        )

    async def reply(self, request: StoredMessage, body: bytes) -> None:
        """Send the reply to a request; RequestRefused if the one who asked is gone."""
        out = prepared(self._replies.reply_to(request, body))
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        async with self._session.within(self._timeout_s, code):
            queue, address = await self._choose(out, None, set(), self._timeout_s)
            await self._session.call(address, code, header_of(out, self.group, queue), out.body, timeout_s=ATTEMPT_S)

    # ---- timed messages

    async def recall(self, receipt: SendReceipt) -> None:
        """Recall a timed message that is not due yet; RequestRefused if it is, or if it was not timed."""
        header = RecallHeader(receipt.topic, receipt.recall_handle or "", self.group)
        fields = {"bname": receipt.broker_name, **header.write()}
        async with self._session.within(self._timeout_s, RequestCode.RECALL_MESSAGE):
            route = await self._session.routes.get(receipt.topic, limit_s=self._timeout_s)
            await self._session.call(_master(route, receipt.broker_name), RequestCode.RECALL_MESSAGE, fields)

    # ---- closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the producer group and close the connections."""
        await self._session.close(lambda: self._session.unregister({"producerGroup": self.group}))


def _master(route: TopicRoute, broker_name: str) -> str:
    address = route.address_of(broker_name)
    if address is None:
        raise NotConnected(broker_name, "the name server knows no address of this broker")
    return address


def _with(message: Message, more: dict[str, str]) -> Message:
    """Return a copy of a message with further properties."""
    return Message(
        message.topic,
        message.body,
        queue_id=message.queue_id,
        properties={**message.properties, **more},
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
    )


def _batches(messages: Iterable[Message]) -> Iterable[tuple[list[Message], list[bytes]]]:
    """Yield neighbours that one batch can hold, with its body in parts: same topic and queue, not too large together.

    Delayed messages go alone, and so do those that are compressed already: the flag would hold for all of a batch.
    """
    batch: list[Message] = []
    parts: list[bytes] = []
    size = 0
    for message in messages:
        if not DELAYS.isdisjoint(message.properties) or message.sys_flag != 0:
            if batch:
                yield batch, parts
            batch, parts, size = [], [], 0
            yield [message], []
            continue
        out = prepared(message, compress=False)
        part = encode_part(out)
        more = len(part) + len(out.topic) + RECORD_BYTES
        fits = batch and (batch[0].topic, batch[0].queue_id) == (out.topic, out.queue_id)
        if batch and (not fits or size + more > BATCH_BYTES):
            yield batch, parts
            batch, parts, size = [], [], 0
        batch.append(out)
        parts.append(part)
        size += more
    if batch:
        yield batch, parts
