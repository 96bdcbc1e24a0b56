"""The HA stream: any cut of it gives the same bytes, a size costs nothing ahead of its bytes, and noise is an error."""

from __future__ import annotations

import random
import struct

import pytest

from mqlake.errors import BadTransfer, ControllerMode, ReplicationError
from mqlake.replication.frames import (
    MAX_TRANSFER_BYTES,
    ReportReader,
    Transfer,
    TransferReader,
    heartbeat_frame,
    report_frame,
    transfer_header,
)

GIB = 1024**3
LOG = bytes(range(256)) * 64


def stream(at: int = 1000) -> bytes:
    """Return transfers of LOG from `at` on, a heartbeat after each."""
    frames, position, size = [], 0, 1
    while position < len(LOG):
        body = LOG[position : position + size]
        frames += [transfer_header(at + position, len(body)), body, heartbeat_frame(at + position + len(body))]
        position, size = position + len(body), size * 3
    return b"".join(frames)


def joined(transfers: list[Transfer], at: int) -> bytes:
    """Return the bytes of transfers that follow each other from `at` on."""
    found = b""
    for transfer in transfers:
        assert transfer.physical_offset == at + len(found)
        found += transfer.body
    return found


@pytest.mark.parametrize("step", [1, 2, 7, 11, 12, 13, 4096, 10**9])
def test_a_stream_cut_at_any_byte_gives_the_same_log(step: int) -> None:
    data, reader, found = stream(), TransferReader(1000), []
    for start in range(0, len(data), step):
        found += reader.feed(data[start : start + step])
        assert reader.kept_bytes < 12
    assert joined(found, 1000) == LOG
    assert sum(transfer.is_heartbeat for transfer in found) == sum(t.is_heartbeat for t in TransferReader(1).feed(data))
    assert reader.kept_bytes == reader.missing_bytes == 0


def test_a_body_is_handed_out_as_it_arrives_and_never_kept() -> None:
    reader = TransferReader(7)
    assert reader.feed(transfer_header(7, MAX_TRANSFER_BYTES)) == []
    first, second = reader.feed(b"abc") + reader.feed(b"de")
    assert (first.physical_offset, bytes(first.body), first.end_offset) == (7, b"abc", 10)
    assert (second.physical_offset, bytes(second.body)) == (10, b"de")
    assert reader.kept_bytes == 0
    assert reader.missing_bytes == MAX_TRANSFER_BYTES - 5


@pytest.mark.parametrize("size", [-1, -(2**31), MAX_TRANSFER_BYTES + 1, 2**31 - 1])
def test_a_size_that_no_slave_of_rocketmq_could_read_is_refused(size: int) -> None:
    with pytest.raises(BadTransfer, match=f"{size} bytes"):
        TransferReader(0).feed(struct.pack(">qi", 0, size))


@pytest.mark.parametrize("size", [-1, MAX_TRANSFER_BYTES + 1])
def test_a_master_cannot_build_a_transfer_that_no_slave_could_read(size: int) -> None:
    with pytest.raises(ValueError, match="a transfer has 0 to"):
        transfer_header(0, size)


def test_a_negative_offset_is_refused_in_both_directions() -> None:
    with pytest.raises(BadTransfer, match="not negative"):
        TransferReader(0).feed(struct.pack(">qi", -1, 0))
    with pytest.raises(BadTransfer, match="not negative"):
        ReportReader().feed(report_frame(-1))


@pytest.mark.parametrize("step", [1, 3, 8, 9, 100])
def test_reports_come_in_their_order_however_they_are_cut(step: int) -> None:
    offsets = [0, 5, 5, 4 * GIB, 4 * GIB, 4 * GIB + 1, 2**62]
    data, reader = b"".join(map(report_frame, offsets)), ReportReader()
    assert [o for start in range(0, len(data), step) for o in reader.feed(data[start : start + step])] == offsets


@pytest.mark.parametrize(
    "handshake",
    [
        struct.pack(">ihhq", 1, 0, 0, 2),
        struct.pack(">ihhq", 1, 1, 0, 3),
        struct.pack(">ihhq", 1, 0, 1, 1),
        struct.pack(">ihhi50s", 1, 0, 0, 14, b"127.0.0.1:1234"),
    ],
)
def test_a_slave_in_controller_mode_is_refused_by_name(handshake: bytes) -> None:
    with pytest.raises(ControllerMode, match=r"the slave is a broker in controller mode.*enableControllerMode=false"):
        ReportReader().feed(handshake)


def test_a_plain_slave_at_four_gibibytes_is_not_taken_for_one_in_controller_mode() -> None:
    reader = ReportReader()
    assert reader.feed(report_frame(4 * GIB)) == [4 * GIB]
    assert reader.feed(report_frame(4 * GIB + 32768)) == [4 * GIB + 32768]


def test_a_master_in_controller_mode_is_refused_by_name() -> None:
    """It took a report of 4 GiB and more for a handshake, and answers with its state, epochs and end."""
    answer = struct.pack(">iiqi", 1, 24, 5 * GIB, 3) + bytes(24)
    with pytest.raises(ControllerMode, match="the master is a broker in controller mode"):
        TransferReader(4 * GIB + 77).feed(answer)
    assert TransferReader(4 * GIB + 24).feed(transfer_header(4 * GIB + 24, 0))[0].is_heartbeat


def fuzz(count: int, seed: int) -> int:
    """Feed mutated streams in random pieces; return how many were refused. Nothing else may be raised."""
    chance, refused = random.Random(seed), 0
    frames = [transfer_header(100, 5), b"hello", heartbeat_frame(105), transfer_header(105, 3), b"abc"]
    good_transfers, good_reports = b"".join(frames), b"".join(map(report_frame, (0, 100, 4 * GIB, 5 * GIB)))
    for _ in range(count):
        reader: TransferReader | ReportReader
        if chance.random() < 0.5:
            reader, data = TransferReader(chance.choice((0, 100, 4 * GIB))), bytearray(good_transfers)
        else:
            reader, data = ReportReader(), bytearray(good_reports)
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        cut = chance.randrange(len(data))
        try:
            first = reader.feed(bytes(data[:cut]))
            second = reader.feed(bytes(data[cut:]))
        except ReplicationError:
            refused += 1
            continue
        if isinstance(reader, TransferReader):
            assert reader.kept_bytes < 12
            sizes = [len(transfer.body) for transfer in first + second if isinstance(transfer, Transfer)]
            assert sum(sizes) <= len(data)
    return refused


def test_mutated_streams_are_refused_or_read_and_never_crash() -> None:
    refused = fuzz(100_000, seed=1)
    assert 1_000 < refused < 99_000


@pytest.mark.long
def test_a_million_mutated_streams_are_refused_or_read_and_never_crash() -> None:
    refused = fuzz(1_000_000, seed=2)
    assert 10_000 < refused < 990_000
