"""Sample reports: an ordinary one, an empty one, and some that are hard to draw."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from mqlake.report.data import (
    Bucket,
    CheckFacts,
    Damage,
    FindingFacts,
    Gate,
    LagFacts,
    LakeFacts,
    LakeStore,
    LakeTable,
    Report,
    Run,
    Stage,
    Step,
    StoreFacts,
    TopicFacts,
    TopKey,
    WorkerFacts,
)

NOW = 1_767_225_600_000
HOSTILE = '<script>alert("x")</script>&amp;\'"'


def busy(topic_count: int = 12, *, name: str = "orders", hours: int = 26) -> Report:
    """One day of a shop: traffic by day and night, most of it in a few topics."""
    rng = random.Random(3)
    minutes = range(hours * 60)
    shape = [1.4 - math.cos(2 * math.pi * minute / 1440) + 0.3 * rng.random() for minute in minutes]
    steps = [
        Step(NOW + minute * 60_000, int(9_000 * s), int(4_100_000 * s))
        for minute, s in zip(minutes, shape, strict=True)
    ]
    messages, size = sum(step.messages for step in steps), sum(step.bytes for step in steps)
    weights = [1 / (number + 1) for number in range(topic_count)]
    topics = [
        TopicFacts(
            *(f"{name}-{number}", int(messages * w / sum(weights)), int(size * w / sum(weights)), 0.4 + number),
            int(messages * w / 30) if number % 3 else None,
            tag_count=number % 5 * 25,
            more_tags=number % 5 == 4,
            retries=number % 4 * 1_100,
            dead_letters=number % 7 // 6 * 12,
            trend=[int(9_000 * w * s) for s in shape[number :: len(shape) // 38]][:38],
        )
        for number, w in enumerate(weights)
    ]
    return Report(
        title="broker-a/store",
        made_ms=NOW + hours * 3_600_000 + 120_000,
        stores=[StoreFacts("/data/broker-a/store", 1 << 30, (1 << 30) + size, 1 << 30, (1 << 30) + size)],
        messages=messages,
        bytes=size,
        body_bytes=int(size * 0.7),
        internal_messages=4_321,
        queue_count=topic_count * 4,
        steps=steps,
        topics=topics,
        sizes=[Bucket(1 << n, 2 << n, int(messages * math.exp(-((n - 8.6) ** 2)))) for n in range(6, 15)],
        latencies=[Bucket(n, n + 1, int(messages / (n + 1) ** 2 / 2)) for n in range(8)]
        + [Bucket(8 << n, 16 << n, messages // (40 << 2 * n)) for n in range(9)],
        max_latency_ms=3_912,
        key_count=messages,
        top_keys=[
            TopKey(f"{name}-{n % 3}", f"customer-{n * 7919 % 1000}", 90_000 // (n + 1), 90_000 // (n + 1) + n % 2 * 40)
            for n in range(24)
        ],
        lag=[
            LagFacts("/data/broker-a/store", "billing", f"{name}-0", 4, 18_220, NOW + hours * 3_600_000),
            LagFacts("/data/broker-a/store", "search", f"{name}-1", 4, 911, NOW + hours * 3_600_000 + 90_000),
            LagFacts("/data/broker-a/store", "audit", f"{name}-0", 4, 0, None),
        ],
        damage=[Damage("/data/broker-a/store", 1_081_344, 306, "the body's CRC differs from the one in its header")],
        workers=[
            WorkerFacts("/data/broker-a/store", "dispatch", "failed", "OSError: [Errno 5] Input/output error", NOW)
        ],
        lake=LakeFacts(
            path="/data/lake",
            version=412,
            committed_ms=NOW + hours * 3_600_000,
            tables=[
                LakeTable("messages", 96, int(messages * 0.9), size // 5),
                LakeTable("stats", 40, 90_000, 2_200_000),
            ],
            stores=[LakeStore("/data/broker-a/store", 0, (1 << 30) + int(size * 0.9))],
            run=Run(
                "failed", NOW, NOW + hours * 3_600_000, 1_871, "StageFailed: archive of it: No space left on device"
            ),
            stages=[
                Stage(name, messages, size, rows_per_s, "10,220,110,024", 1_200_000, NOW + hours * 3_600_000, error)
                for name, rows_per_s, error in (
                    ("check", 1_240_000.0, None),
                    ("archive", 310_000.0, "StageFailed: archive of it: No space left on device"),
                )
            ],
            check=CheckFacts(
                bytes=int(size * 0.9),
                counts={"error": 1, "warning": 1_300},
                worst=[
                    FindingFacts(
                        *("/data/broker-a/store", severity, promise, f"{file}/00000000000000000000 at {n * 20:,}"),
                        *("0x1234", cost),
                    )
                    for n, (severity, promise, file, cost) in enumerate(
                        [("error", "record-crc", "commitlog", "its message cannot be read; readers skip it")]
                        + [("warning", "queue-entry", f"consumequeue/{name}-0/3", "a message is not delivered")] * 999
                    )
                ],
            ),
        ),
        gates=[Gate("/data/broker-a/store", "lake-3fa9", (1 << 30) + int(size * 0.9), (1 << 30) + size)],
    )


def empty() -> Report:
    return Report(title="new", made_ms=NOW, stores=[StoreFacts("/data/new", 0, 0, 0, 0)])


def one_message() -> Report:
    return Report(
        title="one",
        made_ms=NOW + 5_000,
        stores=[StoreFacts("/data/one", 0, 132, 0, 132)],
        messages=1,
        bytes=132,
        body_bytes=5,
        queue_count=1,
        steps=[Step(NOW, 1, 132)],
        step_ms=1,
        topics=[TopicFacts("orders", 1, 132, 0.0, None, trend=[0, 1, 0])],
        sizes=[Bucket(128, 256, 1)],
        latencies=[Bucket(0, 1, 1)],
    )


def hostile() -> Report:
    """Every outside text is markup or very long."""
    long = "very-long-name-" * 30
    return Report(
        title=HOSTILE,
        made_ms=NOW,
        stores=[StoreFacts(f"/data/{HOSTILE}", 0, 1 << 50, 0, 1 << 50), StoreFacts(f"/{long}", 5, 6, 5, 6)],
        messages=10**13,
        bytes=1 << 50,
        steps=[Step(NOW, 10**13, 1 << 50), Step(NOW + 400 * 86_400_000, 1, 1)],
        step_ms=86_400_000,
        topics=[TopicFacts(HOSTILE, 10**13, 1 << 50, 2.0**31, 10**12), TopicFacts(long, 1, 1, 0.01, 1, trend=[1])],
        sizes=[Bucket(1 << n, 2 << n, 10**n) for n in range(14)],
        latencies=[Bucket(0, 1, 0), Bucket(1 << 31, 1 << 32, 10**13)],
        max_latency_ms=1 << 31,
        key_count=10**13,
        top_keys=[TopKey(HOSTILE, HOSTILE, 10**12, 10**13), TopKey(long, long, 2, 2)],
        lag=[LagFacts(HOSTILE, HOSTILE, HOSTILE, 1, 10**12, 0), LagFacts(long, long, long, 1, 1, NOW)],
        workers=[WorkerFacts(HOSTILE, HOSTILE, HOSTILE, HOSTILE * 100, 1 << 60)] * 7,
        damage=[Damage(HOSTILE, 1, 2, HOSTILE)] * 12 + [Damage(long, None, None, long)],
        lake=LakeFacts(
            path=HOSTILE,
            version=1,
            committed_ms=None,
            tables=[LakeTable(HOSTILE, 1, 1, 1)],
            stores=[LakeStore(HOSTILE, 0, 1), LakeStore(f"/data/{HOSTILE}", 1 << 49, 3 << 49)],
            run=Run(HOSTILE, 0, 1 << 60, 10**12, HOSTILE * 100),
            stages=[Stage(HOSTILE, 10**13, 1 << 50, None, HOSTILE, 1 << 50, None, HOSTILE)],
            check=CheckFacts(
                bytes=1 << 50,
                counts={HOSTILE: 12},
                worst=[FindingFacts(*[HOSTILE] * 6)] * 11 + [FindingFacts(*[long] * 6)],
            ),
        ),
        gates=[Gate(HOSTILE, HOSTILE, 0, 5)],
    )


SAMPLES: dict[str, Callable[[], Report]] = {
    "busy": busy,
    "empty": empty,
    "one": one_message,
    "hostile": hostile,
    "many": lambda: busy(500, name="topic-of-a-team-with-a-name", hours=24 * 40),
}
