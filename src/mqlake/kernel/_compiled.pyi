from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from mqlake.kernel.types import Dispatched, LogFile, Readable, Scanned, Surveyed, Writable

class Message:
    topic: str
    body: bytes
    queue_id: int | None
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str | None
    reconsume_times: int
    prepared_offset: int
    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        queue_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | None = None,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        deliver_at: datetime | int | None = None,
        delay_s: float | None = None,
        delay_level: int | None = None,
    ) -> None: ...
    @property
    def tags(self) -> str | None: ...
    @property
    def keys(self) -> list[str]: ...

class PutReceipt:
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int
    durability: Any
    store_host: bytes
    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        size: int,
        store_timestamp: int,
        durability: Any,
        store_host: bytes,
    ) -> None: ...
    @property
    def end(self) -> int: ...
    @property
    def message_id(self) -> str: ...

class StoredRecord:
    record: bytes
    def __init__(self, record: bytes) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def tags(self) -> str | None: ...
    @property
    def keys(self) -> list[str]: ...
    @property
    def raw_body(self) -> bytes: ...
    @property
    def size(self) -> int: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_timestamp(self) -> int: ...
    @property
    def store_timestamp(self) -> int: ...
    @property
    def born_address(self) -> bytes: ...
    @property
    def store_address(self) -> bytes: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_offset(self) -> int: ...
    @property
    def body_crc(self) -> int: ...

class TopicState:
    name: str
    queue_count: int
    turn: int
    next_offsets: dict[int, int]
    put_count: int
    put_bytes: int
    def __init__(self, name: str, queue_count: int) -> None: ...

class Appender:
    end: int
    file_start: int
    position: int
    last_timestamp: int
    on_slow: Callable[[int, int], None] | None
    states: dict[str, TopicState]
    sets_delayed_aside: bool
    def __init__(
        self, end: int, store_host: bytes, max_body: int, append_crc: bool, slow_ns: int, words: Writable | None
    ) -> None: ...
    def open(self, target: Writable, file_start: int, position: int) -> None: ...
    def close(self) -> None: ...
    def release(self) -> None: ...
    def reopen(self) -> None: ...
    def size_of(self, message: Message) -> int: ...
    def append(
        self,
        message: Message,
        durability: Any,
        as_it_is: bool = False,
        numbered_lights: bool = False,
        while_closed: bool = False,
    ) -> PutReceipt | None: ...
    def append_many(
        self, messages: Sequence[Message], durability: Any, as_it_is: bool = False
    ) -> list[PutReceipt] | None: ...
    def append_packed(
        self,
        packed: Readable,
        position: int,
        lane_of: bytes,
        lanes: list[tuple[TopicState, int]],
        timestamp: int,
        keep: int,
    ) -> int: ...

class GroupCommit:
    @property
    def durable(self) -> int: ...
    @property
    def failure(self) -> int: ...
    @property
    def sync_count(self) -> int: ...
    def __init__(self, appender: Appender, word: Writable) -> None: ...
    def begin(self, durable: int) -> None: ...
    def write_to(self, descriptor: int, file_start: int) -> None: ...
    def wait(self, end: int, timeout_ns: int) -> int: ...
    def lead(self) -> None: ...
    def finish(self, durable: int, failure: int) -> None: ...
    def fail(self, failure: int) -> None: ...
    def request(self, end: int) -> None: ...
    def watch(self, descriptor: int) -> None: ...
    def unwatch(self, descriptor: int) -> None: ...
    def serve(self, timeout_ns: int) -> int: ...
    def stop(self) -> None: ...
    def release(self) -> None: ...

Kind = TypeVar("Kind", bound=StoredRecord)

