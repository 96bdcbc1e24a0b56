"""What the timer has pending, to the disk: for the next opening here, and for RocketMQ. See `timer_files.py`."""

from __future__ import annotations

import time

from mqlake.delivery import timer_files
from mqlake.delivery.deliveries import GONE
from mqlake.delivery.pending import Pending
from mqlake.delivery.readdress import round_down
from mqlake.delivery.timer_files import UNIT, Check, LogSettings, Saved
from mqlake.delivery.timer_topic import TimerTopic
from mqlake.kernel import lowest_place, pack_timer_units
from mqlake.store.engine import Engine

GATE = "timer"
WINDOW_SLOTS = 172_800
"""RocketMQ's timerRollWindowSlot."""


class TimerKeeper:
    """Writes the files. One thread at a time calls it."""

    def __init__(self, engine: Engine, topic: TimerTopic) -> None:
        self._engine = engine
        self._layout = engine.layout
        self._topic = topic
        config = engine.config.timer
        self._settings = LogSettings(config.log_file_size_bytes, config.precision_ms, WINDOW_SLOTS)

    def keep(self, pairs: bytes, number: int, end: int) -> None:
        """Make this the checkpoint: all that is pending, the next number of the topic, the log's end at that moment."""
        running = self._running_check(pairs, number)
        self._save(pairs, number, end, running, running)
        running.write(self._layout)
        timer_files.remove_timer_log(self._layout)

    def close(self, pairs: bytes, number: int, end: int) -> None:
        """As `keep`, with a timer log for RocketMQ.

        `timercheck` points at the first pending message while there is no timer log, so at no moment one is missing.
        """
        running, closed = self._running_check(pairs, number), self._check(number)
        count = len(pairs) // 16
        if count:
            first_ms = min(closed.read_ms, round_down(Pending(pairs).next_ms, self._settings.precision_ms))
            closed = closed._replace(read_ms=first_ms, log_end=self._settings.position(count) + UNIT.size)
        self._save(pairs, number, end, running, closed)
        running.write(self._layout)
        timer_files.remove_timer_log(self._layout)
        if count:
            timer_files.write_timer_log(self._layout, self._units(pairs, number, closed.read_ms), self._settings)
        closed.write(self._layout)

    def _save(self, pairs: bytes, number: int, end: int, running: Check, closed: Check) -> None:
        """Every `timercheck` that a crash can leave from here on, the present one included, belongs to it."""
        self._engine.flusher.wait_until_durable(end)
        checks = Check.read(self._layout).crc, running.crc, closed.crc
        timer_files.save(self._layout, Saved(number, end, checks, pairs))
        if pairs:
            self._engine.retention.hold(GATE, lowest_place(pairs))
        else:
            self._engine.retention.release(GATE)

    def _running_check(self, pairs: bytes, number: int) -> Check:
        """For RocketMQ, if this store ends without being closed: begin with the first that is pending."""
        if pairs:
            try:
                number = self._engine.reader.get(lowest_place(pairs)).queue_offset
            except GONE:
                number = 0
        return self._check(number)

    def _check(self, number: int) -> Check:
        before, now_ms = Check.read(self._layout), time.time_ns() // 1_000_000
        read_ms = now_ms // self._settings.precision_ms * self._settings.precision_ms
        return Check(read_ms, 0, number, number, before.state_version, now_ms, before.counter + 1)

    def _units(self, pairs: bytes, number: int, read_ms: int) -> memoryview:
        """What is pending, in the order of the topic, and the last message of the topic."""
        settings, count = self._settings, len(pairs) // 16
        units = bytearray((count + 1) * UNIT.size)
        window_ms = settings.window * settings.precision_ms
        geometry = settings.precision_ms, window_ms, settings.units_per_file, settings.file_size
        pack_timer_units(pairs, read_ms, *geometry, self._engine.log.files.file_at, units)
        # Behind all others, in the past: RocketMQ goes on in the topic behind the message of the last unit.
        last = *self._topic.place_of(number - 1), 0, 0
        UNIT.pack_into(units, count * UNIT.size, UNIT.size, -1, 1, read_ms - settings.precision_ms, 0, *last)
        return memoryview(units)
