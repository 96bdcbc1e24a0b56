"""Errors as response codes: the one table, and the answers that name a reason.

`Refusal` is how a handler refuses a request with a code of its own choice. Everything else that is raised is looked up
in `CODES`: the engine's reason becomes the remark.
"""

from __future__ import annotations

import logging

from mqlake.delivery.properties import TIMED
from mqlake.errors import (
    BadRequest,
    DiskFull,
    FlushTimeout,
    InvalidConfig,
    InvalidFilter,
    InvalidMessage,
    NoSuchMessage,
    NotMaster,
    NotPending,
    NotPermitted,
    NotWritten,
    OffsetOutOfRange,
    ReadOnlyStore,
    ReplicaMissing,
    ReplicaTimeout,
    StoreClosed,
    StoreError,
    StoreFailed,
    TransactionEnded,
    TransactionExpired,
    UnknownGroup,
    UnknownTopic,
)
from mqlake.kernel import Command
from mqlake.remoting.codes import RequestCode, ResponseCode, code_name
from mqlake.remoting.command import response

_log = logging.getLogger(__name__)
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""What RocketMQ adds to some remarks."""

CODES: tuple[tuple[type[Exception], ResponseCode], ...] = (
    (InvalidMessage, ResponseCode.MESSAGE_ILLEGAL),
    (UnknownTopic, ResponseCode.TOPIC_NOT_EXIST),
    (UnknownGroup, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    (NotPermitted, ResponseCode.NO_PERMISSION),
    (InvalidFilter, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    (InvalidConfig, ResponseCode.INVALID_PARAMETER),
    (FlushTimeout, ResponseCode.FLUSH_DISK_TIMEOUT),
    (ReplicaTimeout, ResponseCode.FLUSH_SLAVE_TIMEOUT),
    (ReplicaMissing, ResponseCode.SLAVE_NOT_AVAILABLE),
    (StoreFailed, ResponseCode.SERVICE_NOT_AVAILABLE),
    (DiskFull, ResponseCode.SERVICE_NOT_AVAILABLE),
    (NotWritten, ResponseCode.SERVICE_NOT_AVAILABLE),
    (StoreClosed, ResponseCode.SERVICE_NOT_AVAILABLE),
    (ReadOnlyStore, ResponseCode.SERVICE_NOT_AVAILABLE),
    (NotMaster, ResponseCode.SERVICE_NOT_AVAILABLE),
    (NotPending, ResponseCode.ILLEGAL_OPERATION),
    (TransactionExpired, ResponseCode.ILLEGAL_OPERATION),
    (TransactionEnded, ResponseCode.SYSTEM_ERROR),
    (NoSuchMessage, ResponseCode.SYSTEM_ERROR),
    (OffsetOutOfRange, ResponseCode.SYSTEM_ERROR),
    (BadRequest, ResponseCode.SYSTEM_ERROR),
    (StoreError, ResponseCode.SYSTEM_ERROR),
)
"""The first class that fits gives the code."""


class Refusal(Exception):
    """A request that is answered with a code other than success."""

    def __init__(self, code: ResponseCode, remark: str, **fields: str) -> None:
        """`fields` are the answer's own."""
        super().__init__(code, remark)
        self.code, self.remark, self.fields = code, remark, fields

    def __str__(self) -> str:
        return f"{self.code.name}: {self.remark}"


def refuse(request: Command, error: BaseException, fields: dict[str, str] | None = None) -> Command:
    """Return the answer to a request that failed."""
    if isinstance(error, Refusal):
        return response(request, error.code, {**(fields or {}), **error.fields} or None, remark=error.remark)
    for kind, code in CODES:
        if isinstance(error, kind):
            return response(request, code, fields, remark=_remark(error))
    _log.error("request %s failed", code_name(RequestCode, request.code), exc_info=error)
    remark = f"{type(error).__name__}: {error}"
    return response(request, ResponseCode.SYSTEM_ERROR, fields, remark=remark)


def _remark(error: Exception) -> str:
    """Return the engine's reason; of a message that is refused after RocketMQ's own words, which tools look for."""
    if not isinstance(error, InvalidMessage):
        return str(error)
    if error.field in TIMED:
        return f"timer message illegal: {error}"
    return f"the message is illegal, maybe msg body or properties length not matched. {error}"


def not_supported(request: Command) -> Command:
    """Return the answer to an unknown request."""
    remark = f" request type {request.code} not supported"
    return response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)


def too_many(count: int) -> Refusal:
    remark = f"[REJECTREQUEST]{count} requests of this connection wait for their answers; try again"
    return Refusal(ResponseCode.SYSTEM_BUSY, remark)


def no_topic(topic: str) -> Refusal:
    return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")


class Forbidden:
    """What forbids a pull: the values of its answer's field forbiddenType."""

    BROKER, GROUP, TOPIC, BROADCAST = "1", "2", "3", "4"


def forbidden(what: str, remark: str) -> Refusal:
    return Refusal(ResponseCode.NO_PERMISSION, remark, forbiddenType=what)


def no_group(name: str) -> Refusal:
    remark = f"subscription group [{name}] does not exist, {FAQ}"
    return Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
