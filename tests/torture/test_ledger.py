"""The ledger is the witness: it must say exactly what happened."""

from __future__ import annotations

from pathlib import Path

from mqlake import Durability, Message
from mqlake.torture.judge import Served
from mqlake.torture.kill import lost_too_early
from mqlake.torture.ledger import Ledger, message_of, number_of
from tests.helpers import open_small


def ledger_of(tmp_path: Path, *lines: str, end: str = "\n") -> Ledger:
    (tmp_path / "ledger").write_text("\n".join(lines) + end)
    return Ledger.read(tmp_path / "ledger")


def test_a_message_is_recognised_by_its_bytes_alone(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        at = store.put(message_of(17)).physical_offset
        not_put = store.put(Message("orders", message_of(18).body + b"!")).physical_offset
        assert number_of(store.get(at)) == 17
        assert number_of(store.get(not_put)) is None


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, "P 1", "A 1 0 0 2 5", "A 2 1 300 2 ", end="")
    assert [ack.number for ack in ledger.acks] == [1]


def test_close_makes_durable_what_its_own_session_acknowledged(tmp_path: Path) -> None:
    sessions = ["S opening", "A 1 0 0 0 5", "S opening", "A 2 0 0 0 6", "S closing", "S closed"]
    assert [ack.durability for ack in ledger_of(tmp_path, *sessions).acks] == [Durability.MEMORY, Durability.DISK]


def test_a_put_that_begins_after_a_failed_sync_of_the_log_must_not_be_acknowledged_as_durable(tmp_path: Path) -> None:
    in_flight = ["P 1", "9 fdatasync FAIL /s/commitlog/0", "A 1 0 0 2 5"]
    assert ledger_of(tmp_path, *in_flight).false_acks == []
    assert ledger_of(tmp_path, *in_flight, "P 2", "A 2 1 300 2 6").false_acks == [2]
    assert ledger_of(tmp_path, *in_flight, "P 2", "A 2 1 300 1 6").false_acks == []
    assert ledger_of(tmp_path, "9 fsync FAIL /s/index/1", "P 2", "A 2 1 300 2 6").false_acks == []


def test_of_messages_in_memory_only_the_newest_may_be_lost(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, "A 1 0 0 0 5", "A 2 1 300 0 6", "A 3 2 600 0 7")
    assert not lost_too_early(Served(places={1: (0, 0), 2: (1, 300)}), ledger)
    assert not lost_too_early(Served(), ledger)
    assert len(lost_too_early(Served(places={1: (0, 0), 3: (2, 600)}), ledger)) == 1
    late = ledger_of(tmp_path, "A 1 0 0 0 5", "A 2 1 300 0 6000")
    assert len(lost_too_early(Served(), late)) == 1
