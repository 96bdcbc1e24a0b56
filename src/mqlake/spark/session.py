"""A Spark session, after a look at what it needs: a Java that is new enough, and this interpreter for its workers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from mqlake.errors import MissingJava

JAVA_NEEDED = 17
CHECKPOINT_FILES = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""How streams write their checkpoint: also whole and by renaming, but on a local disk in a quarter of the time that
Spark's default takes, which asks other programs about every file. A checkpoint has one driver at a time in any case."""


def session(master: str = "local[*]", **settings: object) -> SparkSession:
    """Start Spark, or get the session that runs; `settings` are Spark's, with _ for the dots of their names.

    session("local[2]", spark_driver_memory="1g")
    """
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("mqlake").config(*CHECKPOINT_FILES)
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), str(value))
    return builder.getOrCreate()


def require_java() -> int:
    """The version of the Java that Spark will find; MissingJava where there is none, or an older one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise MissingJava("none: no java on PATH, and JAVA_HOME is not set", JAVA_NEEDED)
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise MissingJava(f"none that runs: {java}: {error.strerror}", JAVA_NEEDED) from None
    except subprocess.TimeoutExpired:
        raise MissingJava(f"none that runs: {java}: no answer within a minute", JAVA_NEEDED) from None
    told = done.stderr + done.stdout
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    if match is None or int(match[1]) < JAVA_NEEDED:
        first = told.strip().splitlines()[0] if told.strip() else f"nothing, exit code {done.returncode}"
        raise MissingJava(f"{java}, which says: {first}", JAVA_NEEDED)
    return int(match[1])
