"""`config/consumerFilter.json`: the SQL filters of groups, as RocketMQ notes them, so that a broker finds them.

Only notes: a consumer says itself what it wants. One that is closed is noted as dead, and kept for the next time.
"""

from __future__ import annotations

import threading
import time

from mqlake.delivery.config_file import ConfigFile, Json
from mqlake.delivery.filters import SQL, Filter

TABLE = "filterDataByTopic"
GROUPS = "groupFilterData"


class FilterTable:
    """By topic and group. Several threads may call it."""

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._content = file.load()
        self._is_dirty = False

    def get(self, topic: str, group: str) -> Json | None:
        return self._of(topic).get(group)

    def _of(self, topic: str) -> Json:
        by_topic: Json = self._content.setdefault(TABLE, {})
        groups: Json = by_topic.setdefault(topic, {GROUPS: {}, "topic": topic}).setdefault(GROUPS, {})
        return groups

    def note(self, topic: str, group: str, wanted: Filter) -> None:
        """A consumer begins with this filter; tags are not noted."""
        if wanted.kind != SQL:
            return
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            known = self._of(topic).get(group, {})
            if known.get("expression") != wanted.expression:
                known = {"bornTime": now_ms}  # what RocketMQ worked out for another expression does not hold
            self._of(topic)[group] = {
                **known,
                "clientVersion": now_ms,
                "consumerGroup": group,
                "dead": False,
                "deadTime": 0,
                "expression": wanted.expression,
                "expressionType": wanted.kind,
                "topic": topic,
            }
            self._is_dirty = True

    def end(self, topic: str, group: str) -> None:
        """The group's last consumer is closed."""
        with self._lock:
            known = self._of(topic).get(group)
            if known is not None and not known.get("dead"):
                known.update(dead=True, deadTime=time.time_ns() // 1_000_000)
                self._is_dirty = True

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Drop the filters of a topic, or of a group."""
        with self._lock:
            by_topic: Json = self._content.get(TABLE, {})
            for name in list(by_topic):
                gone = by_topic.pop(name, None) if name == topic else by_topic[name].get(GROUPS, {}).pop(group, None)
                self._is_dirty = self._is_dirty or gone is not None

    def sync(self) -> None:
        """Write what changed since the last time."""
        with self._lock:
            if self._is_dirty:
                empty = [name for name, of in self._content[TABLE].items() if not of.get(GROUPS)]
                for name in empty:
                    del self._content[TABLE][name]
                self.file.save(self._content)
                self._is_dirty = False