def crc32(data: Readable, value: int = 0) -> int: ...
def java_hash(text: str, seed: int = 0) -> int: ...
def encode_record(
    message: Message,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: bytes,
    append_crc: bool,
) -> bytes: ...
def check_record(data: Readable, position: int, end: int, physical_offset: int, check_crc: bool) -> int: ...
def walk_records(
    log: Readable, position: int, end: int, log_start: int, check_crc: bool, most: int = ...
) -> tuple[int, int, int, int, int]: ...
def find_record(data: Readable, position: int, end: int, log_start: int, check_crc: bool = True) -> int: ...
def decode_properties(data: Readable) -> dict[str, str]: ...
def dispatch_records(
    log: Readable,
    position: int,
    end: int,
    log_start: int,
    max_bytes: int,
    delays_ms: tuple[int, ...],
    index_keys: bool,
    index_tags: bool,
) -> Dispatched: ...
def scan_columns(
    log: Readable,
    position: int,
    end: int,
    log_start: int,
    max_bytes: int,
    max_rows: int,
    columns: int,
    check_crc: bool,
    topics: Sequence[str] | None = None,
) -> Scanned: ...
def pick_columns(
    log: Readable,
    offsets: Readable,
    first: int,
    end: int,
    log_start: int,
    max_bytes: int,
    columns: int,
    check_crc: bool,
    topics: Sequence[str] | None = None,
) -> Scanned: ...
def pack_records(
    columns: dict[str, Any],
    rows: int,
    store_host: bytes,
    max_body: int,
    max_size: int,
    append_crc: bool,
    lights: bool,
) -> tuple[bytearray, int]: ...
def survey_packed(packed: Readable, position: int, max_bytes: int) -> tuple[int, bytes, list[tuple[str, int]]]: ...
def match_packed(
    log: Readable, position: int, end: int, log_start: int, store_timestamp: int, packed: Readable, at: int
) -> tuple[int, int, int]: ...
def count_valid_entries(entries: Readable, log_end: int) -> int: ...
def read_timers(
    log: Readable, log_start: int, readable: int, entries: Readable, first: int, precision_ms: int
) -> tuple[bytes, int, int]: ...
def lowest_place(pairs: Readable) -> int: ...
def pack_timer_units(
    pairs: Readable,
    now_ms: int,
    precision_ms: int,
    window_ms: int,
    per_file: int,
    file_size: int,
    file_at: Callable[[int], LogFile | None],
    target: Writable,
) -> None: ...
def take_due(pairs: Writable, count: int, before: int) -> tuple[bytes, int, int]: ...
def find_deliveries(log: Readable, position: int, end: int, log_start: int) -> tuple[int, int, bytes]: ...
def select_entries(entries: Readable, first: int, codes: bytes, limit: int) -> tuple[list[int], int]: ...
def read_records(
    log: Readable,
    log_start: int,
    readable: int,
    entries: Readable,
    first: int,
    max_bytes: int,
    kind: type[Kind],
    topic: bytes,
    queue_id: int,
    start: int,
    numbers: list[int] | None = None,
) -> tuple[list[Kind], int, int]: ...
def seek_timestamp(
    entries: Readable, low: int, high: int, timestamp: int, file_at: Callable[[int], LogFile | None]
) -> int: ...
def put_index_keys(index: Writable, slot_count: int, entry_count: int, keys: Readable, first: int) -> int: ...
def link_index_entries(index: Writable, slot_count: int, entry_count: int) -> None: ...
def index_entries_hold(index: Readable, slot_count: int, entry_count: int, header: Readable) -> bool: ...
def find_index_key(
    index: Readable,
    slot_count: int,
    entry_count: int,
    key_hash: int,
    begin_timestamp: int,
    end_timestamp: int,
    limit: int,
) -> list[int]: ...
def find_messages(
    indexes: tuple[Readable, ...],
    slot_count: int,
    entry_count: int,
    topic: str,
    key: str,
    tag: bool,
    begin_timestamp: int,
    end_timestamp: int,
    limit: int,
    first: int,
    readable: int,
    file_at: Callable[[int], LogFile | None],
    kind: type[Kind],
) -> list[Kind]: ...
def survey_records(log: Readable, position: int, end: int, log_start: int, max_bytes: int) -> Surveyed: ...
def check_index(
    index: Readable, slot_count: int, entry_count: int, next_entry: int, live: bool
) -> tuple[list[tuple[int, int, int, int]], int]: ...
def first_index_entry(index: Readable, slot_count: int, entry_count: int, next_entry: int, offset: int) -> int: ...
def match_index_keys(
    index: Readable, slot_count: int, entry_count: int, entry: int, next_entry: int, keys: Readable, first: int
) -> tuple[int, int, int, list[int], int, list[int], list[int]]: ...
def populate(pages: Writable, start: int, size: int) -> bool: ...
def lock_memory(pages: Writable) -> None: ...
def unlock_memory(pages: Writable) -> None: ...
