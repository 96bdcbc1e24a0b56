"""Runs cases of the C++ client (through its Python wrapper) and prints a JSON line for each.

driver.py NAME_SERVER PREFIX PARALLEL CASE...
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage, SendStatus
from rocketmq.exceptions import RocketMQException
from rocketmq.ffi import MessageModel, _CConsumeStatus

PATIENCE = 90.0
INSTANCES = itertools.count()
KEPT: list[object] = []  # clients live until the process ends: their destructors would stop them a second time


class Refused(Exception):
    """A message is to come again."""


class Run:
    """The surroundings of one case: names, clients that are stopped at its end, and the counts that it reports."""

    def __init__(self, name_server: str, prefix: str, name: str) -> None:
        self.name_server = name_server
        self.topic = self.group = f"{prefix}-{name}"
        self.counts: dict[str, object] = {}
        self.closing: list[Callable[[], None]] = []

    def producer(self, **options: Any) -> Producer:
        producer = Producer(f"{self.group}-producer-{next(INSTANCES)}", timeout=20000, **options)
        producer.set_namesrv_addr(self.name_server)
        producer.start()
        KEPT.append(producer)
        self.closing.append(producer.shutdown)
        return producer

    def push(
        self,
        handle: Callable[[Any], None],
        group: str | None = None,
        expression: str = "*",
        orderly: bool = False,
        model: MessageModel = MessageModel.CLUSTERING,
    ) -> Callable[[], None]:
        consumer = PushConsumer(group or self.group, orderly=orderly, message_model=model)
        consumer.set_namesrv_addr(self.name_server)
        consumer.set_instance_name(f"i{next(INSTANCES)}")
        consumer.set_thread_count(4)
        consumer.subscribe(self.topic, handle, expression)
        consumer._register_callback(lambda _, message: status_of(handle, message))
        consumer.start()
        KEPT.append(consumer)
        stopped: list[bool] = []

        def stop() -> None:
            if not stopped:
                stopped.append(True)
                consumer.shutdown()

        self.closing.append(stop)
        return stop

    def inbox(self, group: str | None = None, expression: str = "*") -> Inbox:
        inbox = Inbox()
        self.push(inbox.add, group, expression)
        return inbox

    def message(self, body: str | bytes) -> Message:
        message = Message(self.topic)
        message.set_body(body)
        return message

    def send(self, producer: Producer, prefix: str, count: int) -> list[str]:
        bodies = [f"{prefix}{i}" for i in range(count)]
        for body in bodies:
            accepted(producer.send_sync(self.message(body)))
        return bodies


class Inbox:
    """What consumers got, in the order of arrival."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int, float, dict[str, Any]]] = []

    def add(self, message: Any) -> None:
        body = message.body
        facts = {
            "tags": message.tags,
            "keys": message.keys,
            "size": len(body),
            "offset": message.queue_offset,
            "times": message.reconsume_times,
            "colour": message.get_property("colour"),
            "id": message.id,
        }
        text = body.decode("utf-8") if len(body) < 10000 else ""
        self.got.append((text, message.queue_id, time.monotonic(), {**facts, "body": body}))

    def bodies(self) -> list[str]:
        return [one[0] for one in list(self.got)]

    def until(self, count: int) -> None:
        until(lambda: len(self.got) >= count, lambda: f"got {len(self.got)} of {count}")

    def settle(self) -> None:
        before = -1
        while before != len(self.got):
            before = len(self.got)
            time.sleep(0.4)

    def expect(self, run: Run, bodies: list[str]) -> None:
        self.until(len(bodies))
        self.settle()
        run.counts["received"] = len(self.got)
        equal(sorted(bodies), sorted(self.bodies()), "the bodies received")


def status_of(handle: Callable[[Any], None], message: object) -> int:
    """The wrapper's own callback loses the status of a refusal: it raises instead of returning it."""
    try:
        handle(RecvMessage(message))
    except Refused:
        return int(_CConsumeStatus.RECONSUME_LATER.value)
    return int(_CConsumeStatus.CONSUME_SUCCESS.value)


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what()}"
        time.sleep(0.02)


