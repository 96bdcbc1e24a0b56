"""Queues and index, brought back to what recovery trusts before the log is dispatched again.

Everything here can be written from the log, so nothing is refused: what is short, missing, misnamed or too long is put
right or written again. A second crash on the way leaves a store that the same steps put right.
"""

from __future__ import annotations

from pathlib import Path

from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.key_index import KeyIndex
from mqlake.store.recovery import Trust


def restore(trust: Trust, queues: ConsumeQueues, index: KeyIndex | None, set_aside: Path, log_first: int) -> int:
    """Make queues and index what they were at `trust.offset`; how many queues were cut for that."""
    cut = 0
    checkpoint = trust.checkpoint
    if trust.rebuilds:
        queues.clear_irregular(set_aside, from_zero=log_first == 0)
        queues.ends = {}
        queues.log_end = log_first  # entries of messages that the log no longer has are kept; the rest is written again
        if index is not None:
            index.destroy()
    elif checkpoint is not None:
        if checkpoint.clean:
            queues.ends = checkpoint.queue_ends
        else:
            cut = queues.cut_to(checkpoint.queue_ends, set_aside)
        mark = checkpoint.index
        is_same = index is not None and (index.names[-1:], index.header) == (mark.files[-1:], mark.header)
        if index is not None and not (checkpoint.clean and is_same and not index.misfits):
            index.go_back_to(mark.files, mark.header)
    elif index is not None:
        index.resume()
    return cut


def settle_rebuilt(trust: Trust, queues: ConsumeQueues, log_end: int) -> int:
    """After the whole log was dispatched: zero what queues hold behind their last entry; how many had something.

    A queue whose messages are all gone from the log goes on with the number that the checkpoint knows.
    """
    count = 0
    checkpoint = trust.checkpoint
    known = checkpoint.queue_ends if checkpoint is not None and log_end >= checkpoint.dispatched else {}
    for topic, ends in known.items():
        for queue_id, end in ends.items():
            if end > queues.end_of(topic, queue_id):
                queues.get_or_create(topic, queue_id).fill_to(end)
    for _, _, queue in queues.each():
        count += queue.truncate_to(queue.end)
    return count
