"""`config/consumerFilter.json`: the SQL filters of groups, in RocketMQ's format, so that a broker finds them.

mqlake only records them: every consumer brings its own filter. The filter of a closed consumer is marked as dead and
kept.
"""

from __future__ import annotations

import time

from mqlake.delivery.consume.filters import SQL, Filter
from mqlake.delivery.registry.config_file import ConfigFile, Json
from mqlake.runtime.locks import make_lock

TABLE = "filterDataByTopic"
GROUPS = "groupFilterData"


class FilterTable:
    """Filters by topic and group. Thread-safe."""

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self._lock = make_lock("config_table")
        self._content = file.load()
        self._is_dirty = False

    def get(self, topic: str, group: str) -> Json | None:
        return self._of(topic).get(group)

    def _of(self, topic: str) -> Json:
        by_topic: Json = self._content.setdefault(TABLE, {})
        groups: Json = by_topic.setdefault(topic, {GROUPS: {}, "topic": topic}).setdefault(GROUPS, {})
        return groups

    def note(self, topic: str, group: str, wanted: Filter) -> None:
        """Record the filter of a consumer that starts. Tag filters are not recorded."""
        if wanted.kind != SQL:
            return
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            known = self._of(topic).get(group, {})
            if known.get("expression") != wanted.expression:
                known = {"bornTime": now_ms}  # what RocketMQ computed for another expression is not valid
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
        """Mark the filter as dead: the last consumer of the group is closed."""
        with self._lock:
            known = self._of(topic).get(group)
            if known is not None and not known.get("dead"):
                known.update(dead=True, deadTime=time.time_ns() // 1_000_000)
                self._is_dirty = True

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the filters of a topic, or of a group."""
        with self._lock:
            by_topic: Json = self._content.get(TABLE, {})
            for name in list(by_topic):
                gone = by_topic.pop(name, None) if name == topic else by_topic[name].get(GROUPS, {}).pop(group, None)
                self._is_dirty = self._is_dirty or gone is not None

    def sync(self) -> None:
        """Write the file if it changed since the last call."""
        with self._lock:
            if self._is_dirty:
                empty = [name for name, of in self._content[TABLE].items() if not of.get(GROUPS)]
                for name in empty:
                    del self._content[TABLE][name]
                self.file.save(self._content)
                self._is_dirty = False
