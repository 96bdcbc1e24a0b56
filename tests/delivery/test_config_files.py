"""State files as RocketMQ writes and reads them, whole at every moment."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mqlake.delivery.config_file import ConfigFile, decode, encode
from mqlake.delivery.groups import Group, Groups
from mqlake.delivery.offsets import ConsumerOffsets, DelayOffsets, Subscription
from mqlake.delivery.topics import Permission, Topic, Topics
from mqlake.errors import BadConfigFile, InvalidConfig, UnknownGroup, UnknownTopic
from tests.helpers import covers


def file(folder: Path, name: str = "topics.json") -> ConfigFile:
    folder.mkdir(exist_ok=True)
    return ConfigFile(folder / name, folder / "scratch")


def test_keys_that_are_bare_numbers_are_read_and_written_and_texts_that_look_like_them_are_left_alone() -> None:
    text = b'{"a":{0:6,1:7,\n\t-2:1},"say {1:2} \\" ,3:4":[1,2],"5":"x"}'
    content = decode(text)
    assert content == {"a": {"0": 6, "1": 7, "-2": 1}, 'say {1:2} " ,3:4': [1, 2], "5": "x"}
    assert encode({"a": {0: 6, 18: 7}, "5": {}}) == b'{\n\t"a":{\n\t\t0:6,\n\t\t18:7\n\t},\n\t"5":{}\n}'


def test_the_file_before_is_the_bak(tmp_path: Path) -> None:
    config = file(tmp_path)
    config.save({"n": 1})
    assert decode(config.backup.read_bytes()) == {"n": 1}, "no single bit is the only one"
    assert config.backup.stat().st_ino != config.path.stat().st_ino
    config.save({"n": 2})
    assert decode(config.path.read_bytes()) == {"n": 2}
    assert decode(config.backup.read_bytes()) == {"n": 1}


@covers("P1")
@pytest.mark.parametrize("damage", [b"", b'{"n":', b"\xff\xfe", b"[1]", None])
def test_a_damaged_or_missing_file_is_replaced_by_its_bak_and_it_is_said(
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


def test_when_both_are_damaged_the_error_names_both_and_says_what_to_do(tmp_path: Path) -> None:
    config = file(tmp_path)
    config.path.write_bytes(b"{")
    config.backup.write_bytes(b"")
    with pytest.raises(BadConfigFile, match=r"topics\.json: .*topics\.json\.bak: .*remove it"):
        config.load()


def test_topics_are_what_was_saved_and_unknown_fields_stay(tmp_path: Path) -> None:
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


def test_what_is_noted_is_written_with_the_next_sync(tmp_path: Path) -> None:
    topics = Topics(file(tmp_path))
    assert topics.note(Topic("a", 1, 1)) == Topic("a", 1, 1)
    assert topics.note(Topic("a", 5, 5)) == Topic("a", 1, 1)
    assert not list(Topics(file(tmp_path)))
    topics.sync()
    assert list(Topics(file(tmp_path))) == [Topic("a", 1, 1)]


def test_an_unknown_name_is_an_error_that_shows_names_like_it(tmp_path: Path) -> None:
    topics = Topics(file(tmp_path))
    topics.save(*(Topic(f"topic-{number}") for number in range(20)), Topic("orders"))
    with pytest.raises(UnknownTopic, match=r"'order': not in this store; it has orders, .* and 11 more"):
        topics.get("order")
    groups = Groups(file(tmp_path, "subscriptionGroup.json"))
    with pytest.raises(UnknownGroup, match="'billing': not in this store; it has none"):
        groups.delete("billing")


def test_groups_are_what_was_saved(tmp_path: Path) -> None:
    groups = Groups(file(tmp_path))
    groups.save(Group("billing", max_retry_count=3, ordered=True))
    groups = Groups(file(tmp_path))
    assert list(groups) == [Group("billing", max_retry_count=3, ordered=True)]
    assert file(tmp_path).load()["subscriptionGroupTable"]["billing"]["whichBrokerWhenConsumeSlowly"] == 1


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 121])
def test_a_group_needs_a_name_that_rocketmq_takes(name: str) -> None:
    with pytest.raises(InvalidConfig, match="group"):
        Group(name)


def test_progress_is_in_the_file_after_a_sync(tmp_path: Path) -> None:
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


def test_delay_progress_is_by_level(tmp_path: Path) -> None:
    offsets = DelayOffsets(file(tmp_path))
    offsets.set(DelayOffsets.LEVELS, 3, 9)
    offsets.sync()
    assert b"3:9" in file(tmp_path).path.read_bytes()
    assert DelayOffsets(file(tmp_path)).of(DelayOffsets.LEVELS) == {3: 9}


def test_offsets_that_are_no_numbers_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    config = file(tmp_path)
    config.save({"offsetTable": {"t@g": {"x": 1}}})
    with pytest.raises(BadConfigFile, match="offsetTable"):
        ConsumerOffsets(config)
