"""An interrupted wait ends at once, concerns the thread that waited, and leaves the store working."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.hostile.programs import run as run_program
from tests.plain_locks import plain_locks


def run(program: str, *arguments: object, limit_s: float = 60) -> str:
    return run_program(program, *arguments, env=plain_locks(), limit_s=limit_s)


BEGIN = """
class Interrupted(Exception):
    pass

def interrupt(*_):
    raise Interrupted

signal.signal(signal.SIGALRM, interrupt)
kind = sys.argv[2]
expected = KeyboardInterrupt if kind == "ctrl-c" else Interrupted

def interrupted(wait):
    '''Run a wait that would last for long, interrupt it, and return how long it went on after that.'''
    sent = []

    def send():
        waiting.wait()
        time.sleep(0.2)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT if kind == "ctrl-c" else signal.SIGALRM)

    waiting = threading.Event()
    threading.Thread(target=send).start()
    try:
        waiting.set()
        wait()
    except expected:
        took = time.monotonic() - sent[0]
        assert took < 0.8, f"it went on for {took} s"
        return
    raise AssertionError("it was not interrupted")

def works():
    receipt = store.put(message(7, queue_id=0), durability=Durability.DISK)
    assert store.read("orders", start=receipt.queue_offset, wait_s=5)
"""
KINDS = pytest.mark.parametrize("kind", ["ctrl-c", "handler"])
POOLS = pytest.mark.parametrize("pool", ["", "PoolConfig(enabled=True, buffer_count=3)"], ids=["plain", "pool"])


@POOLS
@KINDS
def test_waiting_for_a_message_is_interrupted_at_once(tmp_path: Path, kind: str, pool: str) -> None:
    run(
        BEGIN
        + f"store = open_small(path, pool={pool or None})"
        + """
works()
interrupted(lambda: store.read("orders", start=1, wait_s=20))
works()
consumer = store.consumer("group", "orders", start="last")
interrupted(lambda: next(iter(consumer)))
interrupted(lambda: consumer.poll(20))
works()
assert consumer.poll(5)
store.close()
""",
        tmp_path / "store",
        kind,
    )


BLOCKED_SYNC = """
from tests.helpers import sync_in_python
import pytest
patch = pytest.MonkeyPatch()
sync_in_python(patch)
fdatasync, blocked, go_on = os.fdatasync, threading.Event(), threading.Event()

def slow(descriptor):
    blocked.set()
    go_on.wait(10)
    fdatasync(descriptor)
"""


@POOLS
@KINDS
def test_waiting_for_the_sync_of_another_thread_is_interrupted_at_once(tmp_path: Path, kind: str, pool: str) -> None:
    run(
        BEGIN
        + BLOCKED_SYNC
        + f"store = open_small(path, pool={pool or None}, flush=FlushConfig(timeout_ms=8_000))"
        + """
works()
patch.setattr(os, "fdatasync", slow)
leader = threading.Thread(target=lambda: store.put(message(1), durability=Durability.DISK))
leader.start()
assert blocked.wait(5)
interrupted(lambda: store.put(message(2), durability=Durability.DISK))
patch.setattr(os, "fdatasync", fdatasync)
go_on.set()
leader.join()
works()
assert store.stats().failure is None
store.close()
assert not (path / "abort").exists()
""",
        tmp_path / "store",
        kind,
    )


@POOLS
@KINDS
def test_a_thread_that_is_interrupted_while_it_syncs_gives_the_lead_back(tmp_path: Path, kind: str, pool: str) -> None:
    run(
        BEGIN
        + BLOCKED_SYNC
        + f"store = open_small(path, pool={pool or None}, flush=FlushConfig(sync=True))"
        + """
works()
patch.setattr(os, "fdatasync", slow)
interrupted(lambda: store.put(message(1)))
patch.setattr(os, "fdatasync", fdatasync)
go_on.set()
works()
assert store.stats().failure is None
store.close()
assert not (path / "abort").exists()
""",
        tmp_path / "store",
        kind,
    )


ROLLS = """
import signal, sys
from mqlake import CommitLogConfig, IndexConfig, Message, MessageStore, check

class Boom(Exception):
    pass

def boom(number, frame):
    raise Boom

small = CommitLogConfig(file_size_bytes=8192)
store = MessageStore.open(sys.argv[1], commit_log=small, index=IndexConfig(enabled=False))
signal.signal(signal.SIGALRM, boom)
put = interrupted = 0
while interrupted < 150:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003 + 0.00001 * (put % 60))
        store.put(Message("t", bytes(700), queue_id=0))
        put += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Boom:
        interrupted += 1
for _ in range(20):
    store.put(Message("t", bytes(700), queue_id=0))
