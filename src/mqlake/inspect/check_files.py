"""The small files of a store: checkpoints, positions, configuration, and files that do not belong there."""

from __future__ import annotations

from pathlib import Path

from mqlake.codec.checkpoint import CHECKPOINT_SIZE, RocketCheckpoint
from mqlake.codec.config_json import MAX_CONFIG_BYTES, Json, read_config
from mqlake.errors import BadFile
from mqlake.files.kinds import wrong_kinds
from mqlake.files.layout import Layout
from mqlake.files.positions import APPENDED, DISPATCHED, DURABLE, SIZE, WRITER, Positions
from mqlake.files.small_files import read_small_file
from mqlake.inspect.findings import Findings
from mqlake.inspect.log_map import LogMap
from mqlake.logs.deleted_topics import DeletedTopics
from mqlake.logs.scars import read_scars
from mqlake.store.checkpoint import read_checkpoint

KNOWN = {
    *("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config", "checkpoint"),
    *("abort", "abort.bak", "lock", "mqlake", "timerwheel", "timerlog", "compaction", "epochFileCheckpoint"),
    *("epochFileCheckpoint.bak", "brokerIdentity", "kvStore", "transaction", "rocksdbstore"),
}
SMALL = 1 << 20
"""Checkpoints and settings are smaller than this."""


def look_at_small_files(layout: Layout, log: LogMap, findings: Findings) -> None:
    _rocket_checkpoint(layout, log, findings)
    _own_checkpoint(layout, log, findings)
    _positions(layout, log, findings)
    _notes(layout, log, findings)
    wrong = wrong_kinds(layout)
    for path, found, expected in wrong:
        findings.add("file-irregular", path, None, found, expected)
    for path in sorted(layout.root.iterdir()):
        if path.name not in KNOWN:
            findings.add("foreign", path, None, "no part of a store", "nothing else")
    for path in sorted(layout.commit_log.glob("*")):
        if path.is_dir() and path not in {each.path for each in wrong}:
            findings.add("foreign", path, None, "a folder", "files only")


def _rocket_checkpoint(layout: Layout, log: LogMap, findings: Findings) -> None:
    try:
        data = read_small_file(layout.checkpoint, SMALL)
    except FileNotFoundError:
        return
    except (OSError, BadFile) as error:
        findings.add("checkpoint-size", layout.checkpoint, None, str(error), f"{CHECKPOINT_SIZE} bytes")
        return
    if len(data) != CHECKPOINT_SIZE:
        findings.add("checkpoint-size", layout.checkpoint, None, f"{len(data)} bytes", f"{CHECKPOINT_SIZE} bytes")
        return
    if log.ends.live:
        return
    times = RocketCheckpoint.decode(data)[:3]
    for at, time in enumerate(times):
        if time < 0 or time > log.last_timestamp > 0:
            expected = f"at most {log.last_timestamp}, the newest record's"
            findings.add("checkpoint-ahead", layout.checkpoint, 8 * at, f"time {time}", expected)


def _own_checkpoint(layout: Layout, log: LogMap, findings: Findings) -> None:
    """Check our checkpoint. One of an earlier state is not used: RocketMQ has written since."""
    checkpoint = read_checkpoint(layout.own_checkpoint)
    if checkpoint is None:
        if layout.own_checkpoint.exists():
            findings.add("own-checkpoint", layout.own_checkpoint, None, "a wrong checksum", "a valid checkpoint")
    elif log.ends.checkpoint is None and not log.ends.live:
        told = f"a checkpoint at {checkpoint.dispatched}"
        findings.add("own-checkpoint-behind", layout.own_checkpoint, None, told, f"{log.end}, the log's end")


def _positions(layout: Layout, log: LogMap, findings: Findings) -> None:
    """Check the positions of a closed store against its checkpoint. After a crash they may be anything."""
    if not layout.positions.exists():
        return
    positions = Positions.open(layout.positions)
    if positions is None:
        findings.add("positions", layout.positions, None, "another size or format", f"{SIZE} bytes of words")
        return
    checkpoint = log.ends.checkpoint
    if log.ends.live or checkpoint is None or not checkpoint.clean:
        return
    for word in (APPENDED, DURABLE, DISPATCHED):
        if positions.words[word] != checkpoint.dispatched:
            expected = f"{checkpoint.dispatched}, as the checkpoint says"
            findings.add("positions", layout.positions, 8 * word, str(positions.words[word]), expected)
    if positions.words[WRITER]:
        findings.add(
            "positions", layout.positions, 8 * WRITER, f"writer {positions.words[WRITER]}", "0: the store is closed"
        )


def _notes(layout: Layout, log: LogMap, findings: Findings) -> None:
    if layout.abort.exists() and not log.ends.live:
        redone_from = log.ends.redone_from
        cost = f"the next opening recovers: it dispatches the log from {redone_from}" if redone_from < log.end else ""
        findings.add("abort", layout.abort, None, "the last stop was unclean", "no such file", cost)
    if layout.settings.exists() and not isinstance(parsed(layout.settings), dict):
        findings.add("settings", layout.settings, None, "not JSON", "a JSON object")
    if None in read_scars(layout.scars):
        findings.add("scars", layout.scars, None, "a line that names no scar", "JSON lines")
    deleted = DeletedTopics(layout.deleted_topics, layout.scratch)
    deleted.load()
    for path in deleted.damaged:
        what = "deleted-topics-lost" if deleted.is_lost else "deleted-topics"
        findings.add(what, path, None, "a wrong checksum", "a JSON object and its CRC-32")
    if not log.ends.live and layout.scratch.is_dir():
        for path in sorted(layout.scratch.iterdir()):
            findings.add("leftover", path, None, "an unfinished file", "none")


def parsed(path: Path) -> Json | None:
    """Return the content of a JSON file, as RocketMQ writes it; None if it cannot be used."""
    try:
        return _read(path)
    except (OSError, ValueError, BadFile):
        return None


def _read(path: Path) -> Json:
    return read_config(path.name.removesuffix(".bak"), read_small_file(path, MAX_CONFIG_BYTES))


def broken_json(layout: Layout, findings: Findings) -> list[Path]:
    """Report unusable configuration files: a warning if the .bak is usable, else an error."""
    broken = []
    names = {path.name.removesuffix(".bak") for path in layout.config.glob("*.json*")}
    for path in sorted(layout.config / name for name in names if name.endswith(".json")):
        found = _problem_of(path)
        has_backup = parsed(path.with_name(f"{path.name}.bak")) is not None
        if not path.exists():  # a power cut may leave only the .bak of the first text
            if has_backup:
                findings.add("config-absent", path, None, found, "JSON")
        elif found:
            broken.append(path)
            findings.add("config-json" if has_backup else "config-lost", path, None, found, "JSON")
    return broken


def _problem_of(path: Path) -> str:
    """Return why a configuration file cannot be used; empty if it can."""
    try:
        _read(path)
    except FileNotFoundError:
        return "no file"
    except BadFile as error:
        return error.found
    except (OSError, ValueError) as error:
        return str(error)
    return ""
