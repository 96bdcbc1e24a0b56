"""Restore queues and index to the offset that recovery trusts, before the log is dispatched again.

Derived files can always be rebuilt from the log, so nothing here is refused: a file that is short, missing, misnamed
or too long is repaired or rewritten. The steps are idempotent: after a crash in between, the next recovery repeats
them.
"""

from __future__ import annotations

from pathlib import Path

from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.key_index import KeyIndex
from mqlake.store.recovery import Trust


def restore(trust: Trust, queues: ConsumeQueues, index: KeyIndex | None, set_aside: Path, log_first: int) -> int:
    """Restore queues and index to `trust.offset`. Return how many queues were cut."""
    cut = 0
    checkpoint = trust.checkpoint
    if trust.rebuilds:
        queues.clear_irregular(set_aside, from_zero=log_first == 0)
        queues.know_ends({})
        queues.log_end = log_first  # keep the entries of messages before the log; dispatch rewrites the rest
        if index is not None:
            index.destroy()
    elif checkpoint is not None:
        if checkpoint.clean:
            queues.know_ends(checkpoint.queue_ends)
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
    """Zero what queues hold after their last entry, once the whole log was dispatched. Return how many held something.

    A queue whose messages are no longer in the log continues at the queue offset in the checkpoint.
    """
    count = 0
    checkpoint = trust.checkpoint
    known = checkpoint.queue_ends if checkpoint is not None and log_end >= checkpoint.dispatched else {}
    for topic, ends in known.items():
        for queue_id, end in ends.items():
            if end > queues.end_of(topic, queue_id):
                queues.fill_to(topic, queue_id, end, log_end)
    for _, _, queue in queues.each():
        count += queue.truncate_to(queue.end)
    return count
