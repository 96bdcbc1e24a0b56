"""POP: the broker hands messages out for a time, and takes them back unless they are acknowledged.

A message that is handed out is invisible to its group until its time is over. Then it goes to the group's retry topic
for this topic, with a higher count, as in RocketMQ, and is popped from there.

What is handed out is known in memory only. A group's progress in a queue stays before its first message that is not
acknowledged, so that a restart delivers what was open again, and loses nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mqlake.broker.bodies import json_of
from mqlake.broker.connection import Connection
from mqlake.broker.membership import make_filter
from mqlake.broker.pop_queue import PopQueue
from mqlake.broker.pull import select_in_time
from mqlake.broker.refusals import Refusal, no_topic, refuse
from mqlake.delivery.consume.filters import ALL, SQL, Filter
from mqlake.delivery.later.deliveries import copy_of
from mqlake.delivery.registry.offsets import name_of
from mqlake.delivery.registry.system_topics import RETRY_PREFIX
from mqlake.delivery.registry.topics import Topic
from mqlake.errors import UnknownTopic
from mqlake.kernel import Command, Message, encode_record
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import acks_of, decode_records
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import AckHeader, PopHeader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

MAX_COUNT: Final = 32
LATE_MS: Final = 500
REVIVE_PAUSE_MS: Final = 1_000
"""After this time a message that could not be put into the retry topic is tried again."""
NORMAL, RETRY = "0", "1"
FIRST_POP, CHECKPOINT, ORIGIN_GROUP = "1ST_POP_TIME", "POP_CK", "ORIGIN_GROUP"
QueueName = tuple[str, int]


@dataclass(slots=True, eq=False)
class WaitingPop:
    """A pop that waits for a message."""

    connection: Connection
    command: Command
    header: PopHeader
    wanted: Filter
    names: list[QueueName]
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class Popped:
    """Messages of one answer."""

    records: list[bytes] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    """How often what comes in order was delivered before, by queue."""
    rest: int = 0


class Pops:
    """Hands messages out, and takes them back."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reader = broker.port.reader
        self._queues: dict[tuple[str, str, int], PopQueue] = {}
        self._due: list[tuple[int, str, str, int, int]] = []
        """A heap: when a message becomes visible again, and which: group, topic, queue id, queue offset."""
        self._timer: asyncio.TimerHandle | None = None
        self.waiting: dict[QueueName, list[WaitingPop]] = {}
        self._turn = 0

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.ACK_MESSAGE: self._ack,
            RequestCode.BATCH_ACK_MESSAGE: self._ack_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._change,
        }

    # ---- popping

    def _pop(self, connection: Connection, command: Command) -> Command | None:
        header = PopHeader.read(command.fields)
        now_ms = _now_ms()
        if now_ms - header.born_time - header.poll_time > LATE_MS:
            return self._nothing(command, header, now_ms, "the broker is busy, the pop is too late")
        if header.max_msg_nums > MAX_COUNT:
            remark = f"the broker's pop message num is greater than {MAX_COUNT}"
            raise Refusal(ResponseCode.INVALID_PARAMETER, remark)
        self._broker.members.require_group(header.consumer_group)
        topic = self._broker.parts.topics.for_read(header.topic)
        if header.queue_id >= topic.read_queue_count:
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"queueId[{header.queue_id}] is illegal")
        wanted = make_filter(header.exp, header.exp_type)
        names = self._names(header, topic)
        answer, has_more = self._take(command, header, wanted, names)
        if answer is None and header.poll_time <= 0:
            return self._nothing(command, header, now_ms)
        if answer is None:
            pop = WaitingPop(connection, command, header, wanted, names)
            self._park(pop)
            if has_more:
                self._broker.loop.call_soon(self._try, pop)
        return answer

    def _names(self, header: PopHeader, topic: Topic) -> list[QueueName]:
        """Return the queues to look at, in turn: retries first."""
        retry = retry_topic(header.consumer_group, header.topic)
        self._broker.parts.topics.create(Topic(retry, 1, 1))
        self._turn += 1
        count = topic.read_queue_count
        ids = [header.queue_id] if header.queue_id >= 0 else [(self._turn + i) % count for i in range(count)]
        return [(retry, 0), *((header.topic, queue_id) for queue_id in ids)]

    def _take(
        self, command: Command, header: PopHeader, wanted: Filter, names: list[QueueName]
    ) -> tuple[Command | None, bool]:
        """Return the answer with messages, None if none matched, and whether there are more to look at."""
        now_ms, popped, left = _now_ms(), Popped(), max(1, header.max_msg_nums)
        for topic, queue_id in names:
            if left > 0:
                is_retry = topic != header.topic
                left -= self._take_from(header, ALL if is_retry else wanted, topic, queue_id, left, now_ms, popped)
        if not popped.records:
            return None, popped.rest > 0
        size = sum(map(len, popped.records))
        self._broker.parts.stats.delivered(header.topic, header.consumer_group, len(popped.records), size)
        self._schedule()
        fields = {
            **_common(now_ms, header.invisible_time),
            "msgOffsetInfo": ";".join(popped.offsets),
            "restNum": str(popped.rest),
            "startOffsetInfo": ";".join(popped.starts),
        }
        if header.order:
            fields["orderCountInfo"] = ";".join(popped.counts)
        return response(command, fields=fields, body=b"".join(popped.records), remark="FOUND"), popped.rest > 0

    def _take_from(
        self, header: PopHeader, wanted: Filter, topic: str, queue_id: int, limit: int, now_ms: int, popped: Popped
    ) -> int:
        queue = self._queue(header, topic, queue_id)
        if header.order and queue.handed_out:
            return 0
        try:
            found = self._reader.gather(
                topic, queue_id, queue.next_offset, limit, self._broker.settings.max_pull_bytes, wanted.codes
            )
        except UnknownTopic:
            return 0
        if not found.message_count:
            before = queue.next_offset
            inside = found.first_offset <= before <= found.end_offset
            queue.next_offset = found.next_offset if inside else found.first_offset
            if queue.next_offset != before:  # else another look would find the same
                popped.rest += found.end_offset - queue.next_offset
            return 0
        messages, next_offset = decode_records(found.records), found.next_offset
        if wanted.kind == SQL:
            messages, next_offset = select_in_time(wanted, messages, next_offset)
        start = messages[0].queue_offset if messages else next_offset
        for message in messages:
            self._hand_out(queue, message.queue_offset, now_ms + max(header.invisible_time, 1), now_ms)
        queue.next_offset = next_offset
        self._commit(queue)
        if messages:
            kind = NORMAL if topic == header.topic else RETRY
            popped.starts.append(f"{kind} {queue_id} {start}")
            popped.offsets.append(f"{kind} {queue_id} {','.join(str(each.queue_offset) for each in messages)}")
            popped.counts.append(f"{kind} {queue_id} {min(each.reconsume_times for each in messages)}")
            popped.records += [
                each.record if kind == NORMAL else self._retried(each, header, start, now_ms) for each in messages
            ]
        popped.rest += found.end_offset - next_offset
        return len(messages)

    def _queue(self, header: PopHeader, topic: str, queue_id: int) -> PopQueue:
        """Return what the group has of a queue; after a reset it has nothing, and begins where that said."""
        name = header.consumer_group, topic, queue_id
        reset = self._broker.parts.pulls.take_reset(*name)
        known = self._queues.get(name) if reset is None else None
        if known is None:
            offset = self._broker.delivery.offsets.get(name_of(topic, header.consumer_group), queue_id)
            if reset is not None:
                offset = reset
            elif offset is None or offset < 0:
                offset = self._first_offset(header, topic, queue_id)
            known = self._queues[name] = PopQueue(*name, offset)
        return known

    def begin_again(self, topic: str) -> None:
        """Forget what groups have of a topic that was deleted: the next one of its name begins at 0."""
        for name in self._queues:
            if name[1] == topic:
                self._queues[name] = PopQueue(*name, 0)

    def _first_offset(self, header: PopHeader, topic: str, queue_id: int) -> int:
        """Return where a new group begins: at the first message of a young queue, whatever it asks for, as with 14."""
        offsets = self._broker.parts.offsets
        found = offsets.range_of(topic, queue_id)
        from_end = header.init_mode == 1 and topic == header.topic and not offsets.is_young(topic, queue_id)
        return max(found.end_offset - 1, found.first_offset) if from_end else found.first_offset

    def _hand_out(self, queue: PopQueue, offset: int, due_ms: int, popped_ms: int) -> None:
        queue.hand_out(offset, due_ms, popped_ms)
        heapq.heappush(self._due, (due_ms, queue.group, queue.topic, queue.queue_id, offset))

    def _commit(self, queue: PopQueue) -> None:
        self._broker.parts.offsets.commit(queue.group, queue.topic, queue.queue_id, queue.progress)

    def _retried(self, message: StoredMessage, header: PopHeader, start: int, now_ms: int) -> bytes:
        """Return a retry's record with its real topic, and the handle by which it is acknowledged."""
        name = self._broker.settings.broker_name
        handle = f"{start} {now_ms} {header.invisible_time} 0 {RETRY} {name} {message.queue_id} {message.queue_offset}"
        real = Message(
            header.topic,
            message.raw_body,
            queue_id=message.queue_id,
            properties={**message.properties, CHECKPOINT: handle},
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
            prepared_offset=message.prepared_offset,
        )
        place = message.queue_id, message.queue_offset, message.physical_offset
        return encode_record(real, *place, message.store_timestamp, message.store_address, False)

    def _nothing(
        self, command: Command, header: PopHeader, now_ms: int, status: str = "NO_MESSAGE_IN_QUEUE"
    ) -> Command:
        fields = {
            **_common(now_ms, header.invisible_time),
            "msgOffsetInfo": "",
            "restNum": "0",
            "startOffsetInfo": "",
        }
        return response(command, ResponseCode.POLLING_TIMEOUT, fields, remark=status)

    # ---- waiting

    def _park(self, pop: WaitingPop) -> None:
        left_ms = max(1, pop.header.born_time + pop.header.poll_time - _now_ms())
        pop.timer = self._broker.loop.call_later(left_ms / 1000, self._expire, pop)
        for name in pop.names:
            self.waiting.setdefault(name, []).append(pop)
        self._broker.parts.pulls.watch(set(pop.names))

    def arrived(self, moved: set[QueueName]) -> None:
        """Look again for pops of queues that dispatch moved."""
        for name in moved:
            for pop in list(self.waiting.get(name, ())):
                self._try(pop)

    def _try(self, pop: WaitingPop) -> None:
        """Look again for a pop that waits, a step at a time: a filter may pass over many messages."""
        if pop not in self.waiting.get(pop.names[0], ()):  # it was answered, or its time is over
            return
        answer: Command | None
        try:
            answer, has_more = self._take(pop.command, pop.header, pop.wanted, pop.names)
        except Exception as error:
            answer, has_more = refuse(pop.command, error), False
        if answer is not None:
            self._forget(pop)
            pop.connection.answer(pop.command, answer)
        elif has_more:
            self._broker.loop.call_soon(self._try, pop)

    def _expire(self, pop: WaitingPop) -> None:
        self._forget(pop)
        pop.connection.answer(pop.command, self._nothing(pop.command, pop.header, _now_ms()))
        self._broker.parts.pulls.rest()

    def _forget(self, pop: WaitingPop) -> None:
        if pop.timer is not None:
            pop.timer.cancel()
        for name in pop.names:
            others = self.waiting.get(name, [])
            if pop in others:
                others.remove(pop)
            if not others:
                self.waiting.pop(name, None)

    def disconnected(self, connection: Connection) -> None:
        for pops in list(self.waiting.values()):
            for pop in list(pops):
                if pop.connection is connection:
                    self._forget(pop)

    # ---- acknowledging

    def _ack(self, connection: Connection, command: Command) -> Command:
        header = AckHeader.read(command.fields)
        self._require_place(header)
        popped_ms = _handle(header.extra_info)[1]
        self._acknowledge(header.consumer_group, header.topic, header.queue_id, header.offset, popped_ms)
        return response(command)

    def _require_place(self, header: AckHeader) -> None:
        """Refuse an acknowledgement of what no queue has."""
        topic = self._broker.parts.topics.table.find(header.topic)
        if topic is None:
            raise no_topic(header.topic)
        if not 0 <= header.queue_id < topic.read_queue_count:
            remark = f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"{remark} topicConfig.readQueueNums:[{topic.read_queue_count}]"
            )
        found = self._broker.parts.offsets.range_of(header.topic, header.queue_id)
        if not found.first_offset <= header.offset <= found.end_offset:
            place = f"{header.topic}@{header.queue_id}, commit:{header.offset}"
            store = f"store:{found.first_offset}~{found.end_offset}"
            raise Refusal(ResponseCode.NO_MESSAGE, f"offset is illegal, key:{place}, {store}")

    def _acknowledge(self, group: str, topic: str, queue_id: int, offset: int, popped_ms: int) -> None:
        queue = self._queues.get((group, topic, queue_id))
        if queue is not None and queue.take_off(offset, popped_ms):
            self._commit(queue)

    def _ack_batch(self, connection: Connection, command: Command) -> Command:
        acks = acks_of(json_of(command)) if command.body else []
        if not acks:
            raise Refusal(ResponseCode.NO_MESSAGE, "no acknowledgements in the body")
        for ack in acks:
            topic = retry_topic(ack.group, ack.topic) if ack.is_retry else ack.topic
            queue = self._queues.get((ack.group, topic, ack.queue_id))
            if queue is None:
                continue
            # of what that pop handed out, not of every set bit: a client may set millions
            acknowledged = [offset for offset in queue.by_pop.get(ack.popped_ms, ()) if ack.has(offset)]
            for offset in acknowledged:
                queue.take_off(offset, ack.popped_ms)
            if acknowledged:
                self._commit(queue)
        return response(command)

    def _change(self, connection: Connection, command: Command) -> Command:
        header = AckHeader.read(command.fields)
        popped_ms, now_ms = _handle(header.extra_info)[1], _now_ms()
        queue = self._queues.get((header.consumer_group, header.topic, header.queue_id))
        if queue is None or queue.handed_out.get(header.offset, (0, -1))[1] != popped_ms:
            raise Refusal(ResponseCode.NO_MESSAGE, "the message is not handed out under this handle any more")
        invisible_ms = header.invisible_time or 0
        self._hand_out(queue, header.offset, now_ms + max(invisible_ms, 1), now_ms)
        self._schedule()
        return response(command, fields=_common(now_ms, invisible_ms))

    # ---- taking back

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            wait_s = max(0.0, (self._due[0][0] - _now_ms()) / 1000)
            self._timer = self._broker.loop.call_later(wait_s, self._take_back)

    def _take_back(self) -> None:
        """Put messages whose time is over into the retry topic."""
        self._timer = None
        now_ms = _now_ms()
        while self._due and self._due[0][0] <= now_ms:
            due_ms, group, topic, queue_id, offset = heapq.heappop(self._due)
            queue = self._queues[group, topic, queue_id]
            if queue.handed_out.get(offset, (0, 0))[0] == due_ms:
                self._revive(queue, offset)
        self._schedule()

    def _revive(self, queue: PopQueue, offset: int) -> None:
        """Store a message again, in the pool. It counts as open until that is done."""
        group = self._broker.delivery.know_group(queue.group)
        popped_ms = queue.handed_out[offset][1]

        def store() -> None:
            found = self._reader.read(queue.topic, queue.queue_id, offset, 1, 1)
            if not found or found[0].queue_offset != offset:
                return
            message = found[0]
            is_dead = message.reconsume_times >= group.max_retry_count
            is_retry = queue.topic.startswith(RETRY_PREFIX)
            retry = queue.topic if is_retry else retry_topic(queue.group, queue.topic)
            properties = {FIRST_POP: str(popped_ms), **message.properties, ORIGIN_GROUP: queue.group}
            target = f"%DLQ%{queue.group}" if is_dead else retry
            times = message.reconsume_times + 1
            self._broker.port.put(copy_of(message, target, 0, properties, reconsume_times=times))

        def stored(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._acknowledge(queue.group, queue.topic, queue.queue_id, offset, popped_ms)
            elif offset in queue.handed_out:
                self._hand_out(queue, offset, _now_ms() + REVIVE_PAUSE_MS, popped_ms)
                self._schedule()

        self._broker.in_pool(store).add_done_callback(stored)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for pops in list(self.waiting.values()):
            for pop in list(pops):
                self._forget(pop)
                pop.connection.answer(pop.command, self._nothing(pop.command, pop.header, _now_ms()))


def retry_topic(group: str, topic: str) -> str:
    """Return the retry topic that pops of a group use for one topic: RocketMQ's first form."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def _common(now_ms: int, invisible_ms: int) -> dict[str, str]:
    return {"invisibleTime": str(invisible_ms), "popTime": str(now_ms), "reviveQid": "0"}


def _handle(text: str) -> tuple[int, int]:
    """Return start offset and pop time of a handle."""
    parts = text.split(" ")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"extraInfo {text[:80]!r} is no handle") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
