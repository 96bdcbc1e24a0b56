"""Administration: topics, groups, progress, and look-ups of messages, over the protocol that mqadmin speaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from mqlake.client.positions import address_of, ends_of, offset_at
from mqlake.client.pulling import pull
from mqlake.client.security import Credentials
from mqlake.client.session import Session
from mqlake.codec.message_id import decode_message_id
from mqlake.delivery.consume.assignment import QueueLag
from mqlake.delivery.consume.progress import Start, check_start, require_queues
from mqlake.delivery.properties import UNIQUE_KEY
from mqlake.delivery.registry.groups import Group
from mqlake.delivery.registry.table import changed
from mqlake.delivery.registry.topics import Permission, Topic
from mqlake.errors import NoSuchMessage, NotConnected, NotPermitted, OffsetOutOfRange, RequestRefused
from mqlake.kernel.hosts import format_host
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import MessageQueue, decode_records, read_json, write_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers import (
    PULL_SUBSCRIPTION,
    CreateTopicHeader,
    GroupHeader,
    PullResult,
    QueryMessageHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    UpdateOffsetHeader,
    ViewMessageHeader,
)
from mqlake.store.read import QueueRange

READ_GROUP: Final = "TOOLS_CONSUMER"
"""The group in whose name messages are read: RocketMQ's own for tools. It has no members and no progress."""
ADMIN_S: Final = 10.0
END_OF_TIME: Final = (1 << 63) - 1