def equal(expected: object, found: object, what: str) -> None:
    assert expected == found, f"{what}: expected {expected!r:.500}, found {found!r:.500}"


def accepted(result: Any) -> Any:
    equal(SendStatus.OK, result.status, "the status of a send")
    return result


def send_sync(run: Run) -> None:
    producer = run.producer()
    results = [accepted(producer.send_sync(run.message(f"sync-{i}"))) for i in range(20)]
    run.counts["ids"] = len({result.msg_id for result in results})
    run.inbox().expect(run, [f"sync-{i}" for i in range(20)])


def send_async(run: Run) -> None:
    producer = run.producer()
    answered: list[Any] = []
    for i in range(100):
        producer.send_async(run.message(f"async-{i}"), answered.append, lambda error: answered.append(None))
    until(lambda: len(answered) == 100, lambda: f"{len(answered)} answers")
    run.counts["accepted"] = sum(1 for one in answered if one is not None and one.status == SendStatus.OK)
    run.inbox().expect(run, [f"async-{i}" for i in range(100)])


def send_oneway(run: Run) -> None:
    producer = run.producer()
    accepted(producer.send_sync(run.message("oneway-0")))  # connects: this client may drop one-way messages until then
    for i in range(1, 20):
        producer.send_oneway(run.message(f"oneway-{i}"))
    run.inbox().expect(run, [f"oneway-{i}" for i in range(20)])


def send_properties(run: Run) -> None:
    producer = run.producer()
    message = run.message("žluťoučký 消息 🚀")
    message.set_tags("TagA")
    message.set_keys("k1")
    message.set_property("colour", "red 🚀")
    accepted(producer.send_sync(message))
    inbox = run.inbox()
    inbox.expect(run, ["žluťoučký 消息 🚀"])
    facts = inbox.got[0][3]
    found = [facts["tags"], facts["keys"], facts["colour"], facts["times"]]
    equal([b"TagA", b"k1", "red 🚀".encode(), 0], found, "tag, key, property")


def send_selector(run: Run) -> None:
    producer = run.producer()
    bodies = []
    for i in range(24):
        bodies.append(f"order-{i % 6}-{i // 6}")
        accepted(producer.send_orderly(run.message(bodies[-1]), i % 6))
    inbox = run.inbox()
    inbox.expect(run, bodies)
    for body, queue, _, _ in inbox.got:
        equal(int(body.split("-")[1]) % 4, queue, f"the queue of {body}")


def body_case(run: Run, body: bytes) -> None:
    producer = run.producer(max_message_size=8 << 20)
    accepted(producer.send_sync(run.message(body)))
    inbox = run.inbox()
    until(lambda: len(inbox.got) >= 1, lambda: "the message arrives")
    inbox.settle()
    run.counts["received"] = len(inbox.got)
    assert inbox.got[0][3]["body"] == body, f"another body of {inbox.got[0][3]['size']} bytes"


def delay_level(run: Run) -> None:
    producer = run.producer()
    inbox = run.inbox()
    accepted(producer.send_sync(run.message("now")))
    until(lambda: len(inbox.got) == 1, lambda: "the consumer works")
    message = run.message("later")
    message.set_delay_time_level(5)
    start = time.monotonic()
    accepted(producer.send_sync(message))
    inbox.expect(run, ["now", "later"])
    waited = inbox.got[1][2] - start
    assert waited >= 1.9, f"delivered after {waited} s instead of 2"


def oversize(run: Run) -> None:
    producer = run.producer(max_message_size=8 << 20, compress_level=0)
    try:
        producer.send_sync(run.message(noise((4 << 20) + 1)))
        raise AssertionError("accepted")
    except RocketMQException:
        run.counts["refused"] = 1
    run.inbox().expect(run, run.send(producer, "after-", 4))


