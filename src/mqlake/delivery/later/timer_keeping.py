"""Writes the timer's pending messages to disk: for the next opening here, and for RocketMQ. See `timer_files.py`."""

from __future__ import annotations

import time

from mqlake.delivery.later import timer_files
from mqlake.delivery.later.deliveries import GONE
from mqlake.delivery.later.pending import Pending
from mqlake.delivery.later.routing import round_down
from mqlake.delivery.later.timer_files import UNIT, Check, LogSettings, Saved
from mqlake.delivery.later.timer_topic import TimerTopic
from mqlake.kernel import lowest_place, pack_timer_units
from mqlake.store.ports import Writing

GATE = "timer"
WINDOW_SLOTS = 172_800
"""RocketMQ's timerRollWindowSlot."""


class TimerCheckpoints:
    """Writes the timer's files. The caller ensures that one thread at a time calls it."""

    def __init__(self, writing: Writing, topic: TimerTopic) -> None:
        self._writing = writing
        self._layout = writing.layout
        self._topic = topic
        config = writing.config.timer
        self._settings = LogSettings(config.log_file_size_bytes, config.precision_ms, WINDOW_SLOTS)

    def keep(self, pairs: bytes, next_offset: int, end: int) -> None:
        """Write a checkpoint of one moment: pending pairs, next queue offset of the topic, appended end of the log."""
        running = self._running_check(pairs, next_offset)
        self._save(pairs, next_offset, end, running, running)
        running.write(self._layout)
        timer_files.remove_timer_log(self._layout)

    def close(self, pairs: bytes, next_offset: int, end: int) -> None:
        """Write a checkpoint as `keep` does, and a timer log for RocketMQ.

        While there is no timer log, `timercheck` points at the first pending message, so no crash here loses one.
        """
        running, closed = self._running_check(pairs, next_offset), self._check(next_offset)
        count = len(pairs) // 16
        if count:
            first_ms = min(closed.read_ms, round_down(Pending(pairs).next_ms, self._settings.precision_ms))
            closed = closed._replace(read_ms=first_ms, log_end=self._settings.position(count) + UNIT.size)
        self._save(pairs, next_offset, end, running, closed)
        running.write(self._layout)
        timer_files.remove_timer_log(self._layout)
        if count:
            timer_files.write_timer_log(self._layout, self._units(pairs, next_offset, closed.read_ms), self._settings)
        closed.write(self._layout)

    def _save(self, pairs: bytes, next_offset: int, end: int, running: Check, closed: Check) -> None:
        """Save the checkpoint. It names each `timercheck` that a crash may leave from now on, including the present."""
        self._writing.flusher.wait_until_durable(end)
        checks = Check.read(self._layout).crc, running.crc, closed.crc
        timer_files.save(self._layout, Saved(next_offset, end, checks, pairs))
        if pairs:
            self._writing.retention.hold(GATE, lowest_place(pairs))
        else:
            self._writing.retention.release(GATE)

    def _running_check(self, pairs: bytes, next_offset: int) -> Check:
        """Return the `timercheck` for RocketMQ if this store is not closed: it starts at the first pending message."""
        if pairs:
            try:
                next_offset = self._writing.reader.get(lowest_place(pairs)).queue_offset
            except GONE:
                next_offset = 0
        return self._check(next_offset)

    def _check(self, next_offset: int) -> Check:
        before, now_ms = Check.read(self._layout), time.time_ns() // 1_000_000
        read_ms = now_ms // self._settings.precision_ms * self._settings.precision_ms
        return Check(read_ms, 0, next_offset, next_offset, before.state_version, now_ms, before.counter + 1)

    def _units(self, pairs: bytes, next_offset: int, read_ms: int) -> memoryview:
        """Return a timer log unit for each pending message, in topic order, and one for the topic's last message."""
        settings, count = self._settings, len(pairs) // 16
        units = bytearray((count + 1) * UNIT.size)
        window_ms = settings.window * settings.precision_ms
        geometry = settings.precision_ms, window_ms, settings.units_per_file, settings.file_size
        pack_timer_units(pairs, read_ms, *geometry, self._writing.log.files.file_at, units)
        # RocketMQ resumes in the topic after the message of the last unit. This unit is in the past: not delivered.
        last = *self._topic.place_of(next_offset - 1), 0, 0
        UNIT.pack_into(units, count * UNIT.size, UNIT.size, -1, 1, read_ms - settings.precision_ms, 0, *last)
        return memoryview(units)
