"""`config/topics.json`: the topics, and how many queues each has.

A put to an unknown topic creates it with the configured number of queues if `auto_create_topics` is on. A change is
durable when its call returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag

from mqlake.delivery.registry.config_file import Json
from mqlake.delivery.registry.table import Registry, nearest
from mqlake.errors import InvalidConfig, StoreError, UnknownTopic

MAX_QUEUE_COUNT = 65_536


class Permission(IntFlag):
    """The permissions of a topic, in RocketMQ's bits."""

    INHERIT = 1
    WRITE = 2
    READ = 4


@dataclass(frozen=True, slots=True)
class Topic:
    """The settings of a topic. `more` holds RocketMQ's fields that mqlake does not use, unchanged."""

    name: str
    read_queue_count: int = 4
    write_queue_count: int = 4
    permission: Permission = Permission.READ | Permission.WRITE
    ordered: bool = False
    more: Json = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for key, count in (("read_queue_count", self.read_queue_count), ("write_queue_count", self.write_queue_count)):
            if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_QUEUE_COUNT:
                raise InvalidConfig(f"{key} of topic {self.name}", count, f"must be in [1, {MAX_QUEUE_COUNT}]")

    @classmethod
    def from_json(cls, name: str, content: Json) -> Topic:
        known = {"topicName", "readQueueNums", "writeQueueNums", "perm", "order"}
        return cls(
            name,
            content.get("readQueueNums", 16),
            content.get("writeQueueNums", 16),
            Permission(content.get("perm", 6)),
            bool(content.get("order", False)),
            {key: value for key, value in content.items() if key not in known},
        )

    def to_json(self) -> Json:
        return {
            "attributes": {},
            "order": self.ordered,
            "perm": int(self.permission),
            "readQueueNums": self.read_queue_count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": self.name,
            "topicSysFlag": 0,
            "writeQueueNums": self.write_queue_count,
            **self.more,
        }


class Topics(Registry[Topic]):
    """All topics with settings."""

    table = "topicConfigTable"
    item = Topic

    def unknown(self, name: str) -> StoreError:
        return UnknownTopic(name, None, nearest(name, self.names))
