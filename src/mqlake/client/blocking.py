"""Producer, consumer and admin for programs without asyncio: the same things, called from any thread."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from mqlake.client.admin import END_OF_TIME, AsyncAdmin
from mqlake.client.background import LoopThread
from mqlake.client.consumer import AsyncConsumer, given, walk
from mqlake.client.producer import SEND_S, AsyncProducer
from mqlake.client.security import Credentials
from mqlake.client.sending import SendReceipt
from mqlake.client.transactions import AsyncTransaction, Check
from mqlake.delivery.consume.assignment import QueueLag
from mqlake.delivery.consume.cursor import Lost
from mqlake.delivery.consume.filters import Filter
from mqlake.delivery.consume.progress import GROUP, Start
from mqlake.delivery.registry.topics import Permission, Topic
from mqlake.errors import NotPermitted
from mqlake.kernel import Message
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import MessageQueue
from mqlake.store.read import QueueRange

Value = TypeVar("Value")
Client = TypeVar("Client", AsyncProducer, AsyncConsumer, AsyncAdmin)


class Blocking:
    """What the three have in common: they run in the client's thread until they are closed."""

    def __init__(self) -> None:
        self._thread = LoopThread.join()
        self._is_closed = False

    def _made(self, make: Callable[[], Client]) -> Client:
        """Make the asyncio object in its loop; let go of the thread if it cannot be made."""

        async def made() -> Client:
            return make()

        return self._begin(made)

    def _begin(self, work: Callable[[], Coroutine[Any, Any, Client]]) -> Client:
        try:
            return self._thread.call(work, lambda client: client.close())
        except BaseException:
            self._is_closed = True
            self._thread.leave()
            raise

    def _call(self, work: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        if self._is_closed:
            raise NotPermitted(type(self).__name__.lower(), "it is closed", "make a new one")
        return self._thread.call(work)

    def _end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._is_closed:
            self._is_closed = True
            try:
                self._thread.end(work)
            finally:
                self._thread.leave()


class Producer(Blocking):
    """Sends messages. Any thread may call it.

    The end of the block closes it:

        with Producer("127.0.0.1:9876") as producer:
            producer.send(Message("orders", b"..", tags="created", keys=["17"]))
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
        """See `AsyncProducer`."""
        super().__init__()
        self._producer = self._made(
            lambda: AsyncProducer(
                name_servers, group, check=check, timeout_s=timeout_s, credentials=credentials, tls=tls
            )
        )

    def send(self, message: Message, *, ordered_by: str | None = None, timeout_s: float | None = None) -> SendReceipt:
        """Send a message; return when a broker stored it. Messages with equal `ordered_by` go to the same queue.

        A message with a `queue_id` goes to that queue, others to the topic's queues in turn.
        """
        return self._call(lambda: self._producer.send(message, ordered_by=ordered_by, timeout_s=timeout_s))

    def send_many(
        self, messages: Iterable[Message], *, ordered_by: str | None = None, timeout_s: float | None = None
    ) -> list[SendReceipt]:
        """Send messages in batches of up to 1 MiB, each to one queue of its topic; return the receipts in order.

        A batch is stored whole or not at all; if one fails, those before it are stored. Delayed messages go alone.
        """
        given = list(messages)
        return self._call(lambda: self._producer.send_many(given, ordered_by=ordered_by, timeout_s=timeout_s))

    def send_oneway(self, message: Message, *, ordered_by: str | None = None) -> None:
        """Send a message without waiting for an answer: nobody learns whether it was stored."""
        self._call(lambda: self._producer.send_oneway(message, ordered_by=ordered_by))

    def transaction(self, message: Message, *, timeout_s: float | None = None) -> Transaction:
        """Send a message that consumers see only once its transaction is committed.

            with producer.transaction(message):
                ...  # what must happen together with the message

        The block's end commits; an error rolls back. If the decision does not reach the broker, it asks `check`.
        """
        return Transaction(self, self._call(lambda: self._producer.transaction(message, timeout_s=timeout_s)))

    def request(self, message: Message, timeout_s: float = SEND_S) -> StoredMessage:
        """Send a message and return the reply of the consumer that gets it; RequestTimeout if none comes in time."""
        return self._call(lambda: self._producer.request(message, timeout_s))

    def reply(self, request: StoredMessage, body: bytes) -> None:
        """Send the reply to a request; RequestRefused if the one who asked is gone."""
        self._call(lambda: self._producer.reply(request, body))

    def recall(self, receipt: SendReceipt) -> None:
        """Recall a timed message that is not due yet; RequestRefused if it is, or if it was not timed."""
        self._call(lambda: self._producer.recall(receipt))

    def close(self) -> None:
        """Leave the producer group and close the connections."""
        self._end(self._producer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Transaction:
    """A half message that waits for its decision. Made by `Producer.transaction`."""

    def __init__(self, producer: Producer, transaction: AsyncTransaction) -> None:
        self._producer = producer
        self._transaction = transaction

    @property
    def receipt(self) -> SendReceipt:
        """Where the half message waits."""
        return self._transaction.receipt

    def commit(self) -> None:
        """Let consumers see the message."""
        self._producer._call(self._transaction.commit)

    def rollback(self) -> None:
        """Drop the message."""
        self._producer._call(self._transaction.rollback)

    def leave(self) -> None:
        """Leave it undecided: the broker will ask `check`."""
        self._transaction.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer._call(lambda: self._transaction.__aexit__(kind, error, trace))


class Consumer(Blocking):
    """Reads topics for a group, together with the group's other members in any process. One thread at a time uses it;
    other threads may call `commit` and `close`.

    The end of the block closes it:

        with Consumer("127.0.0.1:9876", "billing", "orders", filter="created || paid") as consumer:
            for message in consumer:
                handle(message)
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
        """See `AsyncConsumer`."""
        super().__init__()
        self._consumer = self._begin(
            lambda: _started(
                lambda: AsyncConsumer(
                    name_servers,
                    group,
                    topic,
                    filter=filter,
                    start=start,
                    progress=progress,
                    auto_commit=auto_commit,
                    ordered=ordered,
                    idle_s=idle_s,
                    credentials=credentials,
                    tls=tls,
                )
            )
        )

    def __iter__(self) -> Iterator[StoredMessage]:
        """Yield messages one by one and wait for more; end when the consumer is closed, or idle for `idle_s`."""
        consumer = self._consumer
        while not self._is_closed and (taken := self._call(lambda: consumer.take(consumer.step))) is not None:
            yield from walk(taken)

    def poll(self, timeout_s: float = 0.0, limit: int = 32) -> list[StoredMessage]:
        """Return at most `limit` messages of one queue; an empty list if none arrives within `timeout_s`.

        With `auto_commit`, the call also commits the messages that the last poll returned.
        """
        return given(self._call(lambda: self._consumer.take(limit, timeout_s)))

    def commit(self, message: StoredMessage | None = None, *, durable: bool = False) -> None:
        """Mark all delivered messages as processed; with `message`, those of its queue up to and including it.

        Brokers know the progress a few seconds later; with `durable`, on return.
        """
        self._call(lambda: self._consumer.commit(message, durable=durable))

    def fail(self, message: StoredMessage, level: int = 0) -> None:
        """Have a message redelivered that could not be processed, later each time; after too often it is a dead letter.

        `level` is a delay level, 0 for the broker's choice, -1 for a dead letter now. The failed message is then
        committed like any other.
        """
        self._call(lambda: self._consumer.fail(message, level))

    @property
    def is_ordered(self) -> bool:
        """Whether no message of a queue is handed out while an earlier poll's is not committed."""
        return self._consumer.is_ordered

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, the group's retry queues among them."""
        return self._consumer.queues

    @property
    def lost(self) -> list[Lost]:
        """The places where messages were deleted before they were read, and reading continued after them."""
        return self._consumer.lost

    def close(self) -> None:
        """Leave the group without committing what the caller has now: its processing may have failed.

        To commit it, call `commit` before, or leave the `with` block without an error.
        """
        self._end(self._consumer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(lambda: self._consumer.close(processed=kind is None))


async def _started(make: Callable[[], AsyncConsumer]) -> AsyncConsumer:
    return await make().__aenter__()


class Admin(Blocking):
    """Looks after brokers: topics, groups, progress, look-ups. Any thread may call it."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | bool = False,
    ) -> None:
        super().__init__()
        self._admin = self._made(lambda: AsyncAdmin(name_servers, credentials=credentials, tls=tls))

    def topics(self) -> list[str]:
        """Return the names of all topics that the name server knows."""
        return self._call(self._admin.topics)

    def topic(self, name: str) -> Topic:
        """Return a topic's settings, as the first of its brokers has them."""
        return self._call(lambda: self._admin.topic(name))

    def create_topic(
        self,
        name: str,
        queue_count: int = 4,
        *,
        permission: Permission = Permission.READ | Permission.WRITE,
        ordered: bool = False,
    ) -> None:
        """Set a topic up on every broker, or change it."""
        self._call(lambda: self._admin.create_topic(name, queue_count, permission=permission, ordered=ordered))

    def delete_topic(self, name: str) -> None:
        """Delete a topic from every broker and from the name server."""
        self._call(lambda: self._admin.delete_topic(name))

    def queues(self, topic: str) -> list[QueueRange]:
        """Return the queues of a topic with their first and end queue offsets."""
        return self._call(lambda: self._admin.queues(topic))

    def groups(self) -> list[str]:
        """Return the groups that are set up on some broker."""
        return self._call(self._admin.groups)

    def create_group(self, name: str, **settings: Any) -> None:
        """Set a consumer group up (fields of `Group`) on every broker, or change it."""
        self._call(lambda: self._admin.create_group(name, **settings))

    def delete_group(self, name: str) -> None:
        """Delete a group and its progress from every broker."""
        self._call(lambda: self._admin.delete_group(name))

    def members(self, group: str) -> list[str]:
        """Return the client ids of a group's connected consumers."""
        return self._call(lambda: self._admin.members(group))

    def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """Return a group's progress in each queue that it reads."""
        return self._call(lambda: self._admin.lag(group, topic))

    def reset(self, group: str, topic: str, to: Start) -> dict[int, int]:
        """Set a group's progress on a topic: see `start` of a consumer. Connected members continue there.

        Returns the new queue offsets by queue id.
        """
        return self._call(lambda: self._admin.reset(group, topic, to))

    def read(self, topic: str, *, queue_id: int = 0, start: int = 0, limit: int = 32) -> list[StoredMessage]:
        """Return at most `limit` messages of a queue from queue offset `start` on; none at the queue's end."""
        return self._call(lambda: self._admin.read(topic, queue_id=queue_id, start=start, limit=limit))

    def get(self, message_id: str, *, topic: str | None = None) -> StoredMessage:
        """Return a message by its offset message id; with `topic`, also by the unique key that its producer gave it."""
        return self._call(lambda: self._admin.get(message_id, topic=topic))

    def find(
        self, topic: str, key: str, *, limit: int = 64, begin_ms: int = 0, end_ms: int = END_OF_TIME
    ) -> list[StoredMessage]:
        """Return the newest `limit` messages with a key, by store time."""
        return self._call(lambda: self._admin.find(topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms))

    def seek_time(self, topic: str, at: datetime | int, *, queue_id: int = 0) -> int:
        """Return the queue offset of the first message stored at or after a time (a datetime, or milliseconds)."""
        return self._call(lambda: self._admin.seek_time(topic, at, queue_id=queue_id))

    def close(self) -> None:
        self._end(self._admin.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
