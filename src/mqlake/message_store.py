"""The façade: open, put, read, find, consume, close. It names the stages and does none of their work.

open      -> store/opening.py, store/recovery.py, store/writer.py or store/follower.py
put       -> store/writer.py      -> logs/log_writer.py append -> store/flush.py  wait_until_durable
          -> store/dispatch.py    -> logs/consume_queue.py, logs/key_index.py
read      -> store/read.py
consume   -> delivery/consume/    topics, groups -> delivery/registry/
later     -> delivery/later/      transactions   -> delivery/transactions/
retain    -> store/retention.py

It knows a store through its two ports only, reading and writing (store/ports.py). In a store opened for reading, one
that is closed, or one left behind by a fork, a port is replaced by one that raises the right error.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from mqlake.config import (
    CommitLogConfig,
    ConsumeQueueConfig,
    DeliveryConfig,
    FlushConfig,
    IndexConfig,
    MemoryConfig,
    PoolConfig,
    ReplicationConfig,
    RetentionConfig,
    Role,
    SealConfig,
    StoreConfig,
    TimerConfig,
    TransactionConfig,
)
from mqlake.delivery.later.retry import resent
from mqlake.delivery.later.waiting import Waiting
from mqlake.delivery.registry.groups import Group
from mqlake.delivery.registry.system_topics import INTERNAL_GROUP_PREFIX
from mqlake.delivery.registry.topics import Permission, Topic
from mqlake.delivery.state import Delivery
from mqlake.delivery.transactions.transaction import Transaction, Transactions
from mqlake.errors import InvalidConfig, ReadOnlyStore, typed_errors
from mqlake.files.place import home_expanded
from mqlake.kernel.types import Readable
from mqlake.logs.matching import match_packed
from mqlake.message import Durability, Message, PutReceipt, StoredMessage
from mqlake.runtime import forks
from mqlake.runtime.whole import make_whole
from mqlake.store.gates import Gates
from mqlake.store.health import Health
from mqlake.store.life import Life
from mqlake.store.ports import Reading, Refusing, Writing
from mqlake.store.read import END_OF_TIME, MAX_READ_BYTES, QueueRange, read_settled
from mqlake.store.recovery import Progress, Recovery
from mqlake.store.retention import HOUR_MS, Retained, Retention, by_hand, would_go
from mqlake.store.stats import StoreStats
from mqlake.store.writer import Writer, open_writer

if TYPE_CHECKING:
    import pyarrow

    from mqlake.delivery.consume.assignment import QueueLag
    from mqlake.delivery.consume.consumer import Consumer
    from mqlake.delivery.consume.filters import Filter
    from mqlake.delivery.consume.progress import Start
    from mqlake.handling.options import Handler, RunOptions
    from mqlake.handling.tracking import RunCounts
    from mqlake.inspect.backup import Backup
    from mqlake.inspect.heal import HealReport
    from mqlake.replication.slave import Slave


class MessageStore:
    """A store on disk: one writer process, any number of readers. Any thread may call all of it.

    The end of the block closes it:

        with MessageStore.open("data/store", flush=FlushConfig(sync=True)) as store:
            receipt = store.put(Message("orders", b'{"id": 17}', tags="created", keys=["17"]))
    """

    def __init__(self, reading: Reading | None = None, writing: Writing | None = None, *, deliver: bool = True) -> None:
        """Use `MessageStore.open`."""
        if reading is None or isinstance(reading, str | os.PathLike):
            path_shown = "path" if reading is None else repr(os.fspath(reading))
            raise TypeError(f"a store is opened by MessageStore.open({path_shown})")
        self.path = path = reading.layout.root
        self.config = reading.config
        self._writes = writing is not None
        self._reading = reading
        self._writing = writing if writing is not None else cast(Writing, Refusing(lambda: ReadOnlyStore(path)))
        self._delivery = Delivery(reading, writing, lambda: life.require_open())
        self._opened = reading
        """What `recovery` asks, also once the store is closed."""
        give_up: Callable[[], None] = writing.give_up if writing is not None else lambda: None
        leave: Callable[[], None] = writing.leave if writing is not None else lambda: None
        is_worker: Callable[[], bool] = writing.workers.include_current if writing is not None else lambda: False
        self._slave = None if writing is None else _slave_of(writing)
        closers = [self._delivery.close, reading.close]
        if self._slave is not None:
            closers.insert(0, self._slave.stop)
        life = self._life = Life(path, closers, give_up, is_worker, leave)
        weakref.finalize(self, life.close_unreferenced).atexit = False
        forks.guard(self)
        try:
            if deliver:
                self._delivery.start()
            if self._slave is not None:
                self._slave.start()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        create: bool = True,
        deliver: bool = True,
        config: StoreConfig | None = None,
        commit_log: CommitLogConfig | None = None,
        consume_queue: ConsumeQueueConfig | None = None,
        index: IndexConfig | None = None,
        flush: FlushConfig | None = None,
        pool: PoolConfig | None = None,
        memory: MemoryConfig | None = None,
        retention: RetentionConfig | None = None,
        seals: SealConfig | None = None,
        delivery: DeliveryConfig | None = None,
        timer: TimerConfig | None = None,
        transactions: TransactionConfig | None = None,
        replication: ReplicationConfig | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Open a store, creating it if there is none. Recovery happens here and reports to `progress`, on any thread.

        `config` holds all settings; the others replace one section of it. With `read_only`, another process may be
        writing: no lock is taken, nothing is written, and reads follow what it writes. Without `deliver` the store
        only holds messages: none is delayed, and none that is due is delivered. In the role SLAVE it takes messages
        from its master only (`replication`), and follows the one that is named there.
        """
        sections = {
            "commit_log": commit_log,
            "consume_queue": consume_queue,
            "index": index,
            "flush": flush,
            "pool": pool,
            "memory": memory,
            "retention": retention,
            "seals": seals,
            "delivery": delivery,
            "timer": timer,
            "transactions": transactions,
            "replication": replication,
        }
        given = {name: value for name, value in sections.items() if value is not None}
        if not isinstance(config, StoreConfig | None):
            raise InvalidConfig("config", config, "must be a StoreConfig; StoreConfig.load reads a broker.conf")
        settings = replace(config or StoreConfig(), **given)  # type: ignore[arg-type]

        def make() -> MessageStore:
            if read_only:
                from mqlake.store.follower import open_follower  # a writer does not need it

                return cls(open_follower(path, settings, create=create, progress=progress), None)
            writer = open_writer(path, settings, create=create, progress=progress)
            return cls(writer, writer, deliver=deliver)

        # An interrupt must not leave a store that is half open: nobody could close it.
        return cast(Self, make_whole(make))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> Writing:
        """The writing side of the open store, for parts that serve it to others; ReadOnlyStore in a reader."""
        self._life.require_open()
        if not self._writes:
            raise ReadOnlyStore(self.path)
        return self._writing

    @property
    def slave(self) -> Slave | None:
        """What follows the master, with its status; None unless the store is a slave with a master."""
        return self._slave

    # ---- writing

    def put(self, message: Message, *, durability: Durability | None = None) -> PutReceipt:
        """Append one message; return when it is as safe as asked, or as the flush mode promises.

        The receipt names the level that was reached. DiskFull, StoreFailed and InvalidMessage mean that nothing is
        stored; NotConfirmed means that the message is stored, but did not reach its level in time.
        """
        return self._writing.put(message, durability)

    def put_many(self, messages: Sequence[Message], *, durability: Durability | None = None) -> list[PutReceipt]:
        """Append a batch, in one piece: all of it or nothing. One wait makes all of it as safe as asked.

        A batch may be as large as one message (`max_message_bytes`).
        """
        return self._writing.put_many(messages, durability)

    def put_async(self, message: Message, *, durability: Durability | None = None) -> Coroutine[Any, Any, PutReceipt]:
        """`put` for asyncio programs: the event loop continues while the disk works.

        The message is appended before the first wait. A put that is cancelled meanwhile is stored all the same; only
        nobody learns how durable it is.
        """
        return self._writing.put_async(message, durability)  # not awaited here: a coroutine less for each put

    def put_as_is(self, message: Message, *, durability: Durability | None = None) -> PutReceipt:
        """Append a message as it is, also one with a delay, which is not delayed. For loading and copying."""
        return self._writing.put_as_is(message, durability)

    def put_packed(self, packed: Readable, *, timestamp: int = 0, keep: int = 0) -> None:
        """Append records packed by `ingest/pack.py`, in their order; `flush` makes them durable.

        If it raises, half of them may be stored. `timestamp` is the store time of all, unless it is before the last;
        `keep` lets them keep queue offsets or times of their own (`kernel.types`).
        """
        self._writing.put_packed(packed, timestamp=timestamp, keep=keep)

    def flush(self) -> None:
        """Return when all that was put so far is on disk."""
        self._writing.flush()

    # ---- reading

    def read(
        self,
        topic: str,
        *,
        queue_id: int = 0,
        start: int = 0,
        limit: int = 32,
        max_bytes: int = MAX_READ_BYTES,
        wait_s: float = 0.0,
    ) -> list[StoredMessage]:
        """Return at most `limit` messages of a queue from queue offset `start` on, this process' own puts included.

        At the queue's end the list is empty; with `wait_s` the call waits that long for a message. Outside of the
        queue's range it raises OffsetOutOfRange, which names both ends.
        """
        return read_settled(self._reading, topic, queue_id, start, limit, max_bytes, wait_s)

    def get(self, at: int | str) -> StoredMessage:
        """Return the message at a physical offset (an int) or with a message id (a str)."""
        self._reading.follow()
        return self._reading.reader.get(at)

    def find(
        self, topic: str, key: str, *, limit: int = 64, begin_ms: int = 0, end_ms: int = END_OF_TIME, tag: bool = False
    ) -> list[StoredMessage]:
        """Return the newest `limit` messages with a key, in log order; with `tag`, those with that tag."""
        self._reading.settle()
        return self._reading.reader.find(topic, key, limit, begin_ms, end_ms, tag=tag)

    def seek_time(self, topic: str, time: datetime | int, *, queue_id: int = 0) -> int:
        """Return the queue offset of the first message stored at or after a time; the queue's end if there is none.

        The time is a datetime, or milliseconds since 1970.
        """
        self._reading.settle()
        return self._reading.reader.seek_time(topic, queue_id, time)

    def scan(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        topics: Collection[str] | None = None,
        batch_bytes: int = 4 << 20,
        decompress: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Return the log, or its bytes [start, end), as Arrow record batches; `start` must be a record's offset.

        Damage is skipped and listed in `stats().damage`.
        """
        with typed_errors(self.path, "imported"):
            from mqlake.store.scan import record_batches

        port = self._reading
        port.settle()
        first, stop = port.scan_range(start, end)
        return record_batches(
            port.log.stretches(first, stop),
            columns=columns,
            topics=topics,
            batch_bytes=batch_bytes,
            decompress=decompress,
            on_damage="skip",
            on_scar=lambda scar, after, reason: after == end or port.scars.add(scar, after, reason),
            progress=progress,
        )

    def dump(
        self, settings: Mapping[str, str], *, walk: bool = False, keys: bool = False, tags: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Return everything in the store, in the form of the golden dumps: see `inspect/dump.py`."""
        with typed_errors(self.path, "imported"):
            from mqlake.inspect.dump import dump_lines

        self._reading.settle()
        return dump_lines(self._reading, settings, walk=walk, keys=keys, tags=tags)

    def match_packed(self, start: int, timestamp: int, packed: Readable) -> tuple[int, int]:
        """Return how many bytes of packed records the log has from `start` on with this store time, and their end."""
        port = self._reading
        return match_packed(port.log, start, port.ends.visible, timestamp, packed)

    def topics(self) -> list[str]:
        """Return the topics that have a queue."""
        self._reading.settle()
        return self._reading.reader.topics()

    def queues(self, topic: str) -> list[QueueRange]:
        """Return the queues of a topic with their first and end queue offsets."""
        self._reading.settle()
        return self._reading.reader.queues(topic)

    @property
    def first_offset(self) -> int:
        """The physical offset at which the log begins."""
        return self._reading.log.first_offset

    @property
    def end_offset(self) -> int:
        """The physical offset after the last message that readers may see."""
        self._reading.follow()
        return self._reading.ends.visible

    @property
    def recovery(self) -> Recovery | None:
        """What opening found and did: this store's own, or for a reader that of its last writer."""
        return self._opened.recovery

    def stats(self) -> StoreStats:
        """Return counters and positions, as they are now."""
        self._reading.follow()
        return self._reading.stats()

    def health(self) -> Health:
        """Return the state of every background worker; for a reader, as the writer last told it."""
        self._reading.follow()
        return self._reading.health()

    # ---- copying and deleting

    def backup(self, dest: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None) -> Backup:
        """Copy the store, also while it is written, to a folder that is new or empty.

        What was put before the call is in the copy, which is checked before it gets its name: see `inspect/backup.py`.
        BackupFailed if no whole copy could be made: then nothing is left of it.
        """
        with typed_errors(self.path, "imported"):
            from mqlake.inspect.backup import backup

        if self._writes:
            self._writing.log.commit()
        self._reading.settle()
        return backup(self.path, home_expanded(dest), config=self.config, progress=progress)

    def heal(
        self,
        source: str | os.PathLike[str],
        *,
        look: bool = True,
        progress: Callable[[int, int], object] | None = None,
    ) -> HealReport:
        """Replace damaged bytes of the log with those of another copy, each proven: see `inspect/heal.py`.

        `source` is a folder (a backup, another copy of the store) or `HOST:PORT` of a master's or slave's replication.
        With `look` all of the log is looked at first, else only what is known to be damaged is healed.
        """
        with typed_errors(self.path, "imported"):
            from mqlake.inspect.heal import heal
            from mqlake.replication.fetch import source_of

        writer = self.port
        assert isinstance(writer, Writer), "the port of an open store is its writer"
        return heal(writer, source_of(source), look=look, progress=progress)

    @property
    def retention(self) -> Retention:
        """The cleaner, and the gates that hold it back."""
        return self._writing.retention

    def retain(
        self,
        *,
        older_than_ms: int | None = None,
        keep_bytes: int | None = None,
        before_offset: int | None = None,
        dry_run: bool = False,
    ) -> Retained:
        """Delete the oldest files of the log now, as far as every given condition allows.

        `older_than_ms`: their newest message is older; `keep_bytes`: so much of the log stays; `before_offset`: they
        end at or before it. Without a condition the age is `fileReservedTime`. The file being written stays, and
        what a gate holds. With `dry_run`, which a reader may ask for too, nothing is deleted.
        """
        port = self._reading
        port.settle()
        if older_than_ms is keep_bytes is before_offset is None:
            older_than_ms = self.config.retention.reserved_hours * HOUR_MS
        rule = by_hand(port.log, older_than_ms=older_than_ms, keep_bytes=keep_bytes, before_offset=before_offset)
        if dry_run:
            gates = self.retention if self._writes else Gates(port.layout.gates)
            return would_go(port.log, gates.offsets(), rule)
        return self.retention.retain(rule, by_age=older_than_ms is not None)

    def wait_dispatched(self, timeout_s: float = 10.0) -> bool:
        """Wait until all that was put is in its queue and in the index; return whether it was in time."""
        port = self._reading
        port.follow()
        return not self._writes or self._writing.catch_up(port.ends.promised, timeout_s, patient=True)

    # ---- topics

    @property
    def delivery(self) -> Delivery:
        """Topics, groups and progress, as tables."""
        self._life.require_open()
        return self._delivery

    def create_topic(
        self,
        name: str,
        queue_count: int | None = None,
        *,
        permission: Permission = Permission.READ | Permission.WRITE,
        ordered: bool = False,
    ) -> Topic:
        """Set a topic up, durably. One that exists with other settings is an error: `update_topic` changes them."""
        count = queue_count or self.config.consume_queue.queues_per_topic
        return self._delivery.create_topic(Topic(name, count, count, permission, ordered))

    def update_topic(self, name: str, **changes: Any) -> Topic:
        """Change settings of a topic (fields of `Topic`), durably; later puts use them."""
        return self._delivery.update_topic(name, changes)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its queues and all progress on it. Its messages stay in the log until retention deletes them:
        until then they are found by offset, id and key."""
        self._delivery.consumers.delete_topic(name)

    def topic(self, name: str) -> Topic:
        """Return a topic's settings; UnknownTopic if it is not set up."""
        self._life.require_open()
        return self._delivery.topics.get(name)

    # ---- groups

    def create_group(self, name: str, **settings: Any) -> Group:
        """Set a consumer group up (fields of `Group`), durably."""
        return self._delivery.create_group(name, settings)

    def update_group(self, name: str, **changes: Any) -> Group:
        """Change settings of a group (fields of `Group`), durably."""
        return self._delivery.update_group(name, changes)

    def delete_group(self, name: str) -> None:
        """Delete a group and its progress on every topic; NotPermitted while it has open consumers."""
        self._delivery.consumers.delete_group(name)

    def group(self, name: str) -> Group:
        """Return a group's settings; UnknownGroup if it is not set up."""
        self._life.require_open()
        return self._delivery.groups.get(name)

    def groups(self) -> list[str]:
        """Return the groups that are set up or have progress, without those of the store's own parts."""
        known, set_up = self._delivery.consumers.groups(), self._delivery.groups
        return [name for name in known if name in set_up or not name.startswith(INTERNAL_GROUP_PREFIX)]

    # ---- consuming

    def consumer(
        self,
        group: str,
        topic: str | Sequence[str],
        *,
        filter: Filter | str | None = None,
        start: Start = "first",
        progress: str | os.PathLike[str] = "group",
        auto_commit: bool = True,
        ordered: bool | None = None,
        on_lost: str = "skip",
        idle_s: float | None = None,
    ) -> Consumer:
        """Read a topic, or several, as a member of a group: from the group's progress, or from `start` if it is new.

        `filter`: tags (`"a || b"`) or `Sql(...)`. `start`: `"first"`, `"last"`, a datetime, a queue offset, or queue
        offsets by queue id. `progress`: `"group"` shares queues and progress with the group's other consumers in this
        process; `"memory"` or a file's path is this consumer's own, and it reads all queues. `auto_commit`: a message
        counts as processed when the next is asked for; else `commit` marks it. `ordered`: no message of a queue is
        handed out while an earlier one is not committed; None takes the group's setting. `on_lost`: if retention
        deleted messages before they were read, `"skip"` continues and lists them in `lost`, `"fail"` raises. `idle_s`:
        iteration ends after so long a pause; None waits for ever.
        """
        return self._delivery.consumers.open(
            group,
            topic,
            wanted=filter,
            start=start,
            progress=progress,
            auto_commit=auto_commit,
            ordered=ordered,
            on_lost=on_lost,
            idle_s=idle_s,
        )

    def run(
        self,
        handler: Handler,
        *,
        group: str,
        topic: str | Sequence[str],
        concurrency: int = 1,
        **more: Unpack[RunOptions],
    ) -> RunCounts:
        """Call a handler for each message of a topic, as a member of a group, until SIGTERM or Ctrl-C.

        A message whose handler returns is processed. One whose handler raises is delivered again, later each time,
        and is a dead letter after the group's last try; others go on. At a signal the handlers that are running end
        first. `concurrency` handlers run at a time: one in the calling thread, several in threads; an `async def` is
        awaited. Returns the counts.

        More options: `filter`, `start`, `ordered` as in `consumer`; `idle_s`: end after so long a pause;
        `retry_level`: the delay level of every retry, 0 for growing ones, -1 for a dead letter at once;
        `on_error(message, error)`, else it is logged; `on_progress(counts)`, every 5 s and at the end; `stop`: a
        `threading.Event` that ends it too.
        """
        from mqlake.running import run

        return run(handler, store=self, group=group, topic=topic, concurrency=concurrency, **more)

    async def run_async(
        self,
        handler: Handler,
        *,
        group: str,
        topic: str | Sequence[str],
        concurrency: int = 1,
        **more: Unpack[RunOptions],
    ) -> RunCounts:
        """`run` for asyncio programs: `concurrency` handlers are awaited at a time. Cancelling it cancels them."""
        from mqlake.running import run_async

        return await run_async(handler, store=self, group=group, topic=topic, concurrency=concurrency, **more)

    def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """Return a group's progress in each queue that it reads."""
        return self._delivery.consumers.lag(group, topic)

    def reset(self, group: str, topic: str, to: Start) -> list[QueueLag]:
        """Set a group's progress on a topic, durably: see `start` of `consumer`. Open consumers continue there."""
        return self._delivery.consumers.reset(group, topic, to)

    # ---- delayed messages

    def waiting(self, limit: int = 100) -> list[Waiting]:
        """Return the delayed messages that are due next, earliest first."""
        self._life.require_open()
        return self._delivery.waiting(limit)

    def cancel(self, at: int | str | PutReceipt | StoredMessage) -> PutReceipt:
        """Cancel a timed message, named by its receipt, physical offset, message id, or itself.

        NotPending if it is due. Returns the receipt of the cancellation, which is a message too.
        """
        return self._delivery.cancel(at)

    def retry(self, group: str, message: StoredMessage, level: int = 0) -> PutReceipt | None:
        """Redeliver a message that a group could not process, later each time: see `delivery/later/retry.py`."""
        return self._delivery.retry(group, message, level)

    def resend(self, dead: StoredMessage) -> PutReceipt:
        """Redeliver a dead letter to its group, as if it came for the first time. The dead letter stays."""
        put = self._writing.put
        return put(resent(dead))

    # ---- transactions

    def transaction(self, group: str = "", *, timeout_s: int | None = None) -> Transaction:
        """Begin a transaction: its messages become visible together at the end of a `with` block, or not at all.

        `group` names who is asked about it if this program ends before it decides; after `timeout_s` it no longer
        decides itself.
        """
        return self.transactions.begin(group, timeout_s)

    @property
    def transactions(self) -> Transactions:
        """All transactions: those that are undecided, and the decision about one."""
        self._life.require_open()
        return self._delivery.transactions

    # ---- closing

    def close(self) -> None:
        """Write progress and the checkpoint, and let go of the files. A second call does nothing.

        Calls that other threads begin meanwhile are refused at once: they must not slow down what is still to be done.
        """
        self._refuse()
        self._life.close()

    def _give_up(self) -> None:
        """In a forked child: raise StoreForked from now on, also from parts that the program holds."""
        self._life.give_up()
        self._refuse()
        retention = cast(Writing, self._opened).retention if self._writes else None
        parts = self._delivery.parts()
        for part in (self._opened, retention, self._slave, self._delivery, *parts):
            if part is not None:
                forks.disable(part, self._life.refusal)

    def _refuse(self) -> None:
        self._reading = self._writing = cast(Writing, Refusing(self._life.refusal))


def _slave_of(writing: Writing) -> Slave | None:
    """Return what follows the master that the settings of a slave name."""
    replication = writing.config.replication
    if replication.role is not Role.SLAVE or replication.master_address is None:
        return None
    from mqlake.replication.slave import Slave  # other stores do without sockets

    return Slave(writing)
