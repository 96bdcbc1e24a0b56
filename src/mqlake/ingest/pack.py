"""Convert Arrow batches to packed records: complete except for queue offset, physical offset and store time.

This is the reverse of `store/scan.py`. Any number of workers may pack; the writer appends what they packed
(`MessageStore.put_packed`). The columns are those of a scan, as far as a producer gives them. Rows must obey the rules
of `put`: the kernel stops at the first row that breaks one, and then that row is refused with the error of `put`.

Packed rows can be added up to a checksum that depends neither on their order nor on how they are split into tasks: the
same rows, written again, give the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.config import RECORD_OVERHEAD, CommitLogConfig
from mqlake.errors import InvalidMessage
from mqlake.kernel import crc32, encode_record, pack_records
from mqlake.kernel.hosts import pack_host
from mqlake.kernel.types import IN_TURN
from mqlake.logs.commit_log import MARKER_SIZE
from mqlake.logs.topic_table import LIGHT_QUEUES, require_topic
from mqlake.message import Message

MAX_QUEUE_ID = 2**31 - 1
INT32 = ("flag", "sys_flag", "reconsume_times", "body_crc")
INT64 = ("queue_offset", "prepared_offset", "store_timestamp")
GIVEN = ("topic", "body", "tags", "keys", "queue_id", "properties", "flag", "sys_flag", "reconsume_times", "born_host")
"""The columns that become arguments of `Message`, under the same names."""
BORN_AT = 40, 48
"""Where a record has its born timestamp."""


class Packer:
    """Pack the batches of one task. Errors name `where` and the row."""

    def __init__(
        self,
        config: CommitLogConfig,
        where: str,
        *,
        refuses: Callable[[str], bool] = lambda topic: False,
        queue_count: Callable[[str], int] = lambda topic: MAX_QUEUE_ID + 1,
        lights: bool = False,
        adds_up: bool = False,
    ) -> None:
        """Take the limits of a store.

        `refuses` says which topics accept no messages here, `queue_count` how many queues a topic may have. With
        `lights`, messages may name light queues and queue offsets in them. With `adds_up`, the checksum is kept.
        """
        assert config.file_size_bytes is not None, "sizes must be resolved before packing"
        self._store_host = pack_host(config.store_host)
        self._max_body = config.max_message_bytes
        self._max_size = min(config.file_size_bytes - MARKER_SIZE, self._max_body + RECORD_OVERHEAD)
        self._append_crc = config.append_record_crc
        self._refuses = refuses
        self._queue_count = queue_count
        self._lights = lights
        self._where = where
        self.rows = 0
        """Rows packed so far."""
        self.checksum: int | None = 0 if adds_up else None
        """Their checksum, if it is kept."""

    def pack(self, batch: pa.RecordBatch) -> bytearray:
        """Return the packed rows of a batch. If one cannot be stored, raise InvalidMessage and pack none of them."""
        if batch.num_rows == 0:
            return bytearray()
        self._require_values(batch)
        buffers = buffers_of(batch)
        limits = self._store_host, self._max_body, self._max_size, self._append_crc, self._lights
        packed, taken = pack_records(buffers, batch.num_rows, *limits)
        if taken < batch.num_rows:
            raise self._refusal(batch, taken)
        self.rows += taken
        if self.checksum is not None:
            self.checksum = (self.checksum + checksum_of(packed, _given_times(batch))) % 2**64
        return packed

    def _require_values(self, batch: pa.RecordBatch) -> None:
        """Check what the kernel cannot see: nulls in required columns, and negative queue ids, which mean `in turn`."""
        for name in ("topic", "body"):
            if batch.column(name).null_count:
                row = pc.index(pc.is_null(batch.column(name)), True).as_py()
                raise InvalidMessage(self._place(name, row), "null", "a value")
        topics = pc.unique(batch.column("topic")).to_pylist()
        for topic in filter(self._refuses, topics):
            row = pc.index(batch.column("topic"), topic).as_py()
            expected = "a topic that messages can be written to: not one of the system's, nor a read-only one"
            raise InvalidMessage(self._place("topic", row), repr(topic), expected)
        if "queue_id" in batch.schema.names:
            self._require_queues(batch, topics)
        if "properties" in batch.schema.names and batch.column("properties").items.null_count:
            lacking = [row for row in range(batch.num_rows) if None in _pairs(batch, row).values()]
            if lacking:
                raise self._refusal(batch, lacking[0])

    def _require_queues(self, batch: pa.RecordBatch, topics: Sequence[str]) -> None:
        ids = batch.column("queue_id")
        negative = pc.index(pc.less(ids, 0), True).as_py()
        if negative >= 0:
            raise self._refusal(batch, negative)
        highest = pc.max(ids).as_py()
        if highest is None or highest < min(map(self._queue_count, topics)):
            return
        for row, (topic, queue_id) in enumerate(zip(batch.column("topic").to_pylist(), ids.to_pylist(), strict=True)):
            count = self._queue_count(topic)
            if queue_id is not None and queue_id >= count:
                expected = f"a queue id in [0, {count}), as topic {topic} may have, or null for queues in turn"
                raise InvalidMessage(self._place("queue_id", row), str(queue_id), expected)

    def _place(self, field: str, row: int) -> str:
        return f"{self._where}, row {self.rows + row}, {field}"

    def _refusal(self, batch: pa.RecordBatch, row: int) -> InvalidMessage:
        """Return the error that `put` raises for this row."""
        try:
            self._put(batch, row)
        except InvalidMessage as error:
            return InvalidMessage(self._place(error.field, row), error.found, error.expected)
        except UnicodeDecodeError as error:
            return InvalidMessage(self._place("a text", row), repr(error.object[:40]), "valid UTF-8")
        raise AssertionError(f"{self._place('all of it', row)}: the kernel refuses a row that a put accepts")

    def _put(self, batch: pa.RecordBatch, row: int) -> None:
        given = {name: batch.column(name)[row].as_py() for name in GIVEN if name in batch.schema.names}
        given = {name: value for name, value in given.items() if value is not None}
        if "properties" in given:
            given["properties"] = _pairs(batch, row)
        queue_id = given.pop("queue_id", 0)
        message = Message(**given)
        require_topic(message.topic)
        if queue_id < 0:
            raise InvalidMessage(
                "queue_id", repr(queue_id), f"a number in [0, {MAX_QUEUE_ID}], or null for queues in turn"
            )
        if LIGHT_QUEUES in message.properties and not self._lights:
            shown = repr(message.properties[LIGHT_QUEUES])
            expected = "no light queues: remove this property, or put the message by itself"
            raise InvalidMessage(LIGHT_QUEUES, shown, expected)
        body_size = len(bytes(message.body.encode() if isinstance(message.body, str) else message.body))
        if body_size > self._max_body:
            raise InvalidMessage("body", f"{body_size} bytes", f"at most {self._max_body} bytes (maxMessageSize)")
        message.body = b""
        size = body_size + len(encode_record(message, 0, 0, 0, 0, self._store_host, self._append_crc))
        if size > self._max_size:
            raise InvalidMessage("message", f"{size} bytes as a record", f"at most {self._max_size} bytes")


def checksum_of(packed: bytes | bytearray, given_times: Sequence[bool]) -> int:
    """Return the sum of the records' checksums.

    A born timestamp counts only where the row has one: else it is the time of packing, new with every attempt.
    """
    total = position = 0
    with memoryview(packed) as view:
        for is_given in given_times:
            size = int.from_bytes(view[position : position + 4], "big")
            record = view[position : position + size]
            crc = crc32(record) if is_given else crc32(record[BORN_AT[1] :], crc32(record[: BORN_AT[0]]))
            total += crc * crc  # a plain sum would hide two changes that cancel out
            position += size
    return total % 2**64


def _given_times(batch: pa.RecordBatch) -> Sequence[bool]:
    if "born_timestamp" not in batch.schema.names:
        return [False] * batch.num_rows
    given: list[bool] = pc.is_valid(batch.column("born_timestamp")).to_pylist()
    return given


def _pairs(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    return dict(batch.column("properties")[row].as_py() or ())


def buffers_of(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return a batch as the kernel reads it: buffers by name, with nulls replaced by their defaults."""
    buffers: dict[str, Any] = {}
    born_now = pa.scalar(time.time_ns() // 1_000_000, pa.int64())
    names = batch.schema.names
    for name in names:
        column = batch.column(name)
        if name in ("topic", "body"):
            _add_texts(buffers, name, column)
        elif name == "tags":
            _add_texts(buffers, name, _plain(column).fill_null(""))
        elif name == "keys" and pa.types.is_list(column.type):
            _add_texts(buffers, "keys.item", _add_lists(buffers, name, column))
        elif name == "keys":
            _add_texts(buffers, name, _plain(column).fill_null(""))
        elif name == "properties":
            names_of, values_of = _add_lists(buffers, name, _as_lists(column)).flatten()
            _add_texts(buffers, "properties.name", names_of)
            _add_texts(buffers, "properties.value", values_of)
        elif name == "born_host":
            _add_hosts(buffers, column)
        elif name == "queue_id":
            buffers[name] = _numbers(column.fill_null(IN_TURN), pa.int32())
        elif name == "born_timestamp":
            buffers[name] = _numbers(_milliseconds(column).fill_null(born_now), pa.int64())
        elif name in INT32:
            buffers[name] = _numbers(column.fill_null(0), pa.int32())
        elif name in INT64:
            buffers[name] = _numbers(_milliseconds(column).fill_null(0), pa.int64())
    if "born_timestamp" not in names:
        buffers["born_timestamp"] = np.full(batch.num_rows, born_now.as_py(), np.int64)
    return buffers


def _milliseconds(column: pa.Array) -> pa.Array:
    if not pa.types.is_timestamp(column.type):
        return column
    return pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())


