"""A worker process: start as many as you like, on any machine that reaches the broker. SIGTERM stops it in order."""

from __future__ import annotations

import json
import logging
import os

import mqlake
from examples.jobs import database
from mqlake import StoredMessage
from mqlake.client import Admin

NAME_SERVER = os.environ.get("SHOP_NAME_SERVER", "127.0.0.1:9876")
RETRY_LEVEL = int(os.environ.get("SHOP_RETRY_LEVEL", "0"))
"""0: a failed message comes back after 10 s, 30 s, 1 m and so on; n: after RocketMQ's delay of level n each time."""
TRIES = int(os.environ.get("SHOP_TRIES", "3"))


class CardRefused(Exception):
    """The payment service says no. Perhaps it says yes later."""


def handle(message: StoredMessage) -> None:
    """Process one message. It may come twice, so each step can be repeated without harm."""
    kind = message.properties.get("RETRY_TOPIC", message.topic)
    if kind == "reminders":
        database.remind(int(message.body))
        return
    order = json.loads(message.body)
    if order["amount"] < 0:
        raise CardRefused(f"order {order['id']}: {order['amount']}")
    if database.bill(order["id"]):
        logging.info("billed order %d", order["id"])


def main() -> None:
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s worker {os.getpid()}: %(message)s")
    with Admin(NAME_SERVER) as admin:
        admin.create_group("billing", max_retry_count=TRIES)
        for topic in ("orders", "reminders"):
            admin.create_topic(topic, 4)
    counts = mqlake.run(
        handle,
        endpoint=NAME_SERVER,
        group="billing",
        topic=["orders", "reminders"],
        concurrency=4,
        retry_level=RETRY_LEVEL,
        on_error=lambda message, error: logging.warning("%s, try %d", error, message.reconsume_times + 1),
    )
    logging.info("stopped: %s", counts)


if __name__ == "__main__":
    main()