def push_concurrent(run: Run) -> None:
    inbox = run.inbox()
    inbox.expect(run, run.send(run.producer(), "a-", 60))


def push_orderly(run: Run) -> None:
    inbox = Inbox()
    run.push(inbox.add, orderly=True)
    producer = run.producer()
    expected: dict[int, list[str]] = {}
    for i in range(15):
        for queue in range(4):
            accepted(producer.send_orderly(run.message(f"{queue}/{i}"), queue))
            expected.setdefault(queue, []).append(f"{queue}/{i}")
    until(lambda: len(inbox.got) >= 60, lambda: f"{len(inbox.got)} of 60")
    inbox.settle()
    run.counts["received"] = len(inbox.got)
    found: dict[int, list[str]] = {}
    for body, queue, _, _ in inbox.got:
        found.setdefault(queue, []).append(body)
    equal(expected, found, "each queue's order")


def push_broadcast(run: Run) -> None:
    inboxes = [Inbox(), Inbox()]
    for inbox in inboxes:
        run.push(inbox.add, model=MessageModel.BROADCASTING)
    time.sleep(1)  # this client begins at the end of a queue
    bodies = run.send(run.producer(), "to-all-", 20)
    for inbox in inboxes:
        inbox.expect(run, bodies)


def long_poll(run: Run) -> None:
    inbox = run.inbox()
    producer = run.producer()
    run.send(producer, "warm-", 8)
    until(lambda: len(inbox.got) == 8, lambda: "the consumer works")
    time.sleep(0.5)
    for i in range(10):
        start = time.monotonic()
        run.send(producer, f"m{i}-", 1)
        inbox.until(9 + i)
        waited = inbox.got[8 + i][2] - start
        assert waited < 4, f"a message waited {waited} s: a held pull was not woken"
    run.counts["received"] = len(inbox.got)


def filter_tag(run: Run) -> None:
    producer = run.producer()
    for i in range(12):
        message = run.message(f"{'ABC'[i % 3]}{i}")
        message.set_tags("ABC"[i % 3])
        accepted(producer.send_sync(message))
    accepted(producer.send_sync(run.message("no tag")))
    everything = ["A0", "B1", "C2", "A3", "B4", "C5", "A6", "B7", "C8", "A9", "B10", "C11", "no tag"]
    total = 0
    for suffix, expression, first in (
        ("", "A || C", "AC"),
        ("-b", "B", "B"),
        ("-all", "*", "ABCn"),
        ("-none", "Z", ""),
    ):
        expected = [body for body in everything if body[0] in first]
        run.inbox(run.group + suffix, expression).expect(run, expected)
        total += len(expected)
    run.counts["received"] = total


def restart(run: Run) -> None:
    producer = run.producer()
    bodies = run.send(producer, "a-", 20)
    inbox = Inbox()
    for part in range(3):
        stop = run.push(inbox.add)
        inbox.until(len(bodies))
        time.sleep(0.3)
        stop()
        bodies += run.send(producer, f"between-{part}-", 10)
    run.push(inbox.add)
    inbox.expect(run, bodies)


def rebalance_two(run: Run) -> None:
    inboxes = [Inbox(), Inbox()]
    for inbox in inboxes:
        run.push(inbox.add)
    producer = run.producer()

    def everywhere(prefix: str, count: int) -> None:
        for i in range(count):
            accepted(producer.send_orderly(run.message(f"{prefix}{i}"), i % 4))

    sent = 0
    for round_number in range(100):
        everywhere(f"probe-{round_number}-", 4)
        sent += 4
        time.sleep(0.5)
        queues = [{one[1] for one in inbox.got[-20:]} for inbox in inboxes]
        if round_number >= 4 and all(len(some) >= 2 for some in queues):
            break
    until(lambda: len({body for inbox in inboxes for body in inbox.bodies()}) == sent, lambda: "all probes arrive")
    before = [len(inbox.got) for inbox in inboxes]
    everywhere("shared-", 40)
    until(lambda: sum(len(inbox.got) for inbox in inboxes) >= sum(before) + 40, lambda: "all messages arrive")
    inboxes[0].settle()
    counts = [len(inbox.got) - count for inbox, count in zip(inboxes, before, strict=True)]
    run.counts.update(received=sum(counts), first=counts[0], second=counts[1])


