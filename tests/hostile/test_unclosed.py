"""A store that nobody refers to is closed: its workers end, its lock is free, and a warning says so."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from pathlib import Path

import pytest

from mqlake import MessageStore, PoolConfig
from tests.helpers import bodies, eventually, message, open_small
from tests.hostile.programs import run


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("pool", [None, PoolConfig(enabled=True, buffer_count=3)], ids=["plain", "pool"])
def test_an_unclosed_store_is_collected(tmp_path: Path, pool: PoolConfig | None) -> None:
    gc.collect()
    threads, files = set(threading.enumerate()), descriptors()
    store = open_small(tmp_path, pool=pool)
    store.put(message(1, queue_id=0))
    store.put(message(2, delay_level=3))
    with store.transaction() as transaction:
        transaction.put(message(3, "others"))
    consumer = store.consumer("group", "orders")
    assert consumer.poll(5)
    assert set(threading.enumerate()) > threads
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        del store, consumer, transaction
        gc.collect()
    assert [
        str(each.message) for each in given if each.category is ResourceWarning and str(tmp_path) in str(each.message)
    ]
    assert eventually(lambda: set(threading.enumerate()) <= threads, 5), threading.enumerate()
    assert not (tmp_path / "abort").exists()
    with open_small(tmp_path) as again:
        assert bodies(again) == [b"body 1"]
    gc.collect()
    assert descriptors() <= files + 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_store_that_was_dropped_can_be_opened_again_at_once(tmp_path: Path) -> None:
    """Its program cannot wait for what closes it."""
    store = open_small(tmp_path)
    store.put(message(1, queue_id=0))
    closing = threading.Event()

    def close_slowly() -> None:
        closing.wait(20)

    store._life._left.insert(0, close_slowly)
    threading.Timer(0.3, closing.set).start()
    del store
    gc.collect()
    with open_small(tmp_path) as again:
        assert closing.is_set()
        assert bodies(again) == [b"body 1"]


def test_an_unclosed_reader_is_collected(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(message(1, queue_id=0))
    reader = MessageStore.open(tmp_path, read_only=True)
    assert bodies(reader) == [b"body 1"]
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        del reader
        gc.collect()
    assert [each for each in given if each.category is ResourceWarning and str(tmp_path) in str(each.message)]


def test_a_program_that_ends_without_closing_a_store_of_many_queues_closes_it(tmp_path: Path) -> None:
    program = """
        store = open_small(path)
        for number in range(60):
            store.put(message(number, f"topic{number}"))
    """
    run(program, tmp_path)
    assert not (tmp_path / "abort").exists()
