"""A message that is to be delivered later is stored elsewhere in the meantime, with its real address in properties.

    DELAY = n                      -> SCHEDULE_TOPIC_XXXX, queue n - 1
    TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS -> rmq_sys_wheel_timer, queue 0, with TIMER_OUT_MS

It happens before the message gets its number, so its receipt is that of the waiting copy. Rules are RocketMQ's: a level
wins over a time, one above the highest is the highest, and what is due already is stored where it belongs at once.
The caller's message is left as it is.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

from mqlake.config import StoreConfig
from mqlake.delivery.properties import (
    CANCELS,
    DELAY_LEVEL,
    DELAY_MS,
    DELAY_SEC,
    DELIVER_MS,
    OUT_MS,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    UNIQUE_KEY,
)
from mqlake.delivery.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from mqlake.errors import InvalidMessage
from mqlake.message import Message

DELIVERED_KINDS = (0x0, 0x8)
"""Transaction types (none, committed) of messages that reach a queue; the others are not put off."""
TIMES = (DELAY_SEC, DELAY_MS, DELIVER_MS)
"""In the order in which they count."""
_OWN_KEY = os.urandom(11).hex().upper()
_key_numbers = itertools.count()


class Readdressing:
    """Decides for one store. `on_stored(due_ms)` hears of every message for later, once it is in the log."""

    def __init__(self, config: StoreConfig, on_stored: Callable[[int], None] = lambda due_ms: None) -> None:
        self._config = config.timer
        self._delays_ms = config.delays_ms
        self._on_stored = on_stored

    def stored(self, waiting: Message) -> None:
        """A message that was put off is in the log."""
        if waiting.topic == SCHEDULE_TOPIC:
            self._on_stored(_now_ms() + self._delays_ms[int(waiting.properties[DELAY_LEVEL]) - 1])
        else:
            self._on_stored(int(waiting.properties[OUT_MS]))

    def address(self, message: Message, take_turn: Callable[[], int]) -> Message:
        """The message as it is to be stored now; `take_turn` says which queue it is for."""
        properties = message.properties
        level = properties.get(DELAY_LEVEL)
        is_timed = DELIVER_MS in properties or DELAY_SEC in properties or DELAY_MS in properties
        if level is None and not is_timed:
            return message
        if message.sys_flag & 0xC not in DELIVERED_KINDS or message.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            return message
        if level is not None and (number := level_of(level)) > 0:
            return self._put_off_by_level(message, min(number, len(self._delays_ms)), take_turn)
        if is_timed and OUT_MS not in properties:
            return self._put_off_to_time(message, take_turn)
        return message

    def _put_off_by_level(self, message: Message, level: int, take_turn: Callable[[], int]) -> Message:
        waiting = _moved(message, SCHEDULE_TOPIC, level - 1, take_turn())
        for name in TIMES:
            waiting.properties.pop(name, None)
        waiting.properties[DELAY_LEVEL] = str(level)
        return waiting

    def _put_off_to_time(self, message: Message, take_turn: Callable[[], int]) -> Message:
        now_ms = _now_ms()
        due_ms = self._due(message, now_ms)
        if due_ms <= now_ms:
            if CANCELS in message.properties:
                raise InvalidMessage(CANCELS, f"a time {now_ms - due_ms} ms ago", "the time of a pending message")
            return message
        waiting = _moved(message, TIMER_TOPIC, 0, take_turn())
        waiting.properties[OUT_MS] = str(round_down(due_ms, self._config.precision_ms))
        if UNIQUE_KEY not in waiting.properties:
            waiting.properties[UNIQUE_KEY] = new_key()  # it can be cancelled by it
        return waiting

    def _due(self, message: Message, now_ms: int) -> int:
        """When it is due; InvalidMessage for what is no time, or beyond the horizon."""
        if not self._config.enabled:
            raise InvalidMessage("delay", repr(message), "no timed messages: timerWheelEnable is off")
        name = next(name for name in TIMES if name in message.properties)
        value = _number(name, message.properties[name])
        due_ms = value if name == DELIVER_MS else now_ms + (value * 1000 if name == DELAY_SEC else value)
        if due_ms - now_ms > self._config.max_delay_s * 1000:
            raise InvalidMessage(
                name,
                f"{value}, which is {(due_ms - now_ms) // 1000} s ahead",
                f"at most {self._config.max_delay_s} s ahead (timerMaxDelaySec)",
            )
        return due_ms


def new_key() -> str:
    """A unique key as RocketMQ's clients make it: 32 digits, of which the first are this process' own."""
    return f"{_OWN_KEY}{next(_key_numbers):010X}"


def round_down(due_ms: int, precision_ms: int) -> int:
    """TIMER_OUT_MS: the beginning of the unit of time whose end is the first moment not before it is due."""
    return (due_ms - 1) // precision_ms * precision_ms


def level_of(text: str) -> int:
    level = _number(DELAY_LEVEL, text)
    if level >= 1 << 31:
        raise InvalidMessage(DELAY_LEVEL, repr(text), "a level that fits into 32 bits")
    return level


def _number(name: str, text: object) -> int:
    """A property's number. Java takes a sign and other scripts' digits; a time before 1970 is a slip."""
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InvalidMessage(name, repr(text), "a whole number, 0 or more")
    return int(text)


def _moved(message: Message, topic: str, queue_id: int, real_queue_id: int) -> Message:
    """A copy with another address, which says where it is really for."""
    return Message(
        topic,
        message.body,
        queue_id=queue_id,
        properties={**message.properties, REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(real_queue_id)},
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
