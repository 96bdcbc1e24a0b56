"""Scan ranges of the commit log as Arrow record batches: one row per record, in the order of the log.

The kernel checks the records (lengths, physical offset, body CRC) and lays them out as Arrow buffers without the
interpreter lock, so threads that scan different files run in parallel. pyarrow takes the buffers without a copy. They
hold no reference to the log, so a batch outlives the file it came from.

A scan returns everything that is in the log, including the half messages and the rolled-back messages of transactions
(`sys_flag & 0xC`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mqlake.codec.compression import COMPRESSED, decompress_body
from mqlake.errors import CorruptRecord, InvalidConfig, MissingExtra
from mqlake.kernel import check_record, find_record, pick_columns, scan_columns
from mqlake.kernel.types import BAD_CRC, BLANK, COLUMN_NAMES, REACHED_END, REASONS, Readable
from mqlake.logs.stretch import Stretch

if TYPE_CHECKING:
    import pyarrow as pa

Buffers = dict[str, bytes | bytearray]
Progress = Callable[[int], None]
OnDamage = Literal["fail", "skip"]
OnScar = Callable[[int, int, str], object]

COLUMNS = {
    "topic": "dictionary<int32, string>",
    "queue_id": "int32",
    "queue_offset": "int64",
    "physical_offset": "int64",
    "size": "int32",  # of the whole record
    "flag": "int32",  # for the application's use
    "sys_flag": "int32",
    "body_crc": "int32",  # of the body as stored
    "born_timestamp": "timestamp[ms, UTC]",
    "store_timestamp": "timestamp[ms, UTC]",
    "born_host": "dictionary<int32, string>",  # 127.0.0.1:10911 or [::1]:10911
    "store_host": "dictionary<int32, string>",
    "reconsume_times": "int32",
    "prepared_offset": "int64",
    "tags": "string",  # null if there are none
    "keys": "list<string>",
    "properties": "map<string, string>",  # all of them, tags and keys too
    "body": "binary",
}
"""The columns of a scan and their Arrow types, in the order of the schema."""
RAW_BODY = "raw_body"
"""On request only: the body as stored, in addition to the decompressed one."""

BATCH_BYTES = 4 << 20
MAX_BATCH_BYTES = 1 << 30
"""Offsets inside a batch have 32 bits."""
MAX_INFLATED_BYTES = 256 * 1024 * 1024
"""A batch ends once its decompressed bodies exceed this: a few megabytes can expand to gigabytes."""

HALF_OR_ROLLED_BACK = 0x4
"""The bit that half (0x4) and rolled-back (0xC) messages of transactions have and committed ones (0x8) do not."""
INTERNAL = re.compile(
    "SCHEDULE_TOPIC_XXXX|TBW102|BenchmarkTest|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT|TRANS_CHECK_MAX_TIME_TOPIC"
    "|(RMQ_SYS_|rmq_sys_|MQLAKE_).*"
)
"""Topics that RocketMQ or this store uses internally. Tables of messages leave them out."""

_log = logging.getLogger(__name__)


def is_internal(topic: str) -> bool:
    return INTERNAL.fullmatch(topic) is not None


def record_batches(
    stretches: Iterable[Stretch],
    *,
    columns: Sequence[str] | None = None,
    batch_bytes: int = BATCH_BYTES,
    decompress: bool = True,
    topics: Collection[str] | None = None,
    on_damage: OnDamage = "fail",
    on_scar: OnScar | None = None,
    check_crc: bool = True,
    progress: Progress | None = None,
) -> Iterator[pa.RecordBatch]:
    """Scan ranges of the log: one record batch for at most `batch_bytes` of log (one record always fits).

    A range starts and ends at record boundaries, so zeros before its end are damage; an end-of-file marker ends it.
    `columns` selects and orders columns (default: all of COLUMNS). `topics` omits the records of other topics, whose
    bodies are then not checked. Compressed bodies are decompressed unless `decompress` is False. On damage, the scan
    yields what was whole before it and then raises CorruptRecord; with on_damage="skip" it logs the damage and
    continues at the next whole record. `on_scar` is called with range and reason instead of logging. `progress` is
    called with the number of bytes that the scan has advanced.
    """
    scan = Scan(columns, batch_bytes, decompress, topics, on_damage, check_crc, on_scar)
    for stretch in stretches:
        yield from scan.batches(stretch, progress or _ignore)


def schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of every batch of a scan of these columns."""
    pa = _pyarrow()
    types = _types(pa)
    return pa.schema([pa.field(name, types[name]) for name in checked_columns(columns)])


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the requested columns, all for None. Raises InvalidConfig if one is unknown or occurs twice."""
    if columns is None:
        return tuple(COLUMNS)
    for name in columns:
        if name not in COLUMNS and name != RAW_BODY:
            raise InvalidConfig("columns", name, f"one of {', '.join(COLUMNS)}, {RAW_BODY}")
    if not columns or len(set(columns)) < len(columns):
        raise InvalidConfig("columns", list(columns), "at least one column, and none twice")
    return tuple(columns)


class Scan:
    """The checked settings of one scan. Many threads may call `batches` for many ranges."""

    max_inflated = MAX_INFLATED_BYTES

    def __init__(
        self,
        columns: Sequence[str] | None,
        batch_bytes: int,
        decompress: bool,
        topics: Collection[str] | None,
        on_damage: OnDamage,
        check_crc: bool,
        on_scar: OnScar | None = None,
    ) -> None:
        if not 0 < batch_bytes <= MAX_BATCH_BYTES:
            raise InvalidConfig("batch_bytes", batch_bytes, f"must be in [1, {MAX_BATCH_BYTES}]")
        if on_damage not in ("fail", "skip"):
            raise InvalidConfig("on_damage", on_damage, "one of fail, skip")
        self._pa = _pyarrow()
        self._types = _types(self._pa)
        self._columns = checked_columns(columns)
        self._schema = schema(self._columns)
        self._inflates = decompress and "body" in self._columns
        needed = {*self._columns, *(("sys_flag", "physical_offset", "size") if self._inflates else ())}
        if RAW_BODY in needed:
            needed = needed - {RAW_BODY} | {"body"}
        self._bits = sum(1 << COLUMN_NAMES.index(name) for name in needed)
        self._batch_bytes = batch_bytes
        self._topics = None if topics is None else sorted(topics)
        self._skips = on_damage == "skip"
        self._check_crc = check_crc
        self._on_scar = on_scar

    def batches(self, stretch: Stretch, progress: Progress) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one range, none of them empty."""
        at, end = stretch.position, stretch.end
        while at < end:
            position, status, rows, buffers = scan_columns(
                stretch.data,
                at,
                end,
                stretch.log_start,
                self._batch_bytes,
                self._batch_bytes,
                self._bits,
                self._check_crc,
                self._topics,
            )
            if rows:
                yield from self._batches(stretch.file, rows, buffers)
            if status == BLANK:
                position = self.behind_marker(stretch, position)
            elif status != REACHED_END:
                position = self.behind_damage(stretch, position, status)
            progress(position - at)
            at = position

    def picked(self, stretch: Stretch, offsets: Readable, number: int) -> Generator[pa.RecordBatch, None, int]:
        """Yield the records at the given physical offsets (int64), from offsets[number] on, while they are in this
        range. Return the index of the first offset outside of it."""
        while number < len(offsets) // 8:
            reached, status, rows, buffers = pick_columns(
                stretch.data,
                offsets,
                number,
                stretch.end,
                stretch.log_start,
                self._batch_bytes,
                self._bits,
                self._check_crc,
                self._topics,
            )
            if rows:
                yield from self._batches(stretch.file, rows, buffers)
            if status != REACHED_END:
                offset = memoryview(offsets).cast("B").cast("q")[reached]
                self._pass_over(stretch, offset - stretch.log_start, status)
                reached += 1
            elif reached == number:
                break
            number = reached
        return number

    def behind_marker(self, stretch: Stretch, position: int) -> int:
        """Return where to continue after an end-of-file marker: at the end, because no record follows in this file."""
        return stretch.end

    def behind_damage(self, stretch: Stretch, position: int, status: int) -> int:
        """Return where to continue after damage. Raises CorruptRecord if damage is not skipped."""
        return self._pass_over(stretch, position, status)

    def report(self, error: CorruptRecord, size: int) -> None:
        """Report that `size` damaged bytes were skipped."""
        _log.warning("%s; %d bytes skipped", error, size)

    def _pass_over(self, stretch: Stretch, position: int, status: int) -> int:
        reason = REASONS.get(status, "there is an end-of-file marker instead of a record")
        error = CorruptRecord(stretch.file, stretch.log_start + position, reason)
        if not self._skips:
            raise error
        found = next_whole(stretch, position, status, self._check_crc)
        if self._on_scar is not None:
            self._on_scar(stretch.log_start + position, stretch.log_start + found, reason)
        else:
            self.report(error, found - position)
        return found

    def _batches(self, file: Path, rows: int, buffers: Buffers) -> Iterator[pa.RecordBatch]:
        arrays = {name: self._array(name, rows, buffers) for name in self._columns}
        batch = self._pa.RecordBatch.from_arrays([arrays[name] for name in self._columns], schema=self._schema)
        compressed = self._compressed_rows(rows, buffers) if self._inflates else []
        if not compressed:
            yield batch
            return
        place = self._columns.index("body")
        for start, stop, body in self._inflated(file, arrays["body"], compressed, buffers):
            yield batch.slice(start, stop - start).set_column(place, self._schema.field(place), body)

    def _compressed_rows(self, rows: int, buffers: Buffers) -> list[int]:
        import pyarrow.compute as pc

        flags = self._array("sys_flag", rows, buffers)
        found: list[int] = pc.indices_nonzero(pc.bit_wise_and(flags, COMPRESSED)).to_pylist()
        return found

    def _inflated(
        self, file: Path, stored: pa.Array, compressed: list[int], buffers: Buffers
    ) -> Iterator[tuple[int, int, pa.Array]]:
        """Yield runs of rows with decompressed bodies. A run ends where bodies grow large or a row is omitted."""
        flags, sizes = (memoryview(buffers[name]).cast("i") for name in ("sys_flag", "size"))
        offsets = memoryview(buffers["physical_offset"]).cast("q")
        start, done, total = 0, 0, 0
        pieces: list[pa.Array] = []
        for row in compressed:
            body = None
            try:
                body = decompress_body(stored[row].as_py(), flags[row])
            except ValueError as reason:
                error = CorruptRecord(file, offsets[row], str(reason))
                if not self._skips:
                    raise error from None
                self.report(error, sizes[row])
            pieces.append(stored.slice(done, row - done))
            if row > start and (body is None or total + len(body) > self.max_inflated):
                yield start, row, self._pa.concat_arrays(pieces)
                start, total, pieces = row, 0, []
            done = row + 1
            if body is None:
                start, pieces = done, []
            else:
                total += len(body)
                pieces.append(self._pa.array([body], self._pa.binary()))
        if start < len(stored):
            yield start, len(stored), self._pa.concat_arrays([*pieces, stored.slice(done)])

    def _array(self, name: str, rows: int, buffers: Buffers) -> pa.Array:
        """Return one column over the kernel's buffers: `kernel.types.Scanned` lists them."""
        pa = self._pa
        kind = self._types[name]

        def buffer(part: str) -> Any:
            return pa.py_buffer(buffers[part])

        def texts(part: str, kind: Any, validity: Any = None) -> Any:
            count = len(buffers[f"{part}.offsets"]) // 4 - 1
            return pa.Array.from_buffers(kind, count, [validity, buffer(f"{part}.offsets"), buffer(f"{part}.values")])

        if pa.types.is_dictionary(kind):
            indices = pa.Array.from_buffers(pa.int32(), rows, [None, buffer(name)])
            return pa.DictionaryArray.from_arrays(indices, texts(name, pa.string()))
        if name == "tags":
            return texts(name, kind, buffer("tags.validity"))
        if name in ("body", RAW_BODY):
            return texts("body", kind)
        if name == "keys":
            return pa.Array.from_buffers(
                kind, rows, [None, buffer("keys.offsets")], children=[texts("keys.item", pa.string())]
            )
        if name == "properties":
            names, values = texts("properties.name", pa.string()), texts("properties.value", pa.string())
            pairs = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
            return pa.Array.from_buffers(kind, rows, [None, buffer("properties.offsets")], children=[pairs])
        return pa.Array.from_buffers(kind, rows, [None, buffer(name)])


