"""Transactions: messages that are invisible until they are committed. A check decides abandoned transactions.

    put       -> a half message in RMQ_SYS_TRANS_HALF_TOPIC, with its real topic and queue in properties
    commit    -> the message in its real queue, which names its half message (see `delivery/later/deliveries.py`); then
    rollback  -> an operation in RMQ_SYS_TRANS_OP_HALF_TOPIC with the queue offset of the half message that it ends
    check     -> the check function is called for an abandoned transaction; if it does not decide, the half messages are
                 appended again, for a later check

Topics, properties and progress (group CID_RMQ_SYS_TRANS) are RocketMQ's. One difference: operations are appended right
after the decision, under the same lock. So a crash can leave at most the last decision without its operations. If that
was a commit, the log holds at least one of its messages, and opening finishes it. A transaction of several messages is
committed if one of them is.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mqlake.config import TransactionConfig
from mqlake.delivery.later.deliveries import Deliveries, copy_of, mark_of, real_address
from mqlake.delivery.later.pending import NEVER
from mqlake.delivery.later.routing import new_key
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
from mqlake.delivery.registry.offsets import ConsumerOffsets
from mqlake.delivery.registry.system_topics import HALF_TOPIC, UNDECIDED_TOPIC
from mqlake.delivery.transactions.halves import Half, Halves, kept_of
from mqlake.errors import InvalidMessage, NotConfirmed, NotPermitted, TransactionEnded, TransactionExpired
from mqlake.logs.topic_table import LIGHT_QUEUES
from mqlake.message import Durability, Message, PutReceipt, StoredMessage
from mqlake.runtime.locks import make_rlock
from mqlake.store.ports import Writing

COMMITTED = 0x8
KIND_MASK = 0xC
KEEP_MS = 5_000
LOOK_MS = 500
_log = logging.getLogger(__name__)


class Undecided(NamedTuple):
    """An undecided transaction, as the check function receives it."""

    id: str
    messages: list[StoredMessage]
    """Its half messages. Their real topics and queues are in their properties."""
    group: str
    check_count: int
    """How often the check function was called for it before."""


class Transactions:
    """All transactions of one store. Any thread may call it."""

    def __init__(
        self, writing: Writing, offsets: ConsumerOffsets, deliveries: Deliveries, require_open: Callable[[], None]
    ) -> None:
        self._writing = writing
        self._require_open = require_open
        self._deliveries = deliveries
        self._config: TransactionConfig = writing.config.transactions
        self._lock = make_rlock("transactions")
        self._is_committing = False
        self._halves = Halves(writing, offsets)
        self._lost: set[int] = set()
        """Queue offsets that half messages may have whose put was interrupted."""
        self._dropped: deque[str] = deque()
        """Transactions that were collected without a decision."""
        self._checked_ms = _now_ms()
        self._next_check_ms = self._checked_ms + self._config.check_interval_ms
        self._kept_ms = self._next_keep_ms = 0
        self._to_keep: tuple[dict[str, int], int] | None = None
        """Progress at one moment, and the appended end then."""
        self._find_deliveries()
        self._finish_commits()
        writing.retention.needs["transactions"] = self._needed_from

    # ---- opening

    def _find_deliveries(self) -> None:
        """Find in the log which half messages were committed, given up or appended again, but have no operation."""
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

    def _finish_commits(self) -> None:
        """Finish interrupted commits: if one message of a transaction is in its real queue, append the others too."""
        for transaction_id in {half.transaction_id for half in self._halves if half.is_delivered}:
            _log.warning("transaction %s: finishing its interrupted commit", transaction_id)
            self._commit(self._halves.of(transaction_id))
        self._writing.publish()

    # ---- the life of a transaction

    def begin(self, group: str = "", timeout_s: int | None = None) -> Transaction:
        """Begin a transaction. After `timeout_s` it can no longer be committed here; the check decides it."""
        if timeout_s is not None and (isinstance(timeout_s, bool) or not isinstance(timeout_s, int) or timeout_s < 1):
            raise InvalidMessage("timeout_s", repr(timeout_s), "whole seconds, 1 or more, or None")
        return Transaction(self, group, timeout_s)

    def prepare(self, message: Message, *, group: str = "") -> PutReceipt:
        """Store a half message and return its receipt. The message itself is not visible yet."""
        receipt = self.store_half(message, group=group)
        self.confirm()
        return receipt

    def store_half(
        self,
        message: Message,
        transaction_id: str | None = None,
        *,
        group: str = "",
        timeout_s: int | None = None,
        is_live: bool = False,
    ) -> PutReceipt:
        """Store a half message without waiting for its durability, and return its receipt.

        With `is_live`, the caller will decide: the check ignores the transaction while this process runs. The half
        message is as durable as a usual put once `confirm` returns.
        """
        self._require_open()
        if message.sys_flag & KIND_MASK:
            raise InvalidMessage("sys_flag", hex(message.sys_flag), "a message that is not in a transaction")
        if LIGHT_QUEUES in message.properties:  # the half message would be visible in those queues
            raise InvalidMessage(LIGHT_QUEUES, message.properties[LIGHT_QUEUES], "no light queues in a transaction")
        properties = {
            **message.properties,
            PREPARED: "true",
            PRODUCER_GROUP: group or message.properties.get(PRODUCER_GROUP) or "mqlake",
            REAL_TOPIC: message.topic,
            REAL_QUEUE_ID: str(self._writing.log.take_turn(message)),
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
            expected = self._halves.next_offset
            try:
                receipt = self._writing.log.append_as_is(half, Durability.PAGE_CACHE)
                place = receipt.queue_offset, receipt.physical_offset, message.born_timestamp
                self._halves.add(Half(*kept_of(properties), *place, is_live=is_live))
                self._lost.discard(receipt.queue_offset)  # an interrupted put did not take it
            except BaseException:
                self._lost.add(expected)
                raise
        return receipt

    def confirm(self) -> None:
        """Wait until half messages that were stored so far are as durable as a usual put."""
        self._writing.confirm()

    def _find_lost(self) -> None:
        """Find half messages whose put was interrupted after the append: they are in the log and in no table."""
        for offset in sorted(self._lost):
            self._writing.publish()
            self._writing.settle()
            found = self._halves.find(offset)
            if found is not None:
                self._lost.discard(offset)
                self._halves.add(found)

    def has(self, transaction_id: str) -> bool:
        """Return whether a transaction has half messages that are not decided."""
        with self._lock:
            self._find_lost()
            return bool(self._halves.of(transaction_id))

    def abandon(self, transaction_id: str) -> None:
        """Hear that nobody holds a transaction any more: the check decides. The garbage collector calls this anywhere,
        so no lock is taken.
        """
        self._dropped.append(transaction_id)

    def end(self, at: int | PutReceipt, *, commit: bool) -> None:
        """Commit or roll back the transaction of a half message, given by its receipt or physical offset."""
        offset = at if isinstance(at, int) else at.physical_offset
        half = self._halves.at(offset)
        if half is None:
            raise TransactionEnded(f"of the half message at {offset}", "already decided, or never begun")
        self.decide(half.transaction_id, commit=commit)

    def decide(self, transaction_id: str, *, commit: bool, late: bool = False) -> None:
        """Commit or roll back a transaction; after its own time limit only with `late`.

        NotConfirmed: it is decided, but the decision is not known to be as durable as a usual put.
        """
        self._require_open()
        with self._lock:
            self._find_lost()
            halves = self._halves.of(transaction_id)
            if not halves:
                raise TransactionEnded(transaction_id, "already decided, or never begun")
            if not late:
                self._require_in_time(halves, _now_ms())
            if not commit and any(half.is_delivered for half in halves):
                raise TransactionEnded(transaction_id, "partly committed already, so it can only be committed")
            if commit:
                self._commit(halves)
            else:
                self._halves.end(halves)
        self._writing.confirm()

    def resolve(self, transaction_id: str, *, commit: bool) -> None:
        """Commit or roll back an abandoned transaction, even after its time limit."""
        self.decide(transaction_id, commit=commit, late=True)

    def _require_in_time(self, halves: list[Half], now_ms: int) -> None:
        """Raise TransactionExpired after the time limit, and leave the transaction to the check."""
        for half in halves:
            if half.immunity_ms is not None and now_ms - half.born_ms > half.immunity_ms and not half.is_delivered:
                for each in halves:
                    each.is_live = False
                raise TransactionExpired(half.transaction_id, now_ms - half.born_ms, half.immunity_ms)

    def _commit(self, halves: list[Half]) -> None:
        """Append the messages, then the operations. After a crash in between, opening finishes the commit."""
        messages = [(half, self._writing.record(half.physical_offset)) for half in halves if not half.is_delivered]
        if self._is_committing:
            found = "this thread is in the middle of a commit: a signal handler or a finalizer interrupted it"
            raise NotPermitted("commit", found, "commit from ordinary code; let the handler set a flag or fill a queue")
        try:
            self._is_committing = True
            self._writing.log.hold_visible()
            for half, message in messages:
                self._writing.log.append(committed(message), Durability.PAGE_CACHE)
                half.is_delivered = True
        finally:
            self._is_committing = False
            self._writing.ends.release()
        self._halves.end(halves)

    # ---- the check

    def step(self, now_ms: int) -> int:
        """Check abandoned transactions and write progress, each if it is time; return when to call again."""
        if not self._checked_ms <= now_ms < self._next_check_ms:  # also if the clock was set back
            self._checked_ms, self._next_check_ms = now_ms, now_ms + self._config.check_interval_ms
            self.check(now_ms)
        if not self._kept_ms <= now_ms < self._next_keep_ms:
            self._kept_ms, self._next_keep_ms = now_ms, now_ms + (KEEP_MS if self.keep(wait=False) else LOOK_MS)
        return min(self._next_check_ms, self._next_keep_ms)

    def check(self, now_ms: int) -> None:
        """Check every abandoned transaction once."""
        with self._lock:
            self._find_lost()
            while self._dropped:
                for half in self._halves.of(self._dropped.popleft()):
                    half.is_live = False
            abandoned = dict.fromkeys(half.transaction_id for half in self._halves if self._may_ask(half, now_ms))
        for transaction_id in abandoned:
            self._check(transaction_id, now_ms)
        self._writing.publish()

    def _may_ask(self, half: Half, now_ms: int) -> bool:
        immunity_ms = self._config.timeout_ms if half.immunity_ms is None else half.immunity_ms
        return not half.is_live and now_ms - half.born_ms > immunity_ms

    def _check(self, transaction_id: str, now_ms: int) -> None:
        undecided = None
        answer = self._ask(transaction_id)  # without the lock: the check function may be slow, and may call this store
        with self._lock:
            halves = self._halves.of(transaction_id)
            if answer or any(half.is_delivered for half in halves):
                self._commit(halves)
            elif answer is not None:
                self._halves.end(halves)
            else:
                self._ask_again_later(halves, now_ms)
                undecided = self._undecided(transaction_id)
        if undecided is not None and self._config.ask is not None:
            self._config.ask(undecided)

    def _ask(self, transaction_id: str) -> bool | None:
        with self._lock:
            undecided = self._undecided(transaction_id)
        if self._config.check is None or undecided is None:
            return None
        try:
            answer = self._config.check(undecided)
        except Exception:
            _log.exception("the check of transaction %s failed; it will be called again", transaction_id)
            return None
        if answer is not None and not isinstance(answer, bool):
            _log.error("the check of transaction %s returned %r; expected True, False or None", transaction_id, answer)
            return None
        return answer

    def _ask_again_later(self, halves: list[Half], now_ms: int) -> None:
        limit_ms = self._writing.config.retention.reserved_hours * 3_600_000
        asked_now = self._config.ask is None  # else the producer is asked after this, unless it was often enough
        for half in halves:
            if half.check_count + asked_now >= self._config.check_max or now_ms - half.born_ms > limit_ms:
                self._give_up(half)
            else:
                self._append_again(half)

    def _append_again(self, half: Half) -> None:
        """Append a half message again with a higher check count, so that progress can pass the old one."""
        message = self._writing.record(half.physical_offset)
        properties = message.properties | {CHECK_TIMES: str(half.check_count + 1)}
        again = copy_of(message, HALF_TOPIC, 0, properties, prepared_offset=mark_of(message))
        receipt = self._writing.log.append_as_is(again, Durability.PAGE_CACHE)
        self._halves.drop(half)
        half.queue_offset, half.physical_offset = receipt.queue_offset, receipt.physical_offset
        half.check_count += 1
        self._halves.add(half)

    def _give_up(self, half: Half) -> None:
        """Give up an undecided half message: move it to the topic that RocketMQ uses for these. It stays invisible."""
        message = self._writing.record(half.physical_offset)
        _log.error(
            "transaction %s was never decided; its message is now in topic %s", half.transaction_id, UNDECIDED_TOPIC
        )
        given_up = copy_of(message, UNDECIDED_TOPIC, 0, message.properties, prepared_offset=mark_of(message))
        self._writing.log.append_as_is(given_up, Durability.PAGE_CACHE)
        self._halves.end([half])

    # ---- looking

    def undecided(self) -> list[Undecided]:
        """Return the undecided transactions, oldest first."""
        self._require_open()
        with self._lock:
            found = [self._undecided(transaction_id) for transaction_id in self._halves.ids]
        return [each for each in found if each is not None]

    def _undecided(self, transaction_id: str) -> Undecided | None:
        halves = self._halves.of(transaction_id)
        if not halves:
            return None
        messages = [self._writing.record(half.physical_offset) for half in halves]
        return Undecided(transaction_id, messages, halves[0].group, max(half.check_count for half in halves))

    # ---- saving

    def _needed_from(self) -> int:
        """Return the lowest physical offset of an undecided half message: retention keeps the log from there on."""
        with self._lock:
            return min((half.physical_offset for half in self._halves), default=NEVER)

    def keep(self, *, wait: bool = True) -> bool:
        """Record progress, to be written with that of other groups; False if the log is not yet durable up to it.

        With `wait`, wait until the log is durable.
        """
        if wait or self._to_keep is None:
            self._writing.settle()
            with self._lock:
                self._to_keep = self._halves.progress(), self._writing.ends.appended
        progress, end = self._to_keep
        if wait:
            self._writing.flusher.wait_until_durable(end)
        elif self._writing.ends.durable < end:
            return False
        self._halves.note(progress)
        self._to_keep = None
        return True


class Transaction:
    """Messages that become visible together or not at all.

    A `with` block commits at its end, and rolls back if it raises. Inside it, `commit` and `rollback` decide earlier.
    """

    def __init__(self, transactions: Transactions, group: str, timeout_s: int | None) -> None:
        self._transactions = transactions
        self._group = group
        self._timeout_s = timeout_s
        self._is_empty = True
        self._how: str | None = None
        self.id = new_key()
        weakref.finalize(self, transactions.abandon, self.id).atexit = False

    def put(self, message: Message) -> PutReceipt:
        """Store a message in the transaction and return the receipt of its half message. It is not visible yet."""
        self._require_open()
        receipt = self._transactions.store_half(
            message, self.id, group=self._group, timeout_s=self._timeout_s, is_live=True
        )
        self._is_empty = False
        self._transactions.confirm()
        return receipt

    def commit(self) -> None:
        """Make all messages visible. TransactionEnded or TransactionExpired if it is too late."""
        self._finish(commit=True)

    def rollback(self) -> None:
        """Discard all messages; none becomes visible."""
        self._finish(commit=False)

    def _finish(self, *, commit: bool) -> None:
        self._require_open()
        how = "already committed" if commit else "already rolled back"
        if not self._is_empty or self._transactions.has(self.id):  # its only put may have been interrupted
            try:
                self._transactions.decide(self.id, commit=commit)
            except NotConfirmed:
                self._how = how
                raise
        self._how = how

    def _require_open(self) -> None:
        if self._how is not None:
            raise TransactionEnded(self.id, self._how)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._how is None:
            self._finish(commit=kind is None)


def committed(half: StoredMessage) -> Message:
    """Return the message to append to the real queue for a half message."""
    address = real_address(half)
    properties = {name: value for name, value in half.properties.items() if name not in (REAL_TOPIC, REAL_QUEUE_ID)}
    sys_flag = half.sys_flag & ~KIND_MASK | COMMITTED
    return copy_of(half, *address, properties, sys_flag=sys_flag, prepared_offset=half.physical_offset)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
