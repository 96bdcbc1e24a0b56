"""Names of the message properties that control delivery. They are RocketMQ's."""

from __future__ import annotations

from mqlake.kernel.delays import DELAY_LEVEL, DELAY_MS, DELAY_SEC, DELIVER_MS

__all__ = ["DELAY_LEVEL", "DELAY_MS", "DELAY_SEC", "DELIVER_MS"]

TIMED = (DELAY_SEC, DELAY_MS, DELIVER_MS)
"""When a timed message is due: the first one that it has counts."""
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
UNIQUE_KEY = "UNIQ_KEY"

OUT_MS = "TIMER_OUT_MS"
CANCELS = "TIMER_DEL_UNIQKEY"
"""The unique key of the message to cancel, either alone or as `real topic+key`."""
ENQUEUED_MS = "TIMER_ENQUEUE_MS"
DEQUEUED_MS = "TIMER_DEQUEUE_MS"

RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"

PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
