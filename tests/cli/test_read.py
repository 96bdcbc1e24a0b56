"""`mqlake read`, `get`, `find`, `topics`."""

from __future__ import annotations

import json
import threading
import time

import pytest

from mqlake import CommitLogConfig, Message, MessageStore
from tests.cli.conftest import Cli


def texts(lines: list[dict[str, object]]) -> list[object]:
    return [line["text"] for line in lines]


def test_read_shows_a_queue_from_its_first_message_on(orders: Cli) -> None:
    shown = orders.ok("read", orders.store, "orders", "--queue", 1)
    lines = shown.splitlines()
    assert lines[0].split() == ["queue", "offset", "physical", "stored", "tags", "keys", "body"]
    assert [line.split()[-2:] for line in lines[1:]] == [["order", "1"], ["order", "3"], ["order", "5"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--start", "1"], ["order 2", "order 4"]),
        (["--start", "last"], ["order 4"]),
        (["--start", "end"], []),
        (["--limit", "2"], ["order 0", "order 2"]),
    ],
)
def test_read_begins_and_ends_where_its_options_say(orders: Cli, options: list[str], expected: list[str]) -> None:
    assert texts(orders.json("read", orders.store, "orders", *options)) == expected


def test_read_since_begins_with_the_first_message_stored_at_or_after_that_time(orders: Cli) -> None:
    times = [line["storeTimestamp"] for line in orders.json("read", orders.store, "orders")]
    expected = [time for time in times if time >= times[1]]
    assert len(orders.json("read", orders.store, "orders", "--since", times[1])) == len(expected)
    assert orders.json("read", orders.store, "orders", "--since", "2999-01-01") == []
    assert len(orders.json("read", orders.store, "orders", "--since", "1h")) == 3


def test_read_with_wait_returns_what_another_process_writes_meanwhile(orders: Cli) -> None:
    reader = orders.process("read", orders.store, "orders", "--start", "end", "--wait", 20, "--json")
    with orders.open() as store:
        end = time.monotonic() + 20
        while reader.poll() is None and time.monotonic() < end:
            store.put(Message("orders", b"late", queue_id=0))
            time.sleep(0.1)
    lines = reader.communicate(timeout=20)[0].splitlines()
    assert reader.returncode == 0
    assert {json.loads(line)["text"] for line in lines} == {"late"}


def test_read_outside_a_queue_names_both_of_its_ends(orders: Cli) -> None:
    result = orders.run("read", orders.store, "orders", "--start", 99)
    assert result.exit_code == 3
    assert "OffsetOutOfRange: orders, queue 0: offset 99 is outside of [0, 3)" in result.stderr


def test_read_of_an_unknown_topic_or_queue_lists_the_existing_ones(orders: Cli) -> None:
    for arguments, known in ((["nix"], "clicks, orders"), (["orders", "--queue", 9], "queues 0, 1")):
        result = orders.run("read", orders.store, *arguments)
        assert result.exit_code == 3
        assert known in result.stderr


def test_a_body_cannot_move_the_cursor(cli: Cli) -> None:
    cli.put(Message("orders", b"\x1b[2J\r\nbell\x07", tags="t\x1b", keys=["k\x1b"]))
    for command in (["read", cli.store, "orders"], ["tail", cli.store, "orders"], ["get", cli.store, "0"]):
        shown = cli.ok(*command)
        assert "\x1b" not in shown
        assert "\\x1b[2J\\r\\nbell\\x07" in shown


def test_a_binary_body_is_shown_in_hexadecimal(orders: Cli) -> None:
    assert "0xfffe00" in orders.ok("read", orders.store, "clicks")
    (line,) = orders.json("read", orders.store, "clicks")
    assert "text" not in line
    assert line["body"] == "//4A"


def test_get_finds_a_message_by_physical_offset_and_by_id(orders: Cli) -> None:
    first, second = orders.json("read", orders.store, "orders", "--limit", 2)
    for place in (second["physicalOffset"], second["msgId"], second["msgId"].lower()):
        assert orders.json("get", orders.store, place) == [second]
    assert "order 0" in orders.ok("get", orders.store, first["msgId"])


