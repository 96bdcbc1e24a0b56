"""The messages of a batch: both kernels take the same ones, and refuse the same ones."""

from __future__ import annotations

import random
from typing import Any

from mqlake.errors import BadRequest
from mqlake.message import Message
from mqlake.remoting.bodies import encode_batch
from tests.kernel.twins import both, compiled, reference

WHOLE = encode_batch([Message("", b"one", tags="A"), Message("", b"", flag=3), Message("", b"x" * 300, keys="k")])


def outcome(kernel: Any, body: bytes) -> Any:
    pattern = kernel.Message("T", b"", queue_id=2, sys_flag=8, born_timestamp=17, born_host="127.0.0.1:5")
    try:
        found = kernel.messages_of_batch(body, pattern)
    except BadRequest as error:
        return str(error)
    return [
        (m.topic, m.queue_id, m.sys_flag, m.born_timestamp, m.born_host, m.flag, bytes(m.body), m.properties)
        for m in found
    ]


def test_a_message_of_a_batch_has_its_own_flag_body_and_properties_and_all_else_of_the_pattern() -> None:
    for kernel in both():
        common = ("T", 2, 8, 17, "127.0.0.1:5")
        assert outcome(kernel, WHOLE) == [
            (*common, 0, b"one", {"TAGS": "A"}),
            (*common, 3, b"", {}),
            (*common, 0, b"x" * 300, {"KEYS": "k"}),
        ]


def test_cut_and_mutated_batches_end_the_same_in_both_kernels() -> None:
    chance = random.Random(5)
    bodies = [WHOLE[:size] for size in range(len(WHOLE))]
    for _ in range(5000):
        body = bytearray(WHOLE)
        for _ in range(chance.randrange(1, 4)):
            body[chance.randrange(90)] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        bodies.append(bytes(body))
    outcomes = [[outcome(kernel, body) for body in bodies] for kernel in (reference, compiled())]
    assert outcomes[0] == outcomes[1]
    assert any(isinstance(each, str) for each in outcomes[0]) and any(isinstance(each, list) for each in outcomes[0])
