"""A consumer's part in its group: which queues it reads, and how queues change hands.

Every member computes its share from the list of members (`allocation.py`). RocketMQ's own clients begin to read a
queue at once, and read again what its last owner had not committed yet. Here a member that gets a queue first asks the
others, through the broker (GET_CONSUMER_RUNNING_INFO), whether one of them still has it. An owner keeps a queue until
what it handed out is committed and the broker knows it. So while nothing fails, every message is delivered once.

    a share lists the queue -> CLAIMED -> nobody else has it -> READING -> a share without it -> LEAVING -> gone

All of CLAIMED, READING and LEAVING count as having it. Two members may claim one queue for a moment, because one of
them has an old list; each looks at the list again before every question, so one of them gives up its claim. A member
that does not answer is waited for `HANDOVER_S`, no longer. After a broker's restart, `roster.py` says who is a member.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from mqlake.client.allocation import allocate
from mqlake.client.connection import Connection
from mqlake.client.positions import Positions, address_of
from mqlake.client.remote_queue import RemoteQueue, Stage
from mqlake.client.roster import Roster
from mqlake.client.session import Session
from mqlake.errors import BadRequest, NoRoute, NotConnected, RemoteError, RequestRefused
from mqlake.kernel import Command
from mqlake.remoting.bodies import ConsumerData, MessageQueue, object_map, read_json, write_json
from mqlake.remoting.codes import VERSION, RequestCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import GroupHeader

BALANCE_S: Final = 20.0
"""The share is computed again after so long without a notice."""
NO_ROUTE_S: Final = 1.0
"""... and after so long while a topic does not exist yet, a broker does not answer, or members are awaited."""
CLAIM_S: Final = 0.1
"""... and after so long while another member has a queue of the share."""
TELL_S: Final = 5.0
"""How often brokers are told the progress."""
LOCK_S: Final = 20.0
HANDOVER_S: Final = 30.0
ASK_S: Final = 3.0
_log = logging.getLogger(__name__)


class Membership:
    """The queues of one consumer."""

    def __init__(
        self,
        session: Session,
        data: ConsumerData,
        positions: Positions,
        *,
        ordered: bool,
        read: Callable[[RemoteQueue], Coroutine[Any, Any, None]],
    ) -> None:
        """`read` is the coroutine function that reads a queue until it is cancelled."""
        self._session = session
        self._data = data
        self._topics = [each.topic for each in data.subscriptions]
        self._is_shared = data.message_model == "CLUSTERING"
        self._positions = positions
        self._ordered = ordered
        self._read = read
        self.queues: dict[MessageQueue, RemoteQueue] = {}
        self._others: dict[str, str] = {}
        """The other members by client id, each with the address of a broker that knows it."""
        self._rosters = {topic: Roster() for topic in self._topics}
        self._wanted = asyncio.Event()
        self._deciding = asyncio.Lock()
        self._started_ms = time.time_ns() // 1_000_000
        session.handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._notified
        session.handlers[RequestCode.GET_CONSUMER_RUNNING_INFO] = self._tell_what_is_running
        session.handlers[RequestCode.RESET_CONSUMER_CLIENT_OFFSET] = self._reset

    @property
    def reading(self) -> list[RemoteQueue]:
        return [each for each in self.queues.values() if each.stage is Stage.READING]

    # ---- life

    async def start(self) -> None:
        await self._beat()
        await self._balance()
        self._session.spawn(self._keep_balanced())
        self._session.spawn(self._keep_telling())
        if self._ordered:
            self._session.spawn(self._keep_locks())

    async def _beat(self) -> None:
        addresses: set[str] = set()
        for topic in self._topics:
            with contextlib.suppress(NoRoute):
                addresses.update((await self._session.routes.get(topic)).addresses)
        await self._session.beat(addresses)

    async def close(self) -> None:
        """Leave all queues and the group. What is in flight is given up."""
        for each in list(self.queues.values()):
            if each.task is not None:
                each.task.cancel()
            each.stop()
        with contextlib.suppress(RemoteError):
            await self._positions.tell(self.queues.values())
        if self._ordered:
            await self._unlock(list(self.queues))
        self.queues.clear()
        self._positions.close()
        await self._session.unregister({"consumerGroup": self._data.group})

    def wake(self) -> None:
        """Compute the share again, now."""
        self._wanted.set()

    async def _notified(self, connection: Connection, command: Command) -> None:
        if command.fields.get("consumerGroup") == self._data.group:
            self.wake()

    # ---- the share

    async def _keep_balanced(self) -> None:
        rest_s = CLAIM_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                rest_s = await self._balance()
            except RemoteError as error:
                _log.warning("group %s: %s", self._data.group, error)
                rest_s = NO_ROUTE_S

    async def _balance(self) -> float:
        """Compute the share, leave what is not in it, claim what is; return when to do it again."""
        async with self._deciding:
            share, rest_s = await self._share()
            now = asyncio.get_running_loop().time()
            for queue, known in list(self.queues.items()):
                if queue not in share and known.stage is not Stage.LEAVING:
                    self._leave(known)
            for queue in share:
                if queue not in self.queues:
                    self.queues[queue] = RemoteQueue(queue, now)
        return min(rest_s, CLAIM_S) if await self._claim() else rest_s

    async def _share(self) -> tuple[set[MessageQueue], float]:
        share: set[MessageQueue] = set()
        others: dict[str, str] = {}
        rest_s = BALANCE_S
        for topic in self._topics:
            try:
                route = await self._session.routes.get(topic)
                if self._is_shared:
                    address = route.addresses[0]
                    members = await self._members(topic, address)
                    if self._rosters[topic].awaited:
                        rest_s = NO_ROUTE_S
                    others |= dict.fromkeys(members, address)
                    share.update(allocate(route.readable, members, self._session.client_id))
                else:
                    share.update(route.readable)
            except NoRoute:
                rest_s = NO_ROUTE_S
            except (RemoteError, IndexError) as error:
                _log.info("group %s keeps its queues of %s: %s", self._data.group, topic, error)
                share.update(queue for queue in self.queues if queue.topic == topic)
                others = self._others | others  # a queue that is claimed is still to be asked for
                rest_s = NO_ROUTE_S
        others.pop(self._session.client_id, None)
        self._others = others
        return share, rest_s

    async def _members(self, topic: str, address: str) -> set[str]:
        """Return the group's members as a broker of the topic knows them, this one and those awaited among them."""
        connection = await self._session.connection(address)
        fields = GroupHeader(self._data.group).write()
        answer = await self._session.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
        found: Any = read_json(answer.body)
        members = [str(each) for each in found.get("consumerIdList") or ()]
        if self._session.client_id not in members:
            await self._session.beat([address])
            raise NotConnected(address, "the broker does not know this consumer yet")
        if not connection.is_open:
            raise NotConnected(address, "the list of members may have come over another connection")
        return self._rosters[topic].update(connection, members, asyncio.get_running_loop().time())

    # ---- claiming

    async def _claim(self) -> bool:
        """Begin to read the claimed queues that no other member has; return whether some are left."""
        waiting = [each for each in self.queues.values() if each.stage is Stage.CLAIMED]
        if not waiting:
            return any(each.stage is Stage.LEAVING for each in self.queues.values())
        taken, sure = await self._held_by_others() if self._is_shared else (set[MessageQueue](), True)
        now = asyncio.get_running_loop().time()
        free = [
            each
            for each in waiting
            if self.queues.get(each.queue) is each
            and (now - each.since > HANDOVER_S or (sure and each.queue not in taken))
        ]
        if self._ordered and free:
            owned = await self._lock([each.queue for each in free])
            free = [each for each in free if each.queue in owned and self.queues.get(each.queue) is each]
        for each in free:
            each.stage = Stage.READING
            each.task = self._session.spawn(self._read(each))
        return len(free) < len(waiting)

    async def _held_by_others(self) -> tuple[set[MessageQueue], bool]:
        """Return the queues that other members have, and whether all of them answered; those awaited cannot."""
        answers = await asyncio.gather(*(self._held_by(*each) for each in self._others.items()))
        is_sure = None not in answers and not any(each.awaited for each in self._rosters.values())
        return {queue for found in answers if found for queue in found}, is_sure

    async def _held_by(self, member: str, address: str) -> set[MessageQueue] | None:
        """Return the queues that a member has; None if it does not answer. One that cannot tell has none."""
        fields = {"consumerGroup": self._data.group, "clientId": member, "jstackEnable": "false"}
        try:
            answer = await self._session.call(address, RequestCode.GET_CONSUMER_RUNNING_INFO, fields, timeout_s=ASK_S)
            found: Any = read_json(answer.body)
            return {MessageQueue.from_json(json.loads(key)) for key in found.get("mqTable") or ()}
        except RequestRefused as error:
            return None if "imeout" in error.remark else set()
        except (RemoteError, BadRequest, ValueError, AttributeError):
            return None

    async def _tell_what_is_running(self, connection: Connection, command: Command) -> Command:
        """Say which queues this consumer has, as RocketMQ's clients and mqadmin read it."""
        async with self._deciding:
            table = object_map((each.queue.to_json(), self._info(each)) for each in self.queues.values())
        about = {
            "PROP_CLIENT_VERSION": str(VERSION),
            "PROP_CONSUMEORDERLY": str(self._ordered).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": self._data.consume_type,
            "PROP_NAMESERVER_ADDR": self._session.name_servers,
            "PROP_THREADPOOL_CORE_SIZE": "1",
        }
        wanted = write_json([each.to_json() for each in self._data.subscriptions]).decode()
        body = (
            f'{{"mqPopTable":{{}},"mqTable":{table},"properties":{json.dumps(about)},"statusTable":{{}},'
            f'"subscriptionSet":{wanted},"userConsumerInfo":{{}}}}'
        )
        return response(command, body=body.encode())

    @staticmethod
    def _info(each: RemoteQueue) -> dict[str, Any]:
        return {
            "cachedMsgCount": max(0, each.next_offset - each.committed),
            "commitOffset": max(0, each.committed),
            "droped": each.stage is Stage.LEAVING,
            "locked": each.stage is Stage.READING,
        }

    # ---- leaving

    def _leave(self, each: RemoteQueue) -> None:
        if each.stage is Stage.CLAIMED:
            del self.queues[each.queue]
            return
        if each.task is not None:
            each.task.cancel()
        each.stop()
        self._session.spawn(self._depart(each))

    async def _depart(self, each: RemoteQueue) -> None:
        """Let go of a queue once what was handed out is committed, and the broker knows it."""
        await each.settle(HANDOVER_S)
        try:
            await self._positions.tell([each])
        except RemoteError as error:
            _log.warning("group %s: progress of %s is not told: %s", self._data.group, each.queue, error)
        if self._ordered:
            await self._unlock([each.queue])
        if self.queues.get(each.queue) is each:
            del self.queues[each.queue]
        self.wake()

    # ---- progress

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            try:
                await self.tell()
            except RemoteError as error:
                _log.warning("group %s: progress is not told: %s", self._data.group, error)

    async def tell(self) -> None:
        """Tell the brokers the progress, and wait until they know it."""
        await self._positions.tell(list(self.queues.values()))

    async def _reset(self, connection: Connection, command: Command) -> Command:
        """Continue where a broker of RocketMQ 4 says. Those of RocketMQ 5 and mqlake say so with a pull's answer."""
        found: Any = read_json(command.body)
        table = found.get("offsetTable") if isinstance(found, dict) else None
        if command.fields.get("group") == self._data.group and isinstance(table, dict):
            for key, offset in table.items():
                each = self.queues.get(MessageQueue.from_json(json.loads(key)))
                if each is not None and each.stage is Stage.READING:
                    each.move(int(offset))
        return response(command)

    # ---- locks

    async def _keep_locks(self) -> None:
        while True:
            await asyncio.sleep(LOCK_S)
            mine = self.reading
            owned = await self._lock([each.queue for each in mine])
            for each in mine:
                if each.queue not in owned and each.stage is Stage.READING:
                    self._leave(each)
            self.wake()

    async def _lock(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        """Take or renew the locks of queues; return those that are ours, or whose broker does not answer."""
        owned: set[MessageQueue] = set()
        for address, here in (await self._by_broker(queues)).items():
            try:
                answer = await self._session.call(address, RequestCode.LOCK_BATCH_MQ, {}, self._lock_body(here))
            except RemoteError as error:
                _log.warning("group %s: locks are not renewed: %s", self._data.group, error)
                owned.update(queue for queue in here if self.queues[queue].stage is Stage.READING)
                continue
            found: Any = read_json(answer.body)
            owned.update(MessageQueue.from_json(each) for each in found.get("lockOKMQSet") or ())
        return owned

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        for address, here in (await self._by_broker(queues)).items():
            with contextlib.suppress(RemoteError):
                await self._session.call(address, RequestCode.UNLOCK_BATCH_MQ, {}, self._lock_body(here))

    def _lock_body(self, queues: list[MessageQueue]) -> bytes:
        return write_json(
            {
                "clientId": self._session.client_id,
                "consumerGroup": self._data.group,
                "mqSet": [queue.to_json() for queue in queues],
                "onlyThisBroker": False,
            }
        )

    async def _by_broker(self, queues: list[MessageQueue]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            with contextlib.suppress(RemoteError):
                found.setdefault(await address_of(self._session, queue), []).append(queue)
        return found
