"""Config files have RocketMQ's format and are complete at every moment."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake.delivery.registry.config_file import ConfigFile, decode, encode
from mqlake.delivery.registry.filter_table import FilterTable
from mqlake.delivery.registry.groups import Group, Groups
from mqlake.delivery.registry.offsets import ConsumerOffsets, DelayOffsets, Subscription
from mqlake.delivery.registry.topics import Permission, Topic, Topics
from mqlake.errors import BadConfigFile, InvalidConfig, NotWritten, UnknownGroup, UnknownTopic
from tests.helpers import covers


def file(folder: Path, name: str = "topics.json") -> ConfigFile:
    folder.mkdir(exist_ok=True)
    return ConfigFile(folder / name, folder / "scratch")


def test_unquoted_number_keys_are_read_and_written_and_similar_strings_stay_unchanged() -> None:
    text = b'{"a":{0:6,1:7,\n\t-2:1},"say {1:2} \\" ,3:4":[1,2],"5":"x"}'
    content = decode(text)
    assert content == {"a": {"0": 6, "1": 7, "-2": 1}, 'say {1:2} " ,3:4': [1, 2], "5": "x"}
    assert encode({"a": {0: 6, 18: 7}, "5": {}}) == b'{\n\t"a":{\n\t\t0:6,\n\t\t18:7\n\t},\n\t"5":{}\n}'


def test_the_previous_file_is_the_bak(tmp_path: Path) -> None:
    config = file(tmp_path)
    config.save({"n": 1})
    assert decode(config.backup.read_bytes()) == {"n": 1}, "there are two copies from the start"
    assert config.backup.stat().st_ino != config.path.stat().st_ino
    config.save({"n": 2})
    assert decode(config.path.read_bytes()) == {"n": 2}
    assert decode(config.backup.read_bytes()) == {"n": 1}


@covers("P1")
@pytest.mark.parametrize("damage", [b"", b'{"n":', b"\xff\xfe", b"[1]", None])
def test_a_damaged_or_missing_file_is_replaced_by_its_bak_with_a_warning(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    config = file(tmp_path)
    config.save({"n": 1})
    config.save({"n": 2})
    if damage is None:
        config.path.unlink()
    else:
        config.path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert file(tmp_path).load() == {"n": 1}
    assert "topics.json.bak is used" in caplog.text


def test_a_damaged_file_never_becomes_the_bak(tmp_path: Path) -> None:
    config = file(tmp_path)
    config.save({"n": 1})
    config.save({"n": 2})
    config.path.write_bytes(b"{")
    again = file(tmp_path)
    again.load()
    again.save({"n": 3})
    assert decode(again.backup.read_bytes()) == {"n": 1}
    assert decode(again.path.read_bytes()) == {"n": 3}


def test_if_both_files_are_damaged_the_error_names_both_and_the_remedy(tmp_path: Path) -> None:
    config = file(tmp_path)
    config.path.write_bytes(b"{")
    config.backup.write_bytes(b"")
    with pytest.raises(BadConfigFile, match=r"topics\.json: .*topics\.json\.bak: .*remove it"):
        config.load()


def test_topics_are_read_back_as_saved_and_unknown_fields_stay(tmp_path: Path) -> None:
    config = file(tmp_path)
    config.save({"topicConfigTable": {"old": {"topicName": "old", "perm": 4, "attributes": {"a": "b"}}}, "new": 1})
    topics = Topics(file(tmp_path))
    topics.save(Topic("orders", 8, 4), Topic("old", 2, 2, Permission.READ))
    topics = Topics(file(tmp_path))
    assert list(topics) == [Topic("old", 2, 2, Permission.READ), Topic("orders", 8, 4)]
    assert topics.get("old").more["attributes"] == {"a": "b"}
    assert file(tmp_path).load()["new"] == 1
    assert file(tmp_path).load()["dataVersion"]["counter"] == 1
    topics.delete("old")
    assert [topic.name for topic in Topics(file(tmp_path))] == ["orders"]


def test_a_noted_topic_is_written_by_the_next_sync(tmp_path: Path) -> None:
    topics = Topics(file(tmp_path))
    assert topics.note(Topic("a", 1, 1)) == Topic("a", 1, 1)
    assert topics.note(Topic("a", 5, 5)) == Topic("a", 1, 1)
    assert not list(Topics(file(tmp_path)))
    topics.sync()
    assert list(Topics(file(tmp_path))) == [Topic("a", 1, 1)]


def test_the_error_for_an_unknown_name_lists_similar_names(tmp_path: Path) -> None:
    topics = Topics(file(tmp_path))
    topics.save(*(Topic(f"topic-{number}") for number in range(20)), Topic("orders"))
    with pytest.raises(UnknownTopic, match=r"'order': not in this store; it has orders, .* and 11 more"):
        topics.get("order")
    groups = Groups(file(tmp_path, "subscriptionGroup.json"))
    with pytest.raises(UnknownGroup, match="'billing': not in this store; it has none"):
        groups.delete("billing")


def test_groups_are_read_back_as_saved(tmp_path: Path) -> None:
    groups = Groups(file(tmp_path))
    groups.save(Group("billing", max_retry_count=3, ordered=True))
    groups = Groups(file(tmp_path))
    assert list(groups) == [Group("billing", max_retry_count=3, ordered=True)]
    assert file(tmp_path).load()["subscriptionGroupTable"]["billing"]["whichBrokerWhenConsumeSlowly"] == 1


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 121])
def test_a_group_name_must_be_valid_in_rocketmq(name: str) -> None:
    with pytest.raises(InvalidConfig, match="group"):
        Group(name)


def test_sync_writes_progress_to_the_file(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(file(tmp_path))
    offsets.set("a@b@g", 0, 17)
    offsets.set("a@b@g", 11, 4)
    assert ConsumerOffsets(file(tmp_path)).of("a@b@g") == {}
    offsets.sync()
    again = ConsumerOffsets(file(tmp_path))
    assert again.of("a@b@g") == {0: 17, 11: 4} and again.get("a@b@g", 1) is None
    assert list(again.subscriptions()) == [Subscription("a@b", "g")]
    again.delete("a@b@g")
    again.sync()
    assert list(ConsumerOffsets(file(tmp_path)).subscriptions()) == []


def test_delay_progress_is_kept_by_level(tmp_path: Path) -> None:
    offsets = DelayOffsets(file(tmp_path))
    offsets.set(DelayOffsets.LEVELS, 3, 9)
    offsets.sync()
    assert b"3:9" in file(tmp_path).path.read_bytes()
    assert DelayOffsets(file(tmp_path)).of(DelayOffsets.LEVELS) == {3: 9}


def test_an_offset_that_is_not_a_number_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    config = file(tmp_path)
    config.save({"offsetTable": {"t@g": {"x": 1}}})
    with pytest.raises(BadConfigFile, match="offsetTable"):
        ConsumerOffsets(config)


@pytest.mark.parametrize(
    ("table", "name", "text"),
    [
        (Topics, "topics.json", b'{"topicConfigTable":["orders"]}'),
        (Topics, "topics.json", b'{"topicConfigTable":{"orders":{"readQueueNums":"4"}}}'),
        (Topics, "topics.json", b'{"topicConfigTable":{"orders":{"readQueueNums":0}}}'),
        (Groups, "subscriptionGroup.json", b'{"subscriptionGroupTable":{"a b":{}}}'),
        (Groups, "subscriptionGroup.json", b'{"subscriptionGroupTable":{"g":[]}}'),
        (ConsumerOffsets, "consumerOffset.json", b'{"offsetTable":[1]}'),
        (ConsumerOffsets, "of-a-reader.json", b'{"offsetTable":{"orders@g":{0:"x"}}}'),
        (DelayOffsets, "delayOffset.json", b'{"offsetTable":{"x":1}}'),
        (FilterTable, "consumerFilter.json", b'{"filterDataByTopic":{"orders":7}}'),
    ],
)
def test_json_of_a_wrong_type_is_damage_and_the_bak_is_used(
    tmp_path: Path, table: Callable[[ConfigFile], object], name: str, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    config = file(tmp_path, name)
    config.save({})
    config.path.write_bytes(text)
    with caplog.at_level(logging.WARNING):
        table(file(tmp_path, name))
    assert f"{name}.bak is used: {name}: " in caplog.text
    config.backup.write_bytes(text)
    with pytest.raises(BadConfigFile, match="replace it with an intact copy"):
        table(file(tmp_path, name))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_file_that_cannot_be_written_is_named_and_nothing_is_changed(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = Topics(file(tmp_path))
    topics.save(Topic("known"))

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("mqlake.delivery.registry.config_file.replace_file", fail)
        with pytest.raises(NotWritten, match=rf"topics\.json: it cannot be written \({os.strerror(number)}\)"):
            topics.save(Topic("orders"))
        with pytest.raises(NotWritten):
            topics.delete("known")
        assert set(topics.names) == {"known"}
    topics.save(Topic("orders"))
    assert {topic.name for topic in Topics(file(tmp_path))} == {"known", "orders"}


@pytest.mark.parametrize("text", [rb'{"topicConfigTable":{},"x":"\ud800"}', rb'{"\uDFFF":1}', rb'{"x":"\\\udc00"}'])
def test_half_of_a_character_is_damage_because_it_could_not_be_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: bytes
) -> None:
    config = file(tmp_path)
    config.save({"n": 1})
    config.path.write_bytes(text)
    assert config.load() == {"n": 1}
    assert "topics.json.bak is used: topics.json: a text has half of a character" in caplog.text
    config.path.write_bytes(rb'{"x":"\ud83d\ude00 \\ud800"}')
    assert config.load() == {"x": "\N{GRINNING FACE} \\ud800"}, "both halves, and an escaped backslash, are text"


def test_a_text_that_cannot_be_encoded_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(NotWritten, match=r"topics\.json"):
        file(tmp_path).save({"x": "\ud800"})