def two_groups(run: Run) -> None:
    inboxes = [run.inbox(f"{run.group}-1"), run.inbox(f"{run.group}-2")]
    bodies = run.send(run.producer(), "m-", 20)
    for inbox in inboxes:
        inbox.expect(run, bodies)
    run.counts["received"] = sum(len(inbox.got) for inbox in inboxes)


def pull(run: Run) -> None:
    bodies = run.send(run.producer(), "m", 20)
    consumer = PullConsumer(run.group)
    consumer.set_namesrv_addr(run.name_server)
    consumer.start()
    KEPT.append(consumer)
    run.closing.append(consumer.shutdown)
    found = [message.body.decode() for message in consumer.pull(run.topic)]
    run.counts["received"] = len(found)
    equal(sorted(bodies), sorted(found), "the bodies pulled")


def retry_later(run: Run) -> None:
    inbox = Inbox()

    def handle(message: Any) -> None:
        inbox.add(message)
        if message.body.startswith(b"bad") and message.reconsume_times < 2:
            raise Refused

    run.push(handle)
    producer = run.producer()
    good, bad = run.send(producer, "good-", 4), run.send(producer, "bad-", 2)
    inbox.expect(run, good + bad * 3)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size).replace(b"\0", b"\1")  # bodies are C strings on their way in


CASES: dict[str, Callable[[Run], None]] = {
    "send-sync": send_sync,
    "send-async": send_async,
    "send-oneway": send_oneway,
    "send-properties": send_properties,
    "send-selector": send_selector,
    "body-1-byte": lambda run: body_case(run, b"x"),
    "body-3-mib-noise": lambda run: body_case(run, noise(3 << 20)),
    "body-3-mib-text": lambda run: body_case(run, bytes(97 + i % 23 for i in range(3 << 20))),
    "delay-level": delay_level,
    "oversize": oversize,
    "push-concurrent": push_concurrent,
    "push-orderly": push_orderly,
    "push-broadcast": push_broadcast,
    "long-poll": long_poll,
    "filter-tag": filter_tag,
    "offsets-restart": restart,
    "rebalance-two": rebalance_two,
    "two-groups": two_groups,
    "pull": pull,
    "retry-later": retry_later,
}
PRINTING = threading.Lock()


def run_case(name: str, name_server: str, prefix: str) -> None:
    start = time.monotonic()
    run = Run(name_server, prefix, name)
    line: dict[str, object] = {"case": name, "ok": True, "counts": run.counts}
    try:
        CASES[name](run)
    except BaseException as error:
        line.update(ok=False, detail=f"{type(error).__name__}: {error}")
    line["milliseconds"] = round(1000 * (time.monotonic() - start))
    with PRINTING:
        print(json.dumps(line), flush=True)
    for close in reversed(run.closing):
        close()


def in_own_process(name: str, name_server: str, prefix: str) -> None:
    """Run a case in a child: this client's threads do not survive each other's ends in one process."""
    command = [sys.executable, __file__, name_server, prefix, "0", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = done.stdout.strip() or json.dumps(
        {"case": name, "ok": False, "counts": {}, "detail": f"status {done.returncode}: {done.stderr[-500:]}"}
    )
    with PRINTING:
        print(line, flush=True)


def main() -> None:
    name_server, prefix, parallel, *names = sys.argv[1:]
    if parallel == "0":
        run_case(names[0], name_server, prefix)
        os._exit(0)  # without the destructors of the clients
    with ThreadPoolExecutor(int(parallel)) as pool:
        for done in [pool.submit(in_own_process, name, name_server, prefix) for name in names]:
            done.result()


if __name__ == "__main__":
    main()
