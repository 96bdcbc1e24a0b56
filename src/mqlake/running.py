"""`mqlake.run`: a worker over a store of this process, or over a broker. One argument tells which.

mqlake.run(handle, store="data/shop", group="billing", topic="orders")
mqlake.run(handle, endpoint="127.0.0.1:9876", group="billing", topic="orders")
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from mqlake.errors import InvalidConfig
from mqlake.handling.async_loop import AsyncLoop, is_async
from mqlake.handling.loop import Loop
from mqlake.handling.options import Handler, Options, RunOptions, divide
from mqlake.handling.tracking import RunCounts
from mqlake.message_store import MessageStore

if TYPE_CHECKING:
    from mqlake.client import Credentials

Name = str | os.PathLike[str]


def run(
    handler: Handler,
    *,
    group: str,
    topic: str | Sequence[str],
    store: MessageStore | Name | None = None,
    endpoint: str | Sequence[str] | None = None,
    concurrency: int = 1,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | bool = False,
    **more: Unpack[RunOptions],
) -> RunCounts:
    """Call a handler for each message of a topic, until SIGTERM or Ctrl-C: see `MessageStore.run`.

    `store` is an open store or the path of one, which this process then writes. `endpoint` is the name server of a
    broker, mqlake's or RocketMQ's: any number of processes may run workers of one group. Exactly one is given.
    """
    _require_one(store, endpoint)
    if is_async(handler):
        security: dict[str, Any] = {"credentials": credentials, "tls": tls}
        place: dict[str, Any] = {"store": store, "endpoint": endpoint, "concurrency": concurrency}
        return asyncio.run(run_async(handler, group=group, topic=topic, **place, **security, **more))
    options, settings = divide(handler, concurrency, more)
    if endpoint is not None:
        from mqlake.client import Consumer

        consumer = Consumer(endpoint, group, topic, credentials=credentials, tls=tls, **settings)
        return Loop(consumer, handler, options).run()
    if isinstance(store, MessageStore):
        return Loop(store.consumer(group, topic, **settings), handler, options).run()
    assert store is not None, "one of the two is given"
    with MessageStore.open(store) as opened:
        return Loop(opened.consumer(group, topic, **settings), handler, options).run()


async def run_async(
    handler: Handler,
    *,
    group: str,
    topic: str | Sequence[str],
    store: MessageStore | Name | None = None,
    endpoint: str | Sequence[str] | None = None,
    concurrency: int = 1,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | bool = False,
    **more: Unpack[RunOptions],
) -> RunCounts:
    """`run` for asyncio programs: `concurrency` handlers are awaited at a time. Cancelling it cancels them."""
    _require_one(store, endpoint)
    options, settings = divide(handler, concurrency, more)
    if endpoint is not None:
        from mqlake.client import AsyncConsumer

        remote = AsyncConsumer(endpoint, group, topic, credentials=credentials, tls=tls, **settings)
        return await AsyncLoop(await remote.start(), handler, options).run()
    if isinstance(store, MessageStore):
        return await _run_local(store, group, topic, handler, options, settings)
    assert store is not None, "one of the two is given"
    opened = await asyncio.to_thread(MessageStore.open, store)
    try:
        return await _run_local(opened, group, topic, handler, options, settings)
    finally:
        await asyncio.to_thread(opened.close)


async def _run_local(
    store: MessageStore,
    group: str,
    topic: str | Sequence[str],
    handler: Handler,
    options: Options,
    settings: dict[str, Any],
) -> RunCounts:
    from mqlake.handling.local import LocalConsumer

    return await AsyncLoop(LocalConsumer(store.consumer(group, topic, **settings)), handler, options).run()


def _require_one(store: object, endpoint: object) -> None:
    if (store is None) == (endpoint is None):
        given = "neither" if store is None else "both"
        raise InvalidConfig("store or endpoint", given, "name a store by its path, or a broker by its name server")
    if store is not None and not isinstance(store, MessageStore | str | os.PathLike):
        raise InvalidConfig("store", store, "must be an open store, or the path of one")
