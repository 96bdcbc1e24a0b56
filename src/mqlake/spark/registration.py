"""Make `format("mqlake")` known to a session, wherever that session comes from.

Spark finds installed Python sources by itself, with some gaps. It looks with the first `python3` on the PATH, not with
the interpreter that runs the program, so in a virtual environment that is not activated it finds nothing. And for
writes it looks in the active session of the JVM's thread: a new Python thread has a new one, without a session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from mqlake.errors import NotOnConnect

JAVA_SESSION = "org.apache.spark.sql.classic.SparkSession"


def register(spark: SparkSession) -> SparkSession:
    """Make `format("mqlake")` known to a session, in all threads of this program. Returns the session.

    With a local master, planning and tasks use this interpreter unless PYSPARK_PYTHON or spark.pyspark.python names
    another. Calling it again does no harm. On Spark Connect, the server's Python needs the package.
    """
    from mqlake.spark.source import MqlakeSource

    if not is_connect(spark):
        _use_this_python(spark.sparkContext)
        write_from_any_thread()
    try:
        spark.dataSource.register(MqlakeSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # else Spark found it by itself
            raise
    return spark


def _use_this_python(context: SparkContext) -> None:
    """Replace Spark's default, the first `python3` on the PATH. Nodes of a cluster may have Python in other places."""
    named = "PYSPARK_PYTHON" in os.environ or context.getConf().get("spark.pyspark.python") is not None
    if (context.master or "").startswith("local") and not named:
        context.pythonExec = sys.executable


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def require_classic(spark: SparkSession, what: str, instead: str) -> None:
    """Raise NotOnConnect if a session is one of Spark Connect."""
    if is_connect(spark):
        raise NotOnConnect(what, instead)


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Let a session be the active one of this thread, unless the thread has one."""
    java_session = getattr(spark._jvm, JAVA_SESSION)
    if java_session.getActiveSession().isDefined():
        yield
        return
    java_session.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        java_session.clearActiveSession()


@cache
def write_from_any_thread() -> None:
    """From now on `df.write.save` and `df.writeStream.start` look for a source in the session of their DataFrame."""
    DataFrameWriter.save = _in_its_session(DataFrameWriter.save)  # type: ignore[method-assign]
    DataStreamWriter.start = _in_its_session(DataStreamWriter.start)  # type: ignore[method-assign]


def _in_its_session(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        with active(self._spark):
            return method(self, *arguments, **named)

    return call
