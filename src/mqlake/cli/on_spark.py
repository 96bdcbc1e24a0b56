"""Commands that run on Spark: how its master is named, a quiet session, and a task's error as one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqlake.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])
_RAISED = re.compile(r"^(?:mqlake\.errors\.)?(\w+(?:\.\w+)*: .+)$", re.MULTILINE)


class TaskFailed(StoreError):
    """A task of Spark's gave an error; it says what the task said."""


def master_option(command: Command) -> Command:
    return click.option(
        "--master", default="local[*]", show_default=True, help="Where Spark runs, as spark://host:7077."
    )(command)


@contextmanager
def on_spark(master: str) -> Iterator[SparkSession]:
    """A session for one command, without Spark's own bars and chatter; errors of its tasks become TaskFailed."""
    from pyspark.errors import PySparkException

    from mqlake.spark import session

    spark = session(master, spark_ui_enabled="false", spark_ui_showConsoleProgress="false", spark_log_level="OFF")
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    except PySparkException as error:
        raised = _RAISED.findall(str(error))
        raise TaskFailed(raised[-1] if raised else str(error)) from None
    finally:
        spark.stop()
