"""A consumer: a member of a group that reads topics from their brokers, together with members in other processes.

It promises what the store's own consumer promises (`delivery/consume/consumer.py`): at least once, in the order of each
queue; progress moves past a message after it was processed. With `auto_commit`, a message counts as processed when the
caller takes the next one, or leaves the `with` block without an error. Brokers are told the progress every 5 seconds,
when a queue changes hands, and at the end; what a killed process had not told is delivered again.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from mqlake.client.membership import Membership
from mqlake.client.positions import GroupPositions, OwnPositions, Positions, address_of
from mqlake.client.pulling import Puller
from mqlake.client.remote_queue import RemoteQueue, Stage
from mqlake.client.security import Credentials
from mqlake.client.session import Session
from mqlake.config import require_seconds
from mqlake.delivery.consume.cursor import Lost
from mqlake.delivery.consume.filters import ALL, SQL, Filter, Tags, filter_of
from mqlake.delivery.consume.progress import GROUP, Start, check_start
from mqlake.delivery.registry.system_topics import RETRY_PREFIX
from mqlake.errors import InvalidConfig, NoRoute, NotPermitted
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import ConsumerData, Heartbeat, MessageQueue, Subscription, write_json
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.headers import SendBackHeader

BATCH: Final = 512
"""An iteration takes this many messages of a queue at a time, if they were read ahead."""
FOREVER: Final = 1e9


class Taken(NamedTuple):
    """Messages of one queue, and the queue."""

    queue: RemoteQueue
    version: int
    messages: list[StoredMessage]


class AsyncConsumer:
    """Reads topics for a group, for asyncio programs. Made in a running event loop.

    The end of the block closes it:

        async with AsyncConsumer("127.0.0.1:9876", "billing", "orders", filter="created || paid") as consumer:
            async for message in consumer:
                await handle(message)
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        topic: str | Sequence[str],
        *,
        filter: Filter | str | None = None,
        start: Start = "first",
        progress: str | os.PathLike[str] = GROUP,
        auto_commit: bool = True,
        ordered: bool = False,
        idle_s: float | None = None,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | bool = False,
    ) -> None:
        """`filter`, `start`, `auto_commit`, `idle_s`: see `MessageStore.consumer`. `progress`: `"group"` shares queues
        and progress with the group's other members, in any process; `"memory"` or a file's path is this consumer's
        own, and it reads all queues (RocketMQ calls it broadcasting). `ordered`: no message of a queue is handed out
        while an earlier one is not committed, and the broker locks the queue for this consumer."""
        check_start(start)
        topics = [topic] if isinstance(topic, str) else list(topic)
        if not topics:
            raise InvalidConfig("topic", topic, "must name at least one topic")
        if idle_s is not None:
            require_seconds("idle_s", idle_s)
        self.group = group
        self._auto, self._ordered = auto_commit, ordered
        self._idle_s = FOREVER if idle_s is None else idle_s
        self._is_shared = progress == GROUP
        self._subscriptions = _subscriptions(group if self._is_shared else None, topics, filter_of(filter))
        self._data = ConsumerData(
            group,
            [subscription for subscription, _ in self._subscriptions.values()],
            message_model="CLUSTERING" if self._is_shared else "BROADCASTING",
            consume_from="CONSUME_FROM_LAST_OFFSET" if start == "last" else "CONSUME_FROM_FIRST_OFFSET",
        )
        session = self._session = Session(name_servers, credentials=credentials, tls=tls, beat=self._beat)
        self._positions: Positions = (
            GroupPositions(session, group, start) if self._is_shared else OwnPositions(session, group, start, progress)
        )
        self._puller = Puller(session, group, self._subscriptions, self._positions, self._notify, self._rebalance)
        self._membership = Membership(session, self._data, self._positions, ordered=ordered, read=self._puller.read)
        self._arrived = asyncio.Event()
        self._turn = 0
        self._starting = asyncio.Lock()
        self._is_started = self._is_closed = False

    def _beat(self) -> Heartbeat:
        return Heartbeat(self._session.client_id, [], [self._data])

    def _notify(self) -> None:
        self._arrived.set()

    def _rebalance(self) -> None:
        self._membership.wake()

    async def start(self) -> Self:
        """Join the group. Entering the `async with` block, or the first poll, does it too.

        Raises if no name server answers, or if a broker refuses the filter; a later call tries again.
        """
        async with self._starting:
            if not self._is_started:
                try:
                    await self._check_filters()
                    await self._membership.start()
                except BaseException:
                    self._session.drop()  # else the group would count on this member
                    raise
                self._session.start()
                self._is_started = True
        return self

    async def _check_filters(self) -> None:
        """Have the brokers look at SQL filters: a pull would be refused later."""
        for topic, (subscription, _) in self._subscriptions.items():
            try:
                route = await self._session.routes.get(topic)
            except NoRoute:
                continue
            if subscription.expression_type == SQL:
                body = {
                    "clientId": self._session.client_id,
                    "group": self.group,
                    "subscriptionData": subscription.to_json(),
                }
                for address in route.addresses:
                    await self._session.call(address, RequestCode.CHECK_CLIENT_CONFIG, {}, write_json(body))

    # ---- messages

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        """Yield messages one by one and wait for more; end when the consumer is closed, or idle for `idle_s`."""
        while (taken := await self.take(self.step, self._idle_s)) is not None:
            for message in walk(taken):
                yield message

    @property
    def step(self) -> int:
        """How many messages an iteration takes at a time: one if the next may only be delivered after a commit."""
        return 1 if self._ordered and not self._auto else BATCH

    async def poll(self, timeout_s: float = 0.0, limit: int = 32) -> list[StoredMessage]:
        """Return at most `limit` messages of one queue; an empty list if none arrives within `timeout_s`.

        With `auto_commit`, the call also commits the messages that the last poll returned.
        """
        self._require_open("poll")
        return given(await self.take(limit, timeout_s))

    async def take(self, limit: int, timeout_s: float | None = None) -> Taken | None:
        """Return messages of one queue as soon as there are any; None after `timeout_s`, or if closed."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidConfig("limit", limit, "must be a whole number, 1 or more")
        if timeout_s is not None:
            require_seconds("timeout_s", timeout_s)
        if self._is_closed:
            return None
        await self.start()
        deadline = time.monotonic() + (self._idle_s if timeout_s is None else timeout_s)
        for each in self._membership.queues.values():
            each.put_back()
        if self._auto:
            self._commit(processed=True)
        while not self._is_closed:
            if self._puller.failure is not None:
                failure, self._puller.failure = self._puller.failure, None
                raise failure
            if self._session.denied is not None:
                raise self._session.denied
            taken = self._next(limit)
            left_s = deadline - time.monotonic()
            if taken is not None or left_s <= 0:
                return taken
            self._arrived.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
            except TimeoutError:
                continue
        return None

    def _next(self, limit: int) -> Taken | None:
        """Return messages of the next queue in turn that has any."""
        ring = self._membership.reading
        for _ in range(len(ring)):
            self._turn += 1
            each = ring[self._turn % len(ring)]
            if each.has_messages and not (self._ordered and each.is_in_flight):
                return Taken(each, each.version, each.take(limit))
        return None

    # ---- progress

    async def commit(self, message: StoredMessage | None = None, *, durable: bool = False) -> None:
        """Mark all delivered messages as processed; with `message`, those of its queue up to and including it.

        Brokers know the progress a few seconds later; with `durable`, on return.
        """
        self._require_open("commit")
        if message is None:
            self._commit(processed=True)
        else:
            for each in self._having(message):
                each.commit(message.queue_offset + 1)
        self._notify()
        if durable:
            await self._membership.tell()

    def _require_open(self, what: str) -> None:
        if self._is_closed:
            raise NotPermitted(what, "the consumer is closed", "make a new one")

    def _commit(self, *, processed: bool) -> None:
        for each in self._membership.queues.values():
            if each.is_in_flight:
                each.commit(each.given if processed else each.held_from)

    def _having(self, message: StoredMessage) -> list[RemoteQueue]:
        """Return the queue that handed out a message."""
        return [
            each
            for each in self._membership.queues.values()
            if (each.queue.topic, each.queue.queue_id) == (message.topic, message.queue_id)
            and each.committed <= message.queue_offset < each.given
        ]

    async def fail(self, message: StoredMessage, level: int = 0) -> None:
        """Have a message redelivered that could not be processed, later each time; after too often it is a dead letter.

        `level` is a delay level, 0 for the broker's choice, -1 for a dead letter now. The failed message is then
        committed like any other.
        """
        if not self._is_shared:
            found = "this consumer keeps its own progress, and only groups have a retry topic"
            raise NotPermitted("fail", found, "consume with the group's progress")
        queue = next((each.queue for each in self._having(message)), None)
        if queue is None:
            raise NotPermitted(
                "fail", "the message is committed, or another member has its queue now", "fail it before"
            )
        header = SendBackHeader(
            offset=message.physical_offset,
            group=self.group,
            delay_level=level,
            origin_msg_id=message.properties.get("ORIGIN_MESSAGE_ID") or message.message_id,
            origin_topic=message.topic,
        )
        address = await address_of(self._session, queue)
        fields = {"bname": queue.broker_name, **header.write()}
        await self._session.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    @property
    def is_ordered(self) -> bool:
        """Whether no message of a queue is handed out while an earlier poll's is not committed."""
        return self._ordered

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, the group's retry queues among them."""
        found = (each.queue for each in self._membership.reading)
        return sorted(found, key=lambda each: (each.topic, each.broker_name, each.queue_id))

    @property
    def lost(self) -> list[Lost]:
        """The places where messages were deleted before they were read, and reading continued after them."""
        return self._puller.lost

    # ---- closing

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(processed=kind is None)

    async def close(self, *, processed: bool = False) -> None:
        """Leave the group. What the caller has now is committed only if it is `processed`, and with `auto_commit`."""
        if not self._is_closed:
            self._is_closed = True
            self._notify()
            if self._auto:
                self._commit(processed=processed)
        await self._session.close(self._leave)

    async def _leave(self) -> None:
        if self._is_started:
            await self._membership.close()
        else:
            self._positions.close()


