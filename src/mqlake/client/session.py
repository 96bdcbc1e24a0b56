"""What producers, consumers and admins have in common: one client towards a name server and its brokers.

The client is known to a broker by its heart beat, which is sent on every new connection before anything else and then
every 30 seconds. A broker that comes back after a restart so learns of its clients with their next call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mqlake.client.connection import Connection, Connections
from mqlake.client.routes import Routes
from mqlake.client.security import Credentials, is_denied, tls_context
from mqlake.config import parse_address, require_seconds
from mqlake.errors import InvalidConfig, NoRoute, NotConnected, RemoteError, RequestRefused, RequestTimeout
from mqlake.kernel import Command
from mqlake.remoting.bodies import Heartbeat, Route
from mqlake.remoting.codes import VERSION, RequestCode, ResponseCode, code_name
from mqlake.remoting.command import oneway, request, response
from mqlake.remoting.headers import RouteHeader

BEAT_S: Final = 30.0
CALL_S: Final = 5.0
"""How long a call waits for its answer, unless it says otherwise."""
CONNECT_S: Final = 3.0
V5_0_0: Final = 413
SUCCESS: Final = (ResponseCode.SUCCESS,)
Handler = Callable[[Connection, Command], Awaitable[Command | None]]
"""Answers a request of a broker; None if it wants no answer."""
_numbers = itertools.count(1)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Asked:
    """Who a call waits for: first the name servers, then a broker."""

    address: str


class Session:
    """One client. Made in a running event loop; every method is called in its thread."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | bool = False,
        beat: Callable[[], Heartbeat | None] = lambda: None,
    ) -> None:
        """`beat` returns what brokers are told of this client; None if they need not know it."""
        self._name_servers = _addresses(name_servers)
        self._beat = beat
        self.client_id = f"127.0.0.1@{os.getpid()}#{time.time_ns()}{next(_numbers):03d}"
        self.denied: RequestRefused | None = None
        """Why a broker does not let this client in: a wrong key, or a right that it lacks. None once it does."""
        self.handlers: dict[int, Handler] = {}
        self.routes = Routes(self._ask_route)
        self._brokers: set[str] = set()
        """Addresses of brokers that were called: they get heart beats."""
        self._versions: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._connections = Connections(
            credentials=credentials,
            tls=tls_context(tls),
            connect_timeout_s=CONNECT_S,
            receive=self._receive,
            on_open=self._introduce,
        )

    @property
    def name_servers(self) -> str:
        return ";".join(self._name_servers)

    # ---- calls

    async def call(
        self,
        address: str,
        code: RequestCode,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = CALL_S,
        accept: Collection[int] = SUCCESS,
    ) -> Command:
        """Return a broker's response; RequestRefused if its code is none of `accept`."""
        connection = await self.connection(address)
        answer = await connection.call(request(code, fields, body), timeout_s)
        self._versions[address] = answer.version
        if answer.code not in accept:
            raise refusal(address, code, answer)
        return answer

    async def connection(self, address: str) -> Connection:
        """Return the connection to a broker; open it if there is none."""
        self._brokers.add(address)
        return await self._connections.get(address)

    def is_old(self, address: str) -> bool:
        """Return whether a broker that has answered is RocketMQ 4."""
        return self._versions.get(address, VERSION) < V5_0_0

    async def send_oneway(self, address: str, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a broker a request that gets no response."""
        connection = await self.connection(address)
        await connection.send(oneway(code, fields, body), CALL_S)

    async def ask_name_server(
        self, code: RequestCode, fields: dict[str, str] | None = None, *, accept: Collection[int] = SUCCESS
    ) -> tuple[str, Command]:
        """Return the response of the first name server that answers, and its address. It is asked first next time."""
        last: RemoteError | None = None
        for address in list(self._name_servers):
            try:
                connection = await self._connections.get(address)
                answer = await connection.call(request(code, fields), CALL_S)
            except (NotConnected, RequestTimeout) as error:
                last = error
                self._ask_last(address)
                continue
            except asyncio.CancelledError:  # the caller's time is over
                self._ask_last(address)
                raise
            if answer.code not in accept:
                raise refusal(address, code, answer)
            return address, answer
        assert last is not None, "there is at least one name server"
        raise last

    def _ask_last(self, address: str) -> None:
        """Have the other name servers asked before one that did not answer."""
        if address in self._name_servers:
            self._name_servers.remove(address)
            self._name_servers.append(address)

    @contextlib.asynccontextmanager
    async def within(self, timeout_s: float, code: RequestCode) -> AsyncIterator[Asked]:
        """Bound all that a call needs, look-ups of routes and connections included; RequestTimeout if it is late."""
        require_seconds("timeout_s", timeout_s)
        asked = Asked(self.name_servers)
        try:
            async with asyncio.timeout(timeout_s):
                yield asked
        except TimeoutError:
            raise RequestTimeout(asked.address, code_name(RequestCode, code), timeout_s) from None

    async def _ask_route(self, topic: str) -> Route:
        fields = RouteHeader(topic, accept_standard_json_only=True).write()
        accept = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        address, answer = await self.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, accept=accept)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRoute(address, topic)
        return Route.decode(answer.body)

    # ---- heart beats

    def start(self) -> None:
        """Keep brokers told of this client."""
        self.spawn(self._keep_beating())

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self.beat()

    async def beat(self, addresses: Collection[str] = ()) -> None:
        """Tell the brokers that were called, and those given, who this client is. A broker that is gone is tried
        again later."""
        self._brokers.update(addresses)
        await asyncio.gather(*(self._beat_to(address) for address in self._brokers))

    async def _beat_to(self, address: str) -> None:
        try:
            await self._introduce(await self._connections.get(address))
        except RemoteError as error:
            _log.warning("no heart beat: %s", error)

    async def _introduce(self, connection: Connection) -> None:
        """Send a heart beat on one connection, if it is a broker's."""
        beat = self._beat() if connection.address in self._brokers else None
        if beat is not None:
            answer = await connection.call(request(RequestCode.HEART_BEAT, {}, beat.encode()), CALL_S)
            if answer.code != ResponseCode.SUCCESS:
                error = refusal(connection.address, RequestCode.HEART_BEAT, answer)
                self.denied = error if is_denied(error) else None
                raise error
            self.denied = None

    async def unregister(self, fields: dict[str, str]) -> None:
        """Tell the brokers that this client leaves its group."""
        fields = {"clientID": self.client_id, **fields}
        for connection in self._connections.open:
            if connection.address in self._brokers:
                with contextlib.suppress(RemoteError):
                    await connection.call(request(RequestCode.UNREGISTER_CLIENT, dict(fields)), CALL_S)

    # ---- requests of brokers

    def _receive(self, connection: Connection, command: Command) -> None:
        self.spawn(self._handle(connection, command))

    async def _handle(self, connection: Connection, command: Command) -> None:
        handler = self.handlers.get(command.code)
        if handler is None:
            code, remark = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request {command.code} is not supported"
            answer: Command | None = response(command, code, remark=remark)
        else:
            try:
                answer = await handler(connection, command)
            except Exception as error:
                _log.exception("%s: request %s failed", connection.address, code_name(RequestCode, command.code))
                answer = response(command, ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        if answer is not None and not command.is_oneway:
            with contextlib.suppress(NotConnected):
                connection.answer(answer)

    # ---- tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until it ends or the session is closed."""
        task = asyncio.create_task(work)
        if self._is_closed:  # it was closed while its client was starting
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the client failed", exc_info=error)

    def drop(self) -> None:
        """Close all connections, so that brokers forget this client until it calls again."""
        self._connections.drop()

    async def close(self, leave: Callable[[], Awaitable[None]] | None = None) -> None:
        """Leave, then end all tasks and close all connections. A second call waits for the first.

        It is done all the same if the caller is cancelled meanwhile: a client that is half closed would stay in its
        groups.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(leave, asyncio.current_task()))
        await asyncio.shield(self._closing)

    async def _close(self, leave: Callable[[], Awaitable[None]] | None, caller: asyncio.Task[Any] | None) -> None:
        try:
            if leave is not None:
                await leave()
        finally:
            self._is_closed = True
            tasks = [task for task in self._tasks if task is not caller]
            for task in tasks:
                task.cancel()
            try:
                if tasks:
                    await asyncio.wait(tasks, timeout=1.0)
            finally:
                await self._connections.close()


def refusal(address: str, code: int, answer: Command) -> RequestRefused:
    """Return the error for an answer whose code is not success."""
    name = ResponseCode(answer.code).name if answer.code in ResponseCode._value2member_map_ else "UNKNOWN"
    return RequestRefused(address, code_name(RequestCode, code), answer.code, name, answer.remark or "")


def _addresses(given: str | Sequence[str]) -> list[str]:
    """Return the addresses of name servers in a random order: clients spread over them."""
    expected = "must be HOST:PORT, or several separated by ;"
    if not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise InvalidConfig("name server", given, expected)
    texts = given.replace(",", ";").split(";") if isinstance(given, str) else list(given)
    found = [text.strip() for text in texts if text.strip()]
    for text in found:
        parse_address("name server", text)
    if not found:
        raise InvalidConfig("name server", given, expected)
    return random.sample(found, len(found))
