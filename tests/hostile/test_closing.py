"""A store can be closed at any moment, by any thread, and everything else ends with a clear error or a result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.programs import run

BESIDE_EVERYTHING = """
import itertools, random
counter, wrong = itertools.count(), []

def forever(call):
    def loop():
        while True:
            try:
                call()
            except StoreClosed:
                return
            except (UnknownTopic, OffsetOutOfRange):
                pass
            except BaseException as error:
                import traceback
                wrong.append(traceback.format_exc())
                return
    return loop

for round in range(12):
    pool = PoolConfig(enabled=round % 3 == 0, buffer_count=4)
    store = open_small(path, flush=FlushConfig(sync=bool(round % 2)), pool=pool)

    def transact():
        with store.transaction() as transaction:
            transaction.put(message(next(counter), delay_level=1))

    def consume():
        with store.consumer("group", "orders", idle_s=0.01) as consumer:
            for _ in consumer:
                pass
        store.topics()

    calls = [
        lambda: store.put(message(next(counter))),
        lambda: store.put(message(next(counter), f"topic{next(counter) % 9}"), durability=Durability.DISK),
        lambda: store.put(message(next(counter), delay_s=0.05)),
        lambda: store.read("orders", start=10**6, wait_s=5),
        lambda: store.read("orders", wait_s=5),
        lambda: store.find("orders", "key-1"),
        lambda: (store.put(message(1, "brief")), store.delete_topic("brief")),
        lambda: store.stats(),
        transact,
        consume,
    ]
    threads = [threading.Thread(target=forever(call), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    time.sleep(random.Random(round).uniform(0, 0.15))
    closers = [threading.Thread(target=store.close, daemon=True) for _ in range(2)]
    for closer in closers:
        closer.start()
    for thread in [*closers, *threads]:
        thread.join(8)
        assert not thread.is_alive(), f"{thread} hangs"
    assert not wrong, wrong[0]
    assert not (path / "abort").exists(), round
"""


def test_closing_beside_everything_else_ends_every_call(tmp_path: Path) -> None:
    run(BESIDE_EVERYTHING, tmp_path / "store")


def test_both_of_two_threads_that_close_return_when_the_store_is_closed(tmp_path: Path) -> None:
    run(
        """
        for round in range(10):
            store = open_small(path)
            store.put(message(round))
            together, left = threading.Barrier(2), []

            def close():
                together.wait()
                store.close()
                left.append((path / "abort").exists())

            threads = [threading.Thread(target=close) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert left == [False, False]
        """,
        tmp_path / "store",
    )


@pytest.mark.parametrize("moment", [0.0, 0.001, 0.003, 0.01])
def test_a_close_that_a_signal_interrupts_can_be_called_again(tmp_path: Path, moment: float) -> None:
    run(
        """
        class Interrupted(Exception):
            pass

        def interrupt(*_):
            raise Interrupted

        signal.signal(signal.SIGALRM, interrupt)
        store = open_small(path)
        for number in range(200):
            store.put(message(number, queue_id=0))
        try:
            signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]) or 1e-6)
            store.close()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            pass
        store.close()
        try:
            store.put(message(0))
            raise AssertionError("a closed store took a message")
        except StoreClosed:
            pass
        store = open_small(path)
        assert len(store.read("orders", limit=300)) == 200
        store.close()
        """,
        tmp_path / "store",
        moment,
    )


CHECKS = """
asked = threading.Event()
store = None

def check(undecided):
    try:
        what = sys.argv[2]
        if what == "calls":
            store.put(message(2))
            store.read("orders", wait_s=1)
            store.stats()
            with store.transaction() as transaction:
                transaction.put(message(3))
            store.delete_topic("orders")
        elif what == "closes":
            store.close()
        elif what == "drops":
            globals()["store"] = None
            import gc
            gc.collect()
        return True
    finally:
        asked.set()

store = open_small(path, transactions=TransactionConfig(check=check, timeout_ms=1, check_interval_ms=50))
store.transactions.prepare(message(1, "decided", queue_id=0))
assert asked.wait(5)
if sys.argv[2] == "calls":
    assert store.read("decided", wait_s=5)
    assert store.health().ok, store.health()
    store.close()
assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("mqlake")], 5)
assert not (path / "abort").exists()
yes = TransactionConfig(check=lambda undecided: True, timeout_ms=1, check_interval_ms=50)
store = open_small(path, transactions=yes)
assert eventually(lambda: "decided" in store.topics(), 5)
store.close()
"""


@pytest.mark.parametrize("what", ["calls", "closes", "drops"])
def test_the_check_of_a_transaction_may_use_the_store_close_it_or_drop_it(tmp_path: Path, what: str) -> None:
    run(CHECKS, tmp_path / "store", what)


def test_the_check_of_a_transaction_may_close_a_store_that_is_being_closed(tmp_path: Path) -> None:
    run(
        """
        asked = threading.Event()

        def check(undecided):
            asked.set()
            assert eventually(lambda: closes(store)), "nobody closes it"
            store.close()
            return True

        def closes(store):
            try:
                store.topics()
            except StoreClosed:
                return True
            return False

        store = open_small(path, transactions=TransactionConfig(check=check, timeout_ms=1, check_interval_ms=50))
        store.transactions.prepare(message(1))
        assert asked.wait(5)
        store.close()
        assert not (path / "abort").exists()
        """,
        tmp_path / "store",
    )


def test_a_signal_handler_may_close_a_store_that_is_being_closed(tmp_path: Path) -> None:
    run(
        """
        closed = []

        def close(*_):
            store.close()
            closed.append(True)

        signal.signal(signal.SIGALRM, close)
        for moment in (1e-6, 0.001, 0.002, 0.004, 0.006, 0.01):
            store = open_small(path)
            store.put(message(1))
            signal.setitimer(signal.ITIMER_REAL, moment)
            store.close()
            assert eventually(lambda: closed)
            closed.clear()
            assert not (path / "abort").exists()
        """,
        tmp_path / "store",
    )
