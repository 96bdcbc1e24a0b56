"""A blocking client for tests: one connection, commands out and in."""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Self

from mqlake.kernel import Command, encode_command
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import ConsumerData, Heartbeat, Subscription, decode_records, encode_properties
from mqlake.remoting.command import request
from mqlake.remoting.frames import FrameReader

TIMEOUT_S = 30.0


class Wire:
    """One connection to a broker."""

    def __init__(self, address: str, source: str = "") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S, source_address=(source, 0))
        self._reader = FrameReader()
        self._come: list[Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, command: Command) -> Command:
        self.socket.sendall(encode_command(command))
        return command

    def receive(self) -> Command:
        """Return the next command; EOFError if the broker closed the connection."""
        while not self._come:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self._come += self._reader.feed(data)
        return self._come.pop(0)

    def answer_to(self, asked: Command) -> Command:
        """Return the response to a request; other commands stay for later."""
        aside: list[Command] = []
        while True:
            command = self.receive()
            if command.is_response and command.opaque == asked.opaque:
                self._come = aside + self._come
                return command
            aside.append(command)

    def next_request(self, code: int) -> Command:
        """Return the next request of the broker with this code."""
        aside: list[Command] = []
        while True:
            command = self.receive()
            if not command.is_response and command.code == code:
                self._come = aside + self._come
                return command
            aside.append(command)

    def call(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return self.answer_to(self.send(request(code, fields, body)))

    # ---- what clients do

    def put(self, topic: str, body: bytes, *, queue_id: int = 0, **properties: str) -> Command:
        return self.call(310, send_fields(topic, queue_id, properties), body)

    def pull(self, group: str, topic: str, queue_id: int = 0, offset: int = 0, **more: str) -> Command:
        return self.call(11, pull_fields(group, topic, queue_id, offset, **more))

    def arrived(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """Wait for messages in a queue and return them."""
        answer = self.pull("TEST_READER", topic, queue_id, sysFlag="6", suspendTimeoutMillis="20000")
        return decode_records(answer.body)

    def beat(self, client_id: str, group: str, *topics: str, producer: str | None = None) -> Command:
        consumers = [ConsumerData(group, [Subscription(topic, version=1) for topic in topics])] if group else []
        beat = Heartbeat(client_id, [producer] if producer else [], consumers)
        return self.call(34, body=beat.encode())


def send_fields(topic: str, queue_id: int = 0, properties: dict[str, str] | None = None) -> dict[str, str]:
    return {
        "a": "P",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "h": "0",
        "j": "0",
        "g": str(time.time_ns() // 1_000_000),
        "k": "false",
        "m": "false",
        "n": "broker-a",
        "i": encode_properties(properties or {}),
    }


def pull_fields(group: str, topic: str, queue_id: int = 0, offset: int = 0, **more: str) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        **more,
    }
