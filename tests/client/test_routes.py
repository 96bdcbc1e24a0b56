"""Routes: cached, kept when a name server fails, taken from the template for new topics."""

from __future__ import annotations

import asyncio

import pytest

from mqlake.client.routes import TEMPLATE, Routes
from mqlake.errors import NoRoute, NotConnected
from mqlake.remoting.bodies import BrokerData, MessageQueue, QueueData, Route


def route_of(*brokers: str, queues: int = 8, permission: int = 6, ids: tuple[int, ...] = (0,)) -> Route:
    return Route(
        [QueueData(name, queues, queues, permission) for name in brokers],
        [BrokerData("C", name, {number: f"{name}:{number}" for number in ids}) for name in brokers],
    )


class NameServer:
    def __init__(self, **known: Route) -> None:
        self.known = known
        self.asked: list[str] = []
        self.is_gone = False

    async def ask(self, topic: str) -> Route:
        self.asked.append(topic)
        if self.is_gone:
            raise NotConnected("ns", "gone")
        if topic not in self.known:
            raise NoRoute("ns", topic)
        return self.known[topic]


def test_a_route_is_asked_for_once_and_again_when_it_expired() -> None:
    async def main() -> None:
        server = NameServer(T=route_of("b", "a", queues=2))
        routes = Routes(server.ask)
        first = await routes.get("T")
        assert await routes.get("T") is first and server.asked == ["T"]
        expected = [MessageQueue("T", name, number) for name in ("a", "b") for number in (0, 1)]
        assert first.readable == first.writable == expected
        routes.expire("T")
        await routes.get("T")
        assert server.asked == ["T", "T"]

    asyncio.run(main())


def test_a_known_route_stays_known_while_the_name_server_fails_or_forgot_it() -> None:
    async def main() -> None:
        server = NameServer(T=route_of("a"))
        routes = Routes(server.ask)
        first = await routes.get("T")
        del server.known["T"]
        for server.is_gone in (False, True):
            routes.expire("T")
            assert await routes.get("T") is first
        routes.forget("T")
        with pytest.raises(NotConnected):
            await routes.get("T")

    asyncio.run(main())


def test_a_new_topic_has_four_queues_of_the_templates_brokers() -> None:
    async def main() -> None:
        server = NameServer(**{TEMPLATE: route_of("a", queues=8, permission=7)})
        routes = Routes(server.ask)
        with pytest.raises(NoRoute, match="new"):
            await routes.get("new")
        route = await routes.get("new", for_send=True)
        assert route.is_template
        assert route.writable == [MessageQueue("new", "a", number) for number in range(4)]
        server.known.clear()
        with pytest.raises(NoRoute, match="other"):
            await routes.get("other", for_send=True)

    asyncio.run(main())


def test_queues_without_permission_or_without_a_master_are_left_out() -> None:
    async def main() -> None:
        server = NameServer(R=route_of("a", permission=4), S=route_of("a", ids=(1,)))
        routes = Routes(server.ask)
        read_only, orphan = await routes.get("R"), await routes.get("S")
        assert len(read_only.readable) == 8 and read_only.writable == []
        assert len(orphan.readable) == 8 and orphan.writable == []
        assert orphan.address_of("a") == "a:1" and orphan.address_of("z") is None

    asyncio.run(main())
