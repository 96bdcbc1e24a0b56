"""The thread of the clients: there while one is open, gone after the last, refused in a forked child."""

from __future__ import annotations

import os
import threading

import pytest

from mqlake.client import Admin, Producer
from mqlake.client.background import LoopThread
from mqlake.errors import InvalidConfig, NotPermitted


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mqlake-client"]


def test_all_clients_share_one_thread_which_ends_with_the_last() -> None:
    before = len(client_threads())
    one, two = Producer("127.0.0.1:1"), Admin("127.0.0.1:1")
    assert len(client_threads()) == 1
    one.close()
    one.close()
    assert len(client_threads()) == 1
    two.close()
    assert len(client_threads()) == before == 0


def test_a_client_that_cannot_be_made_leaves_no_thread() -> None:
    with pytest.raises(InvalidConfig):
        Producer("nowhere")
    assert client_threads() == []


def test_a_forked_child_cannot_use_its_parents_client_and_can_make_its_own() -> None:
    async def nothing() -> int:
        return 7

    with Admin("127.0.0.1:1") as admin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    admin.topics()
                except NotPermitted:
                    thread = LoopThread.join()
                    status = 0 if thread.call(nothing) == 7 else 2
                    thread.leave()
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
