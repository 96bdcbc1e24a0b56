"""The real RocketMQ store, run in a separate Java process.

``RocketMQ("5.5.1").dump(directory, settings)`` returns what RocketMQ serves from a store directory;
``write`` lets it append messages; ``bench`` measures it. The small Maven project next to this
file is built on first use, once for each release. Run as a program, this file prints the settings
that RocketMQ knows: the content of ``rocketmq-properties.txt``.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VERSIONS = ("4.9.8", "5.5.1")
FILTER_VERSIONS = {"4.9.8": "4.9.7", "5.5.1": "5.5.0"}
"""The version of the filter for each store: `filter.version` in pom.xml."""

_PROJECT = Path(__file__).resolve().parent
_BUILD_TIMEOUT = 600.0
_RUN_TIMEOUT = 180.0
_OPENED_PACKAGES = (
    "java.lang",
    "java.lang.reflect",
    "java.nio",
    "java.util",
    "sun.nio.ch",
    "jdk.internal.ref",
    "jdk.internal.misc",
)
_SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_BENCH_JVM = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")


class RocketMQError(Exception):
    """RocketMQ could not be built, or its process failed."""


def available() -> str | None:
    """Return why RocketMQ cannot run here, or None if it can."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"no {program} on the path"
    return None


class RocketMQ:
    """The store of one RocketMQ release."""

    def __init__(self, version: str) -> None:
        if version not in VERSIONS:
            raise ValueError(f"RocketMQ {version} is not one of {', '.join(VERSIONS)}")
        self.version = version
        self._target = _PROJECT / "target" / version

    def dump(self, store_dir: Path, settings: Mapping[str, str]) -> list[dict[str, Any]]:
        """Open ``store_dir`` in place (pass a copy: opening recovers) and return everything that it serves."""
        with _scratch(settings) as scratch:
            out = scratch / "dump.jsonl"
            self._oracle("dump", store_dir, scratch / "settings.properties", out)
            return _parse_lines(out.read_text("utf-8"))

    def write(
        self,
        store_dir: Path,
        settings: Mapping[str, str],
        messages: Iterable[Mapping[str, Any]],
        halt: bool = False,
    ) -> list[dict[str, Any]]:
        """Append messages; return status and position of each.

        A message has ``topic`` and may have ``queueId``, ``body`` (base64), ``tags``, ``keys``, ``flag``,
        ``properties``, ``bornTimestamp`` and ``sysFlag``. With ``halt`` the process ends without closing the store.
        """
        with _scratch(settings) as scratch:
            given = scratch / "messages.jsonl"
            given.write_text("".join(json.dumps(message) + "\n" for message in messages), "utf-8")
            options = ["--halt"] if halt else []
            return _parse_lines(self._oracle("write", store_dir, scratch / "settings.properties", given, *options))

    def bench(self, workload: str, store_dir: Path, timeout: float = 900.0, **options: object) -> dict[str, Any]:
        """Run one workload of the class ``Bench`` and return its results."""
        arguments = [f"{name}={value}" for name, value in options.items()]
        output = self._java("Bench", [workload, str(store_dir), *arguments], _BENCH_JVM, timeout)
        return _parse_lines(output)[-1]

    def matches(
        self, expressions: Sequence[str], property_sets: Sequence[Mapping[str, str]]
    ) -> list[list[bool] | None]:
        """Return which property sets each SQL expression matches; None for an expression that RocketMQ refuses."""
        with tempfile.TemporaryDirectory(prefix="mqlake-interop-") as name:
            given = Path(name) / "filters.json"
            given.write_text(json.dumps({"expressions": expressions, "properties": property_sets}), "utf-8")
            output = self._java("Filters", [str(given)], _SMALL_JVM, _RUN_TIMEOUT)
        return [line.get("matches") for line in _parse_lines(output)]

    def properties(self) -> list[tuple[str, str, str]]:
        """Return name, Java type and default (empty outside MessageStoreConfig) of every setting of the release."""
        output = self._java("ConfigProperties", [], _SMALL_JVM, _RUN_TIMEOUT)
        rows = (line.split("\t") for line in output.splitlines())
        return [(name, java_type, default) for name, java_type, default in rows]

    def build(self) -> None:
        """Compile the Java project for this release, unless its newest build is up to date."""
        lock_file = _PROJECT / "target" / "build.lock"
        lock_file.parent.mkdir(exist_ok=True)
        with lock_file.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stamp = self._target / "built"
            if stamp.exists() and stamp.stat().st_mtime >= _newest_source():
                return
            command = ["mvn", "-q", "-B", "-f", str(_PROJECT / "pom.xml"), f"-Drocketmq.version={self.version}"]
            _run([*command, "clean", "compile"], _BUILD_TIMEOUT)
            stamp.touch()

    def _oracle(self, command: str, *arguments: object) -> str:
        return self._java("Oracle", [command, *map(str, arguments)], _SMALL_JVM, _RUN_TIMEOUT)

    def _java(self, main_class: str, arguments: Sequence[str], jvm_options: Sequence[str], timeout: float) -> str:
        self.build()
        classes = self._target / "classes"
        class_path = f"{classes}:{(self._target / 'classpath.txt').read_text('utf-8').strip()}"
        command = ["java", *jvm_options, "-Dfile.encoding=UTF-8", "-Duser.timezone=UTC"]
        command += [f"-Drmq.logback.configurationFile={classes / 'logback-off.xml'}"]
        command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES]
        with tempfile.TemporaryDirectory(prefix="mqlake-interop-home-") as home:  # for RocksDB's library and logs
            command += [f"-Duser.home={home}", f"-Djava.io.tmpdir={home}", "-cp", class_path]
            return _run([*command, f"org.mqlake.interop.{main_class}", *arguments], timeout)


def property_table() -> str:
    """Return the text of ``rocketmq-properties.txt``: the settings that RocketMQ's configuration files may hold.

    A line has the name, the Java type and the default of 5.5.1 (of 4.9.8 for what only 4.9.8 has). A fourth field
    is the default of 4.9.8, if it differs. Only the settings of the store have defaults.
    """
    old, new = ({row[0]: row[1:] for row in RocketMQ(version).properties()} for version in VERSIONS)
    lines = []
    for name in sorted(old.keys() | new.keys()):
        java_type, default = new.get(name) or old[name]
        old_default = old[name][1] if name in old else default
        fields = [name, java_type, default] + ([old_default] if old_default != default else [])
        lines.append("\t".join(fields) + "\n")
    return "".join(lines)


def _newest_source() -> float:
    sources = [_PROJECT / "pom.xml", *(path for path in (_PROJECT / "src").rglob("*") if path.is_file())]
    return max(path.stat().st_mtime for path in sources)


@contextmanager
def _scratch(settings: Mapping[str, str]) -> Iterator[Path]:
    """Make a temporary folder with ``settings.properties``."""
    with tempfile.TemporaryDirectory(prefix="mqlake-interop-") as name:
        folder = Path(name)
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        (folder / "settings.properties").write_text(lines, "utf-8")
        yield folder


def _run(command: Sequence[str], timeout: float) -> str:
    """Return the standard output of a program that must succeed in time."""
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RocketMQError(f"{command[0]} did not end within {timeout:.0f} s") from error
    if done.returncode != 0:
        raise RocketMQError(f"{command[0]} failed with status {done.returncode}:\n{done.stdout}{done.stderr}"[:8000])
    return done.stdout


def _parse_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


if __name__ == "__main__":
    sys.stdout.write(property_table())
