"""The options and columns of a write to a store, checked when the write is planned.

Besides the sink's own options, RocketMQ's settings for files and records are accepted under RocketMQ's names. They take
effect if the write creates the store.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from mqlake.codec.config_json import MAX_CONFIG_BYTES, read_config
from mqlake.config import SETTINGS, StoreConfig
from mqlake.errors import InvalidConfig, InvalidMessage, StoreError
from mqlake.files.layout import Layout
from mqlake.files.place import local_path
from mqlake.files.small_files import read_small_file
from mqlake.ingest.batches import Fence
from mqlake.ingest.staging import NAME
from mqlake.logs.consume_queues import BatchQueues
from mqlake.logs.topic_table import require_topic
from mqlake.spark.topics import is_internal
from mqlake.store.opening import find_store, resolve

COLUMNS: dict[str, str] = {
    "topic": "string",
    "body": "binary or string",
    "tags": "string",
    "keys": "array<string> or string",
    "properties": "map<string,string>",
    "queue_id": "int",
    "flag": "int",
    "born_timestamp": "timestamp",
}
"""The columns that a write accepts, with their types."""
OPTIONS = ("path", "topic", "jobId", "lockTimeout")
OF_SPARK = ("checkpointlocation", "queryname")
"""Spark's own options of a stream."""
OF_STORE = {
    name.lower(): name
    for name, (section, _, _) in SETTINGS.items()
    if section in ("commit_log", "consume_queue", "index") and not name.startswith("maped")
}
LOCK_TIMEOUT_S = 60.0
TOPICS = "topics.json"
MAX_QUEUE_COUNT = 65_536
"""As many queues as a topic can be set up with. Each used queue is a folder with a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and how to write. Sent to the tasks."""

    path: Path
    config: StoreConfig
    """All sizes are filled in."""
    topic: str | None
    """The topic of all rows, if they have no topic column (topic)."""
    fence: Fence | None
    """Identifies this batch so that it is written only once (jobId; a stream has its own)."""
    run: str
    """A unique id of this write."""
    lock_timeout_s: float
    """How long to wait for another writer of the store (lockTimeout)."""
    refused: frozenset[str]
    """Topics that accept no messages, besides those of the system."""
    queue_counts: Mapping[str, int]
    """How many queues a topic has, for topics that were set up."""

    def refuses(self, topic: str) -> bool:
        return topic in self.refused or is_internal(topic)

    def queue_count(self, topic: str) -> int:
        return self.queue_counts.get(topic, MAX_QUEUE_COUNT)


def plan_write(given: Mapping[str, str], schema: StructType, *, overwrite: bool, stream: bool) -> Target:
    """Check everything that can be checked before a task runs. Creates the store's folder: tasks stage in it."""
    if overwrite:
        mode = 'outputMode("complete")' if stream else 'mode("overwrite")'
        raise InvalidConfig(
            "mode", mode, 'a log can only be appended to: use mode("append"), to a new folder if needed'
        )
    options = _options(given, stream=stream)
    _require_columns(schema, options.get("topic"))
    if not options.get("path"):
        raise InvalidConfig("option path", None, 'name the store\'s folder: save("data/store")')
    path = local_path(options["path"])
    settings = {OF_STORE[name]: value for name, value in options.items() if name in OF_STORE}
    config = StoreConfig.from_properties(settings)
    lock_timeout_s = _seconds(options["locktimeout"]) if "locktimeout" in options else LOCK_TIMEOUT_S
    layout = find_store(path, read_only=False, create=True)
    topics = topics_set_up(layout)
    return Target(
        path=layout.root,
        config=resolve(layout, config),
        topic=options.get("topic"),
        fence=Fence(options["jobid"], 0) if "jobid" in options else None,
        run=uuid.uuid4().hex,
        lock_timeout_s=lock_timeout_s,
        refused=frozenset(BatchQueues(layout.batch_queues, 0, 0).topics())  # they are read-only here
        | {name for name, (_, may_write) in topics.items() if not may_write},
        queue_counts={name: count for name, (count, _) in topics.items()} if "queue_id" in schema.names else {},
    )


def topics_set_up(layout: Layout) -> dict[str, tuple[int, bool]]:
    """Return the queue count of the topics in RocketMQ's `topics.json`, and whether they may be written."""
    try:
        content = read_small_file(layout.config / TOPICS, MAX_CONFIG_BYTES)
        table = read_config(TOPICS, content).get("topicConfigTable", {})
        return {
            name: (max(topic.get("readQueueNums", 16), topic.get("writeQueueNums", 16)), bool(topic.get("perm", 6) & 2))
            for name, topic in table.items()
        }
    except (OSError, ValueError, StoreError):
        return {}  # there is none, or it is damaged: whoever needs more of it reports that


def _options(given: Mapping[str, str], *, stream: bool) -> dict[str, str]:
    known = {name.lower() for name in OPTIONS} | set(OF_STORE)
    options = {name.lower(): str(text) for name, text in given.items()}
    for name, text in options.items():
        if name not in known and not (stream and name in OF_SPARK):
            allowed = ", ".join((*OPTIONS, *OF_STORE.values()))
            raise InvalidConfig(f"option {name}", text, f"there is no such option; there are {allowed}")
    if stream and "jobid" in options:
        raise InvalidConfig("option jobId", options["jobid"], "a stream identifies its own batches: leave it out")
    if "jobid" in options and not NAME.fullmatch(options["jobid"]):
        raise InvalidConfig("option jobId", options["jobid"], "1 to 100 ASCII letters, digits and the characters . _ -")
    if is_internal(options.get("topic", "")):
        expected = "the system writes this topic itself, and reads do not show it: name one of your own"
        raise InvalidConfig("option topic", options["topic"], expected)
    if "topic" in options:
        try:
            require_topic(options["topic"])
        except InvalidMessage as error:
            raise InvalidConfig("option topic", options["topic"], error.expected) from None
    return options


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6})\s*(s|m)?", text.strip())
    if match is None:
        raise InvalidConfig("option lockTimeout", text, "must be seconds, or like 30s, 5m")
    return float(match[1]) * (60 if match[2] == "m" else 1)


def _require_columns(schema: StructType, topic: str | None) -> None:
    for field in schema.fields:
        if field.name not in COLUMNS:
            chosen = ", ".join(f'"{name}"' for name in COLUMNS)
            raise InvalidConfig("column", field.name, f"cannot be written; select those that can: df.select({chosen})")
        if not _is_type(field.name, field.dataType):
            found = f"{field.name} {field.dataType.simpleString()}"
            raise InvalidConfig("column", found, f"must be {COLUMNS[field.name]}: cast it before the write")
    missing = {"body", "topic"} - set(schema.names) - ({"topic"} if topic else set())
    if missing:
        hint = ", or option topic for all rows" if "topic" in missing else ""
        raise InvalidConfig("columns", ", ".join(schema.names), f"must include {' and '.join(sorted(missing))}{hint}")
    if topic and "topic" in schema.names:
        raise InvalidConfig("option topic", topic, "there is also a column topic: give only one of them")


def _is_type(name: str, kind: DataType) -> bool:
    text = isinstance(kind, StringType)
    if name == "body":
        return text or isinstance(kind, BinaryType)
    if name == "keys":
        return text or (isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType))
    if name == "properties":
        return isinstance(kind, MapType) and all(isinstance(k, StringType) for k in (kind.keyType, kind.valueType))
    if name == "born_timestamp":
        return isinstance(kind, TimestampType)
    return isinstance(kind, IntegerType) if name in ("queue_id", "flag") else text