class AsyncAdmin:
    """Looks after brokers, for asyncio programs. Made in a running event loop."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | bool = False,
    ) -> None:
        self._session = Session(name_servers, credentials=credentials, tls=tls)

    # ---- topics

    async def topics(self) -> list[str]:
        """Return the names of all topics that the name server knows."""
        _, answer = await self._session.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        found: Any = read_json(answer.body)
        return sorted(str(each) for each in found.get("topicList") or ())

    async def topic(self, name: str) -> Topic:
        """Return a topic's settings, as the first of its brokers has them."""
        route = await self._session.routes.get(name)
        try:
            answer = await self._session.call(route.addresses[0], RequestCode.GET_TOPIC_CONFIG, {"topic": name})
        except RequestRefused as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            data = route.queues[0]  # RocketMQ 4: what the name server knows
            return Topic(name, data.read_queue_count, data.write_queue_count, Permission(data.permission & 7))
        found: Any = read_json(answer.body)
        return Topic.from_json(name, found)

    async def create_topic(
        self,
        name: str,
        queue_count: int = 4,
        *,
        permission: Permission = Permission.READ | Permission.WRITE,
        ordered: bool = False,
    ) -> None:
        """Set a topic up on every broker, or change it."""
        header = CreateTopicHeader(
            topic=name,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=int(permission),
            default_topic="TBW102",
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=ordered,
        )
        for address in await self._brokers():
            await self._session.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.write(), timeout_s=ADMIN_S)
        self._session.routes.forget(name)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic from every broker and from the name server."""
        for address in await self._brokers():
            await self._session.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}, timeout_s=ADMIN_S)
        await self._session.ask_name_server(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": name})
        self._session.routes.forget(name)

    async def _brokers(self) -> list[str]:
        """Return the addresses of all masters."""
        address, answer = await self._session.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        found: Any = read_json(answer.body)
        brokers = found.get("brokerAddrTable") or {}
        known = sorted(str(each["brokerAddrs"]["0"]) for each in brokers.values() if each["brokerAddrs"].get("0"))
        if not known and brokers:
            names = ", ".join(sorted(brokers))
            reason = f"this name server knows only slaves, of {names}: ask the name server of the master instead"
            raise NotConnected(address, reason)
        if not known:
            raise NotConnected(address, "this name server knows no broker")
        return known

    async def queues(self, topic: str) -> list[QueueRange]:
        """Return the queues of a topic with their first and end queue offsets."""
        return [QueueRange(topic, queue.queue_id, *ends) for queue, ends in (await self.ranges(topic)).items()]

    async def ranges(self, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """Return the first and end queue offsets of the queues of a topic, which may be on several brokers."""
        found = await self._queues(topic)
        ends = await asyncio.gather(*(ends_of(self._session, queue) for queue in found))
        return dict(zip(found, ends, strict=True))

    async def _queues(self, topic: str) -> list[MessageQueue]:
        return (await self._session.routes.get(topic)).readable

    # ---- groups

    async def groups(self) -> list[str]:
        """Return the groups that are set up on some broker."""
        names: set[str] = set()
        for address in await self._brokers():
            answer = await self._session.call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            found: Any = read_json(answer.body)
            names.update(found.get("subscriptionGroupTable") or ())
        return sorted(names)

    async def create_group(self, name: str, **settings: Any) -> None:
        """Set a consumer group up (fields of `Group`) on every broker, or change it."""
        body = write_json(changed(Group(name), settings).to_json())
        for address in await self._brokers():
            await self._session.call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    async def delete_group(self, name: str) -> None:
        """Delete a group and its progress from every broker."""
        for address in await self._brokers():
            fields = {"groupName": name, "cleanOffset": "true"}
            await self._session.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)

    async def members(self, group: str) -> list[str]:
        """Return the client ids of a group's connected consumers."""
        found: set[str] = set()
        for address in await self._brokers():
            with contextlib.suppress(RequestRefused):  # none on this broker
                fields = GroupHeader(group).write()
                answer = await self._session.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
                listed: Any = read_json(answer.body)
                found.update(str(each) for each in listed.get("consumerIdList") or ())
        return sorted(found)

    # ---- progress

    async def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """Return a group's progress in each queue that it reads."""
        lags: list[QueueLag] = []
        fields = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        for address in await self._brokers():
            answer = await self._session.call(address, RequestCode.GET_CONSUME_STATS, dict(fields), timeout_s=ADMIN_S)
            found: Any = read_json(answer.body)
            for key, each in (found.get("offsetTable") or {}).items():
                queue = MessageQueue.from_json(json.loads(key))
                first, _ = await ends_of(self._session, queue)
                reached, end = int(each["consumerOffset"]), int(each["brokerOffset"])
                lags.append(QueueLag(queue.topic, queue.queue_id, max(reached, first), first, end))
        return sorted(lags)

    async def reset(self, group: str, topic: str, to: Start) -> dict[int, int]:
        """Set a group's progress on a topic: see `start` of a consumer. Connected members continue there.

        Offsets by queue id set these queues only. Returns the new queue offsets by queue id.
        """
        check_start(to)
        found = await self._queues(topic)
        if isinstance(to, Mapping):
            require_queues(topic, sorted({queue.queue_id for queue in found}), to)
            found = [queue for queue in found if queue.queue_id in to]
        offsets = {queue: await offset_at(self._session, queue, to) for queue in found}
        by_address: dict[str, list[MessageQueue]] = {}
        for queue in offsets:
            by_address.setdefault(await address_of(self._session, queue), []).append(queue)
        for address, queues in by_address.items():
            if not self._session.is_old(address):
                for queue in queues:
                    await self._place(
                        address, ResetOffsetHeader(topic, group, -1, True, queue.queue_id, offsets[queue])
                    )
            elif await self.members(group):
                await self._place(address, ResetOffsetHeader(topic, group, _time_of(to), True))
            else:
                for queue in queues:
                    record = UpdateOffsetHeader(group, topic, queue.queue_id, offsets[queue])
                    await self._session.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, record.write())
        return {queue.queue_id: offset for queue, offset in offsets.items()}

    async def _place(self, address: str, header: ResetOffsetHeader) -> None:
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        await self._session.call(address, code, header.write(), timeout_s=ADMIN_S)

    # ---- messages

    async def read(
        self, topic: str, *, queue_id: int = 0, start: int = 0, limit: int = 32, broker_name: str | None = None
    ) -> list[StoredMessage]:
        """Return at most `limit` messages of a queue from queue offset `start` on; none at the queue's end."""
        queue = await self._queue(topic, queue_id, broker_name)
        found: list[StoredMessage] = []
        while len(found) < limit:
            records, start, end = await self.records(queue, start, limit - len(found))
            found += decode_records(records)
            if start >= end:
                break
        return found

    async def records(self, queue: MessageQueue, start: int, limit: int = 32) -> tuple[bytes, int, int]:
        """Return records of a queue as they are stored, the offset to continue at, and the queue's end.

        As many as the broker gives at a time, at most `limit`. OffsetOutOfRange if the queue does not have `start`.
        """
        answer = await pull(self._session, READ_GROUP, queue, start, limit=limit, sys_flag=PULL_SUBSCRIPTION)
        result = PullResult.read(answer.fields)
        if answer.code == ResponseCode.SUCCESS:
            return answer.body, result.next_begin_offset, result.max_offset
        if not result.min_offset <= start <= result.max_offset:
            raise OffsetOutOfRange(str(queue), start, result.min_offset, result.max_offset)
        return b"", max(start, result.next_begin_offset), result.max_offset

    async def _queue(self, topic: str, queue_id: int, broker_name: str | None = None) -> MessageQueue:
        queues = await self._queues(topic)
        for queue in queues:
            if queue.queue_id == queue_id and broker_name in (None, queue.broker_name):
                return queue
        raise OffsetOutOfRange(f"queues of {topic}", queue_id, 0, len(queues))

    async def get(self, message_id: str, *, topic: str | None = None) -> StoredMessage:
        """Return a message by its offset message id; with `topic`, also by the unique key that its producer gave it."""
        store_host, offset = decode_message_id(message_id)
        address = format_host(store_host)
        if topic is not None:
            found = await self.find(topic, message_id, limit=1, unique=True)
            if found:
                return found[-1]
            if address not in (await self._session.routes.get(topic)).addresses:
                raise NoSuchMessage(f"message id {message_id}", f"no message of {topic} has this unique key")
        fields = ViewMessageHeader(offset, topic).write()
        try:
            answer = await self._session.call(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        except RequestRefused as error:
            raise NoSuchMessage(f"message id {message_id}", str(error)) from None
        (message,) = decode_records(answer.body)
        return message

    async def find(
        self,
        topic: str,
        key: str,
        *,
        limit: int = 64,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME,
        unique: bool = False,
    ) -> list[StoredMessage]:
        """Return the newest `limit` messages with a key, by store time; with `unique`, those with that unique key.

        Fewer if more were stored in one millisecond (RocketMQ: one second) than one answer holds: 64, and 8 MiB.
        """
        if limit < 1:
            return []
        found: list[StoredMessage] = []
        for address in (await self._session.routes.get(topic)).addresses:
            header = QueryMessageHeader(topic, key, limit, begin_ms, end_ms, unique_key=unique)
            found += await self._find_at(address, header)
        return sorted(found, key=lambda each: (each.store_timestamp, each.physical_offset))[-limit:]

    async def _find_at(self, address: str, header: QueryMessageHeader) -> list[StoredMessage]:
        """Return a broker's newest messages with a key: again and again those before, until nothing new comes."""
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        found: dict[int, StoredMessage] = {}
        while True:
            answer = await self._session.call(
                address, RequestCode.QUERY_MESSAGE, header.write(), timeout_s=ADMIN_S, accept=accept
            )
            come = decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []
            is_over = all(each.physical_offset in found for each in come)
            found |= {each.physical_offset: each for each in come}
            matching = [each for each in found.values() if each.topic == header.topic and _has(each, header)]
            if is_over or len(matching) >= header.max_num:
                return matching
            header = replace(header, end_timestamp=min(each.store_timestamp for each in come))

    async def seek_time(self, topic: str, at: datetime | int, *, queue_id: int = 0) -> int:
        """Return the queue offset of the first message stored at or after a time (a datetime, or milliseconds)."""
        queue = await self._queue(topic, queue_id)
        route = await self._session.routes.get(topic)
        timestamp = int(at.timestamp() * 1000) if isinstance(at, datetime) else at
        header = SearchOffsetHeader(topic, queue_id, timestamp)
        address = route.address_of(queue.broker_name) or route.addresses[0]
        fields = {"bname": queue.broker_name, **header.write()}
        answer = await self._session.call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        return int(answer.fields["offset"])

    # ---- closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()


def _time_of(to: Start) -> int:
    """Return the time that a broker of RocketMQ 4 resets a connected group to: it takes nothing else."""
    if isinstance(to, datetime):
        return int(to.timestamp() * 1000)
    if to == "first":
        return 0
    if to == "last":
        return -1
    found = "RocketMQ 4 resets a group with connected members by time only"
    raise NotPermitted("reset", found, "stop its consumers first, or give a time")


def _has(message: StoredMessage, header: QueryMessageHeader) -> bool:
    """Return whether a message has a key: brokers compare only hashes."""
    key = header.key
    return message.properties.get(UNIQUE_KEY) == key if header.unique_key else key in message.keys
