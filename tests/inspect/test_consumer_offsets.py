"""Consumer offsets are read as RocketMQ's broker writes them."""

from __future__ import annotations

from pathlib import Path

from mqlake.files.layout import Layout
from mqlake.inspect.consumer_offsets import consumer_offsets

WRITTEN = """{
\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},
\t"groupTopicMap":{"group_a":["TopicTest"]},
\t"offsetTable":{
\t\t"TopicTest@group_a":{0:250,1:251
\t\t},
\t\t"%RETRY%group_a@group_a":{0:7}
\t}
}"""


def write(root: Path, text: str, name: str = "consumerOffset.json") -> Layout:
    layout = Layout(root)
    layout.config.mkdir(exist_ok=True)
    (layout.config / name).write_text(text)
    return layout


def test_offsets_are_read_as_the_broker_writes_them(tmp_path: Path) -> None:
    assert consumer_offsets(write(tmp_path, WRITTEN)) == [
        ("group_a", "%RETRY%group_a", 0, 7),
        ("group_a", "TopicTest", 0, 250),
        ("group_a", "TopicTest", 1, 251),
    ]


def test_a_broken_or_missing_file_is_replaced_by_the_previous_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert consumer_offsets(layout) == []
    write(tmp_path, WRITTEN, "consumerOffset.json.bak")
    assert len(consumer_offsets(layout)) == 3
    assert len(consumer_offsets(write(tmp_path, WRITTEN[:40]))) == 3


def test_invalid_entries_are_ignored(tmp_path: Path) -> None:
    odd = '{"offsetTable":{"nogroup":{0:1},"t@g":{"x":1,"1":-5,"2":"a","3":9},"t@h":[1]}}'
    assert consumer_offsets(write(tmp_path, odd)) == [("g", "t", 3, 9)]
