"""The two ports of an open store: reading, which every process has, and writing, which one process has.

The façade and the delivery layer know a store through these and nothing else. `Writer` offers both, `Follower` offers
reading. `Refusing` takes the place of either in a store that is closed, or that a forked child must not touch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mqlake.config import StoreConfig
from mqlake.errors import StoreError
from mqlake.files.layout import Layout
from mqlake.kernel import Ends
from mqlake.kernel.types import Readable
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queues import BatchQueues, ConsumeQueues
from mqlake.logs.deleted_topics import DeletedTopics
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.log_writer import LogWriter
from mqlake.logs.scars import Scars
from mqlake.logs.topic_table import TopicTable
from mqlake.message import Durability, Message, PutReceipt, StoredMessage
from mqlake.runtime.shield import Shield
from mqlake.runtime.workers import Workers
from mqlake.store.flush import Flusher
from mqlake.store.health import Health
from mqlake.store.read import Reader
from mqlake.store.recovery import Recovery
from mqlake.store.replicas import Replicas
from mqlake.store.retention import Retention
from mqlake.store.stats import StoreStats

if TYPE_CHECKING:
    import asyncio

    from mqlake.store.awaiting import QueueArrivals


class Reading(Protocol):
    """What can be asked of a store, whichever process writes it. Any thread may ask."""

    layout: Layout
    config: StoreConfig
    ends: Ends
    queues: ConsumeQueues
    batch_queues: BatchQueues
    index: KeyIndex | None
    scars: Scars
    deleted_topics: DeletedTopics
    reader: Reader

    @property
    def log(self) -> CommitLog: ...

    @property
    def recovery(self) -> Recovery | None:
        """What opening found and did."""

    @property
    def look_s(self) -> float:
        """How long a wait for messages may take before it is worth looking for new queues."""

    def queues_version(self) -> float:
        """Return a value that changes when there may be other queues than before."""

    @property
    def reach(self) -> int:
        """How far queues reach into the log. If it has not moved, a second look finds what the first one found."""

    def follow(self) -> None:
        """Learn what another process has written. Nothing to do for the writer."""

    def settle(self) -> None:
        """Wait until what was put before this call is dispatched. Whoever found nothing before must look again."""

    def wait_until(self, arrived: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition is true that new messages, or `look_again`, make true; return whether it is."""

    async def until_async(self, arrived: Callable[[], bool], timeout_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """`wait_until` for a task of an event loop."""

    def look_again(self) -> None:
        """Make waiting threads look at their condition again."""

    def after_damage(self, offset: int, reason: str) -> int: ...

    def scan_range(self, start: int | None, end: int | None) -> tuple[int, int]: ...

    def stats(self) -> StoreStats: ...

    def health(self) -> Health: ...

    def close(self) -> None: ...


class Writing(Reading, Protocol):
    """What only the writer can do. Any thread may call it."""

    workers: Workers
    shield: Shield
    flusher: Flusher
    retention: Retention
    replicas: Replicas
    usual: Durability
    unforced: Durability

    @property
    def log(self) -> LogWriter: ...

    @property
    def topics(self) -> TopicTable: ...

    def put(self, message: Message, durability: Durability | None = None) -> PutReceipt: ...

    def put_as_is(self, message: Message, durability: Durability | None = None) -> PutReceipt: ...

    def put_many(self, messages: Sequence[Message], durability: Durability | None = None) -> list[PutReceipt]: ...

    async def put_async(self, message: Message, durability: Durability | None = None) -> PutReceipt: ...

    def put_packed(self, packed: Readable, *, timestamp: int = 0, keep: int = 0) -> None: ...

    def flush(self) -> None: ...

    def catch_up(self, end: int, timeout_s: float, *, patient: bool = False) -> bool:
        """Wait until everything before `end` is dispatched; return whether it is."""

    def publish(self) -> None:
        """Make visible what was appended so far, if that needs a sync."""

    def confirm(self) -> None:
        """Wait until what was appended so far has the level of a usual put."""

    def wait_reached(self, end: int, wanted: Durability) -> None:
        """Wait until the log has reached a level up to `end`."""

    def when_reached(self, end: int, wanted: Durability, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future that is done when the log has reached DISK or REPLICA up to `end`."""

    def record(self, physical_offset: int) -> StoredMessage:
        """Return a message that this process appended, visible or not."""

    def queue_arrivals(self, loop: asyncio.AbstractEventLoop) -> QueueArrivals:
        """Return what tells an event loop which queues got messages."""

    def queue_count(self, topic: str) -> int: ...

    def delete_topic(
        self, topic: str, *, require: Callable[[], None] = ..., forget: Callable[[], None] = ...
    ) -> None: ...

    def with_checkpoints(self, write: Callable[[], None]) -> None:
        """Have something written after every checkpoint, by the same worker."""

    def tell_health(self) -> None:
        """Tell other processes how workers and slaves are, now."""

    def leave(self) -> None:
        """Say that nobody can use the store any more: who opens it next waits until it is closed."""

    def give_up(self) -> None:
        """Let go of the store in a forked child."""


class Refusing:
    """Raises one error, whatever is asked of it."""

    def __init__(self, error: Callable[[], StoreError]) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, name: str) -> Any:
        raise object.__getattribute__(self, "_error")()
