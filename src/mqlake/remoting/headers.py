"""Typed request headers: one dataclass for each, read from and written to the texts of a command's `fields`.

A field's name on the wire is its Python name in camel case, unless `wire` gives another. A field without a default is
required. Texts, whole numbers and booleans are all there is; "0", "1", "true" and "false" are booleans, because the C++
client sends the first two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, Self

from mqlake.errors import BadRequest

_Spec = tuple[str, str, Callable[[str, str], Any], Any]


LONG = 1 << 63


def _number(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise BadRequest(name, repr(text[:80]), "a whole number") from None
    if not -LONG <= number < LONG:
        raise BadRequest(name, repr(text[:80]), "a whole number of 64 bits")
    return number


def _require_longs(numbers: tuple[int, ...]) -> None:
    if max(numbers) >= LONG or min(numbers) < -LONG:
        raise ValueError


def _text(name: str, text: str) -> str:
    return text


TRUE = frozenset({"true", "1", "True", "TRUE"})


def _boolean(name: str, text: str) -> bool:
    return text in TRUE


PARSERS: dict[str, Callable[[str, str], Any]] = {
    "int": _number,
    "int | None": _number,
    "str": _text,
    "str | None": _text,
    "bool": _boolean,
    "bool | None": _boolean,
}


def wire(name: str, default: Any = MISSING) -> Any:
    """Return a field whose name on the wire is not its Python name in camel case."""
    return field(default=default, metadata={"wire": name})


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(part.capitalize() for part in more)


class Header:
    """What typed headers have in common."""

    _specs: ClassVar[tuple[_Spec, ...]] = ()

    @classmethod
    def _prepare(cls) -> tuple[_Spec, ...]:
        cls._specs = tuple(
            (each.name, each.metadata.get("wire") or _camel(each.name), PARSERS[str(each.type)], each.default)
            for each in dataclasses.fields(cls)  # type: ignore[arg-type]
        )
        return cls._specs

    @classmethod
    def read(cls, fields: dict[str, str]) -> Self:
        """Return the header of a request; BadRequest names the field that is missing or cannot be read."""
        values: list[Any] = []
        for _, name, parse, default in cls._specs or cls._prepare():
            text = fields.get(name)
            if text is not None:
                values.append(parse(name, text))
            elif default is not MISSING:
                values.append(default)
            else:
                raise BadRequest(name, "no such field", "this request needs it")
        return cls(*values)

    def write(self) -> dict[str, str]:
        """Return the fields of a request. Values that are None are left out."""
        found = {}
        for attribute, name, _, _ in self._specs or self._prepare():
            value = getattr(self, attribute)
            if value is not None:
                found[name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
        return found

    # One of each for all headers: 24 times what dataclass would generate is a tenth of the broker's start.

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Header) and self.write() == other.write()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.write()})"


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class SendHeader(Header):
    """SEND_MESSAGE (10), SEND_REPLY_MESSAGE (324)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False
    broker_name: str | None = wire("bname", None)


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class SendHeaderV2(Header):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325): the same, by letters."""

    producer_group: str = wire("a")
    topic: str = wire("b")
    default_topic: str = wire("c")
    default_topic_queue_nums: int = wire("d")
    queue_id: int = wire("e")
    sys_flag: int = wire("f")
    born_timestamp: int = wire("g")
    flag: int = wire("h")
    properties: str | None = wire("i", None)
    reconsume_times: int | None = wire("j", None)
    unit_mode: bool = wire("k", False)
    max_reconsume_times: int | None = wire("l", None)
    batch: bool = wire("m", False)
    broker_name: str | None = wire("n", None)


def read_send_header(fields: dict[str, str]) -> SendHeader | SendHeaderV2:
    """Return the header of a send in either form. By hand, because it is read for every message."""
    if "a" not in fields:
        return SendHeader.read(fields)
    get = fields.get
    times, most = get("j"), get("l")
    try:
        numbers = int(fields["d"]), int(fields["e"]), int(fields["f"]), int(fields["g"]), int(fields["h"])
        _require_longs(numbers)
        return SendHeaderV2(
            fields["a"],
            fields["b"],
            fields["c"],
            *numbers,
            get("i"),
            None if times is None else _number("j", times),
            get("k") in TRUE,
            None if most is None else _number("l", most),
            get("m") in TRUE,
            get("n"),
        )
    except (KeyError, ValueError):
        return SendHeaderV2.read(fields)  # names the field that is wrong


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class SendResult(Header):
    """The response to a send."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class PullHeader(Header):
    """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361)."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int = 0
    suspend_timeout_millis: int = 0
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    max_msg_bytes: int | None = None


def read_pull_header(fields: dict[str, str]) -> PullHeader:
    """Return the header of a pull. By hand, because it is read for every pull."""
    get = fields.get
    most = get("maxMsgBytes")
    try:
        numbers = (
            int(fields["queueId"]),
            int(fields["queueOffset"]),
            int(fields["maxMsgNums"]),
            int(fields["sysFlag"]),
            int(get("commitOffset", "0")),
            int(get("suspendTimeoutMillis", "0")),
        )
        version = int(get("subVersion", "0"))
        _require_longs((*numbers, version))
        return PullHeader(
            fields["consumerGroup"],
            fields["topic"],
            *numbers,
            get("subscription"),
            version,
            get("expressionType"),
            None if most is None else _number("maxMsgBytes", most),
        )
    except (KeyError, ValueError):
        return PullHeader.read(fields)  # names the field that is wrong


PULL_COMMIT, PULL_SUSPEND, PULL_SUBSCRIPTION, PULL_CLASS_FILTER, PULL_LITE = 1, 2, 4, 8, 16
"""Bits of a pull's sysFlag."""


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class PullResult(Header):
    """The response to a pull, whatever its code."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class QueueHeader(Header):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: int
    committed: bool | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class QueueEntriesHeader(Header):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queue_id: int
    index: int
    count: int
    consumer_group: str | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class QueryOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class UpdateOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class RouteHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class GroupHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP (38), NOTIFY_CONSUMER_IDS_CHANGED (40), GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class UnregisterHeader(Header):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK (36)."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class EndTransactionHeader(Header):
    """END_TRANSACTION (37)."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    msg_id: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class CheckTransactionHeader(Header):
    """CHECK_TRANSACTION_STATE (39), from the broker to a producer."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID (33)."""

    offset: int
    topic: str | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class QueryMessageHeader(Header):
    """QUERY_MESSAGE (12)."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    index_type: str | None = None
    unique_key: bool = wire("_UNIQUE_KEY_QUERY", False)


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    default_topic: str | None = None
    topic_filter_type: str | None = None
    topic_sys_flag: int | None = None
    order: bool = False
    attributes: str | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class TopicHeader(Header):
    """Requests that name a topic and nothing else."""

    topic: str


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class RecallHeader(Header):
    """RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class ReplyHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), from the broker to the requester."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None
    reconsume_times: int
    unit_mode: bool
    born_host: str
    store_host: str
    store_timestamp: int


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class ResetOffsetHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET (222)."""

    topic: str
    group: str
    timestamp: int = 0
    is_force: bool = False
    queue_id: int = -1
    offset: int | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class PopHeader(Header):
    """POP_MESSAGE (200050)."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: int = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


@dataclass(slots=True, eq=False, repr=False, match_args=False)
class AckHeader(Header):
    """ACK_MESSAGE (200051) and, with `invisible_time`, CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int | None = None
