"""Where topics are: routes, asked of a name server and kept for a while.

A route that was known stays known while the name server does not answer, or no longer names the topic: a broker that
restarts is missing there for some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mqlake.errors import NoRoute, RemoteError
from mqlake.remoting.bodies import MessageQueue, QueueData, Route

ROUTE_S: Final = 30.0
"""A route is asked for again after so long."""
TEMPLATE: Final = "TBW102"
"""The topic whose settings a topic gets that is created by its first message."""
NEW_TOPIC_QUEUES: Final = 4
READ, WRITE = 4, 2
MASTER = 0


@dataclass(frozen=True)
class TopicRoute:
    """The queues of a topic, and the addresses of their brokers."""

    topic: str
    queues: tuple[QueueData, ...]
    brokers: dict[str, dict[int, str]]
    """Addresses by broker name and broker id."""
    is_template: bool = False
    """Whether the topic does not exist yet: its first message creates it."""

    @classmethod
    def of(cls, topic: str, route: Route) -> TopicRoute:
        return cls(topic, tuple(route.queues), {each.broker_name: each.addresses for each in route.brokers})

    def as_template_of(self, topic: str) -> TopicRoute:
        queues = tuple(
            QueueData(each.broker_name, count, count, READ | WRITE)
            for each in self.queues
            if (count := min(NEW_TOPIC_QUEUES, each.read_queue_count))
        )
        return TopicRoute(topic, queues, self.brokers, is_template=True)

    @cached_property
    def readable(self) -> list[MessageQueue]:
        """The queues that can be read, in the order in which every client of a group sorts them."""
        return self._queues(READ, lambda each: each.read_queue_count, set(self.brokers))

    @cached_property
    def writable(self) -> list[MessageQueue]:
        """The queues that take messages: those of brokers that have a master."""
        masters = {name for name, addresses in self.brokers.items() if MASTER in addresses}
        return self._queues(WRITE, lambda each: each.write_queue_count, masters)

    def _queues(self, permission: int, count: Callable[[QueueData], int], brokers: set[str]) -> list[MessageQueue]:
        return [
            MessageQueue(self.topic, each.broker_name, queue_id)
            for each in sorted(self.queues, key=lambda each: each.broker_name)
            if each.permission & permission and each.broker_name in brokers
            for queue_id in range(count(each))
        ]

    def address_of(self, broker_name: str) -> str | None:
        """Return the address of a broker's master, or of another of its name if it has none now."""
        addresses = self.brokers.get(broker_name)
        return addresses[min(addresses)] if addresses else None

    @property
    def addresses(self) -> list[str]:
        found = [self.address_of(name) for name in sorted(self.brokers)]
        return [address for address in found if address is not None]


class Routes:
    """The routes that a client knows."""

    def __init__(self, ask: Callable[[str], Awaitable[Route]]) -> None:
        """`ask` returns a topic's route from a name server; NoRoute if it knows none."""
        self._ask = ask
        self._known: dict[str, tuple[float, TopicRoute]] = {}

    async def get(self, topic: str, *, for_send: bool = False, limit_s: float | None = None) -> TopicRoute:
        """Return a topic's route; `for_send` that of a topic that may be created by its first message.

        A route that is known is used as it is if a name server does not answer within half of `limit_s`: the other half
        is for what the route is needed for.
        """
        known = self._known.get(topic)
        now = asyncio.get_running_loop().time()
        if known is not None and now < known[0]:
            return known[1]
        try:
            async with asyncio.timeout(None if known is None or limit_s is None else limit_s / 2):
                route = await self._fetch(topic, for_send)
        except (RemoteError, TimeoutError):
            if known is None:
                raise
            route = known[1]
        self._known[topic] = now + ROUTE_S, route
        return route

    async def _fetch(self, topic: str, for_send: bool) -> TopicRoute:
        try:
            return TopicRoute.of(topic, await self._ask(topic))
        except NoRoute:
            if not for_send:
                raise
        try:
            template = TopicRoute.of(TEMPLATE, await self._ask(TEMPLATE))
        except NoRoute as error:
            raise NoRoute(error.address, topic) from None
        return template.as_template_of(topic)

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route that is known, however old."""
        found = self._known.get(topic)
        return None if found is None else found[1]

    def expire(self, topic: str) -> None:
        """Ask for a route again when it is next needed."""
        known = self._known.get(topic)
        if known is not None:
            self._known[topic] = 0.0, known[1]

    def forget(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        self._known.pop(topic, None)

    @property
    def broker_addresses(self) -> set[str]:
        """All brokers of the topics that this client uses."""
        return {address for _, route in self._known.values() for address in route.addresses}
