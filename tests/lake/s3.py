"""A real S3 server on this machine, for tests: versitygw, which keeps files in a folder, or moto, which forgets.

`scripts/bootstrap` installs moto with the other packages, and versitygw where Go is installed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.ports import free_port

ACCESS, SECRET = "mqlake-tests", "mqlake-tests-secret"
START_S = 60.0
KINDS = ("versitygw", "moto")
FAST = ("--data-integrity-etag", "--enable-odirect")
"""Flags of versitygw: no MD5, files past the page cache."""


def versitygw() -> Path | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mqlake" / "bin" / "versitygw"
    found = shutil.which("versitygw") or (str(cache) if cache.exists() else None)
    return Path(found) if found else None


def options_of(port: int) -> dict[str, str]:
    """Return what a client must know of the server on a port."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


class Server:
    """A server on a free port. `stop` and `start` keep port and, with versitygw, content."""

    def __init__(self, kind: str, folder: Path, port: int | None = None, flags: Sequence[str] = ()) -> None:
        self.kind, self._folder, self._flags = kind, folder, flags
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.options = options_of(self.port)
        """Environment variables, and options of other readers."""

    def start(self) -> None:
        if self.kind == "moto":
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        else:
            (self._folder / "s3").mkdir(exist_ok=True)
            command = [str(versitygw()), "--access", ACCESS, "--secret", SECRET, "--region", "us-east-1"]
            command += ["--port", f"127.0.0.1:{self.port}", "--quiet", "posix", *self._flags, str(self._folder / "s3")]
        with (self._folder / "server.txt").open("ab") as said:
            self._process = subprocess.Popen(command, stdout=said, stderr=said)
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said_text = (self._folder / "server.txt").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.kind} did not start: {said_text}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def new_bucket(self) -> str:
        """Make a bucket and return its name."""
        name = f"tests-{secrets.token_hex(6)}"
        if self.kind == "moto":
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{name}", method="PUT")
            urllib.request.urlopen(request, timeout=30).close()
        else:
            (self._folder / "s3" / name).mkdir()
        return name


@contextlib.contextmanager
def running(kind: str, folder: Path, port: int | None = None) -> Iterator[Server]:
    if kind == "versitygw" and versitygw() is None:
        pytest.skip("versitygw is not installed: scripts/bootstrap s3")
    if kind == "moto":
        pytest.importorskip("moto")
    pytest.importorskip("obstore")
    server = Server(kind, folder, port)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Return a server of a kind. It is started on first use."""
    with contextlib.ExitStack() as stack:
        yield cache(lambda kind: stack.enter_context(running(kind, tmp_path_factory.mktemp("s3"))))


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Server:
    return servers(request.param)


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    return bucket_of(server, monkeypatch)


def bucket_of(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a new bucket. The environment names server and credentials."""
    for name, value in server.options.items():
        monkeypatch.setenv(name, value)
    return f"s3://{server.new_bucket()}"
