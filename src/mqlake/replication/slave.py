"""The slave: a worker that follows a master and appends what it sends.

It connects, asks from a little before its own end on (`receiving`), appends, reports what it has, and starts again
where the log ends when the connection is cut, whoever cut it. With sync flush it reports what is on disk, else what is
in the page cache, as RocketMQ's slaves do.

A cut connection is no error. It is tried again after 0.1 s, then twice as long each time, up to 5 s. What cannot get
better by itself (the logs differ, the files have other sizes, a broker in controller mode) stops the worker for good;
the log stays as it is, and its reason is in the health report and in `Slave.status()`.
"""

from __future__ import annotations

import enum
import logging
import time
from dataclasses import dataclass
from typing import Final

from mqlake.errors import BadTransfer, ControllerMode, Diverged, InvalidConfig, NoMaster, NotConnected, NotOnMaster
from mqlake.kernel.types import APPENDED
from mqlake.logs.replica_log import ReplicaLog
from mqlake.replication.link import Link
from mqlake.replication.parting import find_end, find_parting, find_start
from mqlake.replication.receiving import Mismatch, Receiver
from mqlake.runtime.locks import make_condition
from mqlake.runtime.workers import State as WorkerState
from mqlake.runtime.workers import Worker
from mqlake.store.ports import Writing

FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 5.0
LOOK_S: Final = 0.2
SUSPICIOUS_CLOSES: Final = 2
"""A master that closes so often in a row after a second report, without ever a word, is one in controller mode."""
_log = logging.getLogger(__name__)


class State(enum.StrEnum):
    """What a slave is doing."""

    CONNECTING = "connecting"
    """There is no connection; it is tried again."""
    FOLLOWING = "following"
    """Connected. What the master sends is appended."""
    FAILED = "failed"
    """It stopped for good: `SlaveStatus.error` says why."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """A slave at one moment."""

    state: State
    master: str
    end_offset: int
    """Where its log ends."""
    received_bytes: int
    """Bytes appended since it was started."""
    connection_count: int
    """How often it has connected."""
    is_caught_up: bool
    """The master's last word was that it has nothing more."""
    is_missing: bool
    """The slave is empty, and the master has nothing at the offset that it asked for."""
    error: str | None
    """Why it is not connected, or why it failed."""


