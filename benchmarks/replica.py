"""A slave that catches up over loopback: `python -m benchmarks.replica WORKLOAD STORE [name=value …]`.

Each run is a separate process and prints one JSON line. The master is a process of its own that sends the log's files
as they are, in transfers of 32 KiB, RocketMQ's size, so what is measured is the slave.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.result import tell
from mqlake import CommitLogConfig, Message, MessageStore, RetentionConfig, StoreConfig
from mqlake.files.names import file_name
from mqlake.replication import follow
from mqlake.replication.frames import heartbeat_frame, transfer_header

FILE_BYTES = 256 << 20
TRANSFER_BYTES = 32 * 1024
BODY = bytes(range(256)) * 4
BATCH = 64
IN_TIME_S = 300.0
CONFIG = StoreConfig(commit_log=CommitLogConfig(file_size_bytes=FILE_BYTES), retention=RetentionConfig(enabled=False))


def fill(path: Path, mib: int) -> dict[str, Any]:
    """Write a master's log of messages of 1 KiB."""
    with MessageStore.open(path, config=CONFIG) as store:
        while store.end_offset < mib << 20:
            store.put_many([Message("orders", BODY, keys=str(n), tags="t", queue_id=n % 4) for n in range(BATCH)])
        return {"bytes": store.end_offset}


def catch_up(path: Path) -> dict[str, Any]:
    """Follow a master until its end is reached, and then until all is dispatched; MB/s of the log."""
    with MessageStore.open(path, read_only=True, config=CONFIG) as store:
        end = store.end_offset
    copy = path.with_name("replica")
    shutil.rmtree(copy, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.replica", "serve", str(path), f"end={end}"]
    master = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert master.stdout is not None
        address = master.stdout.readline().strip()
        began = time.perf_counter()
        with follow(copy, address, begin_offset=0, config=CONFIG) as store:
            assert store.slave is not None
            assert store.slave.wait_caught_up(IN_TIME_S, end_offset=end)
            appended_s = time.perf_counter() - began
            assert store.wait_dispatched(IN_TIME_S)
            dispatched_s = time.perf_counter() - began
    finally:
        master.kill()
        master.wait()
        shutil.rmtree(copy, ignore_errors=True)
    return {"rate": end / appended_s / 1e6, "dispatchedRate": end / dispatched_s / 1e6}


def serve(path: Path, end: int) -> dict[str, Any]:
    """Send the log to one slave, from where it asks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(f"127.0.0.1:{server.getsockname()[1]}", flush=True)
        connection, _ = server.accept()
    position = int.from_bytes(connection.recv(8), "big")
    while position < end:
        start = position // FILE_BYTES * FILE_BYTES
        with (path / "commitlog" / file_name(start)).open("rb") as file:
            while position < min(end, start + FILE_BYTES):
                size = min(TRANSFER_BYTES, end - position, start + FILE_BYTES - position)
                connection.sendall(transfer_header(position, size), socket.MSG_MORE)
                left = size
                while left:
                    left -= os.sendfile(connection.fileno(), file.fileno(), position - start + size - left, left)
                position += size
    while True:
        connection.sendall(heartbeat_frame(position))
        time.sleep(0.5)


WORKLOADS: dict[str, Callable[..., dict[str, Any]]] = {"fill": fill, "catch_up": catch_up, "serve": serve}


def main(arguments: list[str]) -> None:
    workload, path, *options = arguments
    numbers = {name: int(value) for name, value in (option.split("=") for option in options)}
    tell(WORKLOADS[workload](Path(path), **numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
