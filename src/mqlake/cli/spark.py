"""What Spark commands share: the master, a quiet start, and errors on one line.

Spark and Java are looked up when such a command is called, so that all other commands work without them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqlake.cli.embedded import are_installed, folders_of, is_small
from mqlake.errors import MissingExtra, QueryFailed, SparkNotStarted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])
PLACE = re.compile(r"\(?line (\d+),? pos (\d+)\)?")
SHOWN_PLACE = re.compile(r"\(line (\d+), position (\d+)\)")
"""Spark counts columns from 0 in the first form, and from 1 in the second."""
OURS = re.compile(r"^mqlake(?:\.\w+)*\.(\w+: .*)$", re.MULTILINE)
CAUSES = re.compile(
    r"^(?:Exception in thread \S+ |Caused by: )?(?:[\w$]+\.)+\w*(?:Error|Exception): (\S.*)$", re.MULTILINE
)
MOST_SAID = 1 << 20
LOCAL = "local[*]"
RAISED = re.compile(r"^(\w+(?:Error|Exception|Exit)\b.*)$", re.MULTILINE)


def spark_command(command: Command) -> Command:
    """Add the arguments STORE… and the options --lake and --master."""
    stores = click.argument("stores", nargs=-1, metavar="STORE…")
    lake = click.option(
        "--lake", type=click.Path(), help="Folder of a lake; what it holds is not read from the logs again."
    )
    return stores(lake(choosing_master_option(command)))


def choosing_master_option(command: Command) -> Command:
    return click.option("--master", help="Count on Spark, on this master: local[*], spark://host:7077.")(command)


def master_option(command: Command) -> Command:
    return click.option("--master", default=LOCAL, show_default=True, help="Spark master, such as spark://host:7077.")(
        command
    )


@contextlib.contextmanager
def session_if_needed(master: str | None, stores: Sequence[str], lake: str | None) -> Iterator[SparkSession | None]:
    """Yield a session if a master or a lake is named, or the logs are large; else None: this process is faster."""
    with told_once():
        yield from _session_if_needed(master, stores, lake)


def _session_if_needed(master: str | None, stores: Sequence[str], lake: str | None) -> Iterator[SparkSession | None]:
    folders = folders_of(stores) if lake is None else []
    may_be_here = master is None and lake is None and is_small(folders)
    if may_be_here and are_installed("pyarrow", "numpy"):
        yield None
        return
    with spark_session(master or LOCAL, extra="arrow" if may_be_here else "spark") as spark:
        yield spark


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Show each log message once: a store is opened for its traffic, its queues and its lag, and each time finds its
    damage."""
    told: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        before = len(told)
        told.add(record.getMessage())
        return len(told) > before

    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(is_new)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_new)


@contextlib.contextmanager
def spark_session(master: str, *, extra: str = "spark") -> Iterator[SparkSession]:
    """Yield a session for one command, or the running one, which is then left running.

    The messages of Spark at its start are shown with --verbose. Without Spark, `extra` is what to install: the command
    may need less.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra("this command", extra) from None
    logging.getLogger("SQLQueryContextLogger").disabled = not is_verbose()  # it repeats every error, in JSON
    running = SparkSession.getActiveSession()
    if running is not None:
        with plain_errors():
            yield running
        return
    spark = start(master)
    try:
        with plain_errors():
            yield spark
    finally:
        spark.stop()


def start(master: str) -> SparkSession:
    """Return a new session; raise an error of one sentence if Spark does not start."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from mqlake.spark.session import session

    with quiet_stderr() as said:
        try:
            spark = session(master, spark_ui_enabled="false", spark_ui_showConsoleProgress="false", **few_parts(master))
            spark.sparkContext.setLogLevel("ERROR" if is_verbose() else "OFF")
        except (Py4JError, PySparkException) as error:
            told = CAUSES.findall(said()) or CAUSES.findall(str(error)) or [str(error).split("\n")[0]]
            raise SparkNotStarted(master, told[-1]) from None
    return spark


def few_parts(master: str) -> dict[str, int]:
    """Use two shuffle partitions a core on a local master; Spark's default of 200 is meant for a cluster."""
    return {"spark_sql_shuffle_partitions": 2 * (os.cpu_count() or 1)} if master.startswith("local") else {}


def is_verbose() -> bool:
    return logging.getLogger().isEnabledFor(logging.INFO)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[Callable[[], str]]:
    """Redirect standard error of this process and of those it starts to a file; yield a call that returns the text."""
    if is_verbose():
        yield str
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield lambda: os.pread(said.fileno(), MOST_SAID, 0).decode(errors="replace")
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors of Spark into QueryFailed: one sentence, and the position in the query if Spark names one."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise failure(str(error)) from None


def failure(text: str) -> QueryFailed:
    """Return the sentence that matters in the many lines of a Java error."""
    own = OURS.findall(text) or RAISED.findall(text)
    if "Traceback (most recent call last)" in text and own:
        return QueryFailed(own[-1])
    place = PLACE.search(text)
    sentence = PLACE.sub("", text.strip().split("\n")[0])
    sentence = re.sub(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w+", "", sentence).strip(" ;")
    if place is not None:
        return QueryFailed(sentence, int(place[1]), int(place[2]) + 1)
    shown = SHOWN_PLACE.search(text)
    return QueryFailed(sentence) if shown is None else QueryFailed(sentence, int(shown[1]), int(shown[2]))
