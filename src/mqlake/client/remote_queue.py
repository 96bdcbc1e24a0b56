"""One queue of a consumer's share: what was read ahead, what was handed out, what is committed.

    committed <= held_from <= given <= next_offset        (queue offsets)

Messages before `committed` are processed. Those in [committed, given) were handed out. Those up to `next_offset` were
read ahead, or did not match the filter. All methods run in the event loop's thread, except `hand_out`.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from typing import Final

from mqlake.message import StoredMessage
from mqlake.remoting.bodies import MessageQueue

READ_AHEAD: Final = 1_000
READ_AHEAD_BYTES: Final = 16 << 20
"""No more is pulled while so much of a queue waits."""


class Stage(enum.Enum):
    """A queue's way through a consumer."""

    CLAIMED = "claimed"
    """In the share, but another member may still have it."""
    READING = "reading"
    LEAVING = "leaving"
    """No longer in the share: what was handed out is still being processed."""


class RemoteQueue:
    """A queue that this consumer has, or is about to have or to leave."""

    def __init__(self, queue: MessageQueue, since: float) -> None:
        self.queue = queue
        self.stage = Stage.CLAIMED
        self.since = since
        """When it came into the share, by the loop's clock."""
        self.next_offset = -1
        self.committed = -1
        self.told = -1
        """The progress that the broker knows."""
        self.held = (0, -1, -1)
        """Version, first offset that may not be processed yet, and end of what was handed out: one value, because
        another thread replaces it."""
        self.version = 0
        """Counts moves: the answer to a pull from before a move is dropped."""
        self.task: asyncio.Task[None] | None = None
        self._ahead: deque[StoredMessage] = deque()
        self._ahead_bytes = 0
        self._taken: list[StoredMessage] = []
        self._changed = asyncio.Event()

    # ---- reading

    @property
    def has_room(self) -> bool:
        return len(self._ahead) < READ_AHEAD and self._ahead_bytes < READ_AHEAD_BYTES

    @property
    def has_messages(self) -> bool:
        return bool(self._ahead)

    @property
    def given(self) -> int:
        """The end of what was handed out since the last move."""
        version, _, given = self.held
        return given if version == self.version else self.committed

    @property
    def held_from(self) -> int:
        """From where on messages that were handed out may not be processed."""
        version, held_from, _ = self.held
        return held_from if version == self.version else self.committed

    @property
    def is_in_flight(self) -> bool:
        """Whether messages are handed out and not committed, or on their way to the caller."""
        return self.given > self.committed or bool(self._taken and self._taken[0].queue_offset >= self.given)

    def move(self, offset: int) -> None:
        """Continue at another offset; what was read ahead or handed out no longer counts."""
        self.version += 1
        self._ahead.clear()
        self._ahead_bytes = 0
        self._taken = []
        self.next_offset = self.committed = offset
        self._notify()

    def add(self, messages: list[StoredMessage], next_offset: int) -> None:
        """Take what a pull brought."""
        self._ahead.extend(messages)
        self._ahead_bytes += sum(message.size for message in messages)
        self.next_offset = next_offset
        self._skip()

    def take(self, limit: int) -> list[StoredMessage]:
        """Return the next messages. `hand_out` says that the caller has them; until then `put_back` takes them back."""
        self._taken = [self._ahead.popleft() for _ in range(min(limit, len(self._ahead)))]
        self._ahead_bytes -= sum(message.size for message in self._taken)
        if self._taken:
            self._notify()
        return self._taken

    def hand_out(self, messages: list[StoredMessage], version: int) -> None:
        """Note that messages are with the caller now; those before them are processed. Any thread may call it.

        `version` is that of the `take`: after a move it changes nothing."""
        self.held = version, messages[0].queue_offset, messages[-1].queue_offset + 1

    def put_back(self) -> None:
        """Take back what was taken and not handed out."""
        rest = [message for message in self._taken if message.queue_offset >= self.given]
        if self._taken:
            self._notify()
        self._taken = []
        if self.stage is Stage.READING:
            self._ahead.extendleft(reversed(rest))
            self._ahead_bytes += sum(message.size for message in rest)

    def stop(self) -> None:
        """Hand out nothing more."""
        self.stage = Stage.LEAVING
        self._ahead.clear()
        self._ahead_bytes = 0

    # ---- progress

    def commit(self, offset: int) -> None:
        """Move progress forward, up to what was handed out."""
        self.committed = max(self.committed, min(offset, self.given))
        self._skip()
        self._notify()

    def _skip(self) -> None:
        """What the filter left out counts as processed as soon as nothing before it waits."""
        if self.stage is Stage.READING and not self._ahead and not self._taken_waits and not self.is_in_flight:
            self.committed = self.next_offset
            self.held = self.version, self.committed, self.committed

    @property
    def _taken_waits(self) -> bool:
        return bool(self._taken) and self._taken[-1].queue_offset >= self.given

    # ---- waiting

    def _notify(self) -> None:
        self._changed.set()

    async def changed(self) -> None:
        """Wait for the next change by the consumer: room for more, a commit, a move."""
        self._changed.clear()
        await self._changed.wait()

    async def settle(self, timeout_s: float) -> None:
        """Wait until nothing is in flight, but not longer than this."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.is_in_flight:
                    await self.changed()
        except TimeoutError:
            return
