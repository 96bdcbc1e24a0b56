"""What commands that run on Spark have in common: the session, and what becomes of errors in workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqlake.errors import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])


def master_option(command: Command) -> Command:
    """The option --master."""
    return click.option(
        "--master", default="local[*]", show_default=True, metavar="URL", help="Where Spark runs: a cluster's URL."
    )(command)


@contextmanager
def spark_session(master: str) -> Iterator[SparkSession]:
    """A session of its own for one command. What a worker raised becomes one line."""
    from pyspark.errors import PySparkException

    from mqlake.spark import session

    spark = session(master, spark_ui_enabled="false", spark_ui_showConsoleProgress="false")
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    except PySparkException as error:
        raise JobFailed(worker_error(str(error))) from error
    finally:
        spark.stop()


def worker_error(text: str) -> str:
    """The line of a worker's traceback that says what happened."""
    lines = re.findall(r"^(?:mqlake\.errors\.)?(\w+(?:Error|Exception|[A-Z]\w+): .*)$", text, re.MULTILINE)
    return lines[-1] if lines else text.strip().splitlines()[0]
