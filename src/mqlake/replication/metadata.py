"""What the log does not hold, fetched from the master's broker: topics, groups, progress, delay progress.

RocketMQ's slaves ask for the same with the same requests, once a minute. The master's word counts: what it no longer
has is removed here too. A request that the broker does not know (mqlake has no delay progress to give) is left out.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple, TypeVar

from mqlake.client.session import Session
from mqlake.codec.config_json import read_config
from mqlake.config import parse_properties
from mqlake.delivery.registry.config_file import ConfigFile
from mqlake.delivery.registry.groups import Group
from mqlake.delivery.registry.table import Registry
from mqlake.delivery.registry.topics import Topic
from mqlake.errors import BadRequest, RequestRefused
from mqlake.kernel import Command
from mqlake.message_store import MessageStore
from mqlake.remoting.bodies import read_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.runtime.workers import Worker

INTERVAL_S: Final = 60.0
"""RocketMQ's slaves ask this often."""
FACTS_S: Final = 2.0
"""How often the master is asked for its end."""
ANSWER_S: Final = 10.0
YOUNG_PAUSES_S: Final = (0.5, 1.0, 2.0)
TABLES: Final = (
    (RequestCode.GET_ALL_TOPIC_CONFIG, "topics.json", "topicConfigTable"),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroup.json", "subscriptionGroupTable"),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, "consumerOffset.json", "offsetTable"),
    (RequestCode.GET_ALL_DELAY_OFFSET, "delayOffset.json", "offsetTable"),
)
"""Request, the file in `config/` that has the same content, and its table. In the order of `Metadata`."""
Item = TypeVar("Item", Topic, Group)


class MasterFacts(NamedTuple):
    """What a master's broker says of its log."""

    first_offset: int
    end_offset: int
    file_size_bytes: int | None
    """Size of its log files; None if it does not say."""
    in_controller_mode: bool


class Metadata(NamedTuple):
    """The tables of a master's broker, as JSON. None: the broker does not give it."""

    topics: dict[str, Any] | None
    groups: dict[str, Any] | None
    progress: dict[str, Any] | None
    delays: dict[str, Any] | None


def ask_facts(address: str) -> MasterFacts:
    """Ask a broker (HOST:PORT of its listenPort) about its log."""
    return asyncio.run(_ask_facts(address))


async def _ask_facts(address: str) -> MasterFacts:
    session = Session(address)
    try:
        runtime = await _runtime_info(session, address)
        config = await session.call(address, RequestCode.GET_BROKER_CONFIG, timeout_s=ANSWER_S)
    finally:
        await session.close()
    told: Any = read_json(runtime.body)
    table = told.get("table", {})
    settings = parse_properties(bytes(config.body).decode("utf-8", "replace"), address)
    size = settings.get("mappedFileSizeCommitLog", "")
    try:
        first, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
    except (KeyError, ValueError):
        raise BadRequest("commitLogMinOffset", repr(table)[:80], "the ends of the log of a broker") from None
    in_controller_mode = settings.get("enableControllerMode") == "true"
    return MasterFacts(max(first, 0), max(end, 0), int(size) if size.isdecimal() else None, in_controller_mode)


async def _runtime_info(session: Session, address: str) -> Command:
    """Return the answer of a broker that may have just started: RocketMQ's fails until its statistics have a sample."""
    for pause_s in YOUNG_PAUSES_S:
        try:
            return await session.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=ANSWER_S)
        except RequestRefused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            await asyncio.sleep(pause_s)
    return await session.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=ANSWER_S)


def fetch_metadata(address: str) -> Metadata:
    """Fetch the tables of a broker."""
    return asyncio.run(_fetch(address))


async def _fetch(address: str) -> Metadata:
    session = Session(address)
    try:
        return Metadata(
            *[await _table(session, address, code, file, table) for code, file, table in TABLES],
        )
    finally:
        await session.close()


async def _table(session: Session, address: str, code: RequestCode, file: str, name: str) -> dict[str, Any] | None:
    """Return a table of the broker's answer, which must have the shape that the file in `config/` has."""
    try:
        answer = await session.call(address, code, timeout_s=ANSWER_S)
    except RequestRefused as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return None
    try:
        found: dict[str, Any] = read_config(file, bytes(answer.body)).get(name, {})
    except ValueError as error:
        raise BadRequest(code.name, str(error), "a table as JSON") from None
    return found


class MetadataSync:
    """Keeps the tables of a slave like its master's, by a worker of the store."""

    def __init__(self, store: MessageStore, address: str, interval_s: float = INTERVAL_S) -> None:
        """`address`: HOST:PORT of the master's broker (listenPort)."""
        self._store = store
        self._address = address
        self._interval_s = interval_s
        self._due_at = 0.0
        self.facts: MasterFacts | None = None
        """What the master said of its log the last time."""
        self._worker: Worker = store.port.workers.add("metadata", self._work, keeps_trying=True)

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        self._worker.stop()

    def _work(self) -> float:
        if time.monotonic() < self._due_at:
            self.facts = ask_facts(self._address)
        else:
            self.step()
        return min(FACTS_S, self._interval_s)

    def step(self) -> None:
        """Fetch everything once, and write what changed."""
        self.facts = ask_facts(self._address)
        apply_metadata(self._store, fetch_metadata(self._address))
        self._due_at = time.monotonic() + self._interval_s


def apply_metadata(store: MessageStore, found: Metadata) -> None:
    """Make a slave's tables like those that were fetched, durably."""
    delivery = store.delivery
    if found.topics is not None:
        _replace(delivery.topics, [Topic.from_json(name, entry) for name, entry in found.topics.items()])
    if found.groups is not None:
        _replace(delivery.groups, [Group.from_json(name, entry) for name, entry in found.groups.items()])
    if found.progress is not None:
        _replace_progress(store, found.progress)
    if found.delays:
        layout = store.port.layout
        file = ConfigFile(layout.config / "delayOffset.json", layout.scratch)
        if file.load().get("offsetTable") != found.delays:
            file.save({"offsetTable": found.delays})  # without our own field: it would speak of other deliveries


def _replace(registry: Registry[Item], items: list[Item]) -> None:
    registry.save(*items)
    for name in set(registry.names) - {item.name for item in items}:
        registry.delete(name)


def _replace_progress(store: MessageStore, table: dict[str, Any]) -> None:
    offsets = store.delivery.offsets
    for known in list(offsets.subscriptions()):
        if f"{known.topic}@{known.group}" not in table:
            offsets.delete(f"{known.topic}@{known.group}")
    for name, by_queue in table.items():
        before = offsets.of(name)
        for queue_id, offset in by_queue.items():
            if before.get(int(queue_id)) != offset:
                offsets.set(name, int(queue_id), int(offset))
    offsets.sync()
