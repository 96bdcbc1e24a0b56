"""Metrics in Prometheus' text format, and whether the broker is well: a small HTTP server of its own.

`/metrics` is for Prometheus and `mqlake top --endpoint`, `/health` says whether the store works (200, or 503 and why),
`/ready` whether clients are served. What belongs to the event loop is read in it; the store's figures are gathered in a
thread, so that a scrape of many topics holds up no client.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mqlake.broker.listening import Address, taken

if TYPE_CHECKING:
    from mqlake.broker.registration import Registration
    from mqlake.broker.server import Broker
    from mqlake.broker.stats import Histogram, Traffic
    from mqlake.message_store import MessageStore
    from mqlake.store.stats import StoreStats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_REQUEST: Final = 8_192
PATIENCE_S: Final = 10.0
REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Sample(NamedTuple):
    """One value of a metric."""

    labels: dict[str, str]
    value: float
    suffix: str = ""


class Metric(NamedTuple):
    """A metric and its values."""

    name: str
    kind: str
    help: str
    samples: list[Sample]

    @classmethod
    def single(cls, name: str, kind: str, text: str, value: float) -> Metric:
        return cls(name, kind, text, [Sample({}, value)])

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for sample in self.samples:
            labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
            shown = f"{{{labels}}}" if labels else ""
            value = int(sample.value) if float(sample.value).is_integer() else sample.value
            yield f"{self.name}{sample.suffix}{shown} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def write_metrics(metrics: Iterable[Metric]) -> str:
    """Return the text of metrics."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def of_broker(broker: Broker, registration: Registration | None) -> list[Metric]:
    """Return what the event loop counts. In its thread."""
    parts, stats, single = broker.parts, broker.parts.stats, Metric.single
    stored = {name: ({"topic": name}, traffic) for name, traffic in stats.stored_by_topic.items()}
    given = {}
    for key, traffic in stats.delivered_by_group.items():
        topic, _, group = key.rpartition("@")
        given[key] = ({"topic": topic, "group": group}, traffic)
    found = [
        *_traffic("in", "received from producers", stored),
        *_traffic("out", "delivered to consumers", given),
        _histogram("mqlake_put_seconds", "From reading a send to its answer.", stats.put_seconds),
        single("mqlake_connections", "gauge", "Open connections of clients.", len(broker.connections)),
        single("mqlake_parked_pulls", "gauge", "Pulls that wait for a message.", parts.pulls.parked_count),
        single("mqlake_blocked_requests", "gauge", "Requests in the pool or waiting for it.", broker.blocked_count),
        single("mqlake_start_time_seconds", "gauge", "When the broker started.", broker.started_ms / 1000),
    ]
    if registration is not None:
        samples = [Sample({"address": str(at)}, ok) for at, ok in registration.registered.items()]
        text = "Whether a name server outside accepted the last registration."
        found.append(Metric("mqlake_name_server_registered", "gauge", text, samples))
    return found


def _traffic(way: str, text: str, table: dict[str, tuple[dict[str, str], Traffic]]) -> Iterator[Metric]:
    for what in ("messages", "bytes"):
        samples = [Sample(labels, getattr(traffic, what).count) for labels, traffic in table.values()]
        yield Metric(f"mqlake_{what}_{way}_total", "counter", f"{what.capitalize()} {text}.", samples)


def _histogram(name: str, text: str, found: Histogram) -> Metric:
    samples, total = [], 0
    for bound, count in zip((*found.bounds, "+Inf"), found.counts, strict=True):
        total += count
        samples.append(Sample({"le": str(bound)}, total, "_bucket"))
    return Metric(name, "histogram", text, [*samples, Sample({}, found.total, "_sum"), Sample({}, total, "_count")])


def of_store(store: MessageStore, root: Path) -> list[Metric]:
    """Return the store's figures. In any thread."""
    stats, health, single = store.stats(), store.health(), Metric.single
    disk = os.statvfs(root)
    workers = [Sample({"worker": each.name}, each.error is None) for each in health.workers]
    return [
        single("mqlake_healthy", "gauge", "1 if no sync failed and every worker runs.", health.ok),
        Metric("mqlake_worker_up", "gauge", "1 if a background worker does its work.", workers),
        single("mqlake_log_bytes", "gauge", "Size of the log.", stats.appended_end - stats.first_offset),
        single("mqlake_dispatch_lag_bytes", "gauge", "Log that consumers cannot see yet.", stats.dispatch_lag_bytes),
        single("mqlake_flush_lag_bytes", "gauge", "Log not synced yet.", stats.appended_end - stats.durable_end),
        *_of_slaves(stats),
        single("mqlake_syncs_total", "counter", "Syncs of the log.", stats.sync_count),
        single("mqlake_damaged_ranges", "gauge", "Ranges of the log without a whole record.", len(stats.damage)),
        single("mqlake_disk_size_bytes", "gauge", "Size of the store's disk.", disk.f_blocks * disk.f_frsize),
        single("mqlake_disk_free_bytes", "gauge", "Free space for the store.", disk.f_bavail * disk.f_frsize),
        *_of_topics(store),
        *_of_groups(store),
        *_of_process(),
    ]


