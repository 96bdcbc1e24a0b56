"""Settings: small frozen dataclasses with RocketMQ's defaults, and RocketMQ's own names for them.

`StoreConfig.load("broker.conf")` reads a broker's file. A name that no RocketMQ knows is an error; one that RocketMQ
knows and this store has no use for is accepted. `None` for a file size means: what the files have, else the default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqlake.errors import InvalidConfig, InvalidMessage
from mqlake.kernel.hosts import pack_host

MIB = 1024 * 1024
DEFAULT_LOG_FILE_SIZE = 1024 * MIB
DEFAULT_QUEUE_FILE_SIZE = 300_000 * 20
DEFAULT_BATCH_QUEUE_FILE_SIZE = 300_000 * 46
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
RECORD_OVERHEAD = 64 * 1024
"""A whole record may pass the limit on its body by this much."""


def _require(key: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidConfig(key, value, f"must be a whole number in [{low}, {high}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLogConfig:
    """The one log that holds all messages."""

    file_size_bytes: int | None = None
    """Size of each log file (mappedFileSizeCommitLog): 1 GiB unless the store has files already."""

    max_message_bytes: int = 4 * MIB
    """Largest body (maxMessageSize); also the largest batch."""

    append_record_crc: bool = False
    """End each record with a CRC over all of it, as a property (enabledAppendPropCRC; RocketMQ 5.2 and later)."""

    store_host: str = "127.0.0.1:10911"
    """Address that records and message ids carry (brokerIP1 and listenPort)."""

    slow_append_ms: int = 500
    """Warn when one append keeps the log to itself for longer."""

    def __post_init__(self) -> None:
        if self.file_size_bytes is not None:
            _require("file_size_bytes", self.file_size_bytes, 4096, 2**31 - 1)
        _require("max_message_bytes", self.max_message_bytes, 1, 2**31 - 1 - RECORD_OVERHEAD)
        _require("slow_append_ms", self.slow_append_ms, 0, 3_600_000)
        try:
            pack_host(self.store_host)
        except InvalidMessage as error:
            raise InvalidConfig("store_host", self.store_host, error.expected) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeQueueConfig:
    """The queues, which say where each message of a topic lies in the log."""

    file_size_bytes: int | None = None
    """Size of each queue file (mappedFileSizeConsumeQueue): 300,000 entries of 20 bytes unless there are files."""

    queues_per_topic: int = 4
    """Queues that a topic gets when messages name none (defaultTopicQueueNums)."""

    def __post_init__(self) -> None:
        if self.file_size_bytes is not None:
            _require("file_size_bytes", self.file_size_bytes, 20, 2**31 - 1)
        _require("queues_per_topic", self.queues_per_topic, 1, 65_536)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """The index of keys."""

    enabled: bool = True
    """Index keys at all (messageIndexEnable)."""

    slot_count: int | None = None
    """Hash slots of a file (maxHashSlotNum): 5,000,000 unless noted under mqlake/."""

    entry_count: int | None = None
    """Entries of a file (maxIndexNum): 20,000,000 unless noted under mqlake/. One of them is never used."""

    tags: bool = True
    """Index tags too, as RocketMQ does since 5.4."""

    def __post_init__(self) -> None:
        if self.slot_count is not None:
            _require("slot_count", self.slot_count, 1, 500_000_000)
        if self.entry_count is not None:
            _require("entry_count", self.entry_count, 2, 100_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushConfig:
    """When appended bytes reach the disk. Defaults are RocketMQ's."""

    sync: bool = False
    """put() returns only once the record is on disk, and nobody sees it before (flushDiskType)."""

    interval_ms: int = 500
    """Pause between background flushes (flushIntervalCommitLog)."""

    least_pages: int = 4
    """Dirty pages of 4 KiB that a background flush waits for (flushCommitLogLeastPages)."""

    thorough_interval_ms: int = 10_000
    """Flush at least this often, however few pages are dirty: with sync off, the most a power cut can lose
    (flushCommitLogThoroughInterval)."""

    timeout_ms: int = 5_000
    """How long a put waits for its sync (syncFlushTimeout)."""

    queue_interval_ms: int = 1_000
    """Pause between looks at the queues' files (flushIntervalConsumeQueue)."""

    queue_thorough_interval_ms: int = 60_000
    """Queues and index reach the disk, and a checkpoint is written, at least this often
    (flushConsumeQueueThoroughInterval)."""

    def __post_init__(self) -> None:
        _require("interval_ms", self.interval_ms, 1, self.thorough_interval_ms)
        _require("least_pages", self.least_pages, 0, 262_144)
        _require("thorough_interval_ms", self.thorough_interval_ms, 1, 86_400_000)
        _require("timeout_ms", self.timeout_ms, 1, 86_400_000)
        _require("queue_interval_ms", self.queue_interval_ms, 1, self.queue_thorough_interval_ms)
        _require("queue_thorough_interval_ms", self.queue_thorough_interval_ms, 1, 86_400_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """The transient pool: writes go to locked buffers first, and to the file a little later."""

    enabled: bool = False
    """Use it (transientStorePoolEnable)."""

    buffer_count: int = 5
    """Buffers, each as large as a log file (transientStorePoolSize)."""

    commit_interval_ms: int = 200
    """Pause between commits of buffers to the file (commitIntervalCommitLog)."""

    commit_least_pages: int = 4
    """Pages that a commit waits for (commitCommitLogLeastPages)."""

    commit_thorough_interval_ms: int = 200
    """Commit at least this often (commitCommitLogThoroughInterval)."""

    fail_fast: bool = False
    """Refuse a put at once when no buffer is free, in the place of waiting (fastFailIfNoBufferInStorePool)."""

    def __post_init__(self) -> None:
        _require("buffer_count", self.buffer_count, 2, 1024)
        _require("commit_interval_ms", self.commit_interval_ms, 1, 60_000)
        _require("commit_least_pages", self.commit_least_pages, 0, 262_144)
        _require("commit_thorough_interval_ms", self.commit_thorough_interval_ms, 1, 60_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """Pages made ready before they are written."""

    warm_files: bool = False
    """Make all pages of a log file writable before it is used (warmMapedFileEnable)."""

    lock_files: bool = False
    """Lock log files in memory while they are written (RocketMQ does so with warmMapedFileEnable)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """When old files of the log are deleted. Defaults are RocketMQ's; 100 for a percentage is never."""

    enabled: bool = True
    """Delete by age and by disk use, and refuse puts on a disk that is nearly full; without it only by hand."""

    interval_ms: int = 10_000
    """Pause between rounds (cleanResourceInterval)."""

    reserved_hours: int = 72
    """Messages are kept for so long at least (fileReservedTime), read or not, unless the disk runs full."""

    delete_hours: str = "04"
    """Hours of the day, local time, `;` between them, at which what is older goes (deleteWhen)."""

    used_percent: int = 75
    """Above this disk use what is older goes at any hour (diskMaxUsedSpaceRatio)."""

    force_percent: int = 85
    """Above this the oldest files go, however young (diskSpaceCleanForciblyRatio)."""

    force: bool = True
    """Delete files that are not yet old at all (cleanFileForciblyEnable)."""

    full_percent: int = 90
    """Above this puts are refused until the disk is at `force_percent` again (diskSpaceWarningLevelRatio)."""

    hard_limit_percent: int = 90
    """Above this no gate keeps a file any longer (see `store/gates.py`)."""

    batch_files: int = 10
    """Log files that one round deletes at most (deleteFileBatchMax)."""

    pause_ms: int = 100
    """Pause between two deletions of log files (deleteCommitLogFilesInterval)."""

    queue_pause_ms: int = 100
    """Pause behind each queue that lost a file (deleteConsumeQueueFilesInterval)."""

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
class DeliveryConfig:
    """Topics, groups and their progress. Defaults are RocketMQ's."""

    auto_create_topics: bool = True
    """A topic that is put to without being set up gets `queues_per_topic` queues (autoCreateTopicEnable)."""

    auto_create_groups: bool = True
    """A group that consumes without being set up gets RocketMQ's settings (autoCreateSubscriptionGroup)."""

    persist_interval_ms: int = 5_000
    """Pause between two writings of what changed, progress above all (flushConsumerOffsetInterval): a crash takes
    progress back by this much at most."""

    def __post_init__(self) -> None:
        _require("persist_interval_ms", self.persist_interval_ms, 1, 86_400_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerConfig:
    """Messages for a moment. Defaults are RocketMQ's."""

    enabled: bool = True
    """Take them at all (timerWheelEnable)."""

    max_delay_s: int = 259_200
    """How far ahead a message may be timed (timerMaxDelaySec); beyond that it is refused."""

    precision_ms: int = 1_000
    """The unit of time by which RocketMQ delivers them (timerPrecisionMs). Here they come at their millisecond."""

    cancel_names_topic: bool = False
    """A cancellation names topic and key, not the key alone (appendTopicForTimerDeleteKey). Here either is understood,
    by a RocketMQ only the one that it is set up for."""

    log_file_size_bytes: int = 100 * MIB
    """Size of the files in which RocketMQ finds what is pending (mappedFileSizeTimerLog)."""

    def __post_init__(self) -> None:
        _require("max_delay_s", self.max_delay_s, 1, 10**10)
        _require("precision_ms", self.precision_ms, 1, 86_400_000)
        _require("log_file_size_bytes", self.log_file_size_bytes, 1024, 2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Transactions that nobody decided upon. Defaults are RocketMQ's."""

    check: Callable[[Any], bool | None] | None = None
    """Asked about a transaction (`delivery.transaction.Undecided`) that its program left behind: True commits it,
    False rolls it back, None is no answer yet. Without it there never is one."""

    timeout_ms: int = 6_000
    """A transaction is not asked about before it is so old (transactionTimeOut)."""

    check_interval_ms: int = 30_000
    """Pause between two rounds of questions (transactionCheckInterval)."""

    check_max: int = 15
    """After so many questions without an answer it is given up (transactionCheckMax)."""

    def __post_init__(self) -> None:
        _require("timeout_ms", self.timeout_ms, 0, 86_400_000)
        _require("check_interval_ms", self.check_interval_ms, 1, 86_400_000)
        _require("check_max", self.check_max, 1, 1_000_000)


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
    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    timer: TimerConfig = field(default_factory=TimerConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)

    delay_levels: str = DEFAULT_DELAY_LEVELS
    """Durations of the delay levels from 1 on, as number and unit s, m, h or d (messageDelayLevel)."""

    def __post_init__(self) -> None:
        parse_delay_levels(self.delay_levels)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        return parse_delay_levels(self.delay_levels)

    @classmethod
    def load(cls, path: str | Path) -> StoreConfig:
        """Read a broker.conf: `name=value` lines, `#` begins a comment."""
        return cls.from_properties(read_properties(Path(path)))

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> StoreConfig:
        """Settings by RocketMQ's names; a name that no RocketMQ knows is an error that says which."""
        sections: dict[str, dict[str, Any]] = {}
        given: dict[tuple[str, str], str] = {}
        known = known_properties()
        for name, text in properties.items():
            setting = SETTINGS.get(name)
            if setting is None:
                if name not in known and "." not in name:  # a dotted name is another tool's: no setter has one
                    raise InvalidConfig(name, text, "no RocketMQ has such a setting; correct its name or leave it out")
                continue
            section, key, parse = setting
            sections.setdefault(section, {})[key] = parse(name, text)
            given[section, key] = name
        _join_host(sections)
        own = sections.pop("", {})
        made = {section: _section(section, values, given) for section, values in sections.items()}
        return cls(**made, **own)


def _section(section: str, values: dict[str, Any], given: dict[tuple[str, str], str]) -> Any:
    """One section's dataclass; an error names the setting as it was written."""
    try:
        return SECTIONS[section](**values)
    except InvalidConfig as error:
        names = [given[section, key] for key in HOST_KEYS.get(error.key, (error.key,)) if (section, key) in given]
        raise InvalidConfig("/".join(names) or error.key, error.value, error.expected) from None


def read_properties(path: Path) -> dict[str, str]:
    """A Java properties file, as far as RocketMQ's need it; later lines win."""
    found = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig("config", str(path), f"cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidConfig(f"{path}, line {number}", text, "must read name=value")
        found[name.strip()] = value.strip()
    return found


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """`1s 5s 2h` as milliseconds."""
    units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    levels = []
    for part in text.split():
        if part[-1] not in units or not part[:-1].isdigit():
            raise InvalidConfig("messageDelayLevel", part, "must be a number and one of s, m, h, d")
        levels.append(int(part[:-1]) * units[part[-1]])
    if not 1 <= len(levels) <= 64:
        raise InvalidConfig("messageDelayLevel", text, "must name 1 to 64 levels")
    return tuple(levels)


def parse_hours(text: str) -> frozenset[int]:
    """`04;16` as numbers."""
    hours = [part.strip() for part in text.split(";") if part.strip()]
    if not hours or not all(hour.isdecimal() and int(hour) < 24 for hour in hours):
        raise InvalidConfig("delete_hours", text, "must be hours from 00 to 23 with ; between them, as 04;16")
    return frozenset(map(int, hours))


def known_properties() -> frozenset[str]:
    """Every setting that a RocketMQ broker of 4.9 or 5.x takes."""
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


def _whole_entries(name: str, text: str) -> int:
    """RocketMQ rounds a queue file's size up to whole entries."""
    return -(-_number(name, text) // 20) * 20


def _percent(low: int, high: int) -> Callable[[str, str], int]:
    """RocketMQ takes a ratio outside of its bounds for the bound."""
    return lambda name, text: min(max(_number(name, text), low), high)


def _join_host(sections: dict[str, dict[str, Any]]) -> None:
    """RocketMQ names address and port apart."""
    log = sections.get("commit_log", {})
    address, port = log.pop("address", None), log.pop("port", None)
    if address is not None or port is not None:
        address = address or "127.0.0.1"
        log["store_host"] = f"[{address}]:{port or 10911}" if ":" in address else f"{address}:{port or 10911}"


HOST_KEYS = {"store_host": ("address", "port")}
"""Made of two of RocketMQ's settings."""

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
    "messageDelayLevel": ("", "delay_levels", _text),
}
"""RocketMQ's name -> section, setting, how its text is read. File names keep RocketMQ's spelling, slips and all."""
