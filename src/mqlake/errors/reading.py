"""What looking for messages, consuming them, and delivering them later can raise."""

from __future__ import annotations

from mqlake.errors.root import StoreError

FILTER_SHOWN = 160
"""So many characters of a line are shown, around the place of an error."""


class InvalidFilter(StoreError):
    """A filter expression does not parse. The text gives the reason and points at the place."""

    def __init__(self, expression: str, position: int, reason: str) -> None:
        super().__init__(expression, position, reason)
        self.expression, self.position, self.reason = expression, position, reason

    def __str__(self) -> str:
        before = self.expression[: self.position]
        line = before.count("\n")
        column = self.position - (before.rfind("\n") + 1)
        shown = ((self.expression.splitlines() or [""])[line:][:1] or [""])[0]
        start = max(0, column - FILTER_SHOWN // 2) if len(shown) > FILTER_SHOWN else 0
        shown, column = shown[start : start + FILTER_SHOWN], column - start
        return f"filter: {self.reason}, at character {self.position + 1}\n  {shown}\n  {' ' * column}^"


class UnknownTopic(StoreError):
    """The store has no such topic, or the topic has no such queue."""

    def __init__(self, topic: str, queue_id: int | None, known: str) -> None:
        super().__init__(topic, queue_id, known)
        self.topic, self.queue_id, self.known = topic, queue_id, known

    def __str__(self) -> str:
        what = f"topic {self.topic!r}" + (f", queue {self.queue_id}" if self.queue_id is not None else "")
        return f"{what}: not in this store; it has {self.known}"


class UnknownGroup(StoreError):
    """The store has no such consumer group."""

    def __init__(self, group: str, known: str) -> None:
        super().__init__(group, known)
        self.group, self.known = group, known

    def __str__(self) -> str:
        return f"group {self.group!r}: not in this store; it has {self.known}"


class NotPermitted(StoreError):
    """The settings of a topic or a group forbid the call. Nothing was written."""

    def __init__(self, what: str, found: str, remedy: str) -> None:
        super().__init__(what, found, remedy)
        self.what, self.found, self.remedy = what, found, remedy

    def __str__(self) -> str:
        return f"{self.what}: {self.found}; {self.remedy}"


class OffsetOutOfRange(StoreError):
    """An offset is outside the half-open range [first_offset, end_offset)."""

    def __init__(self, what: str, offset: int, first_offset: int, end_offset: int) -> None:
        super().__init__(what, offset, first_offset, end_offset)
        self.what, self.offset = what, offset
        self.first_offset, self.end_offset = first_offset, end_offset

    def __str__(self) -> str:
        return f"{self.what}: offset {self.offset} is outside of [{self.first_offset}, {self.end_offset})"


class NotPending(StoreError):
    """Only a timed message that is not yet due can be cancelled."""

    def __init__(self, physical_offset: int, found: str, expected: str) -> None:
        super().__init__(physical_offset, found, expected)
        self.physical_offset, self.found, self.expected = physical_offset, found, expected

    def __str__(self) -> str:
        return f"cannot cancel the message at {self.physical_offset}: found {self.found}; expected {self.expected}"


class TransactionEnded(StoreError):
    """A transaction is decided only once."""

    def __init__(self, transaction_id: str, how: str) -> None:
        super().__init__(transaction_id, how)
        self.transaction_id, self.how = transaction_id, how

    def __str__(self) -> str:
        return f"transaction {self.transaction_id}: {self.how}; begin a new one"


class TransactionExpired(StoreError):
    """The transaction is older than its time limit. From now on only the check decides it."""

    def __init__(self, transaction_id: str, age_ms: int, limit_ms: int) -> None:
        super().__init__(transaction_id, age_ms, limit_ms)
        self.transaction_id, self.age_ms, self.limit_ms = transaction_id, age_ms, limit_ms

    def __str__(self) -> str:
        return (
            f"transaction {self.transaction_id}: {self.age_ms} ms old, its limit is {self.limit_ms} ms; "
            "now only the check (TransactionConfig.check) or store.transactions.resolve can decide it"
        )


class MessagesLost(OffsetOutOfRange):
    """The progress of a consumer with on_lost="fail" is outside its queue.

    Either retention deleted the messages before the consumer read them, or a power cut took the end of the log.
    """

    def __str__(self) -> str:
        return (
            f"{self.what}: progress is at {self.offset}, the queue has [{self.first_offset}, {self.end_offset}); "
            'reset() it to "first", or consume with on_lost="skip"'
        )


class NoSuchMessage(StoreError):
    """No message starts at the given physical offset or message id."""

    def __init__(self, wanted: str, reason: str) -> None:
        super().__init__(wanted, reason)
        self.wanted, self.reason = wanted, reason

    def __str__(self) -> str:
        return f"{self.wanted}: {self.reason}"
