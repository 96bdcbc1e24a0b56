"""The shop's own data, in SQLite: orders, and the outbox of messages that are still to be sent.

An order and its message are written in one transaction: either both exist or neither.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from typing import Any

PATH = os.environ.get("SHOP_DATABASE", "shop.sqlite")
TABLES = """
create table if not exists orders (id integer primary key, item text, amount integer, state text, reminders integer);
create table if not exists outbox (id integer primary key, topic text, key text, body text);
"""


def connect() -> sqlite3.Connection:
    connection = sqlite3.connect(PATH, timeout=10)
    connection.row_factory = sqlite3.Row
    connection.execute("pragma journal_mode = wal")
    connection.executescript(TABLES)
    return connection


def place_order(item: str, amount: int) -> int:
    """Store an order together with the message that has it billed; return its id."""
    with closing(connect()) as database, database:
        cursor = database.execute("insert into orders values (null, ?, ?, 'placed', 0)", (item, amount))
        number = int(cursor.lastrowid or 0)
        row = ("orders", str(number), json.dumps({"id": number, "amount": amount}))
        database.execute("insert into outbox values (null, ?, ?, ?)", row)
        return number


def find_order(number: int) -> dict[str, Any] | None:
    with closing(connect()) as database:
        row = database.execute("select * from orders where id = ?", (number,)).fetchone()
        return dict(row) if row is not None else None


def bill(number: int) -> bool:
    """Mark an order as billed; tell whether it was not before."""
    with closing(connect()) as database, database:
        query = "update orders set state = 'billed' where id = ? and state = 'placed'"
        return database.execute(query, (number,)).rowcount == 1


def remind(number: int) -> None:
    with closing(connect()) as database, database:
        database.execute("update orders set reminders = reminders + 1 where id = ?", (number,))


def outbox(limit: int = 100) -> list[sqlite3.Row]:
    with closing(connect()) as database:
        return database.execute("select * from outbox order by id limit ?", (limit,)).fetchall()


def sent(numbers: list[int]) -> None:
    with closing(connect()) as database, database:
        database.executemany("delete from outbox where id = ?", [(number,) for number in numbers])
