"""A single-node Kafka broker on loopback, from Maven's jars, with its data in a folder. It is ended by process id."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
JARS = HERE.parents[1] / "bench-out" / "kafka"
PYSPARK = "pyspark==4.2.0"
START_S = 60.0


def fetch() -> None:
    """Download the broker, the connector and the PySpark that it needs, each once."""
    maven = ["mvn", "-q", "-B", "dependency:copy-dependencies"]
    pip = [sys.executable, "-m", "pip", "install", "-q", PYSPARK]
    _fetch_into(JARS / "broker", lambda folder: [*maven, "-P", "broker", f"-DoutputDirectory={folder}"])
    _fetch_into(JARS / "connector", lambda folder: [*maven, "-P", "connector", f"-DoutputDirectory={folder}"])
    _fetch_into(JARS / "pyspark", lambda folder: [*pip, "--target", str(folder)])


def _fetch_into(folder: Path, command_for: Callable[[Path], list[str]]) -> None:
    """Fill a folder, unless it exists. It gets its name when it is complete: the next run must not take half of it."""
    if folder.is_dir():
        return
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    command = command_for(part)
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        printed = f"{done.stdout}{done.stderr}"[-2000:]
        raise RuntimeError(f"{' '.join(command)} failed with status {done.returncode}:\n{printed}")
    part.rename(folder)


def connector_jars() -> str:
    return ",".join(str(path) for path in sorted((JARS / "connector").glob("*.jar")))


@contextmanager
def broker(data: Path) -> Iterator[str]:
    """Run a broker on a folder, which is made if it does not exist. Yield its address."""
    ports = free_port(), free_port()
    settings = data / "server.properties"
    is_new = not settings.exists()
    data.mkdir(parents=True, exist_ok=True)
    settings.write_text(
        f"""process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{ports[0]},CONTROLLER://127.0.0.1:{ports[1]}
advertised.listeners=PLAINTEXT://127.0.0.1:{ports[0]}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{ports[1]}
log.dirs={data / "logs"}
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
log.retention.hours=-1
"""
    )
    java = ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{JARS / 'broker'}/*"]
    if is_new:
        command = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(settings)]
        subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    with (data / "broker.log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
    try:
        wait_for(ports[0], process)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the Kafka broker did not start within {START_S} s; see broker.log in its folder")
