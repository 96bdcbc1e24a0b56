"""What the timer has pending, to the disk: for the next opening here, and for RocketMQ. See `timer_files.py`."""

from __future__ import annotations

import time

from mqlake.delivery import timer_files
from mqlake.delivery.deliveries import GONE
from mqlake.delivery.readdress import round_down
from mqlake.delivery.timer_files import Check, LogSettings, Saved, Unit
from mqlake.delivery.timer_topic import TimerTopic
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
        self._precision_ms = config.precision_ms
        self._settings = LogSettings(config.log_file_size_bytes, config.precision_ms, WINDOW_SLOTS)

    def keep(self, pairs: bytes, number: int, end: int) -> None:
        """Make this the checkpoint: all that is pending, the next number of the topic, the log's end at that moment."""
        places = places_of(pairs)
        running = self._running_check(places, number)
        self._save(pairs, places, number, end, running, running)
        running.write(self._layout)
        timer_files.remove_timer_log(self._layout)

    def close(self, pairs: bytes, number: int, end: int) -> None:
        """As `keep`, with a timer log for RocketMQ.

        `timercheck` points at the first pending message while there is no timer log, so at no moment one is missing.
        """
        places = places_of(pairs)
        units = self._units(pairs, number)
        running, closed = self._running_check(places, number), self._check(number)
        if units:
            first_ms = min(closed.read_ms, *(unit.out_ms for unit in units[:-1]))
            # Behind all others, in the past: RocketMQ goes on in the topic behind the message of the last unit.
            units[-1] = units[-1]._replace(out_ms=first_ms - self._precision_ms)
            closed = closed._replace(read_ms=first_ms, log_end=timer_files.end_of(len(units), self._settings))
        self._save(pairs, places, number, end, running, closed)
        running.write(self._layout)
        timer_files.remove_timer_log(self._layout)
        if units:
            timer_files.write_timer_log(self._layout, units, closed.read_ms, self._settings)
        closed.write(self._layout)

    def _save(self, pairs: bytes, places: list[int], number: int, end: int, running: Check, closed: Check) -> None:
        """Every `timercheck` that a crash can leave from here on, the present one included, belongs to it."""
        self._engine.flusher.wait_until_durable(end)
        checks = Check.read(self._layout).crc, running.crc, closed.crc
        timer_files.save(self._layout, Saved(number, end, checks, pairs))
        if places:
            self._engine.retention.hold(GATE, min(places))
        else:
            self._engine.retention.release(GATE)

    def _running_check(self, places: list[int], number: int) -> Check:
        """For RocketMQ, if this store ends without being closed: begin with the first that is pending."""
        if places:
            try:
                number = self._engine.reader.get(min(places)).queue_offset
            except GONE:
                number = 0
        return self._check(number)

    def _check(self, number: int) -> Check:
        before, now_ms = Check.read(self._layout), time.time_ns() // 1_000_000
        read_ms = now_ms // self._precision_ms * self._precision_ms
        return Check(read_ms, 0, number, number, before.state_version, now_ms, before.counter + 1)

    def _units(self, pairs: bytes, number: int) -> list[Unit]:
        """What is pending, in the order of the topic, and the last message of the topic."""
        numbers, files = memoryview(pairs).cast("q"), self._engine.log.files
        found = []
        for due_ms, place in sorted(zip(numbers[::2], numbers[1::2], strict=True), key=_place_of):
            offset = place if place >= 0 else ~place
            file = files.file_at(offset)
            if file is not None:
                size = int.from_bytes(file.pages[offset - file.start : offset - file.start + 4], "big")
                out_ms = round_down(due_ms, self._precision_ms) if place >= 0 else due_ms
                found.append(Unit(out_ms, offset, size, place < 0))
        if found:
            found.append(Unit(0, *self._topic.place_of(number - 1), is_cancel=False))
        return found


def places_of(pairs: bytes) -> list[int]:
    return [place if place >= 0 else ~place for place in memoryview(pairs).cast("q")[1::2]]


def _place_of(pair: tuple[int, int]) -> int:
    return pair[1] if pair[1] >= 0 else ~pair[1]