def next_whole(stretch: Stretch, position: int, status: int, check_crc: bool) -> int:
    """Return where a scan continues after damage at `position`, or `stretch.end` if no whole record follows.

    A wrong CRC means a damaged body; the record's length may still be right. So if a record starts right after it, the
    scan continues there. Else it searches for the next whole record. A body that quotes a piece of the log cannot fake
    one, because a record holds its own physical offset.
    """
    data, log_start, end = stretch.data, stretch.log_start, stretch.end
    if status == BAD_CRC:
        after = position + int.from_bytes(data[position : position + 4], "big")
        if after == end or check_record(data, after, end, log_start + after, check_crc) >= 0:
            return after
    return find_record(data, position + 1, end, log_start, check_crc)


def _types(pa: Any) -> dict[str, Any]:
    """Return the pyarrow types of COLUMNS."""
    known = {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "timestamp[ms, UTC]": pa.timestamp("ms", "UTC"),
        "dictionary<int32, string>": pa.dictionary(pa.int32(), pa.string()),
        "list<string>": pa.list_(pa.string()),
        "map<string, string>": pa.map_(pa.string(), pa.string()),
    }
    return {name: known[text] for name, text in COLUMNS.items()} | {RAW_BODY: pa.binary()}


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("scan", "arrow") from None
    return pyarrow


def _ignore(size: int) -> None:
    pass
