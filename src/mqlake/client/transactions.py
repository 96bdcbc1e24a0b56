"""Transactional sends: the decision about a half message, and the answer when a broker asks for it.

A decision is remembered for a while. So a broker that did not get it, and asks, gets the same answer again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from mqlake.client.connection import Connection
from mqlake.client.sending import SendReceipt
from mqlake.client.session import Session
from mqlake.delivery.properties import PREPARED, PRODUCER_GROUP, UNIQUE_KEY
from mqlake.errors import RemoteError, TransactionEnded
from mqlake.kernel import Command
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import decode_records
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.headers import CheckTransactionHeader, EndTransactionHeader

COMMIT, ROLLBACK = 8, 12
REMEMBERED: Final = 10_000
Check = Callable[[StoredMessage], bool | Awaitable[bool | None] | None]
"""Tells whether a half message is to be committed; None if that is not known yet."""
_log = logging.getLogger(__name__)


class Decisions:
    """The transactions of one producer group."""

    PREPARED_FLAG: Final = 4

    def __init__(self, session: Session, group: str, check: Check | None) -> None:
        self._session = session
        self._group = group
        self._check = check
        self._known: OrderedDict[str, bool] = OrderedDict()
        session.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._asked

    @property
    def properties(self) -> dict[str, str]:
        """What makes a message the half message of a transaction."""
        return {PREPARED: "true", PRODUCER_GROUP: self._group}

    def remember(self, key: str, commit: bool) -> None:
        self._known[key] = commit
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    async def decide(self, address: str, header: EndTransactionHeader) -> None:
        await self._session.call(address, RequestCode.END_TRANSACTION, header.write())

    def header(self, table_offset: int, log_offset: int, key: str, topic: str, commit: bool) -> EndTransactionHeader:
        return EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=table_offset,
            commit_log_offset=log_offset,
            commit_or_rollback=COMMIT if commit else ROLLBACK,
            msg_id=key,
            transaction_id=key,
            topic=topic,
        )

    # ---- the broker's question

    async def _asked(self, connection: Connection, command: Command) -> None:
        """Answer with a decision; an undecided transaction is asked about again later."""
        asked = CheckTransactionHeader.read(command.fields)
        (half,) = decode_records(command.body)
        key = half.properties.get(UNIQUE_KEY, "")
        decision = self._known.get(key)
        if decision is None and self._check is not None:
            decision = await self._ask(self._check, half)
        if decision is None:
            return
        header = self.header(asked.tran_state_table_offset, asked.commit_log_offset, key, half.topic, decision)
        header.from_transaction_check = True
        try:
            await self.decide(connection.address, header)
        except RemoteError as error:
            _log.warning("transaction %s: %s", key, error)

    @staticmethod
    async def _ask(check: Check, half: StoredMessage) -> bool | None:
        """Call the program's function, in a thread unless it is a coroutine's: it may block."""
        found = check(half) if inspect.iscoroutinefunction(check) else await asyncio.to_thread(check, half)
        return await found if isinstance(found, Awaitable) else found


class AsyncTransaction:
    """A half message that waits for its decision. Made by `AsyncProducer.transaction`."""

    def __init__(self, decisions: Decisions, address: str, receipt: SendReceipt) -> None:
        self._decisions = decisions
        self._address = address
        self.receipt = receipt
        """Where the half message waits."""
        self._is_ended = False

    async def commit(self) -> None:
        """Let consumers see the message."""
        await self._end(commit=True)

    async def rollback(self) -> None:
        """Drop the message."""
        await self._end(commit=False)

    def leave(self) -> None:
        """Leave it undecided: the broker will ask `check`."""
        self._is_ended = True

    async def _end(self, *, commit: bool) -> None:
        if self._is_ended:
            raise TransactionEnded(self.receipt.unique_key, "it was decided before")
        receipt = self.receipt
        self._is_ended = True
        self._decisions.remember(receipt.unique_key, commit)
        header = self._decisions.header(
            receipt.queue_offset, receipt.physical_offset, receipt.unique_key, receipt.topic, commit
        )
        await self._decisions.decide(self._address, header)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_ended:
            await self._end(commit=kind is None)
