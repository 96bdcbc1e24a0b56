"""`mqlake put`."""

from __future__ import annotations

import pytest

from mqlake import MessageStore, StoreConfig
from tests.cli.conftest import Cli


def bodies(cli: Cli, topic: str, queue_id: int = 0) -> list[bytes]:
    with MessageStore.open(cli.store, read_only=True) as store:
        return [message.body for message in store.read(topic, queue_id=queue_id)]


def test_put_stores_its_argument_as_one_message(cli: Cli) -> None:
    shown = cli.ok("put", cli.store, "orders", "hello", "--config", cli.config)
    assert bodies(cli, "orders") == [b"hello"]
    assert shown.startswith("orders queue 0 offset 0 physical 0 7F000001")


def test_put_stores_every_line_of_standard_input_as_a_message(cli: Cli) -> None:
    cli.ok("put", cli.store, "orders", "--queue", 0, "--config", cli.config, input="one\r\ntwo\n\nfour")
    assert bodies(cli, "orders") == [b"one", b"two", b"", b"four"]
    cli.ok("put", cli.store, "orders", "-", "--queue", 0, input=b"\xff\n")
    assert bodies(cli, "orders")[-1] == b"\xff"


def test_put_stores_a_file_byte_for_byte(cli: Cli) -> None:
    content = bytes(range(256)) + b"\n"
    (cli.folder / "body.bin").write_bytes(content)
    cli.ok("put", cli.store, "orders", "--file", cli.folder / "body.bin", "--config", cli.config)
    assert bodies(cli, "orders") == [content]


def test_put_sets_the_messages_tags_keys_properties_flag_and_queue(cli: Cli) -> None:
    options = [
        "--tags",
        "created",
        "--key",
        "a",
        "--key",
        "b",
        "--property",
        "city=Köln=1",
        "--flag",
        "7",
        "--queue",
        "3",
    ]
    (receipt,) = cli.json("put", cli.store, "orders", "x", *options, "--config", cli.config)
    with MessageStore.open(cli.store, read_only=True) as store:
        (message,) = store.read("orders", queue_id=3)
    assert (message.tags, message.keys, message.flag) == ("created", ["a", "b"], 7)
    assert message.properties["city"] == "Köln=1"
    assert receipt["queueId"] == 3
    assert receipt["msgId"] == message.message_id


def test_put_with_sync_reports_that_the_message_is_on_disk(cli: Cli) -> None:
    (receipt,) = cli.json("put", cli.store, "orders", "x", "--sync", "--config", cli.config)
    assert receipt["durability"] == "DISK"


def test_put_makes_files_of_the_configured_sizes(cli: Cli) -> None:
    cli.ok("put", cli.store, "orders", "x", "--config", cli.config)
    log_size = StoreConfig.load(cli.config).commit_log.file_size_bytes
    assert [file.stat().st_size for file in (cli.store / "commitlog").iterdir()] == [log_size]


def test_put_with_a_wrong_command_line_creates_no_store(cli: Cli) -> None:
    (cli.folder / "f").write_bytes(b"x")
    for wrong in (["x", "--property", "novalue"], ["x", "--file", cli.folder / "f"], ["x", "--queue", "-1"]):
        result = cli.run("put", cli.store, "orders", *wrong, "--config", cli.config)
        assert result.exit_code == 2
        assert "expected" in result.stderr or "range" in result.stderr
    assert not cli.store.exists()


def test_put_of_a_message_that_cannot_be_stored_says_what_was_expected(cli: Cli) -> None:
    result = cli.run("put", cli.store, "bad topic!", "x", "--config", cli.config)
    assert result.exit_code == 3
    assert result.stderr.startswith("mqlake: InvalidMessage: ")
    assert "expected" in result.stderr


@pytest.mark.parametrize("option", ["-K", "-H"])
def test_an_empty_separator_is_a_wrong_command_line(cli: Cli, option: str) -> None:
    result = cli.run("put", cli.store, "orders", option, "", input="line\n")
    assert result.exit_code == 2 and f"Invalid value for '{option}': it is empty" in result.stderr
    assert not cli.store.exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("two", "line 2: found two; expected ';' in every line (-H)"),
        ("city;two", "line 2: found city; expected NAME=VALUE"),
        ("city=\x01;two", "line 2: properties"),
    ],
)
def test_a_line_that_cannot_be_put_is_named_and_those_before_it_stay(cli: Cli, line: str, expected: str) -> None:
    options = ["-H", ";", "--queue", 0, "--config", cli.config]
    result = cli.run("put", cli.store, "orders", *options, input=f"city=Ulm;one\n{line}\n")
    assert result.exit_code == 3
    assert f"InvalidMessage: {expected}" in result.stderr
    assert bodies(cli, "orders") == [b"one"]
