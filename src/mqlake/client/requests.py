"""Requests and replies: a message that is answered by the consumer that gets it.

The request names its sender and a number. The reply goes to a broker, which passes it on to the sender's connection.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

from mqlake.client.connection import Connection
from mqlake.client.session import Session
from mqlake.errors import BadRequest, RequestTimeout
from mqlake.kernel import Command, Message, encode_record
from mqlake.kernel.hosts import pack_host
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import parse_properties
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import ReplyHeader

CORRELATION, REPLY_TO, TTL, KIND, CLUSTER = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "CLUSTER"
REPLY = "reply"
FOREVER_S = 1e9


class Replies:
    """The requests of one producer that wait for their replies."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._waiting: dict[str, asyncio.Future[StoredMessage]] = {}
        session.handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self._replied

    async def request(
        self, topic: str, timeout_s: float, send: Callable[[dict[str, str]], Awaitable[object]]
    ) -> StoredMessage:
        """Send a request with what a reply needs, and return the reply."""
        number = str(uuid.uuid4())
        future: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        ttl_ms = int(max(0.0, min(timeout_s, FOREVER_S)) * 1000)
        more = {CORRELATION: number, REPLY_TO: self._session.client_id, TTL: str(ttl_ms)}
        try:
            async with asyncio.timeout(timeout_s):
                route = await self._session.routes.get(topic, for_send=True, limit_s=timeout_s)
                await self._session.beat(route.addresses)  # a reply may come through any broker: each must know us
                await send(more)
                return await future
        except TimeoutError:
            raise RequestTimeout(f"the consumers of {topic}", "a request", timeout_s) from None
        finally:
            self._waiting.pop(number, None)

    async def _replied(self, connection: Connection, command: Command) -> Command:
        header = ReplyHeader.read(command.fields)
        properties = parse_properties(header.properties)
        message = Message(
            header.topic,
            command.body,
            properties=properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=_plain(header.born_host),
        )
        store_host = pack_host(_plain(header.store_host))
        record = encode_record(message, max(0, header.queue_id), 0, 0, header.store_timestamp, store_host, False)
        future = self._waiting.get(properties.get(CORRELATION, ""))
        if future is not None and not future.done():
            future.set_result(StoredMessage(record))
        return response(command)

    @staticmethod
    def reply_to(request: StoredMessage, body: bytes) -> Message:
        """Return the reply's message; BadRequest if the message asks for none."""
        properties = request.properties
        missing = [name for name in (CORRELATION, REPLY_TO, CLUSTER) if not properties.get(name)]
        if missing:
            raise BadRequest(missing[0], "no such property", "a message that was sent by `request`")
        more = {KIND: REPLY, CORRELATION: properties[CORRELATION], REPLY_TO: properties[REPLY_TO]}
        if TTL in properties:
            more[TTL] = properties[TTL]
        return Message(f"{properties[CLUSTER]}_REPLY_TOPIC", body, properties=more)


def _plain(address: str) -> str:
    """Return an address without the slash that Java writes before it."""
    return address.rpartition("/")[2]
