"""Checks of log and index: the compiled kernel finds the same faults as the reference."""

from __future__ import annotations

import random

import pytest

from mqlake.kernel import reference
from mqlake.kernel.reference.index import KEY
from tests.kernel.records import Parts, stretch_of
from tests.kernel.twins import require_agreement

SLOTS, ENTRIES = 7, 60


def index_of(draw: random.Random) -> tuple[bytearray, bytes, int]:
    """Return an index file, the keys that were entered, and the number of the next entry."""
    index = bytearray(40 + 4 * SLOTS + 20 * ENTRIES)
    keys = b"".join(KEY.pack(draw.randrange(1 << 31), 100 * (n // 2), 1000 + n) for n in range(draw.randrange(50)))
    assert reference.put_index_keys(index, SLOTS, ENTRIES, keys, 0) == len(keys) // 20
    return index, keys, len(keys) // 20 + 1


@pytest.mark.parametrize("seed", range(40))
def test_compiled_checks_of_an_index_agree_with_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    index, keys, next_entry = index_of(draw)
    faults, used = require_agreement("check_index", bytes(index), SLOTS, ENTRIES, next_entry, False)[1]
    assert not faults and used == int.from_bytes(index[32:36], "big")
    compared = require_agreement("match_index_keys", bytes(index), SLOTS, ENTRIES, 1, next_entry, keys, 0)[1]
    assert compared == (next_entry, len(keys) // 20, 0, [], 0, [], [])

    for offset in (0, 1, 100, 1250, 10_000):
        entry = require_agreement("first_index_entry", bytes(index), SLOTS, ENTRIES, next_entry, offset)[1]
        assert entry == min(next_entry, 1 + 2 * -(-offset // 100))

    place = 40 + draw.randrange(4 * SLOTS + 20 * next_entry)
    index[place] ^= 1 << draw.randrange(8)
    cut = 20 * draw.randrange(len(keys) // 20 + 1)
    for live in (False, True):
        require_agreement("check_index", bytes(index), SLOTS, ENTRIES, next_entry, live)
    for some in (keys, keys[:cut] + keys[cut + 20 :], keys[: cut + 20] + keys[cut:], keys[cut:], b""):
        require_agreement("match_index_keys", bytes(index), SLOTS, ENTRIES, 1, next_entry, some, 0)


def test_a_missing_key_and_a_surplus_entry_are_reported_by_number() -> None:
    index, keys, next_entry = index_of(random.Random(3))
    assert next_entry > 9
    lacking = keys[:100] + keys[120:]
    assert reference.match_index_keys(index, SLOTS, ENTRIES, 1, next_entry, lacking, 0)[2:] == (0, [], 1, [6], [])
    assert reference.match_index_keys(index, SLOTS, ENTRIES, 1, next_entry, keys[:20] + keys, 0)[2:4] == (1, [1])


@pytest.mark.parametrize("arguments", [(0, 60, 1), (7, 0, 1), (7, 61, 1), (7, 60, 61), (7, 60, -1)])
def test_numbers_that_an_index_cannot_have_are_refused_by_both_kernels(arguments: tuple[int, int, int]) -> None:
    index = bytes(40 + 4 * SLOTS + 20 * ENTRIES)
    assert require_agreement("check_index", index, *arguments, False)[0] == "ValueError"
    assert require_agreement("first_index_entry", index, *arguments[:2], 0, 0)[0] == "ValueError"


def test_a_survey_reports_times_that_step_back_hosts_without_a_port_and_where_it_stopped() -> None:
    plain = Parts(b"orders", b"body", b"")
    hosts = bytes([10, 0, 0, 1, 0, 1, 0, 0]), bytes(16) + b"\xff\xff\xff\xff"
    parts = [
        plain,
        plain._replace(born_host=hosts[0]),
        plain._replace(store_host=hosts[1], timestamp=plain.timestamp - 9),
    ]
    log = bytearray(stretch_of([*parts, plain], 100))
    size = len(plain.record(0))
    newest = plain.timestamp + 1
    hosts_found = [(size, 0), (2 * size, 1)]
    everything = require_agreement("survey_records", bytes(log), 0, len(log), 100, 1 << 30)[1]
    assert everything == (len(log), 1, 4, newest, newest - 9, newest, False, hosts_found)
    assert require_agreement("survey_records", bytes(log), 0, len(log), 100, size + 1)[1][:3] == (2 * size, 1, 2)
    log[-11] ^= 1  # in the last body
    assert require_agreement("survey_records", bytes(log), 0, len(log), 100, 1 << 30)[1][:3] == (len(log) - size, -6, 3)
