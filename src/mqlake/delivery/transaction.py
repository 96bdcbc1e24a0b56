"""Transactions: messages that nobody sees before they are committed, and that are asked about if nobody does.

    put       -> a half message in RMQ_SYS_TRANS_HALF_TOPIC, with its real address in properties
    commit    -> the message in its real queue, which names its half (see `delivery/deliveries.py`); then
    rollback  -> an operation in RMQ_SYS_TRANS_OP_HALF_TOPIC: the number of the half message, which is done with
    check     -> halves that are left behind are asked about, and appended again, to be asked about later

Topics, properties and progress (group CID_RMQ_SYS_TRANS) are RocketMQ's. One difference: the operation follows its
decision at once, under one lock. So of what a crash leaves, only the last decision can lack operations, and the log has
its committed messages: opening finishes it. A transaction of several messages is committed if one of them is.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import NamedTuple

from mqlake.config import TransactionConfig
from mqlake.delivery.deliveries import Deliveries, copy_of, mark_of, real_address
from mqlake.delivery.halves import Half, Halves, kept_of
from mqlake.delivery.offsets import ConsumerOffsets
from mqlake.delivery.pending import NEVER
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
from mqlake.delivery.readdress import new_key
from mqlake.delivery.system_topics import HALF_TOPIC, UNDECIDED_TOPIC
from mqlake.errors import InvalidMessage, TransactionEnded, TransactionExpired
from mqlake.logs.commit_log import LIGHT_QUEUES
from mqlake.message import Durability, Message, PutReceipt, StoredMessage
from mqlake.store.engine import Engine

COMMITTED = 0x8
KIND_MASK = 0xC
KEEP_MS = 5_000
LOOK_MS = 500
_log = logging.getLogger(__name__)


class Undecided(NamedTuple):
    """A transaction that was left behind: what the check is asked about."""

    id: str
    messages: list[StoredMessage]
    """Its half messages; `real_topic` and the rest are in their properties."""
    group: str
    check_count: int
    """How often it was asked about before."""


class Transactions:
    """All transactions of one store. Several threads may call it."""

    def __init__(self, engine: Engine, offsets: ConsumerOffsets, deliveries: Deliveries) -> None:
        self._engine = engine
        self._deliveries = deliveries
        self._config: TransactionConfig = engine.config.transactions
        self._lock = threading.RLock()
        self._halves = Halves(engine, offsets)
        self._next_check_ms = _now_ms() + self._config.check_interval_ms
        self._next_keep_ms = 0
        self._to_keep: tuple[dict[str, int], int] | None = None
        """Progress of one moment, and the log's end then."""
        self._learn_from_the_log()
        self._finish_what_began()
        engine.retention.needs["transactions"] = self._needed_from

    # ---- opening

    def _learn_from_the_log(self) -> None:
        """Half messages that are committed, given up or appended again, though no operation says so."""
        first = next(iter(self._halves), None)
        for waiting, delivered in list(self._deliveries.since(first.physical_offset)) if first is not None else ():
            half = self._halves.at(waiting.physical_offset)
            if half is None:
                continue
            if delivered.topic == HALF_TOPIC:
                self._halves.drop(half)
            elif delivered.topic == UNDECIDED_TOPIC:
                self._halves.end([half])
            else:
                half.is_delivered = True

    def _finish_what_began(self) -> None:
        """A transaction with a message in its real queue is committed: the rest of it, and its operations, follow."""
        for transaction_id in {half.transaction_id for half in self._halves if half.is_delivered}:
            _log.warning("transaction %s was being committed: it is now", transaction_id)
            self._commit(self._halves.of(transaction_id))
        self._engine.publish()

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
        if LIGHT_QUEUES in message.properties:  # its half would be seen there
            raise InvalidMessage(LIGHT_QUEUES, message.properties[LIGHT_QUEUES], "no light queues in a transaction")
        properties = {
            **message.properties,
            PREPARED: "true",
            PRODUCER_GROUP: group or message.properties.get(PRODUCER_GROUP) or "mqlake",
            REAL_TOPIC: message.topic,
            REAL_QUEUE_ID: str(self._engine.log.take_turn(message)),
        }
        key = properties.setdefault(UNIQUE_KEY, new_key())
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
            self._halves.add(Half(*kept_of(properties), *place, is_live=is_live))
        self._engine.publish()
        return receipt

    def end(self, at: int | PutReceipt, *, commit: bool) -> None:
        """Decide about the transaction of one half message, by its receipt or its physical offset."""
        offset = at if isinstance(at, int) else at.physical_offset
        half = self._halves.at(offset)
        if half is None:
            raise TransactionEnded(f"of the half message at {offset}", "it is decided, or there never was one")
        self.decide(half.transaction_id, commit=commit)

    def decide(self, transaction_id: str, *, commit: bool, late: bool = False) -> None:
        """Decide about a transaction; behind its own time limit only if `late` says so."""
        with self._lock:
            halves = self._halves.of(transaction_id)
            if not halves:
                raise TransactionEnded(transaction_id, "it is decided, or there never was one")
            if not late:
                self._require_in_time(halves, _now_ms())
            if not commit and any(half.is_delivered for half in halves):
                raise TransactionEnded(transaction_id, "a part of it is committed already: only the rest can follow")
            if commit:
                self._commit(halves)
            else:
                self._halves.end(halves)
        self._engine.publish()

    def resolve(self, transaction_id: str, *, commit: bool) -> None:
        """Decide about a transaction that was left behind, whatever its time limit."""
        self.decide(transaction_id, commit=commit, late=True)

    def _require_in_time(self, halves: list[Half], now_ms: int) -> None:
        """Behind its limit it is left to the check."""
        for half in halves:
            if half.immunity_ms is not None and now_ms - half.born_ms > half.immunity_ms and not half.is_delivered:
                for each in halves:
                    each.is_live = False
                raise TransactionExpired(half.transaction_id, now_ms - half.born_ms, half.immunity_ms)

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
        self._halves.end(halves)

    # ---- the check

    def step(self, now_ms: int) -> int:
        """Ask about what was left behind, and write progress, each when it is time; when it is again."""
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + self._config.check_interval_ms
            self.check(now_ms)
        if now_ms >= self._next_keep_ms:
            self._next_keep_ms = now_ms + (KEEP_MS if self.keep(wait=False) else LOOK_MS)
        return min(self._next_check_ms, self._next_keep_ms)

    def check(self, now_ms: int) -> None:
        """One round of questions."""
        with self._lock:
            left_behind = dict.fromkeys(half.transaction_id for half in self._halves if self._may_ask(half, now_ms))
        for transaction_id in left_behind:
            self._check(transaction_id, now_ms)
        self._engine.publish()

    def _may_ask(self, half: Half, now_ms: int) -> bool:
        immunity_ms = self._config.timeout_ms if half.immunity_ms is None else half.immunity_ms
        return not half.is_live and now_ms - half.born_ms > immunity_ms

    def _check(self, transaction_id: str, now_ms: int) -> None:
        answer = self._ask(transaction_id)  # without the lock: it may take its time, and call this store
        with self._lock:
            halves = self._halves.of(transaction_id)
            if answer or any(half.is_delivered for half in halves):
                self._commit(halves)
            elif answer is not None:
                self._halves.end(halves)
            else:
                self._ask_again_later(halves, now_ms)

    def _ask(self, transaction_id: str) -> bool | None:
        with self._lock:
            undecided = self._undecided(transaction_id)
        if self._config.check is None or undecided is None:
            return None
        try:
            answer = self._config.check(undecided)
        except Exception:
            _log.exception("the check of transaction %s failed; it is asked again", transaction_id)
            return None
        if answer is not None and not isinstance(answer, bool):
            _log.error(
                "the check of transaction %s answered %r: True, False or None is expected", transaction_id, answer
            )
            return None
        return answer

    def _ask_again_later(self, halves: list[Half], now_ms: int) -> None:
        limit_ms = self._engine.config.retention.reserved_hours * 3_600_000
        for half in halves:
            if half.check_count + 1 >= self._config.check_max or now_ms - half.born_ms > limit_ms:
                self._give_up(half)
            else:
                self._append_again(half)

    def _append_again(self, half: Half) -> None:
        """The queue of half messages moves on, and the count of questions with it."""
        message = self._engine.reader.get(half.physical_offset)
        properties = message.properties | {CHECK_TIMES: str(half.check_count + 1)}
        again = copy_of(message, HALF_TOPIC, 0, properties, prepared_offset=mark_of(message))
        receipt = self._engine.log.append_as_it_is(again, Durability.PAGE_CACHE)
        self._halves.drop(half)
        half.number, half.physical_offset = receipt.queue_offset, receipt.physical_offset
        half.check_count += 1
        self._halves.add(half)

    def _give_up(self, half: Half) -> None:
        """Nobody answers: the message is put where RocketMQ puts such, and nobody sees it."""
        message = self._engine.reader.get(half.physical_offset)
        _log.error("transaction %s is given up: see topic %s", half.transaction_id, UNDECIDED_TOPIC)
        given_up = copy_of(message, UNDECIDED_TOPIC, 0, message.properties, prepared_offset=mark_of(message))
        self._engine.log.append_as_it_is(given_up, Durability.PAGE_CACHE)
        self._halves.end([half])

    # ---- looking

    def undecided(self) -> list[Undecided]:
        """What nobody decided upon so far, the oldest first."""
        with self._lock:
            found = [self._undecided(transaction_id) for transaction_id in self._halves.ids]
        return [each for each in found if each is not None]

    def _undecided(self, transaction_id: str) -> Undecided | None:
        halves = self._halves.of(transaction_id)
        if not halves:
            return None
        messages = [self._engine.reader.get(half.physical_offset) for half in halves]
        return Undecided(transaction_id, messages, halves[0].group, max(half.check_count for half in halves))

    # ---- keeping

    def _needed_from(self) -> int:
        """The log is kept for what is undecided."""
        with self._lock:
            return min((half.physical_offset for half in self._halves), default=NEVER)

    def keep(self, *, wait: bool = True) -> bool:
        """Note progress, to be written with that of other groups, once the log is durable so far; whether it is."""
        if wait or self._to_keep is None:
            self._engine.settle()
            with self._lock:
                self._to_keep = self._halves.progress(), self._engine.log.end
        progress, end = self._to_keep
        if wait:
            self._engine.flusher.wait_until_durable(end)
        elif self._engine.flusher.durable < end:
            return False
        self._halves.note(progress)
        self._to_keep = None
        return True


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
        self.id = new_key()

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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