found = store.queues("t")[0].message_count if store.wait_dispatched() else -1
store.close()
print(found >= put + 20, check(sys.argv[1]).findings)
"""


def test_a_handler_that_raises_while_the_log_rolls_leaves_the_writer_whole(tmp_path: Path) -> None:
    env = plain_locks()
    command = [sys.executable, "-c", ROLLS, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True ()\n"


INTERRUPTED = """
    import random
    class Interrupted(BaseException):
        pass
    armed = []
    def interrupt(*_):
        if armed:
            armed.clear()
            raise Interrupted
    signal.signal(signal.SIGALRM, interrupt)
    def interrupted(work, most_s):
        try:
            armed.append(True)
            signal.setitimer(signal.ITIMER_REAL, random.random() * most_s + 1e-5)
            return work()
        except Interrupted:
            return None
        finally:
            armed.clear()
            signal.setitimer(signal.ITIMER_REAL, 0)
"""
"""Runs work that a signal handler interrupts with an error at a random moment."""


def test_an_interrupted_opening_leaves_no_store_open(tmp_path: Path) -> None:
    program = """
        import gc, warnings
        warnings.simplefilter("ignore", ResourceWarning)
        with open_small(path) as store:
            for number in range(30):
                store.put(message(number, f"topic{number}"))
        for _ in range(25):
            store = interrupted(lambda: open_small(path), 0.03)
            if store is not None:
                store.close()
            store = None
            assert eventually(lambda: all(each.name != "mqlake-step" for each in threading.enumerate()), 20)
            gc.collect()
            def is_free():
                try:
                    open_small(path).close()
                except StoreLocked:
                    return False
                return True
            assert eventually(is_free, 20)
    """
    run(textwrap.dedent(INTERRUPTED) + textwrap.dedent(program), tmp_path, limit_s=100)


def test_a_store_can_be_opened_again_at_once_after_an_interrupted_opening(tmp_path: Path) -> None:
    """Also while the program still looks at the error: its traceback refers to the opening."""
    program = """
        import warnings
        warnings.simplefilter("ignore", ResourceWarning)
        from mqlake.store.writer import Writer
        recover = Writer._recover
        def interrupt_and_recover(self, *arguments):
            os.kill(os.getpid(), signal.SIGALRM)
            time.sleep(0.3)
            recover(self, *arguments)
        for _ in range(3):
            Writer._recover = interrupt_and_recover
            armed.append(True)
            try:
                open_small(path)
                raise AssertionError("it was not interrupted")
            except Interrupted:
                Writer._recover = recover
                open_small(path).close()
    """
    run(textwrap.dedent(INTERRUPTED) + textwrap.dedent(program), tmp_path, limit_s=100)


def test_an_interrupted_deletion_of_a_topic_leaves_nothing_waiting(tmp_path: Path) -> None:
    program = """
        with open_small(path) as store:
            for number in range(150):
                store.put(message(number, "gone"))
                try:
                    interrupted(lambda: store.delete_topic("gone"), 0.01)
                except UnknownTopic:
                    pass
                thread = threading.Thread(target=store.put, args=[message(number, "gone")], daemon=True)
                thread.start()
                thread.join(20)
                assert thread not in threading.enumerate(), "a put waits for a deletion that nobody does"
    """
    run(textwrap.dedent(INTERRUPTED) + textwrap.dedent(program), tmp_path, limit_s=100)


def test_an_interrupted_retention_leaves_no_gap_between_files(tmp_path: Path) -> None:
    program = """
        store = open_small(path)
        for number in range(2000):
            store.put(message(number, queue_id=0, body=bytes(300)))
        assert store.wait_dispatched()
        unlink = Path.unlink
        def interrupt_and_unlink(self, missing_ok=False):
            os.kill(os.getpid(), signal.SIGALRM)
            time.sleep(0.001)
            unlink(self, missing_ok)
        Path.unlink = interrupt_and_unlink
        for turn in range(1, 5):
            armed.append(True)
            try:
                store.retain(before_offset=turn * 65536)
                raise AssertionError("it was not interrupted")
            except Interrupted:
                pass
        Path.unlink = unlink
        store.retain(before_offset=6 * 65536)
        assert eventually(lambda: store.first_offset == 6 * 65536)
        for folder, size in ((path / "commitlog", 65536), (path / "consumequeue" / "orders" / "0", 2000)):
            starts = sorted(int(each.name) for each in folder.iterdir())
            assert starts == list(range(starts[0], starts[-1] + 1, size)), starts
        store.close()
        assert not check(path).findings
    """
    run(textwrap.dedent(INTERRUPTED) + textwrap.dedent(program), tmp_path, limit_s=100)
