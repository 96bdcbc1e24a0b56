"""The delivery time of a message, as the property that RocketMQ reads. Used by both kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.errors import InvalidMessage

if TYPE_CHECKING:
    from datetime import datetime

DELAY_LEVEL = "DELAY"
DELIVER_MS = "TIMER_DELIVER_MS"
DELAY_MS = "TIMER_DELAY_MS"
DELAY_SEC = "TIMER_DELAY_SEC"
MAX_MS = 1 << 62
FROM_1970 = "a time from 1970 on: a datetime, or milliseconds"


def delay_properties(
    deliver_at: datetime | int | None, delay_s: float | None, delay_level: int | None
) -> dict[str, str]:
    """Return the one property for the argument that is given.

    Raises InvalidMessage if more than one is given, or a value is no time.
    """
    if (deliver_at is not None) + (delay_s is not None) + (delay_level is not None) > 1:
        given = {"deliver_at": deliver_at, "delay_s": delay_s, "delay_level": delay_level}
        raise InvalidMessage("delay", repr({key: value for key, value in given.items() if value is not None}), "one")
    if delay_level is not None:
        return {DELAY_LEVEL: str(_whole("delay_level", delay_level))}
    if delay_s is not None:
        return _delay(delay_s)
    if deliver_at is not None and hasattr(deliver_at, "timestamp"):
        try:
            deliver_at = round(deliver_at.timestamp() * 1000)
        except (ValueError, OverflowError, OSError):  # a local time at the ends of the calendar
            raise InvalidMessage("deliver_at", repr(deliver_at), FROM_1970) from None
    return {DELIVER_MS: str(_whole("deliver_at", deliver_at))}


def _delay(delay_s: float) -> dict[str, str]:
    if isinstance(delay_s, bool) or not isinstance(delay_s, int | float) or not 0 <= delay_s * 1000 < MAX_MS:
        raise InvalidMessage("delay_s", repr(delay_s), "seconds, 0 or more")
    if delay_s == int(delay_s):
        return {DELAY_SEC: str(int(delay_s))}
    return {DELAY_MS: str(round(delay_s * 1000))}


def _whole(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_MS:
        expected = FROM_1970 if field == "deliver_at" else "a level, 0 or more"
        raise InvalidMessage(field, repr(value), expected)
    return value
