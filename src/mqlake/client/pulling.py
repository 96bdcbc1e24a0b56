"""Reads a queue: pulls with long polling, again and again, into what the consumer reads ahead.

A broker that does not answer is asked again with growing pauses, for ever: it may come back. What cannot pass (no
permission, a filter that does not parse) is also raised by the consumer's next poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from mqlake.client.positions import Positions, address_of
from mqlake.client.remote_queue import RemoteQueue, Stage
from mqlake.client.security import is_denied
from mqlake.client.session import Session
from mqlake.delivery.consume.cursor import Lost
from mqlake.delivery.consume.filters import ALL, Filter, Tags
from mqlake.errors import BadRequest, NotConnected, RemoteError, RequestRefused
from mqlake.kernel import Command
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import MessageQueue, Subscription, decode_records
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers import PULL_SUSPEND, PullHeader, PullResult

PULL_COUNT: Final = 32
HOLD_S: Final = 15.0
"""How long a broker may hold a pull until a message comes."""
PULL_S: Final = 30.0
FIRST_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 2.0
ANSWERS: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
FINAL: Final = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)
"""Refusals that the program should hear of."""
UNKNOWN_HERE: Final = frozenset({ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST})
"""The broker lacks this consumer's heart beat."""
RESET: Final = "OFFSET_RESET"
"""The remark of a pull's answer if the group was reset."""
_log = logging.getLogger(__name__)


class Puller:
    """Reads the queues of one consumer."""

    def __init__(
        self,
        session: Session,
        group: str,
        subscriptions: dict[str, tuple[Subscription, Filter]],
        positions: Positions,
        arrived: Callable[[], None],
        misled: Callable[[], None],
    ) -> None:
        """`arrived` is called when there is something for the consumer: messages, or `failure`; `misled` when a broker
        does not have a queue, although the topic's route names it."""
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._positions = positions
        self._arrived = arrived
        self._misled = misled
        self.failure: RemoteError | None = None
        self.lost: list[Lost] = []

    async def read(self, each: RemoteQueue) -> None:
        """Read a queue until this task is cancelled."""
        pause = FIRST_PAUSE_S
        while each.stage is Stage.READING:
            try:
                if each.next_offset < 0:
                    each.move(await self._positions.get(each.queue))
                elif each.has_room:
                    await self._pull(each)
                else:
                    await each.changed()
                pause = FIRST_PAUSE_S
            except (RemoteError, BadRequest) as error:
                await self._note(each, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_S)

    async def _note(self, each: RemoteQueue, error: RemoteError | BadRequest) -> None:
        _log.warning("group %s: %s: %s", self._group, each.queue, error)
        each.told = -1  # the broker may have lost what it was told last
        if isinstance(error, NotConnected):
            self._session.routes.expire(each.queue.topic)
        if isinstance(error, RequestRefused):
            if error.code == ResponseCode.INVALID_PARAMETER:
                self._session.routes.expire(each.queue.topic)
                self._misled()
            if error.code in UNKNOWN_HERE:
                await self._session.beat([error.address])
            if error.code in FINAL or is_denied(error):
                self.failure = error
                self._arrived()

    async def _pull(self, each: RemoteQueue) -> None:
        subscription, wanted = self._subscriptions[each.queue.topic]
        version = each.version
        answer = await pull(
            self._session, self._group, each.queue, each.next_offset, subscription=subscription, hold_s=HOLD_S
        )
        if version != each.version or each.stage is not Stage.READING:
            return
        result = PullResult.read(answer.fields)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved(each, result, answer.remark)
            return
        messages = decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []
        matching = _matching(messages, wanted)
        each.add(matching, result.next_begin_offset)
        if matching:
            self._arrived()

    def _moved(self, each: RemoteQueue, result: PullResult, remark: str | None) -> None:
        """Continue where the broker says: the group was reset, or messages were deleted before they were read.

        If the queue ends before the group's progress and the broker leads to its end, nobody knows what was there.
        """
        queue, at = each.queue, each.next_offset
        first, goes_to = result.min_offset, result.next_begin_offset
        if at < first or (first < goes_to < at and remark != RESET):
            self.lost.append(Lost(queue.topic, queue.queue_id, at, first, result.max_offset))
        _log.warning("group %s: %s continues at %d instead of %d", self._group, queue, goes_to, at)
        each.move(goes_to)
        each.told = -1


def _matching(messages: list[StoredMessage], wanted: Filter) -> list[StoredMessage]:
    """Return the messages that match: brokers compare only the hashes of tags."""
    return wanted.select(messages) if isinstance(wanted, Tags) and wanted is not ALL else messages


async def pull(
    session: Session,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    subscription: Subscription | None = None,
    limit: int = PULL_COUNT,
    hold_s: float = 0.0,
    sys_flag: int = 0,
) -> Command:
    """Return the answer to one pull, of any of the codes in `ANSWERS`. With `hold_s`, it waits for a message."""
    header = PullHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=limit,
        sys_flag=sys_flag | (PULL_SUSPEND if hold_s else 0),
        suspend_timeout_millis=int(hold_s * 1000),
        subscription=None if subscription else "*",
        sub_version=subscription.version if subscription else 0,
        expression_type=subscription.expression_type if subscription else "TAG",
    )
    fields = {"bname": queue.broker_name, **header.write()}
    address = await address_of(session, queue)
    return await session.call(address, RequestCode.PULL_MESSAGE, fields, timeout_s=PULL_S, accept=ANSWERS)
