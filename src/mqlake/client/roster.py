"""Who is in a group, also just after its broker came back.

A broker keeps the list of members in memory. After a restart it knows only those that have connected again: the first
one back would find itself alone, and take the queues that the others still read. So members that were listed over an
earlier connection count as there until they are listed again, for one heart-beat period at most: by then every member
has found the broker. A member that is no longer listed while the connection lasts is gone at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqlake.client.session import BEAT_S


class Roster:
    """The members of a group, as the broker of one topic lists them."""

    def __init__(self) -> None:
        self._connection: object = None
        self._listed: set[str] = set()
        self.awaited: dict[str, float] = {}
        """Members that were listed over an earlier connection only, each with the time until which it is awaited."""

    def update(self, connection: object, listed: Iterable[str], now: float) -> set[str]:
        """Take a list that came over a connection; return the members, those that are awaited among them."""
        if connection is not self._connection:
            self._connection = connection
            self.awaited = dict.fromkeys(self._listed | self.awaited.keys(), now + BEAT_S)
        self._listed = set(listed)
        self.awaited = {each: until for each, until in self.awaited.items() if each not in self._listed and now < until}
        return self._listed | self.awaited.keys()
