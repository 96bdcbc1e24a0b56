"""The client of a broker under torture: sends messages and notes what it was promised.

    python -m mqlake.torture.sender BROKER LEDGER        BROKER: HOST:PORT

It notes each send before it begins and each answer when it gets it (`ledger.py`). SEND_OK of a SYNC_MASTER promises
REPLICA. The other answers of a broker that stored the message (no slave, a late slave, a late disk) promise that it
survives the death of the broker's process. Each message is sent once: one that was not answered may have been stored,
but it is not sent again as a producer would, so nothing may be served twice. It runs until it is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from pathlib import Path

from mqlake import Durability
from mqlake.client.sending import STORED, SendReceipt, SendStatus, header_of, prepared, receipts_of
from mqlake.client.session import Session
from mqlake.errors import RemoteError
from mqlake.remoting.bodies import MessageQueue
from mqlake.remoting.codes import RequestCode
from mqlake.torture.ledger import LIFE, LedgerWriter, message_of

SENDERS = 4
GROUP = "torture"
ANSWER_S = 1.5
PAUSE_S = 0.002
"""Between two messages of one sender."""
RETRY_S = 0.03
PR_SET_PDEATHSIG = 1


async def send_all(session: Session, broker: str, ledger: LedgerWriter, number: int) -> None:
    """Send one message after the other, for ever, whatever happens to them."""
    while True:
        ledger.begin([number])
        try:
            receipt = await send(session, broker, number)
        except RemoteError as error:
            ledger.refuse(number, error)
            await asyncio.sleep(RETRY_S)
        else:
            level = Durability.REPLICA if receipt.status is SendStatus.OK else Durability.PAGE_CACHE
            ledger.acknowledge_sent(number, receipt, level)
            await asyncio.sleep(PAUSE_S)
        number += 1


async def send(session: Session, broker: str, number: int) -> SendReceipt:
    """Send a message once."""
    message = prepared(message_of(number))
    queue = MessageQueue(message.topic, "", message.queue_id or 0)
    fields = header_of(message, GROUP, queue)
    code = RequestCode.SEND_MESSAGE_V2
    answer = await session.call(broker, code, fields, message.body, timeout_s=ANSWER_S, accept=STORED)
    (receipt,) = receipts_of(answer, queue, [""])
    return receipt


async def work(broker: str, ledger: LedgerWriter) -> None:
    session = Session(broker)
    async with asyncio.TaskGroup() as tasks:
        for index in range(SENDERS):
            tasks.create_task(send_all(session, broker, ledger, index * (LIFE // 100)))


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without the parent, nobody judges it
    asyncio.run(work(sys.argv[1], LedgerWriter(Path(sys.argv[2]))))
