"""Two processes share one group: each message once while nothing fails, and none lost when one is killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake import Message
from mqlake.client import Admin, Consumer, Producer
from mqlake.client.membership import Membership
from mqlake.client.positions import GroupPositions
from mqlake.client.remote_queue import RemoteQueue
from mqlake.client.routes import TopicRoute
from mqlake.errors import NotConnected
from mqlake.kernel import Command
from mqlake.remoting.bodies import ConsumerData, MessageQueue, QueueData, Subscription, object_map
from mqlake.remoting.codes import RequestCode
from tests.client.conftest import put, take, until
from tests.clients.endpoints import Endpoint, start

MEMBER = Path(__file__).with_name("member.py")


class Member:
    """A consumer in a process of its own."""

    def __init__(self, at: str, group: str, topic: str, pause_s: float) -> None:
        command = [sys.executable, str(MEMBER), at, group, topic, str(pause_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.bodies: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.bodies.append(line.strip())

    @property
    def messages(self) -> list[str]:
        return self.bodies[1:]

    @property
    def is_ready(self) -> bool:
        return bool(self.bodies)

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def stop(self) -> None:
        self.process.terminate()
        self._end()

    def _end(self) -> None:
        self.process.wait(60)
        self._reader.join(60)


Join = Callable[..., Member]


@pytest.fixture
def join(at: str, group: str, topic: str) -> Iterator[Join]:
    """Start members of the test's group."""
    members: list[Member] = []

    def started(pause_s: float = 0.0, name_server: str = at) -> Member:
        members.append(Member(name_server, group, topic, pause_s))
        return members[-1]

    yield started
    for member in members:
        if member.process.poll() is None:
            member.kill()


def test_two_processes_share_a_group_and_each_message_is_delivered_once(
    topic: str, producer: Producer, join: Join
) -> None:
    """The second joins, and leaves, while the first is in the middle of its work."""
    bodies = [body.decode() for body in put(producer, topic, 300)]
    one = join(0.005)
    until(lambda: len(one.messages) >= 20)
    two = join(0.005)
    until(lambda: two.is_ready)
    more: list[str] = []
    while len(two.messages) < 20 or len(more) < 300:
        more.append(f"more-{len(more)}")
        producer.send(Message(topic, more[-1].encode()))
    two.stop()
    until(lambda: len(one.messages) + len(two.messages) >= len(bodies) + len(more))
    one.stop()
    assert Counter(one.messages + two.messages) == Counter(bodies + more)


def test_a_killed_members_queues_go_to_the_others_and_nothing_is_lost(
    at: str, group: str, topic: str, producer: Producer, join: Join
) -> None:
    one, two = join(0.002), join(0.002)
    until(lambda: one.is_ready and two.is_ready)
    bodies = [body.decode() for body in put(producer, topic, 200)]
    while len(one.messages) < 10 or len(two.messages) < 10:
        bodies.append(f"meanwhile-{len(bodies)}")
        producer.send(Message(topic, bodies[-1].encode()))
    two.kill()
    for number in range(200):
        bodies.append(f"later-{number}")
        producer.send(Message(topic, bodies[-1].encode()))
    until(lambda: set(bodies) <= set(one.messages + two.messages))
    with Admin(at) as admin:
        until(lambda: len(admin.members(group)) == 1)
    one.stop()
    again = Counter(one.messages + two.messages)
    assert set(again) == set(bodies)
    assert max(again.values()) <= 2, "only what the killed process had not told the broker came again"
    with Consumer(at, group, topic, idle_s=1.0) as consumer:
        assert list(consumer) == []


def test_a_member_waits_for_what_the_last_owner_is_processing(
    at: str, group: str, topic: str, producer: Producer
) -> None:
    put(producer, topic, 40)
    with Consumer(at, group, topic, auto_commit=False) as one:
        first = take(one, 40)
        with Consumer(at, group, topic, auto_commit=False) as two:
            assert two.poll(1.0) == [], "the first has not committed them"
            one.commit()
            until(lambda: (one.poll(0.02), len([queue for queue in two.queues if queue.topic == topic]) == 2)[1])
            assert two.poll(1.0) == [], "now it has"
            producer.send_many(Message(topic, b"x", queue_id=number % 4) for number in range(40))
            found = [message for each in (one, two) for message in take(each, 20)]
    assert len(first) == 40 and len(found) == 40


