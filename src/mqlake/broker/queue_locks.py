"""Locks of queues for ordered consumption: one client of a group at a time reads a queue.

A lock belongs to a client as long as it renews it; after a minute without that it is free. A closed connection keeps
its locks until then, as in RocketMQ: the client may come back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mqlake.broker.bodies import json_of
from mqlake.broker.connection import Connection
from mqlake.kernel import Command
from mqlake.remoting.bodies import MessageQueue, queues_of, write_json
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import response

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

LEASE_S: Final = 60.0


class QueueLocks:
    """Who owns which queue, by group."""

    def __init__(self, broker: Broker) -> None:
        self._locks: dict[str, dict[MessageQueue, tuple[str, float]]] = {}
        """Group -> queue -> client id and the time of its last renewal."""
        self.clock = time.monotonic
        self._swept = 0.0

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self._lock, RequestCode.UNLOCK_BATCH_MQ: self._unlock}

    def _lock(self, connection: Connection, command: Command) -> Command:
        group, client_id, queues = _read(command)
        owned = [queue for queue in queues if self.lock(group, queue, client_id)]
        return response(command, body=write_json({"lockOKMQSet": [queue.to_json() for queue in owned]}))

    def lock(self, group: str, queue: MessageQueue, client_id: str) -> bool:
        """Take or renew a lock; False if another client has it."""
        now = self.clock()
        if now - self._swept > LEASE_S:
            self._sweep(now)
        locks = self._locks.setdefault(group, {})
        owner, renewed = locks.get(queue, (client_id, now))
        if owner != client_id and now - renewed <= LEASE_S:
            return False
        locks[queue] = client_id, now
        return True

    def _sweep(self, now: float) -> None:
        """Forget locks that nobody renews, so that clients which invent groups cannot fill the memory."""
        self._swept = now
        for group, locks in list(self._locks.items()):
            kept = {queue: held for queue, held in locks.items() if now - held[1] <= LEASE_S}
            if kept:
                self._locks[group] = kept
            else:
                del self._locks[group]

    def _unlock(self, connection: Connection, command: Command) -> Command:
        group, client_id, queues = _read(command)
        locks = self._locks.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held[0] == client_id:
                del locks[queue]
        if not locks:
            self._locks.pop(group, None)
        return response(command)

    def is_locked(self, group: str) -> bool:
        """Return whether some client of a group holds a lock: then the group consumes in order."""
        now = self.clock()
        return any(now - renewed <= LEASE_S for _, renewed in self._locks.get(group, {}).values())


def _read(command: Command) -> tuple[str, str, list[MessageQueue]]:
    body = json_of(command)
    return str(body.get("consumerGroup", "")), str(body.get("clientId", "")), queues_of(body)
