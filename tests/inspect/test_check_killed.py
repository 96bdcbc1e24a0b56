"""A check of a store whose writer was killed: what the next opening mends anyway is no finding, the rest is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import mqlake
from mqlake import MessageStore
from mqlake.codec.queue_entry import ENTRY
from mqlake.inspect.repair import repair
from tests.delivery.later import as_a_crash_leaves_it
from tests.helpers import bodies, message, open_bare, writer_of

QUEUE = f"consumequeue/orders/0/{0:020d}"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store that was killed before it dispatched 20 of 60 messages, some of them of a new queue.

    The checkpoint is at the 30th message.
    """
    with open_bare(tmp_path / "s") as store:
        put(store, 0, 30)
        writer_of(store).write_checkpoint()
        put(store, 30, 40)
        before = as_a_crash_leaves_it(store, tmp_path / "before")
        put(store, 40, 60)
        store.put(message(60, queue_id=1))
        store.wait_dispatched()
        killed = as_a_crash_leaves_it(store, tmp_path / "killed")
    for derived in ("consumequeue", "index"):
        shutil.rmtree(killed / derived)
        shutil.copytree(before / derived, killed / derived)
    return killed


def put(store: MessageStore, first: int, stop: int) -> None:
    for number in range(first, stop):
        store.put(message(number, queue_id=0))
    store.wait_dispatched()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def place_in_index(path: Path, entry: int) -> int:
    """Return where an entry, counted from 1, begins in an index file of 400."""
    return path.stat().st_size - 20 * (400 - entry)


def found_in(store: Path) -> set[str]:
    return {row.what for row in mqlake.check(store).findings} - {"leftover"}


def holds_all(store: Path) -> bool:
    with open_bare(store) as opened:
        assert bodies(opened) == [b"body %d" % number for number in range(60)]
        assert bodies(opened, queue_id=1) == [b"body 60"]
        assert all(len(opened.find("orders", f"key-{number}")) == 1 for number in range(61))
    return mqlake.check(store).findings == ()


def test_what_the_next_opening_dispatches_is_part_of_the_note_that_it_recovers(killed: Path) -> None:
    report = mqlake.check(killed)
    assert report.holds, report.findings
    (note,) = (row for row in report.findings if row.what == "abort")
    offset = int(note.cost.rpartition(" ")[2])
    assert offset == ENTRY.unpack_from((killed / QUEUE).read_bytes(), 30 * ENTRY.size)[0], "where the checkpoint is"
    assert holds_all(killed)


def test_what_the_next_opening_cuts_off_is_part_of_that_note(killed: Path) -> None:
    """A power cut can keep more of queues and index than of the log."""
    beyond = mqlake.check(killed).end_offset
    with (killed / QUEUE).open("r+b") as queue:
        queue.seek(70 * ENTRY.size)
        queue.write(ENTRY.pack(beyond, 100, 0))
    other = killed / "consumequeue/orders/3" / Path(QUEUE).name
    other.parent.mkdir()
    other.write_bytes(ENTRY.pack(beyond, 100, 0).ljust((killed / QUEUE).stat().st_size, b"\0"))
    assert found_in(killed) == {"abort"}
    assert holds_all(killed)


def test_an_entry_that_the_next_opening_trusts_is_still_compared(killed: Path) -> None:
    flip(killed / QUEUE, 29 * ENTRY.size)
    assert found_in(killed) == {"abort", "queue-entry"}
    flip(killed / QUEUE, 29 * ENTRY.size)
    flip(killed / QUEUE, 31 * ENTRY.size)
    assert found_in(killed) == {"abort"}
    assert holds_all(killed)


def test_a_key_that_the_next_opening_trusts_is_still_compared(killed: Path) -> None:
    (index,) = (killed / "index").iterdir()
    flip(index, place_in_index(index, 3))
    assert {"index-missing", "index-entry"} <= found_in(killed)


def test_without_a_usable_checkpoint_every_entry_is_compared(killed: Path) -> None:
    (killed / "mqlake/checkpoint").unlink()
    assert {"queue-entry", "queue-missing", "index-missing"} <= found_in(killed)
    assert holds_all(killed)


def test_a_repair_of_a_killed_store_loses_nothing_that_was_not_dispatched(killed: Path) -> None:
    repair(killed)
    assert mqlake.check(killed).findings == ()
    assert holds_all(killed)