def test_a_member_leaves_the_others_their_queues_while_they_look_for_a_restarted_broker(
    tmp_path: Path, group: str
) -> None:
    """The second is stopped, so the first is alone with the broker for a while."""
    endpoint: Endpoint = start("mqlake", tmp_path / "store")
    at, name = endpoint.name_server, "shared"
    with Admin(at) as admin:
        admin.create_topic(name, 4)
    two = Member(at, group, name, 0.0)
    try:
        until(lambda: two.is_ready)
        with Consumer(at, group, name) as one, Producer(at, timeout_s=60.0) as producer:
            until(lambda: (one.poll(0.02), queues_of(one, name) in ([0, 1], [2, 3]))[1])
            mine = queues_of(one, name)
            two.process.send_signal(signal.SIGSTOP)
            endpoint.kill()
            endpoint = start("mqlake", tmp_path / "store", endpoint.ports)
            bodies = [f"{number}".encode() for number in range(40)]
            for number, body in enumerate(bodies):
                producer.send(Message(name, body, queue_id=number % 4))
            found = take(one, 20)
            assert one.poll(1.0) == [], "the rest is the second's"
            assert {message.queue_id for message in found} == set(mine) == set(queues_of(one, name))
            two.process.send_signal(signal.SIGCONT)
            until(lambda: len(two.messages) >= 20)
            assert one.poll(1.0) == []
    finally:
        two.kill()
        endpoint.stop()
    assert sorted([*(message.body.decode() for message in found), *two.messages], key=int) == [
        body.decode() for body in bodies
    ]


class Brokers:
    """A session whose one broker knows this member, and another one that has all queues."""

    client_id = "me"
    is_open = True

    def __init__(self) -> None:
        self.handlers: dict[int, object] = {}
        self.routes = self
        self.is_away = False

    async def get(self, topic: str) -> TopicRoute:
        return TopicRoute(topic, (QueueData("a", 2, 2, 6),), {"a": {0: "a:1"}})

    async def connection(self, address: str) -> Brokers:
        return self

    async def beat(self, addresses: object) -> None: ...

    async def call(self, address: str, code: RequestCode, fields: object, **more: object) -> Command:
        if self.is_away:
            raise NotConnected(address, "gone")
        if code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return Command(0, body=b'{"consumerIdList": ["me", "other"]}')
        table = object_map((MessageQueue("T", "a", number).to_json(), {}) for number in (0, 1))
        return Command(0, body=f'{{"mqTable": {table}}}'.encode())

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)


def test_a_claimed_queue_is_not_read_while_the_broker_cannot_say_who_has_it() -> None:
    async def main() -> None:
        async def read(each: RemoteQueue) -> None: ...

        session: Any = Brokers()
        data = ConsumerData("G", [Subscription("T")])
        membership = Membership(session, data, GroupPositions(session, "G", "first"), ordered=False, read=read)
        await membership.start()
        assert len(membership.queues) == 1 and not membership.reading
        session.is_away = True
        membership.wake()
        await asyncio.sleep(0.2)
        assert len(membership.queues) == 1 and not membership.reading

    asyncio.run(main())


def queues_of(consumer: Consumer, topic: str) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == topic]


def test_a_queue_that_a_topic_no_longer_has_is_left_as_soon_as_the_broker_says_so(
    at: str, endpoint: Endpoint, group: str, topic: str
) -> None:
    """The route that the consumer knows is still young."""
    if endpoint.kind != "mqlake":
        pytest.skip("RocketMQ 4 refuses with a code that says nothing")
    with Consumer(at, group, topic) as consumer, Admin(at) as admin:
        until(lambda: queues_of(consumer, topic) == [0, 1, 2, 3])
        admin.delete_topic(topic)
        admin.create_topic(topic, 2)
        begun = time.monotonic()
        until(lambda: queues_of(consumer, topic) == [0, 1])
        assert time.monotonic() - begun < 10.0


def test_a_broker_that_is_killed_and_comes_back_is_survived(tmp_path: Path, group: str) -> None:
    """Every acknowledged message arrives; producer and consumer, in two processes, carry on by themselves."""
    endpoint: Endpoint = start("mqlake", tmp_path / "store")
    name = "survivors"
    member = Member(endpoint.name_server, group, name, 0.0)
    try:
        until(lambda: member.is_ready)
        acknowledged: list[str] = []
        with Producer(endpoint.name_server, timeout_s=60.0) as producer:
            for round_ in range(3):
                for number in range(100):
                    acknowledged.append(f"{round_}-{number}")
                    producer.send(Message(name, acknowledged[-1].encode()))
                endpoint.kill()
                endpoint = start("mqlake", tmp_path / "store", endpoint.ports)
            producer.send(Message(name, b"end"))
            until(lambda: {*acknowledged, "end"} <= set(member.messages))
    finally:
        member.kill()
        endpoint.stop()
    assert set(member.messages) == {*acknowledged, "end"}
