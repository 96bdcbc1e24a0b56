"""Stores and brokers whose clock a test moves: a retry after ten seconds or a delay of an hour takes no time.

The clock of a store decides when delayed and failed messages are due and which store times messages get. Everything
else keeps the machine's time: how long calls wait, when files are written, and how long a broker keeps popped messages
invisible.
"""

from __future__ import annotations

import contextlib

from mqlake.broker.in_thread import BrokerThread
from mqlake.errors import InvalidConfig, StoreClosed
from mqlake.message_store import MessageStore


class Clock:
    """The clock of all stores of one test."""

    def __init__(self) -> None:
        self.stores: list[ClockedStore] = []
        self._ahead_ms = 0

    def add(self, store: ClockedStore) -> ClockedStore:
        """Let a store that was just opened follow this clock."""
        store.clock = self
        self.stores.append(store)
        if self._ahead_ms and store.delivery.writes:
            store.delivery.advance(self._ahead_ms)
        return store

    def advance(self, seconds: float) -> None:
        ms = milliseconds(seconds)
        self._ahead_ms += ms
        for store in self.stores:
            with contextlib.suppress(StoreClosed):
                if store.delivery.writes:
                    store.delivery.advance(ms)


class ClockedStore(MessageStore):
    """The store of the fixtures `mq_store` and `mq_store_factory`."""

    clock: Clock

    def advance(self, *, seconds: float) -> None:
        """Move the clock of the test's stores ahead. What is due then has been delivered when this returns."""
        self.clock.advance(seconds)


class ClockedBroker(BrokerThread):
    """The broker of the fixture `mq_broker`."""

    def advance(self, *, seconds: float) -> None:
        """Move the clock of the broker's store ahead. What is due then has been delivered when this returns."""
        self.store.delivery.advance(milliseconds(seconds))


def milliseconds(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e10:
        raise InvalidConfig("seconds", seconds, "must be a number, 0 or more: time does not run back")
    return round(seconds * 1000)
