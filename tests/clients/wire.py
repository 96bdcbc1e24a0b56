"""The few requests that a suite itself sends before its clients start: topics are made, with their queues."""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

UPDATE_AND_CREATE_TOPIC = 17
GET_ROUTE = 105
_OPAQUE = itertools.count(1)


def request(
    address: str, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
) -> tuple[dict[str, Any], bytes]:
    """Send one request on a connection of its own. Return the response's header and body."""
    host, port = address.rsplit(":", 1)
    header = {
        "code": code,
        "language": "JAVA",
        "version": 513,
        "opaque": next(_OPAQUE),
        "flag": 0,
        "extFields": {name: str(value) for name, value in (fields or {}).items()},
        "serializeTypeCurrentRPC": "JSON",
    }
    encoded = json.dumps(header).encode()
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body)
        (size,) = struct.unpack(">I", _exactly(connection, 4))
        frame = _exactly(connection, size)
    length = struct.unpack(">I", frame[:4])[0] & 0xFFFFFF
    return json.loads(frame[4 : 4 + length]), frame[4 + length :]


def create_topic(broker: str, topic: str, queues: int = 4, permission: int = 6) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": permission,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    header, _ = request(broker, UPDATE_AND_CREATE_TOPIC, fields)
    assert header["code"] == 0, f"topic {topic} was not made: {header}"


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError(f"the connection ended after {len(data)} of {size} bytes")
        data += part
    return data
