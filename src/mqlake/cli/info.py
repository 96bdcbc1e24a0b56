"""`mqlake info`: show the files, ends and state of a store."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.table import Table

from mqlake import MessageStore, StoreStats
from mqlake.cli import show
from mqlake.cli.options import json_option, open_reader, store_command
from mqlake.files.layout import Layout
from mqlake.files.lock import writer_of
from mqlake.runtime.workers import WorkerHealth
from mqlake.store.index_numbers import index_files
from mqlake.store.recovery import Recovery
from mqlake.store.replicas import SlaveState
from mqlake.store.retention import GateState, RetentionStats
from mqlake.store.sealing import SealStats


class Usage(NamedTuple):
    """The files of one part of a store. `on disk` counts the blocks in use, not the nominal length."""

    part: str
    file_count: int
    size_bytes: int
    disk_bytes: int


@click.command()
@store_command
@json_option
def info(store: Path, config: Path | None, as_json: bool) -> None:
    """Show a store's files, sizes and offsets, how it was stopped, which process writes it, its workers and slaves."""
    layout = Layout(store)
    with open_reader(store, config) as opened:
        stats = opened.stats()
        state = _state(layout)
        usage = disk_usage(layout)
        message_count = sum(queue.message_count for topic in opened.topics() for queue in opened.queues(topic))
        if as_json:
            show.print_json(_as_json(opened, stats, state, usage, message_count))
            return
        console = show.console()
        console.print(usage_table(usage, title=str(store)))
        console.print()
        console.print(show.facts(_facts(opened, stats, state, message_count)))
        if stats.workers:
            console.print()
            console.print(workers_table(stats.workers))
        if stats.slaves:
            console.print()
            console.print(slaves_table(stats.slaves))


def disk_usage(layout: Layout) -> list[Usage]:
    """Return files and bytes of each part that the store has."""
    found = []
    for path in (
        layout.commit_log,
        layout.consume_queues,
        layout.batch_queues,
        layout.index,
        layout.config,
        layout.own,
    ):
        states = list(_files_under(path))
        if states:
            size, blocks = sum(state.st_size for state in states), sum(state.st_blocks for state in states)
            found.append(Usage(path.name, len(states), size, blocks * 512))
    return found


def _files_under(folder: Path) -> Iterator[os.stat_result]:
    """Yield the state of every regular file. One that is deleted meanwhile is left out."""
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                state = os.stat(f"{path}/{name}")  # noqa: PTH116  # of many thousand files; a Path costs more
                if stat.S_ISREG(state.st_mode):
                    yield state


def usage_table(usage: list[Usage], title: str) -> Table:
    table = show.table("part", "files>", "size>", "on disk>", title=title)
    for part in usage:
        table.add_row(part.part, show.count(part.file_count), show.size(part.size_bytes), show.size(part.disk_bytes))
    disk_bytes, size_bytes = sum(part.disk_bytes for part in usage), sum(part.size_bytes for part in usage)
    file_count = sum(part.file_count for part in usage)
    table.add_row("all", show.count(file_count), show.size(size_bytes), show.size(disk_bytes), style="bold")
    return table


def slaves_table(slaves: Sequence[SlaveState]) -> Table:
    """The slaves of a master, as it last told."""
    table = show.table("slave", "since", "confirmed>", "lag>", "state")
    for slave in slaves:
        state = "in sync" if slave.in_sync else "too far behind"
        confirmed, lag = show.count(slave.confirmed_offset), show.size(slave.lag_bytes)
        table.add_row(slave.address, show.moment(slave.since_ms), confirmed, lag, state)
    return table


def workers_table(workers: Sequence[WorkerHealth]) -> Table:
    """The background threads of the process that writes the store."""
    table = show.table("worker", "state", "since", "behind>", "last error*")
    for worker in workers:
        behind = "" if worker.behind_bytes is None else show.size(worker.behind_bytes)
        error = show.printable(worker.error or "")
        table.add_row(worker.name, str(worker.state), show.moment(worker.since_ms), behind, error)
    return table


class State(NamedTuple):
    """Which process writes the store, and whether the last stop was clean (`abort`)."""

    writer_pid: int
    abort: bool

    @property
    def meaning(self) -> str:
        if self.writer_pid:
            return f"open: process {self.writer_pid} writes it"
        if self.abort:
            return "stopped uncleanly (abort exists): the next writer recovers what came after the last checkpoint"
        return "stopped cleanly"


def _state(layout: Layout) -> State:
    return State(writer_of(layout.lock), layout.abort.exists())


def _facts(store: MessageStore, stats: StoreStats, state: State, message_count: int) -> list[tuple[str, str]]:
    config = store.config
    log_bytes = stats.committed_end - stats.first_offset
    return [
        ("state", state.meaning),
        ("messages", f"{show.count(message_count)} in the queues of {show.counted(stats.topic_count, 'topic')}"),
        ("log", f"{show.size(log_bytes)}, from {stats.first_offset} to {stats.committed_end}"),
        ("durable to", f"{stats.durable_end} ({show.size(max(0, stats.committed_end - stats.durable_end))} to go)"),
        ("dispatched to", f"{stats.dispatched_end} ({show.size(stats.dispatch_lag_bytes)} to go)"),
        ("log files", f"{stats.log_file_count} of {show.size(stats.file_size_bytes)}"),
        ("queue files", f"{show.counted((config.consume_queue.file_size_bytes or 0) // 20, 'entry')} each"),
        ("index files", f"{stats.index_file_count}, {_index_numbers(store, stats)}"),
        ("deleted", _deleted(stats.retention)),
        *(("gate", f"{name}: {_gate(gate)}") for name, gate in stats.retention.gates.items()),
        ("disk", f"{stats.retention.disk_used_percent} % full; {_next_run(stats.retention.next_run_ms)}"),
        ("failure", stats.failure or "none"),
        ("damage", _damage(stats)),
        (
            "sealed to",
            f"{stats.seals.sealed_end} ({show.size(max(0, stats.durable_end - stats.seals.sealed_end))} to go)",
        ),
        ("scrubbed", _scrubbed(stats.seals)),
        ("last recovery", _recovery(stats.recovery)),
        ("kernel", stats.kernel),
    ]