def test_get_treats_an_id_without_letters_as_an_id(cli: Cli) -> None:
    """32 digits could be a physical offset, if they were not far too large for one."""
    host = CommitLogConfig(file_size_bytes=1 << 20, store_host="16.16.16.16:4112")
    with MessageStore.open(cli.store, commit_log=host) as store:
        message_id = store.put(Message("orders", b"x")).message_id
    assert message_id.isdecimal()
    assert cli.json("get", cli.store, message_id)[0]["msgId"] == message_id


def test_get_raw_writes_the_body_and_nothing_else(orders: Cli) -> None:
    (click,) = orders.json("read", orders.store, "clicks")
    result = orders.run("get", orders.store, click["physicalOffset"], "--raw")
    assert result.stdout_bytes == b"\xff\xfe\x00"


def test_get_shows_a_body_that_cannot_be_decompressed_and_refuses_to_write_it(cli: Cli) -> None:
    cli.put(Message("orders", b"not zlib", sys_flag=1))
    assert "not zlib" in cli.ok("get", cli.store, 0)
    result = cli.run("get", cli.store, 0, "--raw")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "expected a body that can be decompressed" in result.stderr


def test_get_exits_with_1_if_there_is_no_message(orders: Cli) -> None:
    for place in ("1", "99999999", "0" * 32):
        result = orders.run("get", orders.store, place)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("mqlake: ")


def test_get_of_something_that_is_no_offset_or_id_is_a_wrong_command_line(orders: Cli) -> None:
    result = orders.run("get", orders.store, "xyz")
    assert result.exit_code == 2
    assert "'xyz'; expected a physical offset, or a message id" in result.stderr


def test_find_finds_messages_by_key_and_by_tag(orders: Cli) -> None:
    assert texts(orders.json("find", orders.store, "orders", "o3")) == ["order 3"]
    assert texts(orders.json("find", orders.store, "orders", "all")) == [f"order {n}" for n in range(6)]
    assert texts(orders.json("find", orders.store, "orders", "all", "--limit", 2)) == ["order 4", "order 5"]
    assert texts(orders.json("find", orders.store, "orders", "paid", "--tag")) == ["order 1", "order 3", "order 5"]


def test_find_respects_its_time_range(orders: Cli) -> None:
    found = orders.json("find", orders.store, "orders", "all")
    middle = found[3]["storeTimestamp"]
    expected = [line for line in found if line["storeTimestamp"] >= middle]
    assert orders.json("find", orders.store, "orders", "all", "--since", middle) == expected
    assert orders.run("find", orders.store, "orders", "all", "--until", "2001-01-01T00:00:00Z").exit_code == 1


def test_find_exits_with_1_if_it_finds_nothing(orders: Cli) -> None:
    result = orders.run("find", orders.store, "orders", "nix", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "no message of topic 'orders' with key 'nix'" in result.stderr


def test_an_invalid_time_is_an_error_that_says_how_to_write_one(orders: Cli) -> None:
    result = orders.run("find", orders.store, "orders", "all", "--since", "yesterday")
    assert result.exit_code == 2
    assert "'yesterday'; expected 2026-03-01T12:00:00" in result.stderr


def test_topics_lists_every_queue_with_its_range(orders: Cli) -> None:
    assert orders.json("topics", orders.store) == [
        {"topic": "clicks", "queueId": 0, "firstOffset": 0, "endOffset": 1, "messageCount": 1},
        {"topic": "orders", "queueId": 0, "firstOffset": 0, "endOffset": 3, "messageCount": 3},
        {"topic": "orders", "queueId": 1, "firstOffset": 0, "endOffset": 3, "messageCount": 3},
    ]
    assert orders.ok("topics", orders.store).split()[:5] == ["topic", "queue", "first", "end", "messages"]


def test_reading_commands_work_while_a_process_writes(orders: Cli) -> None:
    stop = threading.Event()
    with orders.open() as store:
        writer = threading.Thread(target=lambda: [store.put(Message("orders", b"x")) for _ in iter(stop.is_set, True)])
        writer.start()
        try:
            for command in (
                ["topics"],
                ["info"],
                ["read", "orders"],
                ["tail", "orders"],
                ["find", "orders", "o1"],
                ["get", "0"],
            ):
                process = orders.process(command[0], orders.store, *command[1:])
                process.communicate(timeout=30)
                assert process.returncode == 0
        finally:
            stop.set()
            writer.join()
