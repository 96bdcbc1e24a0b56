"""A log for predicates to stumble over: odd names, empty texts, internal topics, times that run back."""

from __future__ import annotations

from pathlib import Path
from random import Random

from mqlake.files.names import file_name
from tests.kernel.records import Parts

FIRST_MS = 1_767_225_600_000  # 2026-01-01 in UTC
TOPICS = (
    "orders",
    "Orders",
    "it's",
    'a"b',
    "back\\slash",
    "a,b",
    '["a"]',
    " spaced ",
    "Größe",
    "%RETRY%group",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "rmq_sys_wheel_timer",
    "MQLAKE_SINK",
)
TAGS = (None, "", "a", "A", "a b", "it's", "null", "ä")
KEYS = ("", "k1", "k2", "K1", "it's", "k1 k2", " k1", "null")
TIMES = (-62_000, 1, FIRST_MS - 1, FIRST_MS, FIRST_MS + 1, FIRST_MS + 10_000_000, 2**61)
"""Also times that no clock shows: no checksum covers a record's time."""
QUEUES = (0, 1, 3, -1, 2**31 - 1)
FLAGS = (0, 0, 0, 0x4, 0x8, 0xC)


def write_odd_log(path: Path, count: int = 1_500) -> None:
    """Write a log file of such messages. Their clock steps back by a day, again and again."""
    chosen, log = Random(7), bytearray()
    for number in range(count):
        time = FIRST_MS + number * 1000 - number // 300 * 86_400_000
        time = chosen.choice(TIMES) if chosen.random() < 0.2 else time
        log += Parts(
            chosen.choice(TOPICS).encode(),
            b"%d" % number,
            properties(chosen.choice(TAGS), chosen.choice(KEYS)),
            queue_id=chosen.choice(QUEUES),
            sys_flag=chosen.choice(FLAGS),
            timestamp=time - 1,  # `Parts` stores the next millisecond
        ).record(len(log))
    (path / "commitlog").mkdir(parents=True)
    (path / "commitlog" / file_name(0)).write_bytes(log + bytes((1 << 20) - len(log)))
    (path / "abort").touch()


def properties(tags: str | None, keys: str) -> bytes:
    pairs = {"TAGS": tags, "KEYS": keys or None}
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items() if value is not None).encode()