def _deleted(retention: RetentionStats) -> str:
    return f"{show.counted(retention.deleted_file_count, 'log file')}, {show.size(retention.deleted_bytes)}"


def _gate(gate: GateState) -> str:
    lost = f"; lost {show.size(gate.lost_bytes)} to deletion" if gate.lost_bytes else ""
    return f"needs the log from {gate.offset} and holds {show.size(gate.held_bytes)} of old files{lost}"


def _next_run(when_ms: int) -> str:
    return f"next retention run at {show.moment(when_ms)}" if when_ms else "no process deletes old files now"


def _damage(stats: StoreStats) -> str:
    if not stats.damage:
        return "none found"
    size = sum(end - start for start, end in stats.damage)
    first = ", ".join(f"[{start}, {end})" for start, end in stats.damage[:3])
    return f"{show.counted(len(stats.damage), 'place')} in the log, {show.size(size)}: {first}"


def _scrubbed(seals: SealStats) -> str:
    last = f"last at {show.moment(seals.scrub_finished_ms)}" if seals.scrub_finished_ms else "never completely"
    now = "" if seals.scrub_position is None else f"; now at {seals.scrub_position}"
    broken = f"; {show.counted(len(seals.broken), 'block')} changed since sealed" if seals.broken else ""
    return f"{last}{now}{broken}"


def _recovery(found: Recovery | None) -> str:
    """Return one line about the recovery of the last writer."""
    if found is None:
        return "unknown"
    walked = f"walked {show.counted(found.walked_count, 'record')} from {found.trusted} to {found.end}"
    did = [
        f"dispatched {show.count(found.dispatched_count)}" if found.dispatched_count else "",
        f"cut {show.size(found.cut_bytes)}" if found.cut_bytes else "",
        f"cut {show.counted(found.cut_queue_count, 'queue')}" if found.cut_queue_count else "",
        "rebuilt the index" if found.index_rebuilt else "",
        f"found {show.counted(len(found.scars), 'scar')}" if found.scars else "",
    ]
    return f"{found.reason}: {', '.join([walked, *filter(None, did)])}, in {show.count(found.took_ms)} ms"


def _index_numbers(store: MessageStore, stats: StoreStats) -> str:
    index = store.config.index
    if not index.enabled:
        return "not used (messageIndexEnable=false)"
    if not stats.index_file_count and index_files(Layout(store.path)):
        return "slot and entry counts unknown: give them with --config broker.conf"
    return f"{show.counted(index.slot_count or 0, 'slot')} and {show.counted(index.entry_count or 0, 'entry')} each"


def _as_json(
    store: MessageStore, stats: StoreStats, state: State, usage: list[Usage], message_count: int
) -> dict[str, Any]:
    return {
        "path": str(store.path),
        "writerPid": state.writer_pid or None,
        "abort": state.abort,
        "state": state.meaning,
        "firstOffset": stats.first_offset,
        "endOffset": stats.committed_end,
        "durableEnd": stats.durable_end,
        "dispatchedEnd": stats.dispatched_end,
        "messageCount": message_count,
        "topicCount": stats.topic_count,
        "logFileSize": stats.file_size_bytes,
        "logFileCount": stats.log_file_count,
        "queueFileSize": store.config.consume_queue.file_size_bytes,
        "indexFileCount": stats.index_file_count,
        "indexSlotCount": store.config.index.slot_count,
        "indexEntryCount": store.config.index.entry_count,
        "deletedFileCount": stats.retention.deleted_file_count,
        "deletedBytes": stats.retention.deleted_bytes,
        "diskUsedPercent": stats.retention.disk_used_percent,
        "nextCleaning": stats.retention.next_run_ms or None,
        "gates": {
            name: {"offset": gate.offset, "heldBytes": gate.held_bytes, "lostBytes": gate.lost_bytes}
            for name, gate in stats.retention.gates.items()
        },
        "failure": stats.failure,
        "workers": [
            {
                "name": worker.name,
                "state": str(worker.state),
                "since": worker.since_ms,
                "error": worker.error,
                "errorCount": worker.error_count,
                "behindBytes": worker.behind_bytes,
            }
            for worker in stats.workers
        ],
        "slaves": [
            {
                "address": slave.address,
                "since": slave.since_ms,
                "confirmedOffset": slave.confirmed_offset,
                "lagBytes": slave.lag_bytes,
                "inSync": slave.in_sync,
            }
            for slave in stats.slaves
        ],
        "damage": [list(place) for place in stats.damage],
        "seals": asdict(stats.seals),
        "recovery": asdict(stats.recovery) if stats.recovery is not None else None,
        "kernel": stats.kernel,
        "files": {
            part.part: {"count": part.file_count, "sizeBytes": part.size_bytes, "diskBytes": part.disk_bytes}
            for part in usage
        },
    }
