"""Which queues of a topic a member of a group reads: RocketMQ's average allocation.

Every member sorts queues and members alike and computes its own share, so the shares fit together without a leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqlake.remoting.bodies import MessageQueue


def allocate(queues: Sequence[MessageQueue], members: Iterable[str], me: str) -> list[MessageQueue]:
    """Return the share of member `me`: a run of neighbours; the first members have one more if it does not divide."""
    ids = sorted(set(members))
    if me not in ids:
        return []
    place = ids.index(me)
    share, more = divmod(len(queues), len(ids))
    start = place * share + min(place, more)
    ordered = sorted(queues, key=lambda each: (each.topic, each.broker_name, each.queue_id))
    return ordered[start : start + share + (place < more)]
