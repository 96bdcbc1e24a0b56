"""Start a Spark session. Checks for a recent Java first, and makes workers use this interpreter."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from mqlake.errors import MissingJava
from mqlake.spark.registration import register, write_from_any_thread

JAVA_NEEDED = 17
WORKER_PYTHON = Path(__file__).with_name("worker-python")
SETTINGS = {
    # Also atomic by renaming, but on a local disk four times as fast as Spark's default, which runs other programs for
    # every file. A checkpoint has only one driver at a time in any case.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings that suit the source. `docs/pipeline.md` says what each is worth, for sessions made in other ways."""
LOCAL_SETTINGS = {
    # Rows go from the Python workers to the JVM on the same machine: avoid TCP and small pieces.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.pandas.udf.buffer.size": str(1 << 20),
}
"""Further settings if the workers are on this machine."""
JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Arrow reads values without checking every index: this saves a quarter of the JVM's time in a read of all columns."""
WITH_JAVA_OPTIONS = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"


def session(master: str = "local[*]", **settings: object) -> SparkSession:
    """Start Spark or return the running session, to which the format is then made known (`register`).

    `settings` are Spark's, with _ for the dots in their names.

    session("local[2]", spark_driver_memory="1g")
    """
    require_java()
    is_running = SparkSession.getActiveSession() is not None
    if not is_running and os.environ.get("PYSPARK_PYTHON") in (None, str(WORKER_PYTHON)):
        os.environ["PYSPARK_PYTHON"] = worker_python(master)
    given = {name.replace("_", "."): str(value) for name, value in settings.items()}
    for name in WITH_JAVA_OPTIONS:
        given[name] = f"{JAVA_OPTIONS} {given.get(name, '')}".strip()
    builder = SparkSession.builder.master(master).appName("mqlake")
    for name, value in {**SETTINGS, **(LOCAL_SETTINGS if is_local(master) else {}), **given}.items():
        builder = builder.config(name, value)
    write_from_any_thread()
    return register(builder.getOrCreate()) if is_running else builder.getOrCreate()


def is_local(master: str) -> bool:
    return re.match(r"local(\[|$)", master) is not None


def worker_python(master: str) -> str:
    """Return the Python that Spark should start: this interpreter. If workers are on this machine and PySpark is
    installed, return a script that starts it without Spark's own PySpark archives."""
    found = {*os.environ.get("PYTHONPATH", "").split(os.pathsep), *site.getsitepackages(), site.getusersitepackages()}
    is_installed = str(Path(pyspark.__file__).parents[1]) in found
    if not is_local(master) or not is_installed or not os.access(WORKER_PYTHON, os.X_OK):
        return sys.executable
    os.environ["MQLAKE_PYTHON"] = sys.executable
    return str(WORKER_PYTHON)


def require_java() -> int:
    """Return the version of the Java that Spark will find. Raises MissingJava if there is none or it is too old."""
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
    printed = done.stderr + done.stdout
    match = re.search(r'version "(?:1\.)?(\d+)', printed)
    if match is None or int(match[1]) < JAVA_NEEDED:
        first = printed.strip().splitlines()[0] if printed.strip() else f"nothing, exit code {done.returncode}"
        raise MissingJava(f"{java}, which prints: {first}", JAVA_NEEDED)
    return int(match[1])
