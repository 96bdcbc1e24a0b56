"""RocketMQ's `config/*.json`: parse the text, and check the types of the values.

Invariant: content that `read_config` returns has the types that its readers rely on. Unused fields may hold anything,
and unused files any JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
BARE_NUMBER_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(?<=[{,\s])(-?\d+)(?=\s*:)')
"""A string, which stays as it is, or a key that is a number without quotes, as RocketMQ writes them."""
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a character, escaped. JSON allows it alone, but a text that has it so cannot be written."""
MAX_CONFIG_BYTES = 1 << 30
"""No file of `config/` is larger: RocketMQ reads each into one string."""

Shape = Callable[[str, object], None]
"""Called with the path of a value and the value; raises ValueError if it is wrong."""


def decode(data: bytes) -> Json:
    """Decode RocketMQ's JSON, in which some keys are bare numbers; raise ValueError if it is invalid."""
    text = BARE_NUMBER_KEY.sub(lambda found: found[1] or f'"{found[2]}"', data.decode("utf-8"))
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"a JSON object was expected, found {_told(content)}")
    if SURROGATE.search(data):
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a text has half of a character: {error.object[error.start]!a}") from None
    return content


def read_config(name: str, data: bytes) -> Json:
    """Decode the file of this name and check its values; raise ValueError if it cannot be used."""
    content = decode(data)
    SHAPES.get(name, _anything)("", content)
    return content


def _anything(at: str, value: object) -> None:
    """Accept any value."""


def _whole_number(at: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{at}: a whole number was expected, found {_told(value)}")


def _truth(at: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{at}: true or false was expected, found {_told(value)}")


def _fields(at: str, value: object) -> Json:
    if not isinstance(value, dict):
        raise ValueError(f"{at or 'the file'}: an object was expected, found {_told(value)}")
    return value


def _with(**shapes: Shape) -> Shape:
    """Return the shape of an object whose fields, if present, have these shapes."""

    def look(at: str, value: object) -> None:
        fields = _fields(at, value)
        for name, shape in shapes.items():
            if name in fields:
                shape(f"{at}.{name}" if at else name, fields[name])

    return look


def _each(shape: Shape, *, numbered: bool = False) -> Shape:
    """Return the shape of an object whose values all have one shape; `numbered`: its keys are numbers."""

    def look(at: str, value: object) -> None:
        for key, item in _fields(at, value).items():
            if numbered and not key.removeprefix("-").isdecimal():
                raise ValueError(f"{at}: a number was expected as a key, found {key!r}")
            shape(f"{at}.{key}", item)

    return look


def _told(value: object) -> str:
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


CONSUMER_OFFSETS = _with(dataVersion=_each(_anything), offsetTable=_each(_each(_whole_number, numbered=True)))
SHAPES: dict[str, Shape] = {
    "topics.json": _with(
        dataVersion=_each(_anything),
        topicConfigTable=_each(
            _with(readQueueNums=_whole_number, writeQueueNums=_whole_number, perm=_whole_number, order=_truth)
        ),
    ),
    "subscriptionGroup.json": _with(
        dataVersion=_each(_anything),
        subscriptionGroupTable=_each(
            _with(
                consumeEnable=_truth,
                consumeBroadcastEnable=_truth,
                consumeMessageOrderly=_truth,
                retryQueueNums=_whole_number,
                retryMaxTimes=_whole_number,
                consumeTimeoutMinute=_whole_number,
            )
        ),
    ),
    "consumerOffset.json": CONSUMER_OFFSETS,
    "delayOffset.json": _with(dataVersion=_each(_anything), offsetTable=_each(_whole_number, numbered=True)),
    "consumerFilter.json": _with(filterDataByTopic=_each(_with(groupFilterData=_each(_each(_anything))))),
}
"""The shape of each file that mqlake uses, by name."""
