"""Settings: small frozen dataclasses with RocketMQ's defaults and RocketMQ's own property names.

`StoreConfig.load("broker.conf")` reads a broker's file. A name that no RocketMQ release knows is an error; a name that
RocketMQ knows and this store does not need is accepted. `None` for a file size means: the size of the files that
exist, else the default.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from mqlake.errors import InvalidConfig, InvalidMessage
from mqlake.kernel.hosts import pack_host

MIB = 1024 * 1024
DEFAULT_LOG_FILE_SIZE = 1024 * MIB
MIN_LOG_FILE_SIZE, MAX_LOG_FILE_SIZE = 4096, 2**31 - 1
DEFAULT_QUEUE_FILE_SIZE = 300_000 * 20
DEFAULT_BATCH_QUEUE_FILE_SIZE = 300_000 * 46
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
RECORD_OVERHEAD = 64 * 1024
"""A whole record may exceed the limit on its body by this much."""


def _require(key: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidConfig(key, value, f"must be a whole number in [{low}, {high}]")


def require_seconds(name: str, value: object) -> None:
    """Refuse what no clock can be compared with: NaN, for which a wait would never end, and what no float can hold."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != value
        or math.inf > abs(value) > sys.float_info.max
    ):
        raise InvalidConfig(name, value, "must be a number of seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLogConfig:
    """The commit log, which holds all messages."""

    file_size_bytes: int | None = None
    """Size of each log file (mappedFileSizeCommitLog): 1 GiB unless the store already has files."""

    max_message_bytes: int = 4 * MIB
    """Largest body (maxMessageSize); also the largest batch."""

    append_record_crc: bool = False
    """End each record with a property that holds a CRC over the whole record (enabledAppendPropCRC; RocketMQ 5.2+)."""

    store_host: str = "127.0.0.1:10911"
    """Address in records and message ids (brokerIP1 and listenPort)."""

    slow_append_ms: int = 500
    """Warn if one append holds the log's lock for longer than this."""

    def __post_init__(self) -> None:
        if self.file_size_bytes is not None:
            _require("file_size_bytes", self.file_size_bytes, MIN_LOG_FILE_SIZE, MAX_LOG_FILE_SIZE)
        _require("max_message_bytes", self.max_message_bytes, 1, 2**31 - 1 - RECORD_OVERHEAD)
        _require("slow_append_ms", self.slow_append_ms, 0, 3_600_000)
        try:
            pack_host(self.store_host)
        except InvalidMessage as error:
            raise InvalidConfig("store_host", self.store_host, error.expected) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeQueueConfig:
    """The consume queues, which hold the physical offset of each message of a topic."""

    file_size_bytes: int | None = None
    """Size of each queue file (mappedFileSizeConsumeQueue): 300,000 entries of 20 bytes unless files exist."""

    queues_per_topic: int = 4
    """Queues of a topic that is created by its first message (defaultTopicQueueNums)."""

    def __post_init__(self) -> None:
        if self.file_size_bytes is not None:
            _require("file_size_bytes", self.file_size_bytes, 20, 2**31 - 1)
        _require("queues_per_topic", self.queues_per_topic, 1, 65_536)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """The key index."""

    enabled: bool = True
    """Index the keys of messages (messageIndexEnable)."""

    slot_count: int | None = None
    """Hash slots per file (maxHashSlotNum): 5,000,000 unless a note under mqlake/ says otherwise."""

    entry_count: int | None = None
    """Entries per file (maxIndexNum): 20,000,000 unless a note under mqlake/ says otherwise. Entry 0 is never used."""

    tags: bool = True
    """Index tags too, as RocketMQ does since 5.4."""

    def __post_init__(self) -> None:
        if self.slot_count is not None:
            _require("slot_count", self.slot_count, 1, 500_000_000)
        if self.entry_count is not None:
            _require("entry_count", self.entry_count, 2, 100_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushConfig:
    """When appended bytes reach the disk. The defaults are RocketMQ's."""

    sync: bool = False
    """put() returns only once the record is on disk, and no reader sees it earlier (flushDiskType)."""

    interval_ms: int = 500
    """Pause between background flushes (flushIntervalCommitLog)."""

    least_pages: int = 4
    """A background flush waits for this many dirty pages of 4 KiB (flushCommitLogLeastPages)."""

    thorough_interval_ms: int = 10_000
    """Flush at least this often, however few pages are dirty (flushCommitLogThoroughInterval). With sync off, this is
    the most that a power cut can lose."""

    timeout_ms: int = 5_000
    """Longest time that a put waits for its sync (syncFlushTimeout)."""

    queue_interval_ms: int = 1_000
    """Pause between flushes of the queue files (flushIntervalConsumeQueue)."""

    queue_thorough_interval_ms: int = 60_000
    """Sync queues and index and write a checkpoint at least this often (flushConsumeQueueThoroughInterval)."""

    def __post_init__(self) -> None:
        _require("interval_ms", self.interval_ms, 1, self.thorough_interval_ms)
        _require("least_pages", self.least_pages, 0, 262_144)
        _require("thorough_interval_ms", self.thorough_interval_ms, 1, 86_400_000)
        _require("timeout_ms", self.timeout_ms, 1, 86_400_000)
        _require("queue_interval_ms", self.queue_interval_ms, 1, self.queue_thorough_interval_ms)
        _require("queue_thorough_interval_ms", self.queue_thorough_interval_ms, 1, 86_400_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """The transient pool: puts write to locked buffers, which are committed to the file a little later."""

    enabled: bool = False
    """Use the pool (transientStorePoolEnable)."""

    buffer_count: int = 5
    """Number of buffers, each as large as a log file (transientStorePoolSize)."""

    commit_interval_ms: int = 200
    """Pause between commits of buffers to the file (commitIntervalCommitLog)."""

    commit_least_pages: int = 4
    """A commit waits for this many dirty pages (commitCommitLogLeastPages)."""

    commit_thorough_interval_ms: int = 200
    """Commit at least this often (commitCommitLogThoroughInterval)."""

    fail_fast: bool = False
    """Refuse a put at once if no buffer is free, instead of waiting (fastFailIfNoBufferInStorePool)."""

    def __post_init__(self) -> None:
        _require("buffer_count", self.buffer_count, 2, 1024)
        _require("commit_interval_ms", self.commit_interval_ms, 1, 60_000)
        _require("commit_least_pages", self.commit_least_pages, 0, 262_144)
        _require("commit_thorough_interval_ms", self.commit_thorough_interval_ms, 1, 60_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """Whether pages are prepared before they are written."""

    warm_files: bool = False
    """Fault in all pages of a log file, writable, before it is used (warmMapedFileEnable)."""

    lock_files: bool = False
    """Lock the log file in memory while it is written (RocketMQ does so with warmMapedFileEnable)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """When old log files are deleted. The defaults are RocketMQ's; a percentage of 100 means never."""

    enabled: bool = True
    """Delete by age and by disk use, and refuse puts if the disk is nearly full. If off, only a call deletes."""

    interval_ms: int = 10_000
    """Pause between rounds (cleanResourceInterval)."""

    reserved_hours: int = 72
    """Keep messages at least this long (fileReservedTime), read or not, unless the disk fills up."""

    delete_hours: str = "04"
    """Hours of the day, in local time and separated by `;`, at which files past that age are deleted (deleteWhen)."""

    used_percent: int = 75
    """Above this disk use, delete files past that age at any hour (diskMaxUsedSpaceRatio)."""

    force_percent: int = 85
    """Above this disk use, delete the oldest files, however young (diskSpaceCleanForciblyRatio)."""

    force: bool = True
    """Allow the deletion of files that are still younger than `reserved_hours` (cleanFileForciblyEnable)."""

    full_percent: int = 90
    """Above this disk use, refuse puts until it falls to `force_percent` (diskSpaceWarningLevelRatio)."""

    hard_limit_percent: int = 90
    """Above this disk use, gates no longer keep files (see `store/gates.py`)."""

    batch_files: int = 10
    """Most log files that one round deletes (deleteFileBatchMax)."""

    pause_ms: int = 100
    """Pause between the deletions of two log files (deleteCommitLogFilesInterval)."""

    queue_pause_ms: int = 100
    """Pause after each queue that lost a file (deleteConsumeQueueFilesInterval)."""

    def __post_init__(self) -> None:
        _require("interval_ms", self.interval_ms, 1, 86_400_000)
        _require("reserved_hours", self.reserved_hours, 0, 876_000)
        _require("used_percent", self.used_percent, 1, 100)
        _require("force_percent", self.force_percent, 1, self.full_percent)
        _require("full_percent", self.full_percent, 1, 100)
        _require("hard_limit_percent", self.hard_limit_percent, 1, 100)
        _require("batch_files", self.batch_files, 1, 1_000_000)
        _require("pause_ms", self.pause_ms, 0, 60_000)
        _require("queue_pause_ms", self.queue_pause_ms, 0, 60_000)
        parse_hours(self.delete_hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealConfig:
    """Checksums of blocks of the log, and how often they are compared with it. RocketMQ has nothing like it."""

    enabled: bool = True
    """Seal the log in the background (mqlake.sealEnable)."""

    interval_ms: int = 5_000
    """Pause between two rounds of sealing and scrubbing (mqlake.sealInterval)."""

    scrub_hours: int = 168
    """Compare all of the log with its seals this long after the last time (mqlake.scrubHours); 0 means never."""

    scrub_bytes_per_s: int = 32 * MIB
    """How fast old parts of the log are read to be sealed or compared (mqlake.scrubBytesPerSecond); 0: no limit."""

    def __post_init__(self) -> None:
        _require("interval_ms", self.interval_ms, 1, 86_400_000)
        _require("scrub_hours", self.scrub_hours, 0, 876_000)
        _require("scrub_bytes_per_s", self.scrub_bytes_per_s, 0, 2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig:
    """Topics, groups and their progress. The defaults are RocketMQ's."""

    auto_create_topics: bool = True
    """The first put to an unknown topic creates it, with `queues_per_topic` queues (autoCreateTopicEnable)."""

    auto_create_groups: bool = True
    """The first consumer of an unknown group creates it with RocketMQ's settings (autoCreateSubscriptionGroup)."""

    persist_interval_ms: int = 5_000
    """Pause between two writes of changed state, above all of progress (flushConsumerOffsetInterval). A crash sets
    progress back by this much at most."""

    def __post_init__(self) -> None:
        _require("persist_interval_ms", self.persist_interval_ms, 1, 86_400_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerConfig:
    """Timed messages. The defaults are RocketMQ's."""

    enabled: bool = True
    """Accept timed messages (timerWheelEnable)."""

    max_delay_s: int = 259_200
    """How far ahead a message may be timed (timerMaxDelaySec). A later time is refused."""

    precision_ms: int = 1_000
    """RocketMQ's delivery precision (timerPrecisionMs). Here messages are delivered at their millisecond."""

    cancel_names_topic: bool = False
    """Cancellations name topic and key instead of the key alone (appendTopicForTimerDeleteKey). This store understands
    both; a RocketMQ broker understands only the form that it is set up for."""

    log_file_size_bytes: int = 100 * MIB
    """Size of the files in which RocketMQ finds pending messages (mappedFileSizeTimerLog)."""

    def __post_init__(self) -> None:
        _require("max_delay_s", self.max_delay_s, 1, 10**10)
        _require("precision_ms", self.precision_ms, 1, 86_400_000)
        _require("log_file_size_bytes", self.log_file_size_bytes, 1024, 2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Undecided transactions. The defaults are RocketMQ's."""

    check: Callable[[Any], bool | None] | None = None
    """Called with a transaction (`delivery.transaction.Undecided`) that its program left undecided: True commits it,
    False rolls it back, None means not yet known. Without a check, none is ever decided this way."""

    ask: Callable[[Any], None] | None = None
    """Called with a transaction that stays undecided after `check`, with its half messages as they are stored now. It
    asks whoever began it, without waiting: the answer comes later, through `Transactions.decide`."""

    timeout_ms: int = 6_000
    """Age from which a transaction is checked (transactionTimeOut)."""

    check_interval_ms: int = 30_000
    """Pause between two rounds of checks (transactionCheckInterval)."""

    check_max: int = 15
    """After this many checks without an answer the transaction is abandoned (transactionCheckMax)."""

    def __post_init__(self) -> None:
        _require("timeout_ms", self.timeout_ms, 0, 86_400_000)
        _require("check_interval_ms", self.check_interval_ms, 1, 86_400_000)
        _require("check_max", self.check_max, 1, 1_000_000)


class Role(enum.Enum):
    """What a store is in replication, by RocketMQ's names."""

    ASYNC_MASTER = "ASYNC_MASTER"
    """It takes writes. What slaves have does not matter to them."""

    SYNC_MASTER = "SYNC_MASTER"
    """It takes writes, and confirms those that want it once slaves have them."""

    SLAVE = "SLAVE"
    """Its log is a master's, byte for byte. It refuses writes and serves reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Master and slaves. The defaults are RocketMQ's."""

    role: Role = Role.ASYNC_MASTER
    """What this store is (brokerRole)."""

    listen_port: int = 10912
    """Where a master waits for slaves (haListenPort)."""

    master_address: str | None = None
    """HOST:PORT at which a slave finds its master's replication (haMasterAddress)."""

    begin_offset: int | None = None
    """Where an empty slave begins: the first byte of one of the master's files, 0 if it still has all. None: at its
    newest file, as RocketMQ's slaves do. RocketMQ has no name for this."""

    heartbeat_interval_ms: int = 5_000
    """After this much silence a side sends a sign of life (haSendHeartbeatInterval)."""

    silence_limit_ms: int = 20_000
    """After this much silence of the other side a connection is closed (haHousekeepingInterval)."""

    transfer_bytes: int = 32 * 1024
    """Most bytes of one transfer (haTransferBatchSize). A slave of RocketMQ reads less than 4 MiB at once."""

    max_lag_bytes: int = 256 * MIB
    """A slave that lags by more does not count as one (haSlaveFallbehindMax; since 5.0 haMaxGapNotInSync)."""

    replica_timeout_ms: int = 3_000
    """How long a write waits for slaves (slaveTimeout)."""

    in_sync_replicas: int = 1
    """How many stores must have a write that wants replicas, the master included (inSyncReplicas)."""

    def __post_init__(self) -> None:
        _require("listen_port", self.listen_port, 0, 65_535)
        if self.master_address is not None:
            parse_address("master_address", self.master_address)
        if self.begin_offset is not None:
            _require("begin_offset", self.begin_offset, 0, 2**63 - 1)
        _require("heartbeat_interval_ms", self.heartbeat_interval_ms, 1, 3_600_000)
        _require("silence_limit_ms", self.silence_limit_ms, self.heartbeat_interval_ms, 86_400_000)
        _require("transfer_bytes", self.transfer_bytes, 1, 4 * MIB - 12)
        _require("max_lag_bytes", self.max_lag_bytes, 0, 2**63 - 1)
        _require("replica_timeout_ms", self.replica_timeout_ms, 1, 86_400_000)
        _require("in_sync_replicas", self.in_sync_replicas, 1, 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """All settings of a store."""

    commit_log: CommitLogConfig = field(default_factory=CommitLogConfig)
    consume_queue: ConsumeQueueConfig = field(default_factory=ConsumeQueueConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    flush: FlushConfig = field(default_factory=FlushConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    seals: SealConfig = field(default_factory=SealConfig)
    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    timer: TimerConfig = field(default_factory=TimerConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)

    delay_levels: str = DEFAULT_DELAY_LEVELS
    """Durations of the delay levels, from level 1 up, each a number and a unit s, m, h or d (messageDelayLevel)."""

    def __post_init__(self) -> None:
        for each in fields(self):
            section: Any = each.default_factory
            if section is not MISSING and not isinstance(getattr(self, each.name), section):
                raise InvalidConfig(each.name, getattr(self, each.name), f"must be a {section.__name__}")
            _require_switches(getattr(self, each.name))
        parse_delay_levels(self.delay_levels)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        return parse_delay_levels(self.delay_levels)

    @classmethod
    def load(cls, path: str | Path) -> StoreConfig:
        """Read a broker.conf: lines of `name=value`; `#` starts a comment."""
        return cls.from_properties(read_properties(Path(path)))

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> StoreConfig:
        """Return the settings given by RocketMQ's names. A name that no RocketMQ release knows raises InvalidConfig."""
        sections: dict[str, dict[str, Any]] = {}
        given: dict[tuple[str, str], str] = {}
        known = known_properties()
        for name, text in properties.items():
            setting = SETTINGS.get(name)
            if setting is None:
                if name not in known and "." not in name:  # dotted names belong to other tools: RocketMQ has none
                    shown = text if not text.startswith("{") else "{...}"  # a user with a password, misspelled
                    raise InvalidConfig(name, shown, "RocketMQ has no such setting; correct the name or remove it")
                continue
            section, key, parse = setting
            sections.setdefault(section, {})[key] = parse(name, text)
            given[section, key] = name
        _join_host(sections)
        own = sections.pop("", {})
        made = {section: _section(section, values, given) for section, values in sections.items()}
        return cls(**made, **own)


def _require_switches(section: Any) -> None:
    """Refuse a switch that is not a bool: the text "false" would turn it on."""
    for each in fields(section) if is_dataclass(section) else ():
        value = getattr(section, each.name)
        if isinstance(each.default, bool) and not isinstance(value, bool):
            raise InvalidConfig(each.name, value, "must be True or False")


def _section(section: str, values: dict[str, Any], given: dict[tuple[str, str], str]) -> Any:
    """Return one section's dataclass. An error names the setting as the file spells it."""
    try:
        return SECTIONS[section](**values)
    except InvalidConfig as error:
        names = [given[section, key] for key in HOST_KEYS.get(error.key, (error.key,)) if (section, key) in given]
        raise InvalidConfig("/".join(names) or error.key, error.value, error.expected) from None


def read_properties(path: Path) -> dict[str, str]:
    """Read a Java properties file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig("config", str(path), f"cannot be read: {error}") from None
    return parse_properties(text, str(path))


def parse_properties(content: str, where: str = "properties") -> dict[str, str]:
    """Parse Java properties, as far as RocketMQ's files need it. Later lines win."""
    found = {}
    for number, line in enumerate(content.splitlines(), 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidConfig(f"{where}, line {number}", text, "must read name=value")
        found[name.strip()] = value.strip()
    return found


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the milliseconds of each level in a text like `1s 5s 2h`."""
    units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    levels = []
    for part in text.split():
        if part[-1] not in units or not part[:-1].isdigit():
            raise InvalidConfig("messageDelayLevel", part, "must be a number and one of s, m, h, d")
        levels.append(int(part[:-1]) * units[part[-1]])
    if not 1 <= len(levels) <= 64:
        raise InvalidConfig("messageDelayLevel", text, "must name 1 to 64 levels")
    return tuple(levels)


def is_port(text: str) -> bool:
    """Return whether a text is a port. 0 is one: it lets the system choose where to listen."""
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) < 65_536


def parse_address(key: str, text: str) -> tuple[str, int]:
    """Return host and port of a text like `HOST:PORT` or `[V6]:PORT`."""
    host, _, port = text.rpartition(":")
    if not host or not is_port(port) or int(port) == 0:
        raise InvalidConfig(key, text, "must be HOST:PORT, with a port from 1 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_hours(text: str) -> frozenset[int]:
    """Return the hours in a text like `04;16`."""
    hours = [part.strip() for part in text.split(";") if part.strip()]
    if not hours or not all(hour.isdecimal() and int(hour) < 24 for hour in hours):
        raise InvalidConfig("delete_hours", text, "must be hours from 00 to 23, separated by ;, like 04;16")
    return frozenset(map(int, hours))


def known_properties() -> frozenset[str]:
    """Return the name of every setting of a RocketMQ 4.9 or 5.x broker."""
    text = (Path(__file__).parent / "rocketmq-properties.txt").read_text(encoding="utf-8")
    return frozenset(text.split())


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidConfig(name, text, "must be a whole number") from None


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidConfig(name, text, "must be true or false")
    return text.lower() == "true"


def _text(name: str, text: str) -> str:
    return text


def _flush_type(name: str, text: str) -> bool:
    if text not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        raise InvalidConfig(name, text, "must be SYNC_FLUSH or ASYNC_FLUSH")
    return text == "SYNC_FLUSH"


def _role(name: str, text: str) -> Role:
    if text not in Role.__members__:
        raise InvalidConfig(name, text, f"must be one of {', '.join(Role.__members__)}")
    return Role[text]


def _whole_entries(name: str, text: str) -> int:
    """Return the size of a queue file, rounded up to whole entries as RocketMQ does."""
    return -(-_number(name, text) // 20) * 20


def _percent(low: int, high: int) -> Callable[[str, str], int]:
    """Return a parser that clamps a ratio to its bounds, as RocketMQ does."""
    return lambda name, text: min(max(_number(name, text), low), high)


def _join_host(sections: dict[str, dict[str, Any]]) -> None:
    """Join address and port, which RocketMQ names separately."""
    log = sections.get("commit_log", {})
    address, port = log.pop("address", None), log.pop("port", None)
    if address is not None or port is not None:
        address = address or "127.0.0.1"
        log["store_host"] = f"[{address}]:{port or 10911}" if ":" in address else f"{address}:{port or 10911}"


HOST_KEYS = {"store_host": ("address", "port")}
"""Settings that are made of two of RocketMQ's."""

SECTIONS: dict[str, Callable[..., Any]] = {
    section.name: section.default_factory
    for section in dataclasses.fields(StoreConfig)
    if callable(section.default_factory)
}

SETTINGS: dict[str, tuple[str, str, Callable[[str, str], object]]] = {
    "mappedFileSizeCommitLog": ("commit_log", "file_size_bytes", _number),
    "mapedFileSizeCommitLog": ("commit_log", "file_size_bytes", _number),
    "maxMessageSize": ("commit_log", "max_message_bytes", _number),
    "enabledAppendPropCRC": ("commit_log", "append_record_crc", _truth),
    "brokerIP1": ("commit_log", "address", _text),
    "listenPort": ("commit_log", "port", _number),
    "mappedFileSizeConsumeQueue": ("consume_queue", "file_size_bytes", _whole_entries),
    "mapedFileSizeConsumeQueue": ("consume_queue", "file_size_bytes", _whole_entries),
    "defaultTopicQueueNums": ("consume_queue", "queues_per_topic", _number),
    "messageIndexEnable": ("index", "enabled", _truth),
    "maxHashSlotNum": ("index", "slot_count", _number),
    "maxIndexNum": ("index", "entry_count", _number),
    "flushDiskType": ("flush", "sync", _flush_type),
    "flushIntervalCommitLog": ("flush", "interval_ms", _number),
    "flushCommitLogLeastPages": ("flush", "least_pages", _number),
    "flushCommitLogThoroughInterval": ("flush", "thorough_interval_ms", _number),
    "syncFlushTimeout": ("flush", "timeout_ms", _number),
    "flushIntervalConsumeQueue": ("flush", "queue_interval_ms", _number),
    "flushConsumeQueueThoroughInterval": ("flush", "queue_thorough_interval_ms", _number),
    "transientStorePoolEnable": ("pool", "enabled", _truth),
    "transientStorePoolSize": ("pool", "buffer_count", _number),
    "fastFailIfNoBufferInStorePool": ("pool", "fail_fast", _truth),
    "commitIntervalCommitLog": ("pool", "commit_interval_ms", _number),
    "commitCommitLogLeastPages": ("pool", "commit_least_pages", _number),
    "commitCommitLogThoroughInterval": ("pool", "commit_thorough_interval_ms", _number),
    "warmMapedFileEnable": ("memory", "warm_files", _truth),
    "cleanResourceInterval": ("retention", "interval_ms", _number),
    "fileReservedTime": ("retention", "reserved_hours", _number),
    "deleteWhen": ("retention", "delete_hours", _text),
    "diskMaxUsedSpaceRatio": ("retention", "used_percent", _percent(10, 95)),
    "diskSpaceCleanForciblyRatio": ("retention", "force_percent", _percent(30, 85)),
    "diskSpaceWarningLevelRatio": ("retention", "full_percent", _percent(35, 90)),
    "cleanFileForciblyEnable": ("retention", "force", _truth),
    "deleteFileBatchMax": ("retention", "batch_files", _number),
    "deleteCommitLogFilesInterval": ("retention", "pause_ms", _number),
    "deleteConsumeQueueFilesInterval": ("retention", "queue_pause_ms", _number),
    "mqlake.sealEnable": ("seals", "enabled", _truth),
    "mqlake.sealInterval": ("seals", "interval_ms", _number),
    "mqlake.scrubHours": ("seals", "scrub_hours", _number),
    "mqlake.scrubBytesPerSecond": ("seals", "scrub_bytes_per_s", _number),
    "autoCreateTopicEnable": ("delivery", "auto_create_topics", _truth),
    "autoCreateSubscriptionGroup": ("delivery", "auto_create_groups", _truth),
    "flushConsumerOffsetInterval": ("delivery", "persist_interval_ms", _number),
    "timerWheelEnable": ("timer", "enabled", _truth),
    "timerMaxDelaySec": ("timer", "max_delay_s", _number),
    "mappedFileSizeTimerLog": ("timer", "log_file_size_bytes", _number),
    "appendTopicForTimerDeleteKey": ("timer", "cancel_names_topic", _truth),
    "timerPrecisionMs": ("timer", "precision_ms", _number),
    "transactionTimeOut": ("transactions", "timeout_ms", _number),
    "transactionCheckInterval": ("transactions", "check_interval_ms", _number),
    "transactionCheckMax": ("transactions", "check_max", _number),
    "brokerRole": ("replication", "role", _role),
    "haListenPort": ("replication", "listen_port", _number),
    "haMasterAddress": ("replication", "master_address", _text),
    "haSendHeartbeatInterval": ("replication", "heartbeat_interval_ms", _number),
    "haHousekeepingInterval": ("replication", "silence_limit_ms", _number),
    "haTransferBatchSize": ("replication", "transfer_bytes", _number),
    "haSlaveFallbehindMax": ("replication", "max_lag_bytes", _number),
    "haMaxGapNotInSync": ("replication", "max_lag_bytes", _number),
    "slaveTimeout": ("replication", "replica_timeout_ms", _number),
    "inSyncReplicas": ("replication", "in_sync_replicas", _number),
    "messageDelayLevel": ("", "delay_levels", _text),
}
"""Name -> section, setting, parser of its text. RocketMQ's names keep its spelling, errors included; those that begin
with `mqlake.` are ours, and RocketMQ ignores them."""