def _numbers(column: pa.Array, kind: pa.DataType) -> pa.Buffer:
    column = column if column.type == kind else column.cast(kind)
    width = kind.bit_width // 8
    return column.buffers()[1].slice(column.offset * width, len(column) * width)


def _plain(column: pa.Array) -> pa.Array:
    """Return the texts with 32-bit offsets and without a dictionary."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(pa.string() if pa.types.is_large_string(column.type) else pa.binary())
    return column


def _add_texts(buffers: dict[str, Any], name: str, column: pa.Array) -> None:
    column = _plain(column)
    _, offsets, values = column.buffers()
    empty = offsets is None or offsets.size == 0  # Arrow allows this for an array without values
    buffers[f"{name}.offsets"] = bytes(4) if empty else offsets.slice(column.offset * 4, (len(column) + 1) * 4)
    buffers[f"{name}.values"] = values if values is not None else b""


def _add_lists(buffers: dict[str, Any], name: str, column: pa.Array) -> pa.Array:
    """Add the offsets of lists, null lists as empty ones, and return the items of all lists."""
    lengths = pc.list_value_length(column).fill_null(0)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=offsets[1:])
    buffers[f"{name}.offsets"] = offsets
    return column.flatten()


def _as_lists(column: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of pairs."""
    kind = column.type
    pair = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    return column.cast(pa.list_(pair))


def _add_hosts(buffers: dict[str, Any], column: pa.Array) -> None:
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    packed = [pack_host(host) for host in encoded.dictionary.to_pylist()]
    _add_texts(buffers, "born_host", pa.array(packed, pa.binary()))
    buffers["born_host"] = _numbers(encoded.indices, pa.int32())
