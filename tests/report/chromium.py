"""A headless Chromium to look at pages with, driven through a pair of pipes: no package beside the browser is needed.

The DevTools protocol's messages are JSON, each ended by a zero byte (`--remote-debugging-pipe`). One browser serves
a whole module of tests. Fonts and their sizes differ between machines, so tests ask for what must hold with any of
them, never for the pixels of another machine.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions", "--disable-sync"),
)
Scheme = Literal["light", "dark"]


def find_chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def _moved(descriptor: int) -> int:
    """Return a copy of a descriptor whose number is none of those that the browser's pipes get."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy


class Chromium:
    """One browser with one tab. Its process and its profile are gone when the block ends."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._number = 0
        self._session: str | None = None

    def __enter__(self) -> Chromium:
        self._profile = tempfile.TemporaryDirectory(prefix="mqlake-chromium-", ignore_cleanup_errors=True)
        reads, its_writes = map(_moved, os.pipe())
        its_reads, writes = map(_moved, os.pipe())
        # The browser expects the pipes as descriptors 3 and 4, which this process may use for other things.
        shuffle = f'exec "$0" "$@" 3<&{its_reads} 4>&{its_writes} {its_reads}<&- {its_writes}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", shuffle, self._program, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(its_reads, its_writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_reads)
        os.close(its_writes)
        self._from, self._to = os.fdopen(reads, "rb"), os.fdopen(writes, "wb")
        self._unread = b""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._to.close()  # the browser ends when its pipe does
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._from.close()
        self._profile.cleanup()

    def open(self, page: Path, *, width: int, scheme: Scheme, height: int = 900) -> None:
        """Show a page in a window of this width, for readers who prefer light or dark."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        wanted = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[wanted])
        self._call("Page.navigate", url=page.absolute().as_uri())
        self._until("Page.loadEventFired")

    def ask(self, script: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        told = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def picture(self) -> bytes:
        """Return the whole page as PNG, not only what fits in the window."""
        return base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    # ---- the protocol

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            asked["sessionId"] = self._session
        self._to.write(json.dumps(asked).encode() + b"\0")
        self._to.flush()
        while (told := self._next()).get("id") != self._number:
            pass
        assert "error" not in told, f"{method}: {told['error']}"
        result: dict[str, Any] = told["result"]
        return result

    def _until(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        """Return the next message. A browser that says nothing more ends the test by its timeout."""
        while b"\0" not in self._unread:
            part = self._from.read1(1 << 16)
            if not part:
                raise EOFError("Chromium has ended")
            self._unread += part
        message, self._unread = self._unread.split(b"\0", 1)
        told: dict[str, Any] = json.loads(message)
        return told
