"""`mqlake demo`: a first look. Writes, reads and finds messages, and reports the result."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.table import Table

from mqlake import CommitLogConfig, ConsumeQueueConfig, IndexConfig, Message, MessageStore, StoreConfig
from mqlake.cli import show
from mqlake.cli.info import disk_usage, usage_table
from mqlake.cli.report import write_report
from mqlake.cli.spark import spark_session
from mqlake.errors import MissingExtra, MissingJava
from mqlake.files.layout import Layout

TOPICS = {"orders": ("created", "paid", "shipped"), "clicks": ("view", "buy"), "sensors": ("ok", "alarm")}
BATCH = 100
LOOKUPS = 1_000
READ_LIMIT = 1_000

Put = Callable[[list[Message]], object]


@click.command()
@click.option(
    "--messages", type=click.IntRange(min=10), default=100_000, show_default=True, help="How many messages to write."
)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="New folder for the store, which is kept.")
@click.option("--keep", is_flag=True, help="Keep the store.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    default="report.html",
    show_default=True,
    help="File for the report page.",
)
@click.option("--no-report", is_flag=True, help="Skip Spark and the report page.")
def demo(messages: int, directory: Path | None, keep: bool, report: Path, no_report: bool) -> None:
    """Write messages over several topics, read them back, find some by key and by time, and show the speed.

    The store is in a temporary folder and is removed at the end, unless --dir or --keep is given. Last, the pipeline
    brings it into a lake on Spark and writes a report page; this is skipped if Spark or Java is missing.
    """
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise click.BadParameter(f"{str(directory)!r} is not empty; expected a new folder", param_hint="--dir")
    path = directory or Path(tempfile.mkdtemp(prefix="mqlake-demo-"))
    lake = path.with_name(path.name + "-lake")
    keep = keep or directory is not None
    try:
        Demo(path, messages).run()
        if not no_report:
            run_on_spark(path, lake, report)
    finally:
        if not keep:
            shutil.rmtree(path)
            shutil.rmtree(lake, ignore_errors=True)
    if keep:
        click.echo(f"\nThe store is kept. Look around:  mqlake topics {path}   mqlake tail {path} orders")


def run_on_spark(store: Path, lake: Path, page: Path) -> None:
    """Run the pipeline and write the report page. Without Spark or Java, print one line about what is skipped."""
    try:
        with spark_session("local[*]") as spark:
            import mqlake.spark

            archived = mqlake.spark.pipeline(spark, str(store), str(lake), once=True).stages["archive"]
            write_report(spark, (str(store),), str(lake), page, "mqlake demo")
    except (MissingExtra, MissingJava) as reason:
        click.echo(f"No pipeline and no report page: {reason}")
    else:
        what = f"{show.counted(archived.rows, 'message')} checked, archived, indexed and counted"
        click.echo(f"The pipeline, on Spark: {what}.\nOpen {page.absolute()} in a browser.")


class Demo:
    """One run, and the duration of its steps."""

    def __init__(self, path: Path, message_count: int) -> None:
        self._path = path
        self._count = message_count
        self._timings: list[tuple[str, int, str, float]] = []

    def run(self) -> None:
        with MessageStore.open(self._path, config=_small_files(self._count)) as store:
            self._write(store)
            self._read(store)
            self._look_up(store)
            topics = _topics_table(store)
        console = show.console()
        for shown in (
            topics,
            usage_table(disk_usage(Layout(self._path)), "What is on disk"),
            self._timings_table(),
        ):
            console.print(shown)
            console.print()

    @contextlib.contextmanager
    def _timed(self, what: str, times: int, unit: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._timings.append((what, times, unit, time.perf_counter() - began))

    def _write(self, store: MessageStore) -> None:
        """Put nine in ten messages in batches, the others one by one."""
        messages = demo_messages(self._count)
        alone = max(1, self._count // 10)
        with show.progress("writing", self._count) as step:
            self._put_all(itertools.islice(messages, self._count - alone), store.put_many, step)
            self._put_all(messages, lambda batch: [store.put(message) for message in batch], step)
        with self._timed("flush: everything on disk", 1, "sync"):
            store.flush()
        with self._timed("last ones in queues and index", 1, "wait"):
            store.wait_dispatched()

    def _put_all(self, messages: Iterator[Message], put: Put, step: show.Step) -> None:
        """Time only the puts: creating the messages takes longer than storing them."""
        count, took = 0, 0.0
        while batch := list(itertools.islice(messages, BATCH)):
            began = time.perf_counter()
            put(batch)
            took += time.perf_counter() - began
            count += len(batch)
            step.advance(len(batch))
        what = "put, one at a time" if self._timings else f"put_many, {BATCH} at a time"
        self._timings.append((what, count, "messages", took))

    def _read(self, store: MessageStore) -> None:
        queues = [queue for topic in store.topics() for queue in store.queues(topic)]
        read = 0
        with show.progress("reading", self._count) as step, self._timed("read every queue", self._count, "messages"):
            for queue in queues:
                for start in range(queue.first_offset, queue.end_offset, READ_LIMIT):
                    found = store.read(queue.topic, queue_id=queue.queue_id, start=start, limit=READ_LIMIT)
                    read += len(found)
                    step.advance(len(found))
        if read != self._count:
            raise click.ClickException(f"{show.counted(read, 'message')} were read back; expected {self._count}")

    def _look_up(self, store: MessageStore) -> None:
        numbers = range(0, self._count, max(1, self._count // LOOKUPS))
        with self._timed("find by key", len(numbers), "look-ups"):
            for number in numbers:
                if not store.find(_topic(number), f"id-{number}"):
                    raise click.ClickException(f"key id-{number} was not found")
        newest = store.read("orders", start=store.queues("orders")[0].end_offset - 1)[0]
        with self._timed("find by time", len(numbers), "look-ups"):
            for number in numbers:
                store.seek_time("orders", newest.store_timestamp - number % 1_000)

    def _timings_table(self) -> Table:
        made = show.table("step", "count>", "", "took>", "per second>", title="How fast it went")
        for what, times, unit, took in self._timings:
            rate = show.count(round(times / took)) if times > 1 else ""
            made.add_row(what, show.count(times), unit, f"{took * 1000:,.1f} ms", rate)
        return made


def _small_files(message_count: int) -> StoreConfig:
    """Use small files: RocketMQ's default files are a gigabyte long."""
    return StoreConfig(
        commit_log=CommitLogConfig(file_size_bytes=64 << 20),
        consume_queue=ConsumeQueueConfig(file_size_bytes=20 * 50_000),
        index=IndexConfig(slot_count=max(1_000, message_count // 2), entry_count=max(10_000, 2 * message_count + 1)),
    )


def _topic(number: int) -> str:
    return tuple(TOPICS)[number % len(TOPICS)]


def demo_messages(message_count: int) -> Iterator[Message]:
    """Yield messages with a tag, a unique key, and a small JSON body."""
    tags = {topic: itertools.cycle(names) for topic, names in TOPICS.items()}
    for number in range(message_count):
        topic = _topic(number)
        body = json.dumps({"id": number, "customer": f"c-{number % 997}", "amount": number % 10_000 / 100})
        yield Message(topic, body.encode(), tags=next(tags[topic]), keys=f"id-{number}")


def _topics_table(store: MessageStore) -> Table:
    made = show.table("topic", "queues>", "messages>", "newest message*", title="What was written")
    for topic in store.topics():
        queues = store.queues(topic)
        last = [store.read(topic, queue_id=queue.queue_id, start=queue.end_offset - 1)[0] for queue in queues]
        newest = max(last, key=lambda message: message.physical_offset)
        made.add_row(topic, str(len(queues)), show.count(sum(q.message_count for q in queues)), show.body(newest.body))
    return made
