"""A broker inside of a program that is not asyncio's: its event loop runs in a thread. For tests and notebooks."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mqlake.broker.listening import Address, Served, serve
from mqlake.broker.settings import BrokerSettings
from mqlake.config import StoreConfig
from mqlake.message_store import MessageStore

LOOPBACK = Address("127.0.0.1", 0)


class BrokerThread:
    """A running broker on free ports of this machine. `close` stops it; so does leaving its `with` block."""

    def __init__(
        self,
        path: str | Path,
        *,
        config: StoreConfig | None = None,
        settings: BrokerSettings | None = None,
        **more: Any,
    ) -> None:
        self._started: Future[Served] = Future()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        main = self._main(path, config, settings, more)
        self._thread = threading.Thread(target=asyncio.run, args=(main,), name="mqlake-broker-loop", daemon=True)
        self._thread.start()
        self._served = self._started.result()

    async def _main(
        self, path: str | Path, config: StoreConfig | None, settings: BrokerSettings | None, more: dict[str, Any]
    ) -> None:
        try:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            served = await serve(path, LOOPBACK, LOOPBACK, config=config, settings=settings, **more)
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(served)
        await self._stop.wait()
        await served.close()

    @property
    def name_server(self) -> str:
        """The address for clients: `setNamesrvAddr` and its like."""
        return str(self._served.name_server)

    @property
    def address(self) -> str:
        """The broker's own address, which clients learn from the name server."""
        return str(self._served.address)

    @property
    def store(self) -> MessageStore:
        """The store that is served. Any thread may call it."""
        return self._served.broker.store

    @property
    def served(self) -> Served:
        """The broker itself; only its own thread may touch it."""
        return self._served

    def close(self) -> None:
        """Stop serving and close the store. A second call does nothing."""
        if self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
