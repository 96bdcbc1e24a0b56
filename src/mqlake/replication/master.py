"""The master's side: sends the commit log to its slaves, and tells the store what they have confirmed.

One worker with one selector serves all slaves. It sleeps until a slave says something, a socket has room again, or the
log grows: while nothing is left to send, the end of the log writes to an eventfd of the selector. Else no put pays for
one.

    put -> Ends -> eventfd -> transfers, straight from the mapped log -> reports -> Replicas.changed -> waiting puts

What is sent is what a reader of the master may see: with sync flush the durable end, so that a power cut of the master
never leaves a slave with more than its master; else the committed end, while the disk may still be working.

No slave harms the master or the others: each has its turn, one that misbehaves is closed, and why is kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import time
from collections import deque
from typing import Final, Self

from mqlake.errors import InvalidConfig, ReplicationError
from mqlake.kernel.types import COMMITTED, DURABLE
from mqlake.replication.attached import Attached
from mqlake.runtime.forks import close_in_child
from mqlake.runtime.locks import make_lock
from mqlake.store.ports import Writing
from mqlake.store.replicas import Following

MAX_SLAVES: Final = 64
TELL_S: Final = 5.0
"""How often other processes are told how far the slaves are, while there are any."""
_log = logging.getLogger(__name__)


class Master:
    """Serves the slaves of an open store until either is closed. Any thread may start and close it."""

    def __init__(self, port: Writing, host: str = "127.0.0.1", listen_port: int | None = None) -> None:
        """Listen at once. `port` is `MessageStore.port`; without `listen_port`, the one of its configuration."""
        self._port = port
        self._config = port.config.replication
        self._watched = DURABLE if port.config.flush.sync else COMMITTED
        self._slaves: dict[int, Attached] = {}
        self._told_at = 0.0
        self.partings: deque[tuple[str, str]] = deque(maxlen=16)
        """The last slaves that left or were closed: address and reason."""
        self._ending = make_lock("replication")
        self._is_closed = False
        self._door = listen(host, self._config.listen_port if listen_port is None else listen_port)
        self.address: tuple[str, int] = self._door.getsockname()[:2]
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)
        self._selector.register(self._event, selectors.EVENT_READ)
        self._worker = port.workers.add(
            "replication", self._work, interrupt=self._interrupt, on_failure=self._failed, behind=self._lag
        )
        try:
            self._worker.start()
        except BaseException:
            self._worker.stop()  # an interrupted start may come yet
            self._let_go()
            raise
        port.replicas.serve(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lag(self) -> int:
        """Return what the nearest slave has not confirmed."""
        return min((each.lag_bytes for each in self._port.replicas.slaves()), default=0)

    # ---- the worker

    def _work(self) -> float:
        for key, ready in self._sleep():
            if key.fileobj is self._door:
                self._accept()
            elif key.fd == self._event:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event)
            elif ready & selectors.EVENT_READ and key.fd in self._slaves:
                self._hear(self._slaves[key.fd])
        self._note()  # before more is sent: puts wait for what was confirmed
        self._send()
        self._look_after()
        return 0

    def _sleep(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for something to do; return which sockets are ready."""
        ends = self._port.ends
        idle = [each for each in self._slaves.values() if each.is_following and not each.is_blocked]
        if not idle:
            return self._selector.select(self._patience_s())
        # First watch, then look: if the log grows in between, the event is there.
        ends.watch(self._watched, self._event)
        try:
            end = ends.promised
            is_behind = any(each.position < end for each in idle)
            return self._selector.select(0 if is_behind else self._patience_s())
        finally:
            ends.unwatch(self._event)

    def _patience_s(self) -> float | None:
        """Return how long nothing is due; None for ever."""
        if not self._slaves:
            return None
        due = min(self._told_at + TELL_S, min(each.due_at() for each in self._slaves.values()))
        return max(0.0, due - time.monotonic())

    # ---- slaves that come

    def _accept(self) -> None:
        try:
            connection, address = self._door.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it is gone already
            return
        if len(self._slaves) >= MAX_SLAVES:
            connection.close()
            _log.warning("slave %s is refused: %d are attached", address[0], MAX_SLAVES)
            return
        close_in_child(connection)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:
            connection.close()
            raise
        name = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        self._slaves[connection.fileno()] = Attached(connection, name, self._port.log, self._config)

    # ---- what they say, and what they get

    def _hear(self, slave: Attached) -> None:
        was_following = slave.is_following
        try:
            slave.hear(self._port.ends.promised)
        except (OSError, EOFError, ReplicationError) as error:
            self._part(slave, error)
            return
        if slave.is_following and not was_following:
            _log.info("slave %s follows from offset %d", slave.address, slave.position)

    def _send(self) -> None:
        end = self._port.ends.promised
        for slave in list(self._slaves.values()):
            was_blocked = slave.is_blocked
            try:
                slave.send(end)
            except (OSError, ReplicationError) as error:
                self._part(slave, error)
                continue
            if slave.is_blocked != was_blocked:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if slave.is_blocked else 0)
                self._selector.modify(slave.connection, wanted)

    def _look_after(self) -> None:
        """Heartbeats, silent slaves, and what other processes are told."""
        now = time.monotonic()
        for slave in list(self._slaves.values()):
            try:
                slave.look_after(now)
            except (OSError, ReplicationError) as error:
                self._part(slave, error)
        if self._slaves and now - self._told_at >= TELL_S:
            self._tell(now)

    def _note(self) -> None:
        """Let the store know how far the slaves are."""
        self._port.replicas.changed(
            [
                Following(each.address, each.position, each.confirmed, each.since_ms, each.has_confirmed)
                for each in self._slaves.values()
                if each.is_following
            ]
        )

    def _tell(self, now: float) -> None:
        self._told_at = now
        self._port.tell_health()

    # ---- slaves that go

    def _part(self, slave: Attached, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        host = slave.address.rpartition(":")[0]
        known = any(address.rpartition(":")[0] == host and why == reason for address, why in self.partings)
        self.partings.append((slave.address, reason))
        level = logging.WARNING if isinstance(error, ReplicationError | TimeoutError) and not known else logging.INFO
        _log.log(level, "slave %s is gone: %s", slave.address, reason)
        self._selector.unregister(slave.connection)
        del self._slaves[slave.connection.fileno()]
        slave.connection.close()
        self._note()
        self._tell(time.monotonic())

    # ---- the end

    def _interrupt(self) -> None:
        with self._ending:
            if not self._is_closed:
                os.eventfd_write(self._event, 1)

    def _failed(self, error: Exception) -> None:
        """Close everything: slaves look for another master, and puts learn that there are no slaves."""
        self._let_go()

    def close(self) -> None:
        """Close the connections. Slaves keep what they have and try to connect again. A second call does nothing."""
        self._worker.stop()
        self._let_go()

    def _let_go(self) -> None:
        with self._ending:
            if self._is_closed:
                return
            self._is_closed = True
        self._port.replicas.serve(None)
        for slave in self._slaves.values():
            slave.connection.close()
        self._slaves.clear()
        self._port.replicas.changed(())
        self._selector.close()
        self._door.close()
        os.close(self._event)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that accepts slaves."""
    made = close_in_child(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM))
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(MAX_SLAVES)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise InvalidConfig("haListenPort", f"{host}:{port}", f"cannot listen there: {error.strerror}") from error
    return made
