"""Routes delayed messages to a holding topic, with their real topic and queue in properties.

    DELAY = n                      -> SCHEDULE_TOPIC_XXXX, queue n - 1
    TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS -> rmq_sys_wheel_timer, queue 0, with TIMER_OUT_MS

Routing happens before a message gets its queue offset, so the receipt is that of the copy in the holding topic. The
rules are RocketMQ's: a level takes precedence over a time, a level above the highest becomes the highest, and a message
that is already due goes to its real queue at once. The caller's message is not changed.
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
from mqlake.delivery.registry.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC, is_system_topic
from mqlake.errors import InvalidMessage
from mqlake.logs.topic_table import LIGHT_QUEUES
from mqlake.message import Message

DELIVERED_KINDS = (0x0, 0x8)
"""Transaction types (none, committed) of messages that go to a real queue. Messages of other types are not delayed."""
TIMES = (DELAY_SEC, DELAY_MS, DELIVER_MS)
"""In order of precedence."""
_key_numbers = itertools.count()


class DelayRouting:
    """Rewrites delayed messages to their holding topic.

    Calls `before_stored()` before each is in the log, and `on_stored(due_ms)` once it is.
    """

    def __init__(
        self,
        config: StoreConfig,
        on_stored: Callable[[int], None] = lambda due_ms: None,
        now_ms: Callable[[], int] | None = None,
        before_stored: Callable[[], None] = lambda: None,
    ) -> None:
        """`now_ms` is the store's clock; by default the machine's."""
        self._now_ms = now_ms or _machine_ms
        self._config = config.timer
        self._delays_ms = config.delays_ms
        self._on_stored = on_stored
        self._before_stored = before_stored

    def stored(self, routed: Message) -> None:
        """Report the due time of a rewritten message that is now in the log."""
        if routed.topic == SCHEDULE_TOPIC:
            self._on_stored(self._now_ms() + self._delays_ms[int(routed.properties[DELAY_LEVEL]) - 1])
        else:
            self._on_stored(int(routed.properties[OUT_MS]))

    def route(self, message: Message, take_turn: Callable[[Message], int]) -> Message:
        """Return the message as it must be stored now. `take_turn` chooses its real queue."""
        properties = message.properties
        if LIGHT_QUEUES in properties:
            _refuse_system_topics(properties[LIGHT_QUEUES])
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

    def _put_off_by_level(self, message: Message, level: int, take_turn: Callable[[Message], int]) -> Message:
        waiting = _moved(message, SCHEDULE_TOPIC, level - 1, take_turn(message))
        self._before_stored()
        for name in TIMES:
            waiting.properties.pop(name, None)
        waiting.properties[DELAY_LEVEL] = str(level)
        return waiting

    def _put_off_to_time(self, message: Message, take_turn: Callable[[Message], int]) -> Message:
        now_ms = self._now_ms()
        due_ms = self._due(message, now_ms)
        if due_ms <= now_ms:
            if CANCELS in message.properties:
                raise InvalidMessage(CANCELS, f"a time {now_ms - due_ms} ms ago", "the time of a pending message")
            return message
        self._before_stored()
        waiting = _moved(message, TIMER_TOPIC, 0, take_turn(message))
        waiting.properties[OUT_MS] = str(round_down(due_ms, self._config.precision_ms))
        if UNIQUE_KEY not in waiting.properties:
            waiting.properties[UNIQUE_KEY] = new_key()  # a cancellation names the message by this key
        return waiting

    def _due(self, message: Message, now_ms: int) -> int:
        """Return when a message is due; InvalidMessage if that is not a time, or too far ahead."""
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


def _refuse_system_topics(names: str) -> None:
    """Refuse light queues that are queues of system topics: what is stored there is taken for their own messages."""
    for name in names.split(","):
        if is_system_topic(name):
            raise InvalidMessage(LIGHT_QUEUES, repr(name[:40]), "no topics of the system")


def new_key() -> str:
    """Return a unique key in the format of RocketMQ's clients: 32 hex digits, the first 22 random for each process."""
    return f"{_own_key}{next(_key_numbers):010X}"


def _draw_own_key() -> None:
    global _own_key
    _own_key = os.urandom(11).hex().upper()


_own_key = ""
_draw_own_key()
os.register_at_fork(after_in_child=_draw_own_key)  # else parent and child would give the same keys


def round_down(due_ms: int, precision_ms: int) -> int:
    """Return TIMER_OUT_MS: the start of the time unit whose end is the first one at or after `due_ms`."""
    return (due_ms - 1) // precision_ms * precision_ms


def level_of(text: str) -> int:
    level = _number(DELAY_LEVEL, text)
    if level >= 1 << 31:
        raise InvalidMessage(DELAY_LEVEL, repr(text), "a level that fits into 32 bits")
    return level


def _number(name: str, text: object) -> int:
    """Parse a property. Unlike Java, refuse signs and non-ASCII digits: a time before 1970 is a mistake."""
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InvalidMessage(name, repr(text), "a whole number, 0 or more")
    return int(text)


def _moved(message: Message, topic: str, queue_id: int, real_queue_id: int) -> Message:
    """Return a copy with another topic and queue, and the real ones in its properties."""
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


def _machine_ms() -> int:
    return time.time_ns() // 1_000_000
