"""Pulls: records of a queue, straight from the mapped log; or nothing yet, and the pull is parked.

A parked pull is woken when dispatch moves its queue, and by nothing else before its time is over. Dispatch is watched
only while pulls are parked. A pull that is woken and finds nothing that matches its filter is parked again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqlake.broker.connection import Connection
from mqlake.broker.membership import ConsumerGroup, make_filter, no_sql
from mqlake.broker.refusals import FAQ, Forbidden, Refusal, forbidden, refuse
from mqlake.delivery.consume.filters import ALL, SQL, TAG, Filter
from mqlake.errors import InvalidFilter, UnknownTopic
from mqlake.kernel import Command
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import Subscription
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import PULL_COMMIT, PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader, read_pull_header
from mqlake.store.read import Gathered

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

MAX_SUSPEND_MS = 60_000
EMPTY = Gathered(b"", 0, 0, 0, 0)
RESET = "OFFSET_RESET"
SELECT_S = 0.05
"""Processor time that one pull or pop may take to evaluate an SQL expression; it then answers with what it has."""
NEWER_S = 0.9
"""Clients try again a second after SUBSCRIPTION_NOT_LATEST."""
QueueName = tuple[str, int]


@dataclass(slots=True, eq=False)
class Parked:
    """A pull that waits for a message."""

    connection: Connection
    command: Command
    header: PullHeader
    wanted: Filter
    timer: asyncio.TimerHandle | None = None


def select_in_time(wanted: Filter, messages: list[StoredMessage], end: int) -> tuple[list[StoredMessage], int]:
    """Return the messages that match and the queue offset to continue at: `end`, or less once `SELECT_S` is over.

    A long expression on large properties takes its time with each message, and other clients wait meanwhile.
    """
    until = time.thread_time() + SELECT_S
    matching: list[StoredMessage] = []
    for place, message in enumerate(messages, 1):
        matching += wanted.select([message])
        if time.thread_time() > until and place < len(messages):
            return matching, messages[place].queue_offset
    return matching, end


class Pulls:
    """Answers pulls, and keeps those that wait."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reader = broker.port.reader
        self._delivery = broker.delivery
        self._parked: dict[QueueName, list[Parked]] = {}
        self._arrivals = broker.port.queue_arrivals(broker.loop)
        self._arrivals.told = self._arrived
        self._resets: dict[tuple[str, str, int], int] = {}
        """Offsets that groups were reset to, by group, topic and queue: told with the next pull."""

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self._pull, RequestCode.LITE_PULL_MESSAGE: self._pull}

    @property
    def parked_count(self) -> int:
        return sum(map(len, self._parked.values()))

    # ---- the request

    def _pull(self, connection: Connection, command: Command) -> Command | None:
        header = read_pull_header(command.fields)
        self._broker.members.require_group(header.consumer_group)
        topic = self._broker.parts.topics.for_read(header.topic)
        if not 0 <= header.queue_id < topic.read_queue_count:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_count}] consumer:[{connection.address}]",
            )
        wanted = self._filter(header)
        place = header.consumer_group, header.topic, header.queue_id
        if header.sys_flag & PULL_COMMIT and header.commit_offset >= 0 and not self.is_reset(*place):
            self._broker.parts.offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        reached = self._broker.port.ends.dispatched
        answer = self._answer(command, header, wanted)
        if answer is None:
            self._park(Parked(connection, command, header, wanted))
        elif self._may_be_early(answer) and reached < self._broker.port.ends.promised:
            self._settle(Parked(connection, command, header, wanted))
            return None
        return answer

    @staticmethod
    def _may_be_early(answer: Command) -> bool:
        """Return whether a message that dispatch has not come to could change an answer."""
        return answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED) and answer.remark != RESET

    def _filter(self, header: PullHeader) -> Filter:
        """Return the filter of a pull: its own, or its group's."""
        has_own = header.sys_flag & PULL_SUBSCRIPTION
        wanted = self._own_filter(header) if has_own else self._filter_of_group(header)
        if wanted.kind == SQL and not self._broker.settings.property_filter:
            raise no_sql(SQL)
        return wanted

    @staticmethod
    def _own_filter(header: PullHeader) -> Filter:
        try:
            return make_filter(header.subscription, header.expression_type)
        except InvalidFilter as error:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from None

    def _filter_of_group(self, header: PullHeader) -> Filter:
        group = self._broker.members.consumers.get(header.consumer_group)
        if group is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        known_group = self._delivery.groups.find(header.consumer_group)
        if group.message_model == "BROADCASTING" and known_group is not None and not known_group.broadcast_enabled:
            remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            raise forbidden(Forbidden.BROADCAST, remark)
        known = group.subscriptions.get(header.topic)
        if known is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if known.version < header.sub_version:
            self._require_patience(group, known)
            return ALL
        return self._broker.members.filter_of(group, header.topic)

    def _require_patience(self, group: ConsumerGroup, known: Subscription) -> None:
        """Refuse a pull that is newer than its group's heart beats, for a second: the heart beat is on its way.

        If it is not: the Java client gives each rebalance a new version, and skips its heart beat while another one
        runs. The next is 30 seconds away. Until then it gets the messages of all tags, of which it chooses itself.
        """
        now = self._broker.loop.time()
        since = group.newer.setdefault(known.topic, now)
        if since == now or now - since < NEWER_S or known.expression_type != TAG:
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")

    # ---- reading

    def _answer(self, command: Command, header: PullHeader, wanted: Filter, *, last: bool = False) -> Command | None:
        """Return the answer; None if there is nothing yet and the pull may wait, unless it is the `last` look."""
        found = self._look(header, wanted)
        reset = self.take_reset(header.consumer_group, header.topic, header.queue_id)
        if reset is not None:
            return self._result(command, ResponseCode.PULL_OFFSET_MOVED, RESET, found, reset)
        if found.message_count:
            stats = self._broker.parts.stats
            stats.delivered(header.topic, header.consumer_group, found.message_count, len(found.records))
            return self._result(command, ResponseCode.SUCCESS, "FOUND", found, found.next_offset)
        code, status, next_offset = self._nothing(header, found)
        may_wait = header.sys_flag & PULL_SUSPEND and header.suspend_timeout_millis > 0
        if code == ResponseCode.PULL_NOT_FOUND and may_wait and not last:
            return None
        return self._result(command, code, status, found, next_offset)

    def _look(self, header: PullHeader, wanted: Filter) -> Gathered:
        limit = max(1, min(header.max_msg_nums, self._broker.settings.max_pull_count))
        most = self._broker.settings.max_pull_bytes
        if header.max_msg_bytes is not None and 0 < header.max_msg_bytes < most:
            most = header.max_msg_bytes
        try:
            if wanted.kind == SQL:
                return self._select(header, wanted, limit, most)
            return self._reader.gather(header.topic, header.queue_id, header.queue_offset, limit, most, wanted.codes)
        except UnknownTopic:
            return EMPTY._replace(next_offset=header.queue_offset)

    def _select(self, header: PullHeader, wanted: Filter, limit: int, most: int) -> Gathered:
        """Read messages and keep those that match: an expression over properties needs them."""
        name, start = (header.topic, header.queue_id), header.queue_offset
        queue = self._reader.range_of(*name)
        if not queue.first_offset <= start < queue.end_offset:
            return Gathered(b"", 0, start, queue.first_offset, queue.end_offset)
        fetched = self._reader.fetch(*name, start, limit, most)
        matching, next_offset = select_in_time(wanted, fetched.messages, fetched.next_offset)
        records = b"".join([message.record for message in matching])
        return Gathered(records, len(matching), next_offset, queue.first_offset, queue.end_offset)

    def _nothing(self, header: PullHeader, found: Gathered) -> tuple[ResponseCode, str, int]:
        """Return code, RocketMQ's name of the status, and where to continue, for a read without messages."""
        asked, first, end = header.queue_offset, found.first_offset, found.end_offset
        if end == 0:
            code = ResponseCode.PULL_NOT_FOUND if asked == 0 else ResponseCode.PULL_OFFSET_MOVED
            return code, "NO_MESSAGE_IN_QUEUE", 0
        if asked < first:
            return ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", first
        if asked == end:
            return ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", asked
        if asked > end:
            was_deleted = header.topic in self._broker.port.deleted_topics.ends  # the offset is of its last life
            return ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", first if was_deleted else end
        return ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", found.next_offset

    @staticmethod
    def _result(command: Command, code: ResponseCode, status: str, found: Gathered, next_offset: int) -> Command:
        fields = {
            "groupSysFlag": "0",
            "maxOffset": str(found.end_offset),
            "minOffset": str(found.first_offset),
            "nextBeginOffset": str(next_offset),
            "suggestWhichBrokerId": "0",
            "topicSysFlag": "0",
        }
        body = found.records if code == ResponseCode.SUCCESS else b""
        return response(command, code, fields, body, remark=status)

    # ---- waiting

    def _settle(self, pull: Parked) -> None:
        """Look again once dispatch has reached all that was acknowledged: a client finds what it has sent."""
        self._broker.in_pool(self._broker.port.settle).add_done_callback(lambda settled: self._settled(settled, pull))

    def _settled(self, settled: asyncio.Future[None], pull: Parked) -> None:
        if settled.cancelled() or not pull.connection.is_open:
            return
        settled.exception()  # dispatch's own trouble: the answer is what there is
        try:
            answer = self._answer(pull.command, pull.header, pull.wanted)
        except Exception as error:
            answer = refuse(pull.command, error)
        if answer is None:
            self._park(pull)
        else:
            pull.connection.answer(pull.command, answer)

    def _park(self, pull: Parked) -> None:
        header, settings = pull.header, self._broker.settings
        wait_ms = header.suspend_timeout_millis if settings.long_polling else settings.short_polling_ms
        name = header.topic, header.queue_id
        pull.timer = self._broker.loop.call_later(min(wait_ms, MAX_SUSPEND_MS) / 1000, self._expire, name, pull)
        self._parked.setdefault(name, []).append(pull)
        self.watch({name})

    def watch(self, names: set[QueueName]) -> None:
        """Have dispatch tell which queues moved, for a request that waits for these."""
        if not self._arrivals.is_on:
            self._arrivals.switch_on()
            self._broker.loop.call_soon(self._arrived, names)  # what came between the look and the switch

    def _arrived(self, moved: set[QueueName]) -> None:
        """Look again for the pulls of queues that dispatch moved."""
        for name in moved if len(moved) < len(self._parked) else moved & self._parked.keys():
            pulls = self._parked.pop(name, None)
            if pulls is None:
                continue
            waiting = [pull for pull in pulls if not self._wake(pull)]
            if waiting:
                self._parked.setdefault(name, []).extend(waiting)
        pops = self._broker.parts.pops
        if pops.waiting:
            pops.arrived(moved)
        self.rest()

    def _wake(self, pull: Parked) -> bool:
        """Answer a parked pull if there is something now; False if it goes on waiting."""
        if not pull.connection.is_open:
            self._forget_timer(pull)
            return True
        try:
            if not pull.header.sys_flag & PULL_SUBSCRIPTION:  # the group's filter may have changed meanwhile
                pull.wanted = self._filter(pull.header)
            answer = self._answer(pull.command, pull.header, pull.wanted)
        except Exception as error:
            answer = refuse(pull.command, error)
        if answer is None:
            return False
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and self._passes_over(pull, answer):
            return False
        self._forget_timer(pull)
        pull.connection.answer(pull.command, answer)
        return True

    @staticmethod
    def _passes_over(pull: Parked, answer: Command) -> bool:
        """Continue after messages that do not match, if there are no others; its answer will say where it got to."""
        if answer.fields["nextBeginOffset"] != answer.fields["maxOffset"]:
            return False
        pull.header.queue_offset = int(answer.fields["nextBeginOffset"])
        return True

    @staticmethod
    def _forget_timer(pull: Parked) -> None:
        if pull.timer is not None:
            pull.timer.cancel()

    def _expire(self, name: QueueName, pull: Parked) -> None:
        waiting = self._parked.get(name, [])
        if pull in waiting:
            waiting.remove(pull)
            if not waiting:
                del self._parked[name]
        self._finish(pull)
        self.rest()

    def _finish(self, pull: Parked) -> None:
        try:
            answer = self._answer(pull.command, pull.header, pull.wanted, last=True)
        except Exception as error:
            answer = refuse(pull.command, error)
        if answer is not None:
            pull.connection.answer(pull.command, answer)

    def rest(self) -> None:
        """Stop watching dispatch if nothing waits."""
        if not self._parked and not self._broker.parts.pops.waiting:
            self._arrivals.switch_off()

    # ---- other parts

    def reset(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Tell a group with its next pull of each queue, or with the one that waits, where to continue."""
        for queue_id, offset in offsets.items():
            self._resets[group, topic, queue_id] = offset
        self._arrived({(topic, queue_id) for queue_id in offsets})

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a group that was reset in a queue continues, once; it knows it then."""
        return self._resets.pop((group, topic, queue_id), None) if self._resets else None

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group was reset in a queue and does not know it yet: what it commits is of before."""
        return (group, topic, queue_id) in self._resets

    def disconnected(self, connection: Connection) -> None:
        for name, pulls in list(self._parked.items()):
            kept = [pull for pull in pulls if pull.connection is not connection]
            if len(kept) == len(pulls):
                continue
            for pull in pulls:
                if pull.connection is connection:
                    self._forget_timer(pull)
            if kept:
                self._parked[name] = kept
            else:
                del self._parked[name]
        self.rest()

    def close(self) -> None:
        """Answer all that wait."""
        parked, self._parked = self._parked, {}
        for pulls in parked.values():
            for pull in pulls:
                self._forget_timer(pull)
                self._finish(pull)
        self._arrivals.switch_off()
