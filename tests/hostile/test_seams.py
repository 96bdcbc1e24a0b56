"""Parts that meet: a cleaner and a caller of `retain`, a put inside of a put, transactions that nobody ends."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mqlake import FileFailed, NotPermitted, RetentionConfig, StoredMessage, TransactionConfig, check
from mqlake.store.read import Reader
from tests.helpers import LOG_FILE, eventually, message, open_small, writer_of
from tests.hostile.programs import run


def test_the_cleaner_and_a_caller_of_retain_leave_no_gap_between_queue_files(tmp_path: Path) -> None:
    retention = RetentionConfig(enabled=False, pause_ms=0, queue_pause_ms=0)
    with open_small(tmp_path / "s", retention=retention) as store:
        for number in range(3000):
            store.put(message(number, topic=f"t{number % 2}", queue_id=0, body=bytes(300)))
        store.wait_dispatched()
        cleaner = writer_of(store).retention
        for step in range(1, 8):
            before = store.first_offset + 2 * LOG_FILE
            store.retain(before_offset=before)
            cleaner._trimmed_to = 0
            threads = [threading.Thread(target=cleaner._trim_derived) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            with open_small(tmp_path / "s", read_only=True) as reader:
                assert all(reader.queues(f"t{number}") for number in range(2)), step
    assert check(tmp_path / "s").holds


def test_a_put_inside_of_a_put_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    refused: list[NotPermitted] = []
    taken: list[int] = []
    with open_small(tmp_path) as store:

        def handler(number: int, frame: FrameType | None) -> None:
            try:
                taken.append(store.put(message(0, body=bytes(5000))).queue_offset)
            except NotPermitted as error:
                refused.append(error)

        for number in range(300):  # every topic is admitted: from here on a put takes no lock but the log's
            store.put(message(number, topic=f"t{number}"))
        store.put(message(0))
        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        try:
            deadline = time.monotonic() + 20
            for number in range(100_000):
                store.put(message(number, topic=f"t{number % 300}", body=bytes(5000)))
                if (refused and taken) or time.monotonic() > deadline:
                    break
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert refused and "signal handler" in str(refused[0])
        assert store.wait_dispatched()


def test_a_half_message_whose_put_was_interrupted_is_rolled_back_with_its_transaction(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        transactions = store.transactions
        add = transactions._halves.add

        def interrupted(half: object) -> None:
            transactions._halves.add = add  # type: ignore[method-assign]
            raise KeyboardInterrupt

        for puts_before in (0, 2):
            with pytest.raises(KeyboardInterrupt), store.transaction() as transaction:
                for number in range(puts_before):
                    transaction.put(message(number))
                transactions._halves.add = interrupted  # type: ignore[method-assign]
                transaction.put(message(9))
            assert transactions.undecided() == []


def test_a_transaction_that_nobody_holds_any_more_is_checked(tmp_path: Path) -> None:
    asked: list[str] = []
    config = TransactionConfig(check=lambda each: asked.append(each.id) or False, timeout_ms=100, check_interval_ms=50)  # type: ignore[func-returns-value]
    with open_small(tmp_path, transactions=config) as store:
        transaction = store.transaction()
        transaction.put(message(0))
        dropped = transaction.id
        del transaction
        gc.collect()
        assert eventually(lambda: asked == [dropped])
        assert eventually(lambda: store.transactions.undecided() == [])


def test_a_folder_in_the_way_of_the_next_log_file_is_a_typed_error(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(message(0))
        (tmp_path / "commitlog" / f"{LOG_FILE:020d}" / "full").mkdir(parents=True)
        with pytest.raises(FileFailed, match="could not be named"):
            for number in range(300):
                store.put(message(number, body=bytes(1000)))


def test_a_file_with_a_name_that_is_no_queue_files_stops_neither_reads_nor_check(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        for number in range(10):
            store.put(message(number, queue_id=0))
    folder = tmp_path / "consumequeue" / "orders" / "0"
    (folder / f"{99_999_999:020d}").write_bytes((folder / f"{0:020d}").read_bytes())
    command = [sys.executable, "-m", "mqlake", "check", str(tmp_path)]
    assert "Traceback" not in subprocess.run(command, capture_output=True, text=True).stderr
    with open_small(tmp_path) as store:
        assert store.put(message(10, queue_id=0)).queue_offset == 10
        assert store.wait_dispatched()
        assert len(store.read("orders", limit=64)) == 11


def test_a_put_that_dispatch_reaches_between_two_looks_of_a_read_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Reader.read
    looks: list[int] = []

    def too_early(self: Reader, *what: Any) -> list[StoredMessage]:
        """Look once before dispatch, which is done when this returns."""
        looks.append(len(looks))
        store.wait_dispatched()
        return [] if len(looks) == 1 else look(self, *what)

    with open_small(tmp_path) as store:
        store.put(message(1, queue_id=0))
        monkeypatch.setattr(Reader, "read", too_early)
        assert [each.body for each in store.read("orders")] == [b"body 1"]


def test_without_descriptors_every_call_raises_an_error_that_says_so(tmp_path: Path) -> None:
    program = """
        import resource
        import mqlake
        with open_small(path) as store:
            for number in range(20):
                store.put(message(number, f"topic{number}", queue_id=0))
        store = MessageStore.open(path)
        taken = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        calls = {
            "read": lambda: store.read("topic1"),
            "queues": lambda: store.queues("topic2"),
            "seek": lambda: store.seek_time("topic3", 0),
            "consume": lambda: list(store.consumer("g", "topic4", idle_s=0)),
            "lag": lambda: store.lag("g"),
            "delete": lambda: store.delete_topic("topic5"),
            "dump": lambda: list(store.dump({})),
            "check": lambda: mqlake.check(path),
        }
        for name, call in calls.items():
            try:
                call()
                print(name, "worked")
            except StoreError as error:
                print(name, "ulimit -n" in str(error))
        for descriptor in taken:
            os.close(descriptor)
        assert store.read("topic1")[0].body == b"body 1"
        store.close()
    """
    lines = run(program, tmp_path).split("\n")
    assert [line for line in lines if line and not line.endswith("True")] == []