def _of_slaves(stats: StoreStats) -> Iterator[Metric]:
    if stats.replicated_end is None:
        return
    lag = [Sample({"slave": each.address}, each.lag_bytes) for each in stats.slaves]
    near = [Sample({"slave": each.address}, each.in_sync) for each in stats.slaves]
    yield Metric("mqlake_slave_lag_bytes", "gauge", "Log that a slave has not confirmed.", lag)
    yield Metric("mqlake_slave_in_sync", "gauge", "1 if a slave is near enough to be waited for.", near)
    yield Metric.single("mqlake_slaves", "gauge", "Slaves that follow this master.", len(stats.slaves))


def _of_topics(store: MessageStore) -> Iterator[Metric]:
    queues = {topic: store.queues(topic) for topic in store.topics()}
    messages = {topic: sum(queue.message_count for queue in each) for topic, each in queues.items()}
    ends = {topic: sum(queue.end_offset for queue in each) for topic, each in queues.items()}
    for name, text, table in (
        ("queues", "Queues of a topic.", {topic: len(each) for topic, each in queues.items()}),
        ("messages", "Messages that a topic holds.", messages),
        ("end_offset", "Sum of the ends of a topic's queues.", ends),
    ):
        samples = [Sample({"topic": topic}, value) for topic, value in table.items()]
        yield Metric(f"mqlake_topic_{name}", "gauge", text, samples)


def _of_groups(store: MessageStore) -> Iterator[Metric]:
    lag: dict[tuple[str, str], int] = {}
    reached: dict[tuple[str, str], int] = {}
    for group in store.groups():
        for each in store.lag(group):
            key = group, each.topic
            lag[key] = lag.get(key, 0) + each.message_count
            reached[key] = reached.get(key, 0) + each.offset
    for name, text, table in (
        ("mqlake_consumer_lag_messages", "Messages that a group has not consumed.", lag),
        ("mqlake_consumer_offset", "Sum of a group's offsets of a topic's queues.", reached),
    ):
        samples = [Sample({"group": group, "topic": topic}, value) for (group, topic), value in table.items()]
        yield Metric(name, "gauge", text, samples)


def _of_process() -> Iterator[Metric]:
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    yield Metric.single("process_cpu_seconds_total", "counter", "User and system time.", used.ru_utime + used.ru_stime)
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    size = int(pages) * os.sysconf("SC_PAGE_SIZE")
    yield Metric.single("process_resident_memory_bytes", "gauge", "Resident memory, mapped files included.", size)


class MetricsServer:
    """Answers scrapes and probes."""

    def __init__(self, broker: Broker, registration: Registration | None = None) -> None:
        self._broker = broker
        self._registration = registration
        self._server: asyncio.Server | None = None
        self.address = Address("127.0.0.1", 0)

    async def start(self, at: Address) -> None:
        try:
            self._server = await asyncio.start_server(self._serve, at.host, at.port, limit=MAX_REQUEST)
        except OSError as error:
            raise taken(at, error) from error
        self.address = Address(at.host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                line, _, _ = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
                method, path = (*line.decode("latin-1").split(" "), "", "")[:2]
                status, kind, body = await self._answer(method, path.partition("?")[0])
                content = body.encode()
                head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\n"
                head += f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + (b"" if method == "HEAD" else content))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # a client that says nothing, too much, or leaves
        finally:
            writer.close()

    async def _answer(self, method: str, path: str) -> tuple[int, str, str]:
        if method not in ("GET", "HEAD"):
            return 405, "text/plain", "GET only\n"
        if path == "/metrics":
            counted = of_broker(self._broker, self._registration)
            broker = self._broker
            gathered = await asyncio.to_thread(of_store, broker.store, broker.port.layout.root)
            return 200, CONTENT_TYPE, write_metrics([*counted, *gathered])
        if path in ("/health", "/ready"):
            return self._state(path)
        return 404, "text/plain", "/metrics, /health, /ready\n"

    def _state(self, path: str) -> tuple[int, str, str]:
        health = self._broker.store.health()
        reason = health.failure
        if path == "/ready" and self._broker.is_closing:
            reason = "the broker is stopping"
        workers = {each.name: each.error for each in health.workers}
        ok = reason is None and health.ok
        body = json.dumps({"status": "ok" if ok else "failed", "reason": reason, "workers": workers})
        return (200 if ok else 503), "application/json", body + "\n"
