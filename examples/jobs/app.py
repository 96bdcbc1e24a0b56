"""The web service: it answers at once and leaves the work to the workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from examples.jobs import database
from examples.jobs.outbox import keep_sending
from mqlake import Message, UnknownTopic
from mqlake.client import AsyncAdmin, AsyncProducer
from mqlake.errors import NoRoute

NAME_SERVER = os.environ.get("SHOP_NAME_SERVER", "127.0.0.1:9876")
DEAD_LETTERS = "%DLQ%billing"


class NewOrder(BaseModel):
    item: str
    amount: int


class Reminder(BaseModel):
    delay_s: float


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncProducer(NAME_SERVER, "shop") as producer, AsyncAdmin(NAME_SERVER) as admin:
        app.state.producer, app.state.admin = producer, admin
        sending = asyncio.create_task(keep_sending(producer))
        yield
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
def place_order(order: NewOrder) -> dict[str, int]:
    """The order and its message are one transaction of SQLite; `keep_sending` sends the message."""
    return {"id": database.place_order(order.item, order.amount)}


@app.get("/orders/{number}")
def show_order(number: int) -> dict[str, Any]:
    found = database.find_order(number)
    if found is None:
        raise HTTPException(404, f"no order {number}")
    return found


@app.post("/orders/{number}/remind", status_code=202)
async def remind(number: int, reminder: Reminder) -> dict[str, str]:
    """A delayed message: nobody has to remember it meanwhile, and it survives every restart."""
    message = Message("reminders", str(number).encode(), keys=[str(number)], delay_s=reminder.delay_s)
    receipt = await app.state.producer.send(message)
    return {"message_id": receipt.message_id}


@app.get("/dead")
async def dead_letters() -> list[dict[str, Any]]:
    """The orders that could not be billed, for somebody to look at."""
    try:
        found = await app.state.admin.read(DEAD_LETTERS, limit=100)
    except (NoRoute, UnknownTopic):  # there was none yet
        return []
    return [{"keys": each.keys, "body": each.body.decode(), "tries": each.reconsume_times} for each in found]
