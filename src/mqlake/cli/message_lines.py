"""Messages as JSON objects: the fields of a dump's `message` line, and a few that are easier to write by hand."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from mqlake import InvalidMessage, Message

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
NUMBERS = {
    "queueId": (0, 2**31 - 1),
    "flag": INT32,
    "sysFlag": INT32,
    "bornTimestamp": INT64,
    "reconsumeTimes": INT32,
    "preparedTransactionOffset": INT64,
}
TEXTS = frozenset({"topic", "text", "tags", "bornHost"})
OTHERS = frozenset({"body", "keys", "properties"})
DERIVED = frozenset(
    {
        *("kind", "cqTopic", "cqQueueId", "cqOffset", "tagsCode"),
        *("queueOffset", "physicalOffset", "storeSize", "storeTimestamp", "storeHost"),
        *("bodyCRC", "msgId", "recordSha1"),
    }
)
"""Fields of a dump that the store sets itself: accepted and ignored."""
KNOWN = frozenset(NUMBERS) | TEXTS | OTHERS
ADDRESS_BITS = 0x30
"""Bits of the system flag for the length of the two hosts; the store sets them itself."""
RECORD_CRC = "__CRC32#"
"""The property with the CRC of its record; it must not be copied into another record."""


def message_of(line: Mapping[str, Any], where: str) -> Message | None:
    """Return the message of one line; None for a dump line that is no message of its own.

    `where` names the line in the InvalidMessage that an invalid field raises.
    """
    if line.get("kind", "message") != "message":
        return None
    if line.get("cqTopic", line.get("topic")) != line.get("topic"):
        return None  # a light queue's copy of an entry whose message is also in the queue of its own topic
    _check(line, where)
    body = _body(line, where)
    try:
        return Message(
            line["topic"],
            body,
            tags=line.get("tags"),
            keys=line.get("keys") or (),
            queue_id=line.get("queueId"),
            properties={name: text for name, text in line.get("properties", {}).items() if name != RECORD_CRC},
            flag=line.get("flag", 0),
            sys_flag=line.get("sysFlag", 0) & ~ADDRESS_BITS,
            born_timestamp=line.get("bornTimestamp"),
            born_host=line.get("bornHost"),
            reconsume_times=line.get("reconsumeTimes", 0),
            prepared_offset=line.get("preparedTransactionOffset", 0),
        )
    except InvalidMessage as error:
        raise InvalidMessage(f"{where}: {error.field}", error.found, error.expected) from None


def _check(line: Mapping[str, Any], where: str) -> None:
    """Check names and types of all fields: a misspelt field must not be dropped silently."""
    if "topic" not in line:
        raise InvalidMessage(where, f"the fields {', '.join(line) or '(none)'}", "a field topic")
    for name, value in line.items():
        if name in NUMBERS:
            low, high = NUMBERS[name]
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise InvalidMessage(f"{where}: {name}", repr(value), f"a number in [{low}, {high}]")
        elif name in TEXTS:
            if not isinstance(value, str):
                raise InvalidMessage(f"{where}: {name}", repr(value), "a string")
        elif name not in OTHERS and name not in DERIVED:
            raise InvalidMessage(f"{where}: {name}", "a field of that name", f"one of {', '.join(sorted(KNOWN))}")
    _check_keys(line.get("keys", ""), where)
    _check_properties(line.get("properties", {}), where)


def _check_keys(keys: object, where: str) -> None:
    if not isinstance(keys, str) and not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        raise InvalidMessage(f"{where}: keys", repr(keys), "a string or a list of strings")


def _check_properties(properties: object, where: str) -> None:
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise InvalidMessage(f"{where}: properties", repr(properties), "an object whose values are strings")


def _body(line: Mapping[str, Any], where: str) -> bytes:
    """Return `body` if given, because it is exact; else `text`."""
    if "body" not in line:
        return str(line.get("text", "")).encode("utf-8", "surrogatepass")
    encoded = line["body"]
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError, TypeError):
        shown = repr(encoded)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
        raise InvalidMessage(f"{where}: body", shown, "base64; use text for a body that is text") from None
