"""The small files of a store: checkpoints, positions, configuration, and what does not belong there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from mqlake.codec.checkpoint import CHECKPOINT_SIZE, RocketCheckpoint
from mqlake.codec.queue_entry import BATCH_ENTRY, BATCH_ENTRY_SIZE, BatchEntry
from mqlake.files.layout import Layout
from mqlake.files.positions import APPENDED, DISPATCHED, DURABLE, SIZE, WRITER, Positions
from mqlake.kernel import check_record
from mqlake.logs.scars import read_scars
from mqlake.store.checkpoint import read_checkpoint
from mqlake.store.findings import Findings
from mqlake.store.log_map import LogMap
from mqlake.store.survey import look

KNOWN = {
    *("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config", "checkpoint"),
    *("abort", "abort.bak", "lock", "mqlake", "timerwheel", "timerlog", "compaction", "epochFileCheckpoint"),
    *("epochFileCheckpoint.bak", "brokerIdentity", "kvStore", "transaction", "rocksdbstore"),
}
JSON_KEY = re.compile(r'"(?:\\.|[^"\\])*"|(?<=[{,])(\s*)(-?\d+)(?=\s*:)')
"""A string, which is passed over, or a number as a key: RocketMQ writes those without quotes."""


def look_at_small_files(layout: Layout, log: LogMap, findings: Findings) -> None:
    _rocket_checkpoint(layout, log, findings)
    _own_checkpoint(layout, log, findings)
    _positions(layout, log, findings)
    _notes(layout, log, findings)
    for path in sorted(layout.root.iterdir()):
        if path.name not in KNOWN:
            findings.add("foreign", path, None, "no part of a store", "nothing else")
    for path in sorted(layout.commit_log.glob("*")):
        if path.is_dir():
            findings.add("foreign", path, None, "a folder", "files only")


def _rocket_checkpoint(layout: Layout, log: LogMap, findings: Findings) -> None:
    try:
        data = layout.checkpoint.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
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
    """One that is of an earlier state of the store is not used: RocketMQ wrote since."""
    checkpoint = read_checkpoint(layout.own_checkpoint)
    if checkpoint is None:
        if layout.own_checkpoint.exists():
            findings.add("own-checkpoint", layout.own_checkpoint, None, "a wrong checksum", "a checkpoint that holds")
    elif log.ends.checkpoint is None and not log.ends.live:
        told = f"a checkpoint at {checkpoint.dispatched}"
        findings.add("own-checkpoint-behind", layout.own_checkpoint, None, told, f"{log.end}, the log's end")


def _positions(layout: Layout, log: LogMap, findings: Findings) -> None:
    """The words of a closed store are those of its checkpoint; nobody keeps them after a crash."""
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
        findings.add("positions", layout.positions, 8 * WRITER, f"writer {positions.words[WRITER]}", "0: it is closed")


def _notes(layout: Layout, log: LogMap, findings: Findings) -> None:
    if layout.abort.exists() and not log.ends.live:
        findings.add("abort", layout.abort, None, "the last stop was unclean", "no such file")
    if layout.settings.exists() and not isinstance(parsed(layout.settings), dict):
        findings.add("settings", layout.settings, None, "not JSON", "a JSON object")
    if None in read_scars(layout.scars):
        findings.add("scars", layout.scars, None, "a line that names no scar", "JSON lines")
    if not log.ends.live and layout.scratch.is_dir():
        for path in sorted(layout.scratch.iterdir()):
            findings.add("leftover", path, None, "a file half made", "none")


def parsed(path: Path) -> object:
    """The JSON of a file, RocketMQ's unquoted numbers as keys included; None where it is none."""
    try:
        text = path.read_text("utf-8")
        return json.loads(JSON_KEY.sub(lambda m: m[0] if m[2] is None else f'{m[1]}"{m[2]}"', text))
    except (OSError, ValueError, RecursionError):
        return None


def broken_json(layout: Layout, findings: Findings) -> list[Path]:
    """Configuration files that do not parse. One whose .bak does is a warning, else what it held is lost."""
    broken = []
    for path in sorted(layout.config.glob("*.json")):
        if path.is_file() and parsed(path) is None:
            broken.append(path)
            backup = path.with_name(f"{path.name}.bak")
            what = "config-json" if parsed(backup) is not None else "config-lost"
            findings.add(what, path, None, f"{path.stat().st_size} bytes that are not JSON", "JSON")
    return broken


def look_at_batch_queues(layout: Layout, log: LogMap, findings: Findings) -> None:
    """Each entry names a whole record; batch queues are RocketMQ's own, and are not derived here."""
    for folder in sorted(layout.batch_queues.glob("*/*")):
        for found in look(folder):
            data = found.path.read_bytes()
            for at in range(0, len(data) - BATCH_ENTRY_SIZE + 1, BATCH_ENTRY_SIZE):
                entry = BatchEntry(*BATCH_ENTRY.unpack_from(data, at))
                if entry.size <= 0:
                    break
                if not log.first <= entry.physical_offset < log.end:
                    continue
                file = log.files.get(entry.physical_offset - entry.physical_offset % log.file_size)
                place = entry.physical_offset % log.file_size
                if file is None or check_record(file.pages, place, file.size, -1, False) != entry.size:
                    told = f"record at {entry.physical_offset}, {entry.size} bytes"
                    findings.add("queue-entry", found.path, at, told, "a whole record")
