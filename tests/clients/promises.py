"""What every client must find when it runs a case: the promise in words, and the counts that it must report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROMISES: dict[str, tuple[str, dict[str, Any]]] = {
    "send-sync": ("every sync send is stored once and consumed once", {"received": 20, "ids": 20, "offset ids": 20}),
    "send-async": ("every async send is answered once and consumed once", {"accepted": 100, "received": 100}),
    "send-parallel": ("sends at once are answered and consumed once", {"accepted": 100, "received": 100}),
    "send-oneway": ("one-way sends are consumed once", {"received": 20}),
    "send-batch": (
        "a batch keeps its messages, their order and properties",
        {"received": 10, "ids": 10, "offset ids": 10},
    ),
    "send-properties": ("tags, keys, flag and properties arrive as sent", {"received": 1}),
    "send-unicode": ("bodies, tags, keys and properties may be any text", {"received": 1}),
    "send-selector": ("messages of one key go to one queue", {"received": 24}),
    "send-to-queue": ("a message goes to the queue that it names", {"received": 5, "queues": 4}),
    "body-1-byte": ("a body of one byte arrives", {"received": 1}),
    "body-3-mib-noise": ("a body of 3 MiB arrives", {"received": 1}),
    "body-3-mib-text": ("a compressed body of 3 MiB arrives", {"received": 1}),
    "body-compressed": ("compressed bodies arrive as they were", {"received": 5}),
    "delay-level": ("a message with a delay level comes when it is due", {"received": 2}),
    "timer-deliver": ("timed messages come at their time, in order of time", {"received": 3}),
    "timer-recall": ("a timed message that is recalled never comes", {"received": 1}),
    "topic-create": ("a client can make a topic with queues", {"queues": 3}),
    "topic-auto-create": ("the first send makes the topic", {"queues": 4}),
    "push-concurrent": ("a push consumer gets every message once", {"received": 60}),
    "push-orderly": ("an orderly consumer gets each queue in order", {"received": 60}),
    "push-orderly-suspend": ("a queue that is suspended goes on in order", {"received": 16, "tried": 18}),
    "push-broadcast": ("every broadcast consumer gets every message", {"received": 20}),
    "push-pop": ("a pop consumer gets every message, refused ones again", {"received": 22}),
    "push-server-rebalance": ("the broker assigns queues when asked to", {"received": 20}),
    "long-poll": ("a held pull is answered when a message arrives", {"received": 18}),
    "lock-takeover": ("queue locks pass on without a change of order", {"received": 40}),
    "filter-tag": ("consumers get the tags that they subscribed to", {"received": 25}),
    "filter-sql": ("consumers get what their SQL expression matches", {"received": 9}),
    "filter-sql-invalid": ("a bad SQL expression is refused by its code", {"code": 23}),
    "from-first": ("a new group begins with the first message", {"received": 10}),
    "from-last": ("a new group on a young topic gets everything", {"received": 16}),
    "from-timestamp": ("a new group on a young topic gets everything, whatever time it names", {"received": 16}),
    "offsets-restart": ("a restarted consumer has neither gap nor repeat", {"received": 50}),
    "rebalance-two": ("two consumers of a group share its queues", {"received": 40, "first": 20, "second": 20}),
    "two-groups": ("each group gets every message", {"received": 40}),
    "offset-reset": ("a group can be set back to a time", {"received": 24, "queues": 4}),
    "pull": ("a pull consumer reads queues and commits offsets", {"received": 20, "queues": 4}),
    "pull-tag": ("a pull with tags skips the others", {"received": 4}),
    "offsets-query": ("offsets are found by time", {"sent": 10, "after the end": 10}),
    "lite-pull-subscribe": ("a lite pull consumer polls every message once", {"received": 30}),
    "lite-pull-seek": ("a lite pull consumer seeks and commits", {"received": 15, "queues": 4}),
    "lite-pull-restart": ("a lite pull consumer goes on where it committed", {"received": 24}),
    "retry-later": ("a refused message comes again, counted", {"received": 10}),
    "retry-levels": ("a refused message comes again when its level says", {"received": 2}),
    "retry-dlq": ("a message refused too often becomes a dead letter", {"received": 6, "dead": 2}),
    "tx-commit": ("committed messages are delivered", {"received": 6, "executed": 5, "asked": 0}),
    "tx-rollback": ("rolled back messages are not delivered", {"received": 1, "executed": 5, "asked": 0}),
    "tx-check-commit": ("undecided messages are asked about, then delivered", {"received": 3, "asked": 3}),
    "tx-check-rollback": ("undecided messages are asked about, then dropped", {"received": 0, "asked": 3}),
    "tx-mixed": ("every transaction ends as it was decided", {"received": 6, "asked": 4}),
    "query-key": ("messages are found by key and time", {"found": 6}),
    "query-unique-id": ("messages are found by the id that the client made", {"found": 3}),
    "view-offset-id": ("a message is found by its offset id", {"found": 1}),
    "oversize": ("a body that is too large is refused by its code", {"code": 13, "received": 4}),
    "queue-id-invalid": (
        "a queue that is not there is refused by its code",
        {"code": 29, "pull code": 29, "received": 4},
    ),
    "topic-no-route": ("a topic that is not there has no route", {"error": True}),
    "topic-no-inherit": ("a topic is not made from one that may not be inherited", {"code": 17}),
    "no-permission-write": (
        "a topic without the right to write has no queue to send to",
        {"code": 10005, "received": 4},
    ),
    "no-permission-read": ("a topic without the right to read refuses by its code", {"code": 16, "received": 4}),
    "properties-too-long": ("properties that are too long are refused by their code", {"code": 13, "received": 4}),
    "topic-illegal": ("a topic's name must be legal", {"code": 29}),
    "request-reply": ("a request gets its reply", {"replies": 5}),
    "request-async": ("an async request gets its reply", {"replies": 5}),
    "request-timeout": ("a request without a reply times out", {"timeouts": 1, "received": 1}),
}


def keep(results: Mapping[str, Mapping[str, Any]], case: str, counts: Mapping[str, Any] | None = None) -> None:
    """Fail unless the client found what the case promises."""
    promise, expected = PROMISES[case]
    result = results[case]
    assert result["ok"], f"{promise}: {result.get('detail')}; counted {result['counts']}"
    assert result["counts"] == (counts or expected), promise
