"""Transactions: messages that nobody sees before they are committed, and that are asked about if nobody does.

    put       -> a half message in RMQ_SYS_TRANS_HALF_TOPIC, with its real address in properties
    commit    -> the message in its real queue, which names its half (see `delivery/deliveries.py`); then
    rollback  -> an operation in RMQ_SYS_TRANS_OP_HALF_TOPIC: the number of the half message, which is done with
    check     -> halves that are left behind are asked about, and appended again, to be asked about later

Topics, properties and progress (group CID_RMQ_SYS_TRANS) are RocketMQ's. One difference: the operation follows its
decision at once, under one lock. So of what a crash leaves, only the last decision can lack operations, and the log has
its committed messages: opening finishes it. A transaction of several messages is committed if one of them is.

Progress goes to the disk behind the log, so that it never passes a half message whose end a power cut takes back.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mqlake.config import TransactionConfig
from mqlake.delivery.deliveries import Deliveries, copy_of, mark_of, real_address
from mqlake.delivery.offsets import ConsumerOffsets, name_of
from mqlake.delivery.properties import (
    CHECK_TIMES,
    IMMUNITY_S,
    PREPARED,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRANSACTION_ID,
    UNIQUE_KEY,
)
from mqlake.delivery.system_topics import HALF_TOPIC, OP_TOPIC, UNDECIDED_TOPIC
from mqlake.errors import InvalidMessage, TransactionEnded, TransactionExpired
from mqlake.message import Durability, Message, PutReceipt, StoredMessage
from mqlake.store.engine import Engine
from mqlake.store.read import MAX_READ_BYTES

GROUP = "CID_RMQ_SYS_TRANS"
DONE_TAG = "d"
COMMITTED = 0x8
KIND_MASK = 0xC
KEEP_MS = 5_000
READ_COUNT = 1_000
_log = logging.getLogger(__name__)


class Undecided(NamedTuple):
    """A transaction that was left behind: what the check is asked about."""

    id: str
    messages: list[StoredMessage]
    """Its half messages; `real_topic` and the rest are in their properties."""
    group: str
    check_count: int
    """How often it was asked about before."""


@dataclass(slots=True, eq=False)
class Half:
    """One half message that is not decided upon."""

    transaction_id: str
    group: str
    immunity_ms: int | None
    check_count: int
    queue_offset: int
    physical_offset: int
    born_ms: int
    is_live: bool = False
    """This process began it and still holds it: it is not asked about."""
    is_delivered: bool = False
    """Its message is in its real queue; only the operation is missing."""


class Transactions:
    """All transactions of one store. Several threads may call it."""

    def __init__(self, engine: Engine, offsets: ConsumerOffsets, deliveries: Deliveries) -> None:
        self._engine = engine
        self._offsets = offsets
        self._deliveries = deliveries
        self._config: TransactionConfig = engine.config.transactions
        self._lock = threading.RLock()
        self._halves: dict[int, Half] = {}
        """The undecided by the number of their half message, rising."""
        self._by_place: dict[int, Half] = {}
        self._by_id: dict[str, list[Half]] = {}
        self._operations: deque[tuple[int, int]] = deque()
        """Number of an operation, and of the half message that it is for; those before all undecided are dropped."""
        self._next_check_ms = _now_ms() + self._config.check_interval_ms
        self._next_keep_ms = 0
        self._load()

    # ---- opening

    def _load(self) -> None:
        self._engine.settle()
        start, op_start = self._progress(HALF_TOPIC), self._progress(OP_TOPIC)
        for message in self._read(OP_TOPIC, op_start):
            for number in _numbers(message):
                if number >= start:
                    self._operations.append((message.queue_offset, number))
        done = {number for _, number in self._operations}
        for message in self._read(HALF_TOPIC, start):
            if message.queue_offset not in done:
                self._add(half_of(message))
        if self._halves:
            self._learn_from_the_log()
            self._finish_what_began()

    def _progress(self, topic: str) -> int:
        """Where to go on in a queue, inside of it."""
        queue_ids = self._engine.queues.queue_ids(topic)
        if 0 not in queue_ids:
            return 0
        found = self._engine.reader.range_of(topic, 0)
        known = self._offsets.get(name_of(topic, GROUP), 0)
        return min(max(known or 0, found.first_offset), found.end_offset)

    def _read(self, topic: str, start: int) -> Iterable[StoredMessage]:
        if 0 not in self._engine.queues.queue_ids(topic):
            return
        while True:
            messages = self._engine.reader.read(topic, 0, start, READ_COUNT, MAX_READ_BYTES)
            if not messages:
                return
            yield from messages
            start = messages[-1].queue_offset + 1

    def _learn_from_the_log(self) -> None:
        """Half messages that are committed, given up or appended again, though no operation says so."""
        first = next(iter(self._halves.values()))
        for waiting, delivered in list(self._deliveries.since(first.physical_offset)):
            half = self._by_place.get(waiting.physical_offset)
            if half is None:
                continue
            if delivered.topic == HALF_TOPIC:
                self._drop(half)
            elif delivered.topic == UNDECIDED_TOPIC:
                self._note_done([half])
            else:
                half.is_delivered = True

    def _finish_what_began(self) -> None:
        """A transaction with a message in its real queue is committed: the rest of it, and its operations, follow."""
        for transaction_id in {half.transaction_id for half in self._halves.values() if half.is_delivered}:
            _log.warning("transaction %s was being committed: it is now", transaction_id)
            self._commit(self._of(transaction_id))
        self._engine.publish()

    def _add(self, half: Half) -> None:
        self._halves[half.queue_offset] = self._by_place[half.physical_offset] = half
        self._by_id.setdefault(half.transaction_id, []).append(half)

    def _drop(self, half: Half) -> None:
        del self._halves[half.queue_offset], self._by_place[half.physical_offset]
        self._by_id[half.transaction_id].remove(half)
        if not self._by_id[half.transaction_id]:
            del self._by_id[half.transaction_id]

    def _of(self, transaction_id: str) -> list[Half]:
        return list(self._by_id.get(transaction_id, ()))

    # ---- the life of a transaction

    def begin(self, group: str = "", timeout_s: int | None = None) -> Transaction:
        """A new transaction; `timeout_s` is how long it may take, after which only the check decides."""
        if timeout_s is not None and (isinstance(timeout_s, bool) or not isinstance(timeout_s, int) or timeout_s < 1):
            raise InvalidMessage("timeout_s", repr(timeout_s), "whole seconds, 1 or more, or None")
        return Transaction(self, group, timeout_s)

    def prepare(
        self,
        message: Message,
        transaction_id: str | None = None,
        *,
        group: str = "",
        timeout_s: int | None = None,
        is_live: bool = False,
    ) -> PutReceipt:
        """Store a half message. Its receipt names it for `end`; nobody sees the message itself.

        `is_live`: the caller is there to decide, and it is not asked about while this process runs.
        """
        if message.sys_flag & KIND_MASK:
            raise InvalidMessage("sys_flag", hex(message.sys_flag), "a message that is in no transaction yet")
        properties = {
            **message.properties,
            PREPARED: "true",
            PRODUCER_GROUP: group or message.properties.get(PRODUCER_GROUP) or "mqlake",
            REAL_TOPIC: message.topic,
            REAL_QUEUE_ID: str(self._engine.log.take_turn(message)),
        }
        key = properties.setdefault(UNIQUE_KEY, os.urandom(16).hex().upper())
        properties[TRANSACTION_ID] = transaction_id or key
        if timeout_s is not None:
            properties[IMMUNITY_S] = str(timeout_s)
        half = Message(
            HALF_TOPIC,
            message.body,
            queue_id=0,
            properties=properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
        )
        with self._lock:
            receipt = self._engine.log.append_as_it_is(half, Durability.PAGE_CACHE)
            place = receipt.queue_offset, receipt.physical_offset, message.born_timestamp
            self._add(Half(*_kept(properties), *place, is_live=is_live))
        self._engine.publish()
        return receipt

    def end(self, at: int | PutReceipt, *, commit: bool, now_ms: int | None = None) -> None:
        """Decide about the transaction of one half message, by its receipt or its physical offset."""
        offset = at if isinstance(at, int) else at.physical_offset
        with self._lock:
            half = self._by_place.get(offset)
            if half is None:
                raise TransactionEnded(f"of the half message at {offset}", "it is decided, or there never was one")
            self._decide(self._of(half.transaction_id), commit=commit, now_ms=now_ms)

    def resolve(self, transaction_id: str, *, commit: bool) -> None:
        """Decide about a transaction that was left behind, whatever its time limit."""
        with self._lock:
            halves = self._of(transaction_id)
            if not halves:
                raise TransactionEnded(transaction_id, "it is decided, or there never was one")
            self._end(halves, commit=commit)

    def decide(self, transaction_id: str, *, commit: bool) -> None:
        """Decide about a transaction of this process, within its time limit."""
        with self._lock:
            halves = self._of(transaction_id)
            if not halves:
                raise TransactionEnded(transaction_id, "it was decided upon by another, or given up")
            self._decide(halves, commit=commit, now_ms=None)

    def _decide(self, halves: list[Half], *, commit: bool, now_ms: int | None) -> None:
        now_ms = _now_ms() if now_ms is None else now_ms
        for half in halves:
            if half.immunity_ms is not None and now_ms - half.born_ms > half.immunity_ms and not half.is_delivered:
                for each in halves:
                    each.is_live = False
                raise TransactionExpired(half.transaction_id, now_ms - half.born_ms, half.immunity_ms)
        self._end(halves, commit=commit)

    def _end(self, halves: list[Half], *, commit: bool) -> None:
        if commit:
            self._commit(halves)
        else:
            self._note_done(halves)
        self._engine.publish()

    def _commit(self, halves: list[Half]) -> None:
        """The messages first, then the operations: with a crash in between, opening does the rest."""
        messages = [(half, self._engine.reader.get(half.physical_offset)) for half in halves if not half.is_delivered]

        def append() -> bool:
            for half, message in messages:
                self._engine.log.append(committed(message), Durability.PAGE_CACHE)
                half.is_delivered = True
            return True

        if self._engine.dispatcher.between_steps(append) is None:  # dispatch is in trouble: nobody sees parts of it
            append()
        self._note_done(halves)

    def _note_done(self, halves: list[Half]) -> None:
        for half in halves:
            operation = Message(OP_TOPIC, b"%d" % half.queue_offset, tags=DONE_TAG, queue_id=0)
            receipt = self._engine.log.append_as_it_is(operation, Durability.PAGE_CACHE)
            self._operations.append((receipt.queue_offset, half.queue_offset))
            self._drop(half)

    # ---- the check

    def step(self, now_ms: int) -> int:
        """Ask about what was left behind, and write progress, each when it is time; when it is again."""
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + self._config.check_interval_ms
            self.check(now_ms)
        if now_ms >= self._next_keep_ms:
            self._next_keep_ms = now_ms + KEEP_MS
            self.keep()
        return min(self._next_check_ms, self._next_keep_ms)

    def check(self, now_ms: int) -> None:
        """One round of questions."""
        with self._lock:
            left_behind = {half.transaction_id for half in self._halves.values() if self._may_ask(half, now_ms)}
        for transaction_id in left_behind:
            self._check(transaction_id, now_ms)
        self._engine.publish()

    def _may_ask(self, half: Half, now_ms: int) -> bool:
        immunity_ms = self._config.timeout_ms if half.immunity_ms is None else half.immunity_ms
        return not half.is_live and now_ms - half.born_ms > immunity_ms

    def _check(self, transaction_id: str, now_ms: int) -> None:
        answer = self._ask(transaction_id)  # without the lock: it may take its time, and call this store
        with self._lock:
            halves = self._of(transaction_id)
            if not halves:
                return
            if answer is not None:
                self._end(halves, commit=answer)
                return
            limit_ms = self._engine.config.retention.reserved_hours * 3_600_000
            for half in halves:
                if half.check_count + 1 >= self._config.check_max or now_ms - half.born_ms > limit_ms:
                    self._give_up(half)
                else:
                    self._append_again(half)

    def _ask(self, transaction_id: str) -> bool | None:
        if self._config.check is None:
            return None
        with self._lock:
            undecided = self._undecided(transaction_id)
        try:
            return self._config.check(undecided) if undecided is not None else None
        except Exception:
            _log.exception("the check of transaction %s failed; it is asked again", transaction_id)
            return None

    def _append_again(self, half: Half) -> None:
        """The queue of half messages moves on, and the count of questions with it."""
        message = self._engine.reader.get(half.physical_offset)
        properties = message.properties | {CHECK_TIMES: str(half.check_count + 1)}
        again = copy_of(message, HALF_TOPIC, 0, properties, prepared_offset=mark_of(message))
        receipt = self._engine.log.append_as_it_is(again, Durability.PAGE_CACHE)
        self._drop(half)
        half.queue_offset, half.physical_offset = receipt.queue_offset, receipt.physical_offset
        half.check_count += 1
        self._add(half)

    def _give_up(self, half: Half) -> None:
        """Nobody answers: the message is put where RocketMQ puts such, and nobody sees it."""
        message = self._engine.reader.get(half.physical_offset)
        _log.error("transaction %s is given up: see topic %s", half.transaction_id, UNDECIDED_TOPIC)
        given_up = copy_of(message, UNDECIDED_TOPIC, 0, message.properties, prepared_offset=mark_of(message))
        self._engine.log.append_as_it_is(given_up, Durability.PAGE_CACHE)
        self._note_done([half])

    # ---- looking

    def undecided(self) -> list[Undecided]:
        """What nobody decided upon so far, the oldest first."""
        with self._lock:
            found = [self._undecided(transaction_id) for transaction_id in self._by_id]
        return [each for each in found if each is not None]

    def _undecided(self, transaction_id: str) -> Undecided | None:
        halves = self._of(transaction_id)
        if not halves:
            return None
        messages = [self._engine.reader.get(half.physical_offset) for half in halves]
        return Undecided(transaction_id, messages, halves[0].group, max(half.check_count for half in halves))

    # ---- keeping

    def keep(self) -> None:
        """Note progress, to be written with that of other groups; the log goes to the disk first."""
        self._engine.settle()
        with self._lock:
            half_end, op_end = (self._engine.queues.end_of(topic, 0) for topic in (HALF_TOPIC, OP_TOPIC))
            first = next(iter(self._halves), half_end)
            while self._operations and self._operations[0][1] < first:
                self._operations.popleft()
            op_first = self._operations[0][0] if self._operations else op_end
            end = self._engine.log.end
        self._engine.flusher.wait_until_durable(end)
        for topic, number in ((HALF_TOPIC, first), (OP_TOPIC, op_first)):
            if self._offsets.get(name_of(topic, GROUP), 0) != number:
                self._offsets.set(name_of(topic, GROUP), 0, number)


class Transaction:
    """Messages that become visible together, or not at all. A `with` block commits at its end, and rolls back if it
    fails; `commit` and `rollback` do so before.
    """

    def __init__(self, transactions: Transactions, group: str, timeout_s: int | None) -> None:
        self._transactions = transactions
        self._group = group
        self._timeout_s = timeout_s
        self._is_empty = True
        self._how: str | None = None
        self.id = os.urandom(16).hex().upper()

    def put(self, message: Message) -> PutReceipt:
        """Store a message in the transaction. The receipt is that of its half: nobody sees the message itself yet."""
        self._require_open()
        receipt = self._transactions.prepare(
            message, self.id, group=self._group, timeout_s=self._timeout_s, is_live=True
        )
        self._is_empty = False
        return receipt

    def commit(self) -> None:
        """Have all of its messages seen. TransactionEnded or TransactionExpired where it is too late for that."""
        self._finish(commit=True)

    def rollback(self) -> None:
        """Have none of its messages seen, ever."""
        self._finish(commit=False)

    def _finish(self, *, commit: bool) -> None:
        self._require_open()
        if not self._is_empty:
            self._transactions.decide(self.id, commit=commit)
        self._how = "committed already" if commit else "rolled back already"

    def _require_open(self) -> None:
        if self._how is not None:
            raise TransactionEnded(self.id, self._how)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._how is None:
            self._finish(commit=kind is None)


def committed(half: StoredMessage) -> Message:
    """The message of a half message, for its real queue."""
    address = real_address(half)
    properties = {name: value for name, value in half.properties.items() if name not in (REAL_TOPIC, REAL_QUEUE_ID)}
    sys_flag = half.sys_flag & ~KIND_MASK | COMMITTED
    return copy_of(half, *address, properties, sys_flag=sys_flag, prepared_offset=half.physical_offset)


def half_of(message: StoredMessage) -> Half:
    """A half message of the log."""
    properties = {UNIQUE_KEY: message.message_id, **message.properties}
    return Half(*_kept(properties), message.queue_offset, message.physical_offset, message.born_timestamp)


def _kept(properties: dict[str, str]) -> tuple[str, str, int | None, int]:
    """What is kept of a half message's properties: transaction, group, own time limit, how often it was asked about."""
    immunity_s, count = (_number(properties.get(name, "")) for name in (IMMUNITY_S, CHECK_TIMES))
    return (
        properties.get(TRANSACTION_ID) or properties[UNIQUE_KEY],
        properties.get(PRODUCER_GROUP, ""),
        None if immunity_s is None else immunity_s * 1000,
        count or 0,
    )


def _numbers(operation: StoredMessage) -> list[int]:
    """The half messages that an operation is for: one in RocketMQ 4, several in 5."""
    if operation.tags != DONE_TAG:
        return []
    return [int(part) for part in operation.body.decode("utf-8", "replace").split(",") if part.isdigit()]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
