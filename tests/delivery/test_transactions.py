"""Transactions: all messages become visible or none, once, not before the commit, even if the process crashes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from mqlake import (
    FlushConfig,
    InvalidMessage,
    Message,
    MessageStore,
    NotPermitted,
    TransactionConfig,
    TransactionEnded,
    TransactionExpired,
)
from mqlake.delivery.registry.config_file import decode
from mqlake.delivery.transactions.halves import Halves
from mqlake.delivery.transactions.transaction import Undecided
from mqlake.logs.log_writer import LogWriter
from tests.delivery.later import (
    DAY_MS,
    HOUR_MS,
    arrived,
    arrived_bodies,
    as_a_crash_leaves_it,
    now_ms,
    order,
    step,
)
from tests.golden.stores import GoldenStore
from tests.helpers import contents_of, covers, open_bare, open_small, writer_of
from tests.interrupting import Interrupted, interrupted_once

HALF, OP, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"


class Failure(Exception):
    pass


def progress_of(path: Path) -> dict[str, int]:
    table = decode((path / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    return {topic: table.get(f"{topic}@CID_RMQ_SYS_TRANS", {}).get("0", 0) for topic in (HALF, OP)}


@covers("P5")
def test_a_message_is_invisible_until_its_transaction_is_committed(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        with store.transaction() as transaction:
            half = transaction.put(order(b"one", tags="t", keys="k", born_host="10.0.0.7:99"))
            transaction.put(Message("payments", b"two", queue_id=1))
            assert half.topic == HALF
            assert (arrived(store), arrived(store, "payments")) == ([], [])
        (one,) = arrived(store)
        assert (one.body, one.tags, one.keys, one.born_host) == (b"one", "t", ["k"], "10.0.0.7:99")
        assert (one.sys_flag & 0xC, one.prepared_offset) == (0x8, half.physical_offset)
        assert not {"REAL_TOPIC", "REAL_QID"} & set(one.properties)
        assert [(m.body, m.queue_id) for m in arrived(store, "payments")] == [(b"two", 1)]
        assert [(m.body, m.tags) for m in arrived(store, OP)] == [(b"0", "d"), (b"1", "d")]
    assert progress_of(tmp_path) == {HALF: 2, OP: 2}


def test_retention_keeps_the_log_of_undecided_transactions(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        transaction = store.transaction()
        transaction.put(order(b"one"))
        for _ in range(5):
            store.put(order(bytes(40_000)))
        assert store.retain(older_than_ms=0).held_by == ("transactions",)
        transaction.commit()
        assert store.retain(older_than_ms=0).held_by == ()
        assert store.first_offset > 0 and arrived_bodies(store)[-1] == b"one"


def test_an_exception_rolls_back(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        with pytest.raises(Failure):
            with store.transaction() as transaction:
                transaction.put(order(b"one"))
                raise Failure
        assert arrived(store) == []
        assert store.transactions.undecided() == []
    with open_small(tmp_path) as store:
        store.transactions.check(now_ms() + HOUR_MS)
        assert arrived(store) == []


def test_an_empty_transaction_writes_nothing(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        with store.transaction():
            pass
        assert store.end_offset == 0


def test_a_transaction_is_decided_only_once(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        with store.transaction() as transaction:
            transaction.put(order(b"one"))
            transaction.commit()
            for again in (transaction.commit, transaction.rollback, lambda: transaction.put(order(b"two"))):
                with pytest.raises(TransactionEnded, match="already committed"):
                    again()
        receipt = store.transactions.prepare(order(b"three"))
        store.transactions.end(receipt, commit=True)
        for commit in (True, False):
            with pytest.raises(TransactionEnded, match="already decided, or never begun"):
                store.transactions.end(receipt, commit=commit)
        with pytest.raises(TransactionEnded):
            store.transactions.resolve("of nobody", commit=True)
        assert arrived_bodies(store) == [b"one", b"three"]


def test_a_commit_after_the_time_limit_is_refused_and_the_check_decides(tmp_path: Path) -> None:
    config = TransactionConfig(check=lambda undecided: True)
    with open_small(tmp_path, transactions=config) as store:
        with pytest.raises(TransactionExpired, match="its limit is 5000 ms"):
            with store.transaction(timeout_s=5) as transaction:
                transaction.put(order(b"one", born_timestamp=now_ms() - 5_001))
        assert arrived(store) == []
        store.transactions.check(now_ms())
        assert arrived_bodies(store) == [b"one"]
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(InvalidMessage, match="timeout_s"):
                store.transaction(timeout_s=wrong)  # type: ignore[arg-type]


def test_a_message_that_is_already_in_a_transaction_is_refused(tmp_path: Path) -> None:
    with open_small(tmp_path) as store, store.transaction() as transaction:
        with pytest.raises(InvalidMessage, match="sys_flag"):
            transaction.put(order(b"x", sys_flag=8))
        with pytest.raises(InvalidMessage, match="no light queues in a transaction"):
            transaction.put(order(b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%one"}))


def test_a_committed_message_with_a_delay_is_delivered_when_due(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        with store.transaction() as transaction:
            transaction.put(order(b"later", delay_level=18))
        assert arrived(store) == []
        step(store, now_ms() + DAY_MS)
        assert arrived_bodies(store) == [b"later"]


def test_with_sync_flush_a_commit_becomes_visible_all_at_once(tmp_path: Path) -> None:
    with open_small(tmp_path, flush=FlushConfig(sync=True)) as store:
        seen: set[int] = set()
        stop = threading.Event()

        def watch() -> None:
            while not stop.is_set():
                seen.add(contents_of(store).reader.range_or_empty("orders", 0).end_offset)

        watcher = threading.Thread(target=watch)
        watcher.start()
        with store.transaction() as transaction:
            for number in range(20):
                transaction.put(order(b"%d" % number))
        store.wait_dispatched()
        stop.set()
        watcher.join()
        assert seen <= {0, 20}
        assert len(arrived(store)) == 20


# ---- crashes


def crash_within_commit(store: MessageStore, monkeypatch: pytest.MonkeyPatch, record_count: int, to: Path) -> Path:
    """Commit a transaction of three messages, and crash after `record_count` records of the commit."""
    left = [record_count]
    append, append_as_is = type(writer_of(store).log).append, type(writer_of(store).log).append_as_is

    def counted(call: Any) -> Any:
        def appended(*arguments: Any) -> Any:
            if not left[0]:
                raise Failure
            left[0] -= 1
            return call(*arguments)

        return appended

    transaction = store.transaction()
    for number in range(3):
        transaction.put(order(b"%d" % number))
    with monkeypatch.context() as patch, pytest.raises(Failure):
        patch.setattr(type(writer_of(store).log), "append", counted(append))
        patch.setattr(type(writer_of(store).log), "append_as_is", counted(append_as_is))
        transaction.commit()
    return as_a_crash_leaves_it(store, to)


@pytest.mark.parametrize("record_count", range(6))
def test_after_a_crash_within_a_commit_all_messages_are_visible_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_count: int
) -> None:
    with open_small(tmp_path / "s") as store:
        crashed = crash_within_commit(store, monkeypatch, record_count, tmp_path / "crashed")
    with open_small(crashed) as store:
        assert arrived_bodies(store) == ([b"0", b"1", b"2"] if record_count else [])
        assert len(store.transactions.undecided()) == (0 if record_count else 1)
        store.transactions.check(now_ms() + HOUR_MS)
        if not record_count:
            store.transactions.resolve(store.transactions.undecided()[0].id, commit=True)
        assert arrived_bodies(store) == [b"0", b"1", b"2"], "once"
    with open_small(crashed) as store:
        assert store.transactions.undecided() == []
        assert len(arrived(store)) == 3


def test_a_commit_that_fails_half_way_can_be_retried_but_not_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(tmp_path / "s") as store:
        crash_within_commit(store, monkeypatch, 2, tmp_path / "unused")
        with pytest.raises(TransactionEnded, match="partly committed already"):
            store.transactions.resolve(store.transactions.undecided()[0].id, commit=False)
        store.transactions.resolve(store.transactions.undecided()[0].id, commit=True)
        assert arrived_bodies(store) == [b"0", b"1", b"2"]


def test_the_check_decides_what_a_crash_left_undecided(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        began_ms = now_ms()
        transactions = [store.transaction("shop") for _ in range(3)]
        for number, transaction in enumerate(transactions):
            transaction.put(order(b"%d" % number))
        crashed = as_a_crash_leaves_it(store, tmp_path / "crashed")
    asked: list[Undecided] = []

    def check(undecided: Undecided) -> bool | None:
        asked.append(undecided)
        return {b"0": True, b"1": False, b"2": None}[undecided.messages[0].body]

    with open_small(crashed, transactions=TransactionConfig(check=check)) as store:
        assert asked == []
        store.transactions.check(began_ms + 5_000)
        assert asked == [], "they are too young for the check"
        store.transactions.check(now_ms() + HOUR_MS)
        assert [undecided.id for undecided in asked] == [transaction.id for transaction in transactions]
        assert {undecided.group for undecided in asked} == {"shop"}
        assert arrived_bodies(store) == [b"0"]
        assert [undecided.check_count for undecided in store.transactions.undecided()] == [1]
        store.transactions.resolve(transactions[2].id, commit=True)
        assert arrived_bodies(store) == [b"0", b"2"]


def test_the_check_ignores_a_transaction_that_is_still_open_here(tmp_path: Path) -> None:
    with open_small(tmp_path, transactions=TransactionConfig(check=lambda undecided: False)) as store:
        with store.transaction() as transaction:
            transaction.put(order(b"slow"))
            store.transactions.check(now_ms() + HOUR_MS)
        assert arrived_bodies(store) == [b"slow"]


def test_a_transaction_that_is_never_decided_is_given_up(tmp_path: Path) -> None:
    config = TransactionConfig(check_max=4)
    with open_small(tmp_path, transactions=config) as store:
        store.transactions.prepare(order(b"x"))
        for number in range(4):
            assert len(store.transactions.undecided()) == 1
            assert arrived(store, GIVEN_UP) == []
            store.transactions.check(now_ms() + HOUR_MS)
            if number == 1:
                store.transactions.keep()
        assert store.transactions.undecided() == []
        (given_up,) = arrived(store, GIVEN_UP)
        assert (given_up.body, given_up.properties["REAL_TOPIC"]) == (b"x", "orders")
        assert arrived(store) == []
        assert [m.properties.get("TRANSACTION_CHECK_TIMES") for m in arrived(store, HALF)] == [None, "1", "2", "3"]
    assert progress_of(tmp_path) == {HALF: 4, OP: 1}


@pytest.mark.parametrize("answer", ["an exception", "a text"])
def test_a_check_that_fails_decides_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: str) -> None:
    def check(undecided: Undecided) -> Any:
        if answer == "a text":
            return "no database"
        raise Failure("no database")

    with open_small(tmp_path, transactions=TransactionConfig(check=check)) as store:
        store.transactions.prepare(order(b"x"))
        store.transactions.check(now_ms() + HOUR_MS)
        assert len(store.transactions.undecided()) == 1
    assert "no database" in caplog.text


@pytest.mark.parametrize("crash", ["after the copy", "after giving up"])
def test_a_crash_within_a_check_causes_no_second_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    """After the crash, a half message that was appended again exists twice; one that was given up has no operation."""
    with open_small(tmp_path / "s", transactions=TransactionConfig(check_max=3)) as store:
        store.transactions.prepare(order(b"x"))
        store.transactions.check(now_ms() + HOUR_MS)
        if crash == "after giving up":
            store.transactions.check(now_ms() + HOUR_MS)
            with monkeypatch.context() as patch:
                patch.setattr(Halves, "end", lambda *_: (_ for _ in ()).throw(Failure))
                with pytest.raises(Failure):
                    store.transactions.check(now_ms() + HOUR_MS)
        crashed = as_a_crash_leaves_it(store, tmp_path / "crashed")
    with open_small(crashed) as store:
        undecided = store.transactions.undecided()
        if crash == "after giving up":
            assert undecided == []
        else:
            assert [(len(u.messages), u.check_count) for u in undecided] == [(1, 1)]
            store.transactions.resolve(undecided[0].id, commit=True)
            assert arrived_bodies(store) == [b"x"]
        assert len(arrived(store, GIVEN_UP)) == (crash == "after giving up")


def test_a_commit_that_a_signal_interrupts_hides_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_small(tmp_path) as store:
        transaction = store.transaction()
        transaction.put(order(b"one"))
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(LogWriter, "hold_visible", interrupted_once(LogWriter.hold_visible))
            transaction.commit()
        store.put(Message("payments", b"later"))
        assert [each.body for each in arrived(store, "payments")] == [b"later"]
        transaction.commit()
        assert arrived_bodies(store) == [b"one"]


def test_a_commit_inside_of_a_commit_is_refused_and_shows_no_part_of_the_outer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = LogWriter.append

    def with_handler(log: LogWriter, *args: Any) -> Any:
        with pytest.raises(NotPermitted, match="in the middle of a commit"):
            inner.commit()
        assert arrived_bodies(store) == []
        return append(log, *args)

    with open_small(tmp_path) as store:
        inner, outer = store.transaction(), store.transaction()
        inner.put(order(b"inner"))
        outer.put(order(b"one"))
        outer.put(order(b"two"))
        with monkeypatch.context() as patch:
            patch.setattr(LogWriter, "append", with_handler)
            outer.commit()
        inner.commit()
        assert sorted(arrived_bodies(store)) == [b"inner", b"one", b"two"]


def test_progress_stops_at_the_first_undecided_half_message(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        held = store.transaction()
        held.put(order(b"held"))
        for number in range(5):
            with store.transaction() as transaction:
                transaction.put(order(b"%d" % number))
        store.transactions.keep()
        store.delivery.persist()
        assert progress_of(store.path) == {HALF: 0, OP: 0}
        held.commit()
        store.transactions.keep()
        store.delivery.persist()
        assert progress_of(store.path) == {HALF: 6, OP: 6}


@pytest.mark.parametrize("damaged", [[HALF], [OP], [HALF, OP]])
def test_progress_beyond_its_queue_loses_no_undecided_transaction(
    damaged: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_small(tmp_path / "s") as store:
        with store.transaction() as ended:
            ended.put(order(b"ended"))
        held = store.transaction()
        held.put(order(b"held"))
        store.transactions.keep()
        store.delivery.persist()
        assert progress_of(store.path) == {HALF: 1, OP: 1}
        with store.transaction() as later:
            later.put(order(b"later"))
        for topic in damaged:
            store.delivery.offsets.set(f"{topic}@CID_RMQ_SYS_TRANS", 0, 9)
        store.delivery.offsets.sync()
        crashed = as_a_crash_leaves_it(store, tmp_path / "crashed")
        held.commit()
    with open_small(crashed) as store:
        assert [undecided.id for undecided in store.transactions.undecided()] == [held.id]
        assert [f"progress on {topic}: offset 9" in caplog.text for topic in (HALF, OP)] == [
            topic in damaged for topic in (HALF, OP)
        ]
        store.transactions.keep()
        store.delivery.persist()
        assert progress_of(store.path) == {HALF: 1, OP: 1}, "mended"


def test_the_progress_of_transactions_makes_no_group_of_consumers(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        with store.transaction() as transaction:
            transaction.put(order(b"x"))
        store.transactions.keep()
        assert [known.group for known in store.delivery.offsets.subscriptions()] == ["CID_RMQ_SYS_TRANS"] * 2
        store.create_group("billing")
        assert [store.group(name).name for name in store.groups()] == ["billing"]


@pytest.mark.parametrize("name", ["v4-broker-run", "v5-broker-run"])
def test_transactions_that_a_real_broker_left_undecided_are_decided_once(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    with MessageStore.open(golden.path, config=golden.config) as store:
        before = len(arrived(store, "payments"))
        undecided = store.transactions.undecided()
        assert len(undecided) == 3
        assert all(len(each.messages) == 1 for each in undecided)
        assert {each.check_count for each in undecided} == ({2} if name.startswith("v5") else {0})
        assert {each.group for each in undecided} == {"tx-senders"}
        store.transactions.resolve(undecided[0].id, commit=True)
        store.transactions.resolve(undecided[1].id, commit=False)
        came = arrived(store, "payments")[before:]
        assert [m.body for m in came] == [undecided[0].messages[0].body]
    with MessageStore.open(golden.path, config=golden.config) as store:
        assert [each.id for each in store.transactions.undecided()] == [undecided[2].id]
        assert len(arrived(store, "payments")) == before + 1


@pytest.mark.parametrize("name", ["v4-transactions", "v5-transactions"])
def test_prepared_records_outside_the_half_topic_are_ignored(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    with MessageStore.open(golden.path, config=golden.config) as store:
        before = store.end_offset
        store.transactions.check(now_ms() + HOUR_MS)
        assert store.transactions.undecided() == []
        assert store.end_offset == before


def test_a_message_cannot_enter_the_queues_of_a_system_topic(tmp_path: Path) -> None:
    """Once one did, the store took it for a half message and did not open again."""
    with open_small(tmp_path) as store:
        for number in range(8):
            store.put(order(b"%d" % number))
        with pytest.raises(InvalidMessage, match="no topics of the system"):
            store.put(order(b"x", properties={"INNER_MULTI_DISPATCH": "RMQ_SYS_TRANS_HALF_TOPIC"}))
    with open_bare(tmp_path) as store:  # without delivery nobody looks
        store.put(order(b"x", properties={"INNER_MULTI_DISPATCH": "RMQ_SYS_TRANS_HALF_TOPIC"}))
    with open_small(tmp_path) as store:
        with store.transaction() as transaction:
            transaction.put(order(b"y"))
    with open_small(tmp_path) as store:
        assert store.delivery.transactions is not None
        assert [each.body for each in store.read("orders")][-2:] == [b"x", b"y"]
