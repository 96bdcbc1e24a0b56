"""The page about the files on disk is true: its examples in hexadecimal, and the names of our own files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqlake.codec.index_entry import index_file_size
from mqlake.codec.seal_file import BLOCK_BYTES, SealTable
from mqlake.files import positions
from mqlake.files.layout import Layout
from mqlake.kernel import reference
from mqlake.kernel.hosts import pack_host

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
BORN, STORED = 1_700_000_000_000, 1_700_000_000_123


@pytest.fixture(scope="module")
def record() -> bytes:
    """The message of the examples."""
    message = reference.Message(
        "TopicTest",
        b"Hello RocketMQ",
        keys=["order-1001", "vip"],
        tags="TagA",
        born_timestamp=BORN,
        born_host="192.168.0.10:50001",
    )
    return bytes(reference.encode_record(message, 1, 0, 0, STORED, pack_host("10.0.0.1:10911"), False))


def example(first: str) -> list[str]:
    """Return the lines of the block that begins with these digits, without the remarks."""
    blocks = [block for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) if block.startswith(first)]
    assert len(blocks) == 1, first
    return [re.split(r"\s{3,}(?=\S)", line.strip())[0] for line in blocks[0].splitlines()]


def test_the_record_of_the_example_is_what_the_reference_writes(record: bytes) -> None:
    lines = [re.sub(r"[^0-9a-f ].*", "", line) for line in example("00000090 daa320a7")]
    assert bytes.fromhex("".join(lines)) == record


def test_the_queue_entry_of_the_example_is_what_dispatch_writes(record: bytes) -> None:
    runs = reference.dispatch_records(record, 0, len(record), 0, len(record), (1_000,), False, False)[2]
    assert [run[3] for run in runs] == [bytes.fromhex(example("0000000000000000 00000090")[0])]


def test_the_index_file_of_the_example_is_what_dispatch_writes(record: bytes) -> None:
    keys = reference.dispatch_records(record, 0, len(record), 0, len(record), (1_000,), True, True)[3]
    made = bytearray(index_file_size(100, 400))
    reference.put_index_keys(made, 100, 400, keys, 0)
    expected = bytearray(len(made))
    for line in example("0: 0000018bcfe5687b"):
        at, digits = line.split(": ")
        content = bytes.fromhex(digits)
        expected[int(at) : int(at) + len(content)] = content
    assert made == expected


def test_the_seal_file_of_the_example_is_what_closing_writes(record: bytes) -> None:
    sums = reference.checksum_blocks(record, 0, len(record), BLOCK_BYTES)
    table = SealTable(0, 1 << 30, STORED, len(record), b"\1", sums)
    assert bytes.fromhex("".join(example("4d515345414c5331"))) == table.encode()


def test_every_file_and_folder_of_our_own_is_described() -> None:
    layout = Layout(Path("store"))
    own = {path.name for path in vars(layout).values() if path.parent == layout.own} | {"backup"}
    described = set(re.findall(r"`([\w.-]+)/?`", " ".join(re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE))))
    assert own <= described, own - described


def test_every_word_of_the_positions_is_described_at_its_place() -> None:
    rows = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", PAGE.split("The words of `positions`")[1], re.MULTILINE)
    names = [
        "format",
        "writer",
        "appended",
        "durable",
        "dispatched",
        "generation",
        "first",
        "next-cleaning",
        "deletions",
    ]
    assert [(int(at), name.replace(" ", "-")) for at, name in rows[: len(names)]] == [
        (8 * word, name) for word, name in enumerate(names)
    ]
    assert len(names) - 1 == positions.DELETIONS
