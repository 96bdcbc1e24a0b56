"""A real RocketMQ 5.5 broker on a store directory, in a separate Java process: see ``broker/`` next to this file."""

from __future__ import annotations

import fcntl
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.interop.rocketmq import (
    _BUILD_TIMEOUT,
    _OPENED_PACKAGES,
    _RUN_TIMEOUT,
    _SMALL_JVM,
    _parse_lines,
    _run,
    _scratch,
)

_PROJECT = Path(__file__).resolve().parent / "broker"
_TARGET = _PROJECT / "target" / "5.5.1"
SETTINGS = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "mappedFileSizeTimerLog": "1048576",
    "messageDelayLevel": "1s 3s 1h",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "200",
    "listenPort": "0",  # any free port
    "haListenPort": "0",
}


def run_broker(store_dir: Path, commands: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Start a broker on a store, execute commands, and stop it. Return its answers to commands that store something."""
    _build()
    with _scratch(SETTINGS) as scratch, tempfile.TemporaryDirectory(prefix="mqlake-interop-home-") as home:
        given = scratch / "commands.jsonl"
        given.write_text("".join(json.dumps(command) + "\n" for command in commands), "utf-8")
        classes = _TARGET / "classes"
        command = ["java", *_SMALL_JVM, "-Dfile.encoding=UTF-8", "-Duser.timezone=UTC"]
        command += ["-Dtls.server.mode=disabled"]  # it would spend seconds on generating a key
        command += [f"-Drmq.logback.configurationFile={classes / 'logback-off.xml'}"]
        command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES]
        command += [f"-Duser.home={home}", f"-Djava.io.tmpdir={home}"]
        command += ["-cp", f"{classes}:{(_TARGET / 'classpath.txt').read_text('utf-8').strip()}"]
        arguments = [str(store_dir), str(scratch / "settings.properties"), str(given)]
        return _parse_lines(_run([*command, "org.mqlake.interop.BrokerRun", *arguments], _RUN_TIMEOUT))


def _build() -> None:
    (_PROJECT / "target").mkdir(exist_ok=True)
    with (_PROJECT / "target" / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = _TARGET / "built"
        newest = max(path.stat().st_mtime for path in [_PROJECT / "pom.xml", *(_PROJECT / "src").rglob("*.java")])
        if not stamp.exists() or stamp.stat().st_mtime < newest:
            _run(["mvn", "-q", "-B", "-f", str(_PROJECT / "pom.xml"), "clean", "compile"], _BUILD_TIMEOUT)
            stamp.touch()
