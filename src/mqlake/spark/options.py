"""The options of a read, parsed and checked in one place.

Spark passes options as texts, with names in any case. An unknown name or value is an error that names it and lists what
is allowed. Nothing is ignored, because a misspelt option would select other rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal

from mqlake.config import parse_address
from mqlake.errors import InvalidConfig
from mqlake.files.place import place_of
from mqlake.spark.schema import checked_columns
from mqlake.store.scan import RAW_BODY

MIB = 1 << 20
DEFAULT_SPLIT_SIZE = 128 * MIB
MIN_SPLIT_SIZE = 16 * MIB
"""Splits are not made smaller just to get more of them: starting a task costs as much as reading this much."""
MAX_QUEUE_ID = 2**31 - 1
UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": MIB, "g": 1 << 30}

EARLIEST, LATEST = -2, -1
"""Offsets in startingOffsets that stand for the two ends of the log, as in Kafka."""

Via = Literal["auto", "scan", "queue", "index"]
OnDamage = Literal["skip", "fail", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """A read: which stores, which of their messages, which columns, and how."""

    paths: tuple[str, ...]
    """Folders or glob patterns (path, paths)."""
    columns: tuple[str, ...]
    """In the order of the schema (columns)."""
    topics: tuple[str, ...] | None = None
    """Messages of these topics (topics)."""
    topics_pattern: str | None = None
    """Messages of topics whose whole name matches a regular expression (topicsPattern)."""
    queues: tuple[int, ...] | None = None
    """Messages with these queue ids (queues)."""
    tags: tuple[str, ...] | None = None
    """Messages with one of these tags (tags)."""
    keys: tuple[str, ...] | None = None
    """Messages with at least one of these keys (keys)."""
    start_time: int | None = None
    """Messages stored at or after this time, in ms (startTime)."""
    end_time: int | None = None
    """Messages stored before this time, in ms (endTime)."""
    rising_times: bool = False
    """Find times by a search: store times rise along the log, but for steps below two minutes (risingTimes)."""
    start_offset: int | None = None
    """Messages at or after this physical offset (startOffset)."""
    end_offset: int | None = None
    """Messages before this physical offset (endOffset)."""
    include_internal: bool = False
    """Include RocketMQ's own topics, half messages and rolled-back messages (includeInternal)."""
    on_damage: OnDamage = "skip"
    """What to do with bytes that are not a whole record: skip and log, fail, or return a row (onDamage)."""
    fail_on_data_loss: bool = True
    """Offsets outside the log are an error; if false, the read is limited to the log (failOnDataLoss)."""
    split_size: int = DEFAULT_SPLIT_SIZE
    """The most bytes of log that one task reads (splitSize)."""
    min_partitions: int | None = None
    """Number of tasks to aim for; default: twice the number of cores of this machine (minPartitions)."""
    via: Via = "auto"
    """How to find messages: the cheapest way, or the named one (via)."""
    lake: str | None = None
    """The place of a lake, from which to read what the log no longer has (lake)."""
    endpoint: str | None = None
    """The name server of a broker to read from instead of folders, `HOST:PORT` (endpoint)."""

    @property
    def smallest_split(self) -> int:
        return min(MIN_SPLIT_SIZE, self.split_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Additional options of a stream: where it starts, and how much it reads per batch."""

    starting_offsets: Literal["earliest", "latest"] | Mapping[str, int] = "earliest"
    """For each store: its first record, its end, or an offset by the store's folder (startingOffsets)."""
    starting_timestamp: int | None = None
    """Start each store at the first message stored at or after this time, in ms (startingTimestamp)."""
    max_bytes_per_trigger: int | None = None
    """Bytes of log per batch, over all stores (maxBytesPerTrigger)."""
    max_rows_per_trigger: int | None = None
    """Records of log per batch, over all stores, before any selection (maxRowsPerTrigger)."""


def parse_stream_options(
    given: Mapping[str, str], columns: tuple[str, ...] | None = None
) -> tuple[SourceOptions, StreamOptions]:
    """Parse and check the options of a stream: its own, and those of a read that apply to it."""
    values: dict[str, Any] = {}
    for given_name, text in given.items():
        if name := _known(given_name, NOT_IN_STREAMS):
            raise InvalidConfig(f"option {name}", text, f"not in a stream: {NOT_IN_STREAMS[name]}")
        if name := _known(given_name, STREAM_PARSERS):
            values[STREAM_FIELDS[name]] = STREAM_PARSERS[name](name, str(text))
    for first, second in (("startingOffsets", "startingTimestamp"), ("maxBytesPerTrigger", "maxRowsPerTrigger")):
        if STREAM_FIELDS[first] in values and STREAM_FIELDS[second] in values:
            raise InvalidConfig(
                f"option {second}", values[STREAM_FIELDS[second]], f"give {first} or {second}, not both"
            )
    return parse_options(without_stream_options(given), columns), StreamOptions(**values)


def without_stream_options(given: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in given.items() if _known(name, STREAM_PARSERS) is None}


def parse_options(given: Mapping[str, str], columns: tuple[str, ...] | None = None) -> SourceOptions:
    """Parse and check the options of a read. `columns` come from a schema that the user gave."""
    values: dict[str, Any] = {}
    for given_name, text in given.items():
        if name := _known(given_name, STREAM_PARSERS):
            raise InvalidConfig(f"option {name}", text, "only for readStream; a read has startOffset and startTime")
        name = _known(given_name, PARSERS)
        if name is None:
            listed = f"{', '.join(PARSERS)}; for streams also {', '.join(STREAM_PARSERS)}"
            raise InvalidConfig(f"option {given_name}", text, f"there is no such option; there are {listed}")
        values[FIELDS[name]] = PARSERS[name](name, str(text))
    paths = (*values.pop("path", ()), *values.pop("paths", ()))
    if values.get("endpoint") is not None:
        _require_endpoint_options(paths, values)
    elif not paths:
        raise InvalidConfig("option path", None, 'name the store\'s folder: load("data/store")')
    on_damage = values.get("on_damage", "skip")
    wanted = columns if columns is not None else values.pop("columns", None)
    values["columns"] = checked_columns(wanted, with_damage=on_damage == "rows")
    _require_order(values, "start_time", "end_time")
    _require_order(values, "start_offset", "end_offset")
    if values.get("lake") is not None and RAW_BODY in values["columns"]:
        raise InvalidConfig("option columns", RAW_BODY, "a lake stores bodies as they were sent: name body instead")
    if values.get("topics") is not None and values.get("topics_pattern") is not None:
        raise InvalidConfig("option topicsPattern", values["topics_pattern"], "give topics or topicsPattern, not both")
    return SourceOptions(paths=paths, **values)


def _require_endpoint_options(paths: tuple[str, ...], values: Mapping[str, Any]) -> None:
    """Refuse what has no meaning for a broker: it gives messages by queue, and has no folder."""
    if paths:
        raise InvalidConfig("option path", ", ".join(paths), "give a path or an endpoint, not both")
    for name in NOT_WITH_ENDPOINT:
        if FIELDS[name] in values:
            raise InvalidConfig(f"option {name}", values[FIELDS[name]], "not with endpoint: it needs the log's files")


def _known(name: str, names: Iterable[str]) -> str | None:
    """Return an option's name as written here. Users may write it in any case."""
    return next((known for known in names if known.lower() == name.lower()), None)


def _require_order(values: Mapping[str, Any], start: str, end: str) -> None:
    if values.get(start) is not None and values.get(end) is not None and values[start] > values[end]:
        name = next(name for name, field in FIELDS.items() if field == end)
        raise InvalidConfig(f"option {name}", values[end], f"must not be before {values[start]}, where the read starts")


def _texts(name: str, text: str) -> tuple[str, ...]:
    """Parse a list of texts: separated by commas, or JSON, which can hold commas."""
    if text.lstrip().startswith("["):
        try:
            items = json.loads(text)
        except ValueError as error:
            raise InvalidConfig(f"option {name}", text, f"a JSON list of texts ({error})") from None
    else:
        items = [item.strip() for item in text.split(",")]
    if not items or not all(isinstance(item, str) and item for item in items):
        raise InvalidConfig(f"option {name}", text, "texts separated by commas, or a JSON list of texts")
    return tuple(dict.fromkeys(items))


def _one_path(name: str, text: str) -> tuple[str, ...]:
    if not text:
        raise InvalidConfig(f"option {name}", text, "must name the folder of a store")
    return (text,)


def _lake(name: str, text: str) -> str:
    return str(place_of(text, f"option {name}"))


def _endpoint(name: str, text: str) -> str:
    if not re.fullmatch(r"[^:;,\s]+:\d+|\[[0-9a-fA-F:]+\]:\d+", text.strip()):
        raise InvalidConfig(f"option {name}", text, "must be the name server's HOST:PORT")
    parse_address(f"option {name}", text.strip())
    return text.strip()


def _numbers(name: str, text: str) -> tuple[int, ...]:
    numbers = tuple(_whole(name, item) for item in _texts(name, text))
    if max(numbers) > MAX_QUEUE_ID:
        raise InvalidConfig(f"option {name}", text, f"queue ids are at most {MAX_QUEUE_ID}")
    return numbers


def _whole(name: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text.strip()):
        raise InvalidConfig(f"option {name}", text, "must be a whole number, 0 or above")
    return int(text)


def _positive(name: str, text: str) -> int:
    number = _whole(name, text)
    if number == 0:
        raise InvalidConfig(f"option {name}", text, "must be 1 or above")
    return number


def _size(name: str, text: str) -> int:
    return size_of(f"option {name}", text)


def size_of(what: str, text: str) -> int:
    """Parse a number of bytes, like 64m or 1GiB."""
    match = re.fullmatch(r"(\d{1,12})\s*([kmg]?)i?b?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise InvalidConfig(what, text, "must be a number of bytes above 0, or a size like 64m, 128MiB, 1g")
    return int(match[1]) * UNITS[match[2]]


def _time(name: str, text: str) -> int:
    if re.fullmatch(r"\d{1,15}", text.strip()):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidConfig(
            f"option {name}", text, "must be milliseconds since 1970, or ISO as in 2026-01-31T08:00:00+01:00"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return -int(-moment.timestamp() * 1000 // 1)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidConfig(f"option {name}", text, "one of true, false")
    return text.lower() == "true"


def _one_of(*allowed: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.lower() not in allowed:
            raise InvalidConfig(f"option {name}", text, f"one of {', '.join(allowed)}")
        return text.lower()

    return parse


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidConfig(f"option {name}", text, f"must be a regular expression ({error})") from None
    return text


def _starting(name: str, text: str) -> str | dict[str, int]:
    """Parse `earliest`, `latest`, or offsets by store as JSON."""
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    expected = 'earliest, latest, or JSON like {"/data/store": 4096}, where -2 is earliest and -1 is latest'
    try:
        offsets = json.loads(text)
    except ValueError:
        raise InvalidConfig(f"option {name}", text, expected) from None
    numbers = offsets.values() if isinstance(offsets, dict) else [None]
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= EARLIEST for number in numbers):
        raise InvalidConfig(f"option {name}", text, expected)
    return dict(offsets)


PARSERS: dict[str, Callable[[str, str], Any]] = {
    "path": _one_path,
    "paths": _texts,
    "columns": _texts,
    "topics": _texts,
    "topicsPattern": _pattern,
    "queues": _numbers,
    "tags": _texts,
    "keys": _texts,
    "startTime": _time,
    "endTime": _time,
    "risingTimes": _flag,
    "startOffset": _whole,
    "endOffset": _whole,
    "includeInternal": _flag,
    "onDamage": _one_of("skip", "fail", "rows"),
    "failOnDataLoss": _flag,
    "splitSize": _size,
    "minPartitions": _positive,
    "via": _one_of("auto", "scan", "queue", "index"),
    "lake": _lake,
    "endpoint": _endpoint,
}
"""The parser of every option, by the option's name."""

STREAM_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "startingOffsets": _starting,
    "startingTimestamp": _time,
    "maxBytesPerTrigger": _size,
    "maxRowsPerTrigger": _positive,
}
NOT_WITH_ENDPOINT = ("startOffset", "endOffset", "risingTimes", "onDamage", "splitSize", "via", "lake")
NOT_IN_STREAMS = {
    "startOffset": "a new stream starts where startingOffsets says",
    "startTime": "a new stream starts where startingTimestamp says",
    "endOffset": "it has no end; filter by physical_offset",
    "endTime": "it has no end; filter by store_timestamp",
    "lake": "it follows the log; use spark.read for what only the lake has",
    "endpoint": "it follows the log's files; use spark.read",
}


def _field_of(name: str) -> str:
    return re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name)


FIELDS = {name: _field_of(name) for name in PARSERS}
STREAM_FIELDS = {name: _field_of(name) for name in STREAM_PARSERS}
assert {*STREAM_FIELDS.values()} == {field.name for field in fields(StreamOptions)}, "one field per option"
assert {*FIELDS.values()} - {"path"} == {field.name for field in fields(SourceOptions)}, "one field per option"
