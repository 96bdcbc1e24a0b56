"""Registration with name servers outside: they learn the broker's address and topics, and route clients to it.

For each name server there is one task and one connection. It registers at once, every 30 seconds, and within a second
after a topic changed; a name server that cannot be reached is tried again until the broker stops, and never delays the
others or the broker itself. At the end the broker is unregistered, so that clients leave before it stops answering.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mqlake.broker.listening import Address
from mqlake.broker.settings import DEFAULT_NAME_SERVER_PORT
from mqlake.broker.versions import TableVersion
from mqlake.delivery.registry.topics import Topic
from mqlake.errors import BadFrame
from mqlake.kernel import Command, encode_command
from mqlake.remoting.bodies import write_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import request
from mqlake.remoting.frames import FrameReader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker

REPEAT_S: Final = 30.0
EXPIRES_MS: Final = 120_000
LOOK_S: Final = 1.0
"""How soon a changed topic is told."""
ANSWER_S: Final = 6.0
_log = logging.getLogger(__name__)


def parse_name_servers(text: str) -> list[Address]:
    """Read `HOST:PORT;HOST:PORT`, as RocketMQ's namesrvAddr is written."""
    return [Address.parse(each.strip(), DEFAULT_NAME_SERVER_PORT) for each in text.split(";") if each.strip()]


class Registration:
    """Keeps a broker registered. Made in the broker's event loop."""

    def __init__(self, broker: Broker, name_servers: Sequence[Address]) -> None:
        self._broker = broker
        self._stopping = asyncio.Event()
        self._version = TableVersion()
        self.registered: dict[Address, bool] = dict.fromkeys(name_servers, False)
        """Which name servers accepted the last registration."""
        self._tasks = [asyncio.create_task(self._keep(each), name=f"mqlake-register-{each}") for each in name_servers]

    async def close(self) -> None:
        """Unregister everywhere, or give up after a few seconds."""
        self._stopping.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=ANSWER_S)
            for task in late:
                task.cancel()

    # ---- one name server

    async def _keep(self, at: Address) -> None:
        reason = ""
        while not self._stopping.is_set():
            try:
                await self._session(at)
            except (OSError, BadFrame, EOFError, TimeoutError, _Refused) as error:
                if str(error) != reason:  # once, not with every attempt
                    reason = str(error)
                    _log.warning("name server %s: %s; trying again", at, reason or type(error).__name__)
            finally:
                self.registered[at] = False
            await self._rest(LOOK_S)

    async def _session(self, at: Address) -> None:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(at.host, at.port)
        link = _Link(reader, writer)
        try:
            while not self._stopping.is_set():
                topics = self._topics()
                await link.call(self._register(topics))
                self.registered[at] = True
                await self._until_due(topics)
            await link.call(request(RequestCode.UNREGISTER_BROKER, self._name()))
        finally:
            writer.close()

    async def _until_due(self, told: tuple[Topic, ...]) -> None:
        """Wait until a topic changes, 30 seconds are over, or the broker stops."""
        due = self._broker.loop.time() + REPEAT_S
        while not self._stopping.is_set() and self._broker.loop.time() < due:
            await self._rest(LOOK_S)
            if self._topics() != told:
                return

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _topics(self) -> tuple[Topic, ...]:
        topics = self._broker.parts.topics
        return tuple(map(topics.announced, topics.table))

    # ---- requests

    def _name(self) -> dict[str, str]:
        settings = self._broker.settings
        return {
            "brokerAddr": self._broker.address,
            "brokerId": str(settings.broker_id),
            "brokerName": settings.broker_name,
            "clusterName": settings.cluster,
        }

    def _register(self, topics: tuple[Topic, ...]) -> Command:
        wrapper: dict[str, Any] = {
            "dataVersion": self._version.of(topics),  # name servers read the table only if its version is new to them
            "topicConfigTable": {topic.name: topic.to_json() for topic in topics},
        }
        body = write_json({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
        fields = {
            **self._name(),
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            "compressed": "false",
            "enableActingMaster": "false",
            "haServerAddr": self._broker.replication_address or self._broker.address,
            "heartbeatTimeoutMillis": str(EXPIRES_MS),
        }
        return request(RequestCode.REGISTER_BROKER, fields, body)


class _Refused(Exception):
    """A name server answered, but not with success."""


class _Link:
    """A connection to a name server: one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()

    async def call(self, asked: Command) -> None:
        """Send a request and wait for its response; what a name server asks meanwhile is not answered."""
        async with asyncio.timeout(ANSWER_S):
            self._writer.write(encode_command(asked))
            await self._writer.drain()
            while True:
                data = await self._reader.read(1 << 16)
                if not data:
                    raise EOFError("the connection was closed")
                for command in self._frames.feed(data):
                    if command.is_response and command.opaque == asked.opaque:
                        if command.code != ResponseCode.SUCCESS:
                            raise _Refused(f"code {command.code}: {command.remark}")
                        return
