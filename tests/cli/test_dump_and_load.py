"""`mqlake dump` and `mqlake load`: what the one writes, the other reads."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import pytest

from mqlake import MessageStore
from tests.cli.conftest import Cli
from tests.golden.stores import GoldenStore

OF_THE_LOG = {"physicalOffset", "storeSize", "storeTimestamp", "storeHost", "msgId", "recordSha1"}
"""What a message gets from the store that holds it."""
STORE_HOST_IPV6 = 0x20


def dumped(text: str, *kinds: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, text.splitlines()) if line["kind"] in kinds]


def messages(text: str) -> list[dict[str, Any]]:
    """Return the messages of a dump, without the fields that their store set."""
    found = []
    for line in dumped(text, "message"):
        line["sysFlag"] &= ~STORE_HOST_IPV6
        line["properties"].pop("__CRC32#", None)  # the record's CRC, which also covers its offset in the log
        found.append({name: value for name, value in line.items() if name not in OF_THE_LOG})
    return found


# ---- dump


@pytest.mark.parametrize(
    "name", ["v4-basic", "v5-mixed", "v5-lmq", "v5-inner-batch", "v4-retention", "v5-crash-torn-tail"]
)
def test_dump_of_a_store_that_rocketmq_wrote_is_what_rocketmq_reads_from_it(cli: Cli, name: str) -> None:
    golden = GoldenStore(name, cli.folder)
    shown = cli.ok("dump", golden.path, "--walk", "--keys", "--config", golden.properties_file)
    assert dumped(shown, "message") == golden.expected("message")
    assert dumped(shown, "record", "blank", "end") == golden.expected("record", "blank", "end")
    assert _answers(dumped(shown, "key")) == _answers(golden.expected("key"))
    assert dumped(shown, "store")[0]["settings"] == golden.properties


def _answers(lines: list[dict[str, Any]]) -> dict[tuple[str, str], set[int]]:
    return {(line["topic"], line["key"]): set(line["offsets"]) for line in lines}


def test_dump_writes_ascii_and_only_what_was_requested(orders: Cli) -> None:
    orders.ok("put", orders.store, "orders", "x", "--property", "city=Köln")
    plain = orders.ok("dump", orders.store)
    assert plain.isascii()
    assert {line["kind"] for line in map(json.loads, plain.splitlines())} == {"store", "message"}
    everything = orders.ok("dump", orders.store, "--walk", "--keys", "--tags")
    kinds = {line["kind"] for line in map(json.loads, everything.splitlines())}
    assert kinds == {"store", "message", "record", "end", "key", "tag"}


def test_dump_to_a_file_writes_what_it_writes_to_standard_output(orders: Cli) -> None:
    out = orders.folder / "dump.jsonl"
    result = orders.run("dump", orders.store, "--walk", "--out", out)
    assert result.exit_code == 0, result.output
    assert out.read_text() == orders.ok("dump", orders.store, "--walk")
    assert "7 messages" in result.stderr


# ---- round trips


@pytest.mark.parametrize("name", ["v4-basic", "v5-ipv6", "v5-compressed", "v5-index", "v5-prop-crc", "v5-long-topic"])
def test_loading_and_dumping_again_gives_the_same_messages(cli: Cli, name: str) -> None:
    golden = GoldenStore(name, cli.folder)
    first = cli.ok("dump", golden.path, "--walk", "--keys", "--config", golden.properties_file)
    cli.ok("load", cli.store, "--from", "-", "--config", golden.properties_file, input=first)
    second = cli.ok("dump", cli.store, "--config", golden.properties_file)
    assert messages(second) == messages(first)


def test_a_message_in_light_queues_is_loaded_once_and_reaches_them_all(cli: Cli) -> None:
    golden = GoldenStore("v5-lmq", cli.folder)
    first = cli.ok("dump", golden.path, "--config", golden.properties_file)
    cli.ok("load", cli.store, "--from", "-", "--config", golden.properties_file, input=first)
    second = cli.ok("dump", cli.store, "--config", golden.properties_file)
    assert _by_queue(second) == _by_queue(first)


def _by_queue(text: str) -> list[tuple[str, int, str]]:
    """Light queues take from several queues, which a dump holds one after the other: their own order is lost."""
    return sorted((line["cqTopic"], line["cqQueueId"], line["body"]) for line in dumped(text, "message"))


def test_what_read_gives_as_json_can_be_loaded(orders: Cli) -> None:
    lines = orders.ok("read", orders.store, "orders", "--json")
    copy = orders.folder / "copy"
    orders.ok("load", copy, "--from", "-", "--config", orders.config, input=lines)
    assert [line["body"] for line in orders.json("read", copy, "orders")] == [
        line["body"] for line in orders.json("read", orders.store, "orders")
    ]


# ---- load


def load(cli: Cli, *lines: object) -> dict[str, Any]:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (answer,) = cli.json("load", cli.store, "--from", "-", "--config", cli.config, input=text)
    return answer


def test_load_takes_every_field_of_a_message(cli: Cli) -> None:
    line = {
        "topic": "orders",
        "queueId": 2,
        "body": "/wA=",
        "tags": "created",
        "keys": ["a", "b"],
        "flag": -7,
        "sysFlag": 8,
        "properties": {"city": "Köln"},
        "bornTimestamp": 1234567890123,
        "bornHost": "[2001:db8::1]:99",
    }
    assert load(cli, line) == {"messageCount": 1, "skippedCount": 0}
    with MessageStore.open(cli.store, read_only=True) as store:
        (message,) = store.read("orders", queue_id=2)
    assert message.body == b"\xff\x00"
    assert (message.tags, message.keys, message.properties["city"]) == ("created", ["a", "b"], "Köln")
    assert (message.flag, message.sys_flag & 8, message.born_timestamp) == (-7, 8, 1234567890123)
    assert message.born_host == "[2001:db8::1]:99"


def test_load_needs_nothing_but_a_topic(cli: Cli) -> None:
    load(cli, {"topic": "orders"}, {"topic": "orders", "text": "größe", "keys": "a b", "queueId": 0})
    with MessageStore.open(cli.store, read_only=True) as store:
        first, second = store.read("orders")
    assert first.body == b""
    assert second.body == "größe".encode()
    assert second.keys == ["a", "b"]


def test_load_skips_empty_lines_and_lines_of_other_kinds(cli: Cli) -> None:
    answer = load(
        cli, {"kind": "store"}, "", {"topic": "orders"}, {"kind": "record", "topic": "orders"}, {"kind": "end"}
    )
    assert answer == {"messageCount": 1, "skippedCount": 4}


def test_load_keeps_the_order_of_lines_in_every_queue(cli: Cli) -> None:
    load(cli, *({"topic": "orders", "text": str(n), "queueId": n % 3, "sysFlag": 8 * (n % 7 == 0)} for n in range(900)))
    for queue_id in range(3):
        read = cli.json("read", cli.store, "orders", "--queue", queue_id, "--limit", 1000)
        assert [int(line["text"]) for line in read] == list(range(queue_id, 900, 3))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 3: found Expecting property name"),
        ("[1]", "line 3: found a JSON list; expected a JSON object"),
        ({"text": "x"}, "line 3: found the fields text; expected a field topic"),
        ({"topic": 5}, "line 3: topic: found 5; expected a string"),
        ({"topic": "t", "queueId": "0"}, "line 3: queueId: found '0'; expected a number in [0, 2147483647]"),
        ({"topic": "t", "flag": 2**31}, "line 3: flag: found 2147483648; expected a number in"),
        ({"topic": "t", "body": "no base64!"}, "line 3: body: found 'no base64!'; expected base64"),
        ({"topic": "t", "tag": "x"}, "line 3: tag: found a field of that name; expected one of"),
        ({"topic": "t", "keys": [1]}, "line 3: keys: found [1]; expected a string or a list of strings"),
        ({"topic": "t", "keys": ["a b"]}, "line 3: keys: found 'a b'; expected"),
        ({"topic": "t", "properties": {"a": 1}}, "line 3: properties: found {'a': 1}; expected"),
        ({"topic": "t", "bornHost": "here"}, "line 3: "),
        ({"topic": "bad topic!"}, "line 3: topic: found"),
    ],
)
def test_load_stops_at_a_bad_line_names_its_number_and_keeps_the_lines_before_it(
    cli: Cli, line: object, complaint: str
) -> None:
    file = cli.folder / "lines.jsonl"
    bad = line if isinstance(line, str) else json.dumps(line)
    good = json.dumps({"topic": "orders", "text": "good", "queueId": 0})
    file.write_text(f"{good}\n{good}\n{bad}\n{good}\n")
    result = cli.run("load", cli.store, "--from", file, "--config", cli.config)
    assert result.exit_code == 3
    assert f"InvalidMessage: {file}, {complaint}" in result.stderr
    assert len(cli.json("read", cli.store, "orders")) == 2


def test_load_from_a_missing_file_creates_no_store(cli: Cli) -> None:
    result = cli.run("load", cli.store, "--from", cli.folder / "nix.jsonl", "--config", cli.config)
    assert result.exit_code == 3
    assert "nix.jsonl" in result.stderr
    assert not cli.store.exists()


def test_a_load_of_nothing_makes_no_store(cli: Cli) -> None:
    assert cli.ok("load", cli.store, "--from", "-", input="").startswith("0 messages stored")
    assert not cli.store.exists()


def test_a_link_given_as_output_file_is_followed(orders: Cli) -> None:
    link = orders.folder / "link"
    link.symlink_to("target")
    for _ in range(2):  # the target is missing first, then it is replaced
        orders.ok("dump", orders.store, "--out", link)
    assert link.is_symlink()
    assert (orders.folder / "target").read_text() == orders.ok("dump", orders.store)


def test_a_link_to_itself_is_no_output_file_and_stays(orders: Cli) -> None:
    link, other = orders.folder / "link", orders.folder / "other"
    link.symlink_to(other)
    other.symlink_to(link)
    result = orders.run("dump", orders.store, "--out", link)
    assert result.exit_code == 2 and "a link that leads back to itself" in result.stderr
    assert link.is_symlink() and other.is_symlink()


def test_the_size_of_what_a_pipe_got_is_not_told(orders: Cli) -> None:
    pipe = orders.folder / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=pipe.read_bytes)
    reader.start()
    assert orders.ok("report", orders.store, "--out", pipe) == f"{pipe}\n"
    reader.join()


def test_a_pipe_given_as_output_file_is_written_and_stays(orders: Cli) -> None:
    pipe = orders.folder / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # a pipe holds 64 KiB: nobody need read meanwhile
    orders.ok("dump", orders.store, "--out", pipe)
    with os.fdopen(reader) as file:
        assert file.read() == orders.ok("dump", orders.store)
    assert pipe.is_fifo()
