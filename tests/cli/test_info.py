"""`mqlake info`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.cli.conftest import Cli

DIES = """
import os, sys
from mqlake import Message, MessageStore, StoreConfig
store = MessageStore.open(sys.argv[1], config=StoreConfig.load(sys.argv[2]))
store.put(Message("orders", b"last words", queue_id=0))
os._exit(0)
"""


def test_info_shows_files_positions_and_a_clean_stop(orders: Cli) -> None:
    (info,) = orders.json("info", orders.store)
    assert info["state"] == "stopped cleanly"
    assert (info["writerPid"], info["abort"]) == (None, False)
    assert info["files"]["commitlog"] == {"count": 1, "sizeBytes": 1 << 20, "diskBytes": 1 << 20}
    assert info["messageCount"] == 7
    assert info["endOffset"] == info["durableEnd"] == info["dispatchedEnd"] > 0
    assert (info["indexSlotCount"], info["indexEntryCount"]) == (1000, 4000)
    assert "stopped cleanly" in orders.ok("info", orders.store)


def test_info_names_the_writing_process(orders: Cli) -> None:
    with orders.open():
        process = orders.process("info", orders.store)
        shown, _ = process.communicate(timeout=20)
    assert f"open: process {os.getpid()} writes it" in shown


def test_info_reports_an_unclean_stop_and_still_shows_the_store(orders: Cli) -> None:
    subprocess.run([sys.executable, "-c", DIES, orders.store, orders.config], check=True)
    (info,) = orders.json("info", orders.store)
    assert (info["writerPid"], info["abort"]) == (None, True)
    assert info["messageCount"] == 8
    assert "stopped uncleanly" in orders.ok("info", orders.store)


def test_info_shows_space_on_disk_separately_from_sizes(orders: Cli) -> None:
    """A queue file has its configured size, but takes only the space that was written."""
    queues = orders.json("info", orders.store)[0]["files"]["consumequeue"]
    assert queues["sizeBytes"] == 3 * 20_000
    assert queues["diskBytes"] < queues["sizeBytes"]


def test_info_shows_a_store_whose_log_is_missing(orders: Cli) -> None:
    shutil.rmtree(orders.store / "commitlog")
    (info,) = orders.json("info", orders.store)
    assert (info["state"], info["messageCount"]) == ("stopped cleanly", 7)
    assert info["files"].get("commitlog") is None