class Slave:
    """Follows the master of one store, which is open in the role SLAVE. Any thread may ask for its status."""

    def __init__(self, port: Writing) -> None:
        """`port`: the store, whose settings name the master (`ReplicationConfig`)."""
        if not isinstance(port.log, ReplicaLog):
            raise InvalidConfig("brokerRole", port.config.replication.role.name, "must be SLAVE to follow a master")
        address = port.config.replication.master_address
        if address is None:
            raise InvalidConfig("haMasterAddress", None, "must be HOST:PORT for a slave that follows a master")
        self._port = port
        self._log: ReplicaLog = port.log
        self._config = port.config.replication
        self.address = address
        self._link: Link | None = None
        self._receiver: Receiver | None = None
        self._pause_s = FIRST_PAUSE_S
        self._suspicious = 0
        self._reported = 0
        self._opened_at = port.ends.appended
        self._connection_count = 0
        self._trouble: str | None = None
        self._heard_at = time.monotonic()
        self._stuck_at: int | None = None
        """Where the log ended when this store, with a full disk or without descriptors, could not take more of it."""
        self._has_agreed = False
        """Whether a master has shown, since this was made, that its log begins with this one."""
        self._told: tuple[bool, bool, float | None, bool] | None = None
        self._changed = make_condition("slave")
        self._worker: Worker = port.workers.add("slave", self._work, interrupt=self._interrupt, on_trouble=self._tell)

    def start(self) -> None:
        """Follow from now on, until `stop` or until the store is closed."""
        self._heard_at = time.monotonic()
        self._worker.start()

    # ---- asking

    def status(self) -> SlaveStatus:
        receiver, error = self._receiver, self._worker.error
        if self._has_failed:
            state = State.FAILED
        elif not self._worker.is_alive:
            state = State.STOPPED
        else:
            state = State.FOLLOWING if self._link is not None else State.CONNECTING
        end = self._port.ends.appended
        return SlaveStatus(
            state=state,
            master=self.address,
            end_offset=end,
            received_bytes=end - max(self._opened_at, self._log.first_offset),
            connection_count=self._connection_count,
            is_caught_up=receiver is not None and receiver.is_caught_up,
            is_missing=receiver is not None and receiver.is_missing,
            error=str(error) if error is not None else self._trouble,
        )

    def wait_caught_up(self, timeout_s: float, *, end_offset: int | None = None, since: float | None = None) -> bool:
        """Wait until the log reaches `end_offset`, or without it until the master says that it has nothing more.

        A log that was there before is compared first: one that reaches further than the master's may be another one.
        Without `end_offset` only what the master says after `since` counts: a moment of `time.monotonic`, that of the
        call unless it is named. Masters say so only after 5 s (haSendHeartbeatInterval) without a new message. Raises
        what stopped the slave, and NotOnMaster if the master has nothing at the offset with which an empty log asked to
        begin.
        """
        asked_at = time.monotonic() if since is None else since
        deadline = time.monotonic() + timeout_s
        while True:
            with self._changed.lock:
                status = self.status()
                is_long_enough = end_offset is None or status.end_offset >= end_offset
                if is_long_enough and (self._is_caught_up_since(asked_at) if end_offset is None else self._is_proven):
                    return True
                self._raise_if_hopeless(status)
                left_s = deadline - time.monotonic()
                if left_s <= 0 or status.state is State.STOPPED:
                    return False
                if is_long_enough:
                    self._changed.wait(left_s)
            if end_offset is not None and not is_long_enough:
                # The end itself wakes this thread; a failure is seen at the next look.
                self._port.ends.wait(APPENDED, end_offset, int(min(left_s, LOOK_S) * 1e9))

    @property
    def _is_proven(self) -> bool:
        """Return whether nothing is here that was not compared with the master's log, or came from it."""
        return self._has_agreed or self._log.is_empty

    def _is_caught_up_since(self, moment: float) -> bool:
        receiver = self._receiver
        if receiver is None or not receiver.is_caught_up:
            return False
        return receiver.caught_up_at is not None and receiver.caught_up_at >= moment

    def raise_if_silent(self, limit_s: float) -> None:
        """Raise NoMaster if none has answered for `limit_s`. Troubles of this store's own do not count."""
        silent_s = time.monotonic() - self._heard_at
        if silent_s > limit_s and self._worker.error is None:
            raise NoMaster(self.address, silent_s, self._trouble)

    def _raise_if_hopeless(self, status: SlaveStatus) -> None:
        error = self._worker.error
        if self._has_failed and error is not None:
            raise error
        if status.is_missing:
            raise self._not_there()

    @property
    def _has_failed(self) -> bool:
        return self._worker.state is WorkerState.FAILED

    def _not_there(self) -> NotOnMaster:
        offset = self._config.begin_offset or 0
        reason = "its log begins later or ends there"
        remedy = "begin at its newest file instead, or name the first offset that it has"
        return NotOnMaster(self._port.layout.root, self.address, offset, reason, remedy)

    # ---- the worker

    def _work(self) -> float:
        """One round: connect, or receive once. Returns the pause before the next."""
        try:
            if self._link is None:
                link = self._connect()
                while self._is_stuck():  # one round: else each connection would count as a success, without a pause
                    self._receive(link)
                    self._tell_changes()
            else:
                self._receive(self._link)
        except (NotConnected, BadTransfer) as error:
            return self._lost(error)
        except Mismatch as mismatch:
            self._drop()
            try:
                parted = self._parted(mismatch)
            except NotConnected as lost:  # it went away while it was asked: whether the logs part is seen later
                return self._lost(lost)
            raise parted from None
        except BaseException:
            self._stuck_at = self._port.ends.appended
            self._drop()
            raise
        self._tell_changes()
        return 0

    def _is_stuck(self) -> bool:
        """Return whether it has yet to be seen that this store takes more than when it failed."""
        receiver = self._receiver
        is_done = receiver is None or receiver.is_caught_up or self._worker.stopping
        if self._stuck_at is not None and (is_done or self._port.ends.appended > self._stuck_at):
            self._stuck_at = None
        return self._stuck_at is not None

    def _connect(self) -> Link:
        self._log.discard()  # again, if the disk failed when the last connection ended: what is next must be known
        receiver = Receiver(self._log, self._config.begin_offset)
        link = self._link = Link(self.address, receiver.request)
        self._receiver = receiver
        self._reported = 0
        self._connection_count += 1
        if self._worker.stopping:  # `_interrupt` may have come before the link was there
            link.cut()
        _log.info("follows %s from offset %d on", self.address, receiver.request)
        return link

    def _receive(self, link: Link) -> None:
        receiver = self._receiver
        assert receiver is not None, "a connection has one"
        receiver.take(link.receive())
        if link.is_answered:
            self._trouble, self._pause_s, self._suspicious = None, FIRST_PAUSE_S, 0
            self._heard_at = link.heard_at
            if not receiver.is_comparing:
                self._has_agreed = True
                self._report(link)
        now = time.monotonic()
        if now - link.heard_at > self._config.silence_limit_ms / 1000:
            raise NotConnected(self.address, f"the master was silent for {now - link.heard_at:.0f} s")
        if now - link.reported_at > self._config.heartbeat_interval_ms / 1000:
            link.report(self._reported if self._reported else link.requested)

    def _report(self, link: Link) -> None:
        """Report what is as safe as this store's flush mode promises, if that is more than the last time."""
        if self._port.ends.promised < self._port.ends.appended:
            self._port.publish()
        end = self._port.ends.promised
        if end > self._reported and not self._log.is_empty:
            link.report(end)
            self._reported = end

    def _lost(self, error: NotConnected | BadTransfer) -> float:
        link = self._link
        self._drop()
        if link is not None and not link.is_answered and link.report_count > 1:
            self._suspicious += 1
            if self._suspicious >= SUSPICIOUS_CLOSES:
                who = f"the master at {self.address} closes without a word; such a master"
                raise ControllerMode(who) from None
        if not self._worker.stopping and (self._trouble is None or link is not None):
            _log.warning("%s; connecting again", error)
        self._trouble = error.reason if isinstance(error, NotConnected) else str(error)
        self._tell()
        pause, self._pause_s = self._pause_s, min(self._pause_s * 2, MAX_PAUSE_S)
        return pause

    def _drop(self) -> None:
        """End the connection. Half a record goes with it."""
        link, self._link, self._receiver = self._link, None, None
        if link is not None:
            link.close()
        self._log.discard()

    def _parted(self, mismatch: Mismatch) -> Diverged | NotOnMaster:
        """Ask the master what it has, and return why this log cannot be continued."""
        root, first, end = self._port.layout.root, self._log.first_offset, self._port.ends.appended
        if not mismatch.master_ends:
            parting = find_parting(self._log, self.address, mismatch.offset)
            return Diverged(root, self.address, parting, end, f"the bytes differ at {mismatch.offset}")
        # It shows only at the offset that was asked for. What exists only here may begin far before it.
        start = find_start(self.address)
        if start is None:
            reason = f"it has no log, and this one ends at {end}: it is another store, or an empty one in the old place"
            remedy = "this log is untouched; follow the master that it came from, or replicate into an empty folder"
            return NotOnMaster(root, self.address, mismatch.offset, reason, remedy)
        if start >= end:
            reason = f"what follows offset {end}, where this log ends, was deleted there (retention)"
            remedy = (
                "this log is untouched, and nothing shows that it differs, but it cannot be continued: "
                "replicate into an empty folder, and keep this one for what only it still has"
            )
            return NotOnMaster(root, self.address, mismatch.offset, reason, remedy)
        master_end = find_end(self._log, self.address, mismatch.offset, start)
        if master_end <= first:
            return Diverged(root, self.address, first, end, "the master's log ends before this one begins")
        found = f"the master has nothing there: its log ends at {master_end}"
        return Diverged(root, self.address, find_parting(self._log, self.address, master_end), end, found)

    def _interrupt(self) -> None:
        link = self._link
        if link is not None:
            link.cut()

    def _tell_changes(self) -> None:
        """Wake waiting threads, but not for every read from the socket."""
        receiver = self._receiver
        agreed = self._has_agreed
        now = None if receiver is None else (agreed, receiver.is_caught_up, receiver.caught_up_at, receiver.is_missing)
        if now != self._told:
            self._told = now
            self._tell()

    def _tell(self) -> None:
        with self._changed.lock:
            self._changed.notify_all()

    # ---- stopping

    def stop(self) -> None:
        """Stop following. What was appended stays, whole records only."""
        self._worker.stop()
        if self._link is not None:
            self._drop()
        self._tell()
