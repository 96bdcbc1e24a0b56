"""Where a queue begins after the log's first files are deleted and some of its messages are lost."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from mqlake.codec.queue_entry import ENTRY, FILLER_SIZE
from mqlake.files.mapped_file import MappedFile
from mqlake.logs.consume_queue import ConsumeQueue
from tests.helpers import covers


@covers("O4")
@pytest.mark.parametrize("seed", range(30))
def test_entries_of_lost_messages_do_not_hide_the_messages_around_them(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    count, front = draw.randrange(1, 60), draw.choice([0, 0, 5])
    offsets = [100 * (number + 1) for number in range(count)]
    lost = {number for number in range(count - 1) if draw.random() < 0.3}
    queue = ConsumeQueue(tmp_path / "q", 2000, writable=True)
    entries = [
        ENTRY.pack(draw.choice([0, 100]), FILLER_SIZE, 1) if number in lost else ENTRY.pack(offsets[number], 50, 7)
        for number in range(count)
    ]
    queue.write(front, b"".join(entries))
    for log_first in (0, 100, 350, offsets[-1], offsets[-1] + 1):
        first = queue.first_offset(log_first)
        kept = [front + number for number in range(count) if number not in lost and offsets[number] >= log_first]
        gone = [front + number for number in range(count) if number not in lost and offsets[number] < log_first]
        assert all(first <= number for number in kept)
        assert all(number < first for number in gone)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_messages_that_were_lost_are_entered_in_any_order_once_they_are_back(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Until then each of their entries names the message after them, and no entry of another record may replace one."""
    queue = ConsumeQueue(tmp_path / "q", 2000, writable=True)
    entries = [ENTRY.pack(100 * number, 50, 7) for number in range(6)]
    assert queue.write(0, entries[0])
    assert queue.write(4, entries[4])
    assert queue.write(5, entries[5])
    assert [queue.entry(number) for number in (1, 2, 3)] == [queue.entry(4)] * 3
    assert not queue.write(2, ENTRY.pack(900, 50, 7))
    assert not queue.write(4, entries[3])
    for number in order:
        assert queue.write(1 + number, entries[1 + number])
    assert bytes(queue.entries(0, 6)) == b"".join(entries)


def test_a_sync_while_a_queue_is_being_created_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint does not wait for dispatch: the folder of a queue may not exist yet."""
    queue = ConsumeQueue(tmp_path / "orders" / "0", 2000, writable=True)
    create = queue.files.create

    def sync_first(start: int) -> MappedFile:
        queue.sync()
        return create(start)

    monkeypatch.setattr(queue.files, "create", sync_first)
    assert queue.write(0, ENTRY.pack(0, 100, 0))
    monkeypatch.undo()
    queue.sync()
