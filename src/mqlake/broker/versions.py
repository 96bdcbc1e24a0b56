"""Data versions of the broker's tables, as slaves and name servers compare them."""

from __future__ import annotations

import time


class TableVersion:
    """A version that is new whenever the table is another one. Slaves of RocketMQ 4.9 copy a table only then."""

    def __init__(self) -> None:
        self._seen: object = None
        self._counter = 0
        self._timestamp = 0

    def of(self, table: object) -> dict[str, int]:
        """Return the version of a table as it is now."""
        if table != self._seen or not self._counter:
            self._seen = table
            self._counter += 1
            self._timestamp = time.time_ns() // 1_000_000
        return {"counter": self._counter, "stateVersion": 0, "timestamp": self._timestamp}