def given(taken: Taken | None) -> list[StoredMessage]:
    """Return messages to the caller, and note that it has them.

    The caller may be the main thread, where a signal handler may raise: then it has not got them. They are put back.
    """
    if taken is None:
        return []
    before = taken.queue.held
    try:
        taken.queue.hand_out(taken.messages, taken.version)
        return taken.messages
    except BaseException:
        taken.queue.held = before
        raise


def walk(taken: Taken) -> Iterator[StoredMessage]:
    """Yield a batch one by one, in any thread. If the queue changes hands, leave the rest to its next owner."""
    each, version, messages = taken
    for place, message in enumerate(messages):
        if each.version != version or (place and each.stage is not Stage.READING):
            return  # its queue waits for the first one
        given(Taken(each, version, [message]))
        yield message


def _subscriptions(group: str | None, topics: list[str], wanted: Filter) -> dict[str, tuple[Subscription, Filter]]:
    """Return what is wanted of each topic; a group's retries are all wanted."""
    version = time.time_ns() // 1_000_000
    tags = tuple(sorted(wanted.tags)) if isinstance(wanted, Tags) else ()
    found: dict[str, tuple[Subscription, Filter]] = {
        topic: (Subscription(topic, wanted.expression or "*", wanted.kind, version, tags), wanted) for topic in topics
    }
    if group is not None:
        retries = RETRY_PREFIX + group
        found[retries] = Subscription(retries, "*", version=version), ALL
    return found
