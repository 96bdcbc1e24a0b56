"""Mutated frames of real clients, at the decoder and at a broker process: no crash, no hang, memory flat."""

from __future__ import annotations

import random
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mqlake.errors import BadFrame
from mqlake.remoting.frames import FrameReader
from tests.broker.test_serve import start
from tests.broker.wire import Wire
from tests.golden.wire_frames import all_exchanges

FRAMES = [each.request.data for each in all_exchanges() if len(each.request.data) < 4096]
MAKES_TOPICS_OR_GROUPS = re.compile(rb'"code":(17|200|100)\D')
"""A topic for every mutated name would be memory well used, so these are not sent to the broker."""
TOGETHER = 25
FLAT_BYTES = 24 << 20


def mutated(count: int, seed: int, frames: list[bytes] = FRAMES) -> Iterator[bytes]:
    """Yield real frames with bytes changed, cut out, repeated or put in, most of them with a whole length."""
    chance = random.Random(seed)
    for _ in range(count):
        frame = bytearray(chance.choice(frames))
        for _ in range(chance.randrange(4)):
            at = chance.randrange(8, len(frame))
            kind = chance.randrange(8)
            if kind == 0:
                del frame[at : at + chance.randrange(1, 9)]
            elif kind == 1:
                frame[at:at] = frame[at : at + chance.randrange(1, 9)]
            elif kind == 2:
                frame[at:at] = chance.choice((b"9" * 20, b'"', b"\\u12", b"{", b"-1", b"\xff\xfe", b"null"))
            else:
                frame[at] = chance.randrange(256)
        frame[0:4] = (len(frame) - 4).to_bytes(4, "big")
        if chance.random() < 0.05:
            frame[chance.randrange(8)] = chance.randrange(256)
        yield bytes(frame)


def memory_of(pid: int | str = "self") -> int:
    """Return the memory of a process without files that it maps."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) << 10


def decode(count: int, seed: int) -> tuple[Counter[str], int]:
    """Decode mutated frames, each with a reader of its own, so that none is swallowed by the one before.

    Return how they ended, and how much memory grew after the first tenth.
    """
    ends: Counter[str] = Counter()
    before = 0
    for number, frame in enumerate(mutated(count, seed)):
        ends[end_of(frame)] += 1
        if number == count // 10:
            before = memory_of()
    return ends, memory_of() - before


def end_of(frame: bytes) -> str:
    try:
        return "understood" if FrameReader().feed(frame) else "incomplete"
    except BadFrame:
        return "refused"


def rounds(frames: Iterator[bytes]) -> Iterator[tuple[list[bytes], str]]:
    """Yield what one connection sends: whole frames, and last one that ends it, so that every frame is looked at."""
    together: list[bytes] = []
    for frame in frames:
        together.append(frame)
        end = end_of(frame)
        if end != "understood" or len(together) == TOGETHER:
            yield together, end
            together = []
    if together:
        yield together, "understood"


def send_round(address: str, data: bytes, end: str) -> None:
    """Send on a connection of its own and read until the broker closes it: then it has looked at everything.

    A refused frame makes the broker hang up by itself; else it does when the sender says that no more comes.
    """
    with Wire(address) as wire:
        try:
            wire.socket.sendall(data)
            if end != "refused":
                wire.socket.shutdown(socket.SHUT_WR)
            drain(wire.socket)
        except ConnectionError:
            assert end == "refused", "the broker hung up on frames that it understands"


def drain(connection: socket.socket) -> None:
    while connection.recv(1 << 20):  # TimeoutError after 30 s: the broker hangs
        pass


class Attacked(NamedTuple):
    """How an attack ended."""

    frames: int
    understood: int
    connections: int
    grown: int


def attack(tmp_path: Path, count: int, seed: int) -> Attacked:
    """Send mutated frames to a broker process."""
    config = tmp_path / "broker.conf"
    config.write_text("autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\n")
    quiet = tmp_path / "log"  # a line for each frame that is refused
    with quiet.open("wb") as log:
        process, _, address = start(tmp_path / "store", "--config", str(config), stderr=log)
    frames = [frame for frame in FRAMES if not MAKES_TOPICS_OR_GROUPS.search(frame)]
    sent = understood = connections = before = 0
    try:
        for together, end in rounds(mutated(count, seed, frames)):
            send_round(address, b"".join(together), end)
            sent += len(together)
            understood += len(together) - (end != "understood")
            connections += 1
            if not before and sent >= count // 5:
                before = memory_of(process.pid)
        with Wire(address) as wire:
            assert wire.put("BenchmarkTest", b"x").code == 0
        grown = memory_of(process.pid) - before
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
    refused = quiet.read_bytes().count(b"the connection is closed")
    assert refused > connections // 2, "the broker itself saw the bad frames"
    return Attacked(sent, understood, connections, grown)


def test_mutated_frames_are_decoded_or_refused() -> None:
    ends, grown = decode(20_000, seed=1)
    assert ends.total() == 20_000 and min(ends.values()) > 100 and len(ends) == 3
    assert grown < FLAT_BYTES


def test_mutated_frames_never_stop_a_broker(tmp_path: Path) -> None:
    done = attack(tmp_path, 20_000, seed=2)
    assert done.frames == 20_000 and done.understood > 5_000
    assert done.grown < FLAT_BYTES


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_mutated_frames_are_decoded_or_refused() -> None:
    ends, grown = decode(1_000_000, seed=3)
    print(f"\n1,000,000 frames at the decoder: {dict(ends)}, memory grew by {grown >> 10} KiB")
    assert grown < FLAT_BYTES


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_mutated_frames_never_stop_a_broker(tmp_path: Path) -> None:
    done = attack(tmp_path, 1_000_000, seed=4)
    print(f"\nat a broker: {done}, memory grew by {done.grown >> 10} KiB")
    assert done.frames == 1_000_000
    assert done.grown < FLAT_BYTES
