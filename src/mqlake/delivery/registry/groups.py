"""`config/subscriptionGroup.json`: the consumer groups and their settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mqlake.delivery.registry.config_file import Json
from mqlake.delivery.registry.table import Registry, nearest
from mqlake.errors import InvalidConfig, StoreError, UnknownGroup

MAX_GROUP_BYTES = 120
ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group. `more` holds RocketMQ's fields that mqlake does not use, unchanged."""

    name: str
    enabled: bool = True
    broadcast_enabled: bool = True
    ordered: bool = False
    retry_queue_count: int = 1
    max_retry_count: int = 16
    consume_timeout_minutes: int = 15
    more: Json = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not ALLOWED.fullmatch(self.name) or len(self.name) > MAX_GROUP_BYTES:
            raise InvalidConfig(
                "group", self.name, f"1 to {MAX_GROUP_BYTES} ASCII letters, digits and the characters % | - _"
            )
        for key, value in (("retry_queue_count", self.retry_queue_count), ("max_retry_count", self.max_retry_count)):
            if not isinstance(value, int) or value < (-1 if key == "max_retry_count" else 0):
                raise InvalidConfig(f"{key} of group {self.name}", value, "must be a whole number, 0 or more")

    @classmethod
    def from_json(cls, name: str, content: Json) -> Group:
        return cls(
            name,
            content.get("consumeEnable", True),
            content.get("consumeBroadcastEnable", True),
            content.get("consumeMessageOrderly", False),
            content.get("retryQueueNums", 1),
            content.get("retryMaxTimes", 16),
            content.get("consumeTimeoutMinute", 15),
            {key: value for key, value in content.items() if key not in USED},
        )

    def to_json(self) -> Json:
        return {
            **UNUSED,
            "consumeBroadcastEnable": self.broadcast_enabled,
            "consumeEnable": self.enabled,
            "consumeMessageOrderly": self.ordered,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.name,
            "retryMaxTimes": self.max_retry_count,
            "retryQueueNums": self.retry_queue_count,
            **self.more,
        }


USED = {
    "consumeBroadcastEnable",
    "consumeEnable",
    "consumeMessageOrderly",
    "consumeTimeoutMinute",
    "groupName",
    "retryMaxTimes",
    "retryQueueNums",
}
UNUSED: Json = {
    "attributes": {},
    "brokerId": 0,
    "consumeFromMinEnable": True,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "whichBrokerWhenConsumeSlowly": 1,
}
"""What RocketMQ writes for a new group besides the fields that mqlake uses."""


class Groups(Registry[Group]):
    """All groups with settings."""

    table = "subscriptionGroupTable"
    item = Group

    def unknown(self, name: str) -> StoreError:
        return UnknownGroup(name, nearest(name, self.names))
