"""What is built from the sources next to this file, kept between runs.

The folder of an artefact is named after the hash of its sources, so a changed source makes a new one. Two runs
that want the same artefact build it once: the second waits at a lock and finds it made.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mqlake" / "clients"
BUILD_TIMEOUT = 600.0


class BuildFailed(Exception):
    """A build tool failed; the message has the end of what it said."""


def built(name: str, sources: Path, build: Callable[[Path], None]) -> Path:
    """Return the folder that ``build`` filled from ``sources``, now or in an earlier run."""
    digest = hashlib.sha256(name.encode())
    for path in sorted(sources.rglob("*") if sources.is_dir() else [sources]):
        if path.is_file() and "node_modules" not in path.parts and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(HERE)).encode() + b"\0" + path.read_bytes() + b"\0")
    folder = CACHE / f"{name}-{digest.hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            (folder / "built").touch()
    return folder


def run_tool(command: Sequence[str | Path], cwd: Path | None = None, **environment: str) -> str:
    """Return the output of a build tool that must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=BUILD_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(f"{command[0]} failed with status {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def maven(project: str, release: str) -> Path:
    """Build a Maven project for a release of RocketMQ (4.9 or 5.5); return the folder with its classes."""

    def build(folder: Path) -> None:
        profile = ["-P", "rocketmq-4.9"] if release == "4.9" else []
        run_tool(["mvn", "-q", "-B", "-f", HERE / project / "pom.xml", *profile, f"-Dout={folder}", "compile"])

    return built(f"{project}-{release}", HERE / project, build)


def java_command(folder: Path, main_class: str, *options: str) -> list[str]:
    """Return how to start a class of a Maven project that was built."""
    classes = folder / "classes"
    packages = ("java.lang", "java.lang.reflect", "java.nio", "java.util", "sun.nio.ch", "jdk.internal.ref")
    return [
        "java",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dfile.encoding=UTF-8",
        "-Duser.timezone=UTC",
        f"-Drmq.logback.configurationFile={classes / 'logback-off.xml'}",
        f"-Dlogback.configurationFile={classes / 'logback-off.xml'}",
        f"-Drocketmq.home.dir={classes}",  # where mqadmin 4.9 looks for its logs' configuration
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages),
        *options,
        "-cp",
        f"{classes}:{(folder / 'classpath.txt').read_text('utf-8').strip()}",
        f"org.mqlake.clients.{main_class}",
    ]


def missing(*programs: str) -> str | None:
    """Return why a suite cannot run here, or None if it can."""
    for program in programs:
        if shutil.which(program) is None:
            return f"no {program} on the path"
    return None
