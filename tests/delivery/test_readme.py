"""The examples of the README run as they stand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake import MessageStore, StoredMessage

README = Path(__file__).parents[2] / "README.md"


def example(title: str) -> str:
    found = re.search(rf"^## {title}\n.*?^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"the README has no example under {title!r}"
    return found[1]


def test_a_consumer_group_in_ten_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = example("A consumer group in ten lines")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    for left in (10, 10):  # the second run resumes after the messages of the first
        exec(code, {})
        lines = capsys.readouterr().out.splitlines()
        assert sorted(line.split("order ")[1] for line in lines[:-1]) == [f"{number}'" for number in range(90, 100)]
        assert len(lines) == left + 1 and lines[-1] == "0 left"


def test_a_delayed_message_in_ten_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = example("A delayed message in ten lines")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    consumer_of = MessageStore.consumer

    def patient(store: MessageStore, *names: Any, idle_s: float) -> Iterator[StoredMessage]:
        """Wait longer: on a busy machine the delayed message arrives late."""
        consumer = consumer_of(store, *names, idle_s=60)
        for number, message in enumerate(consumer):
            yield message
            if number:
                consumer._idle_s = idle_s

    monkeypatch.setattr(MessageStore, "consumer", patient)
    exec(code, {})
    found = ast.literal_eval(capsys.readouterr().out)
    assert sorted(found) == [b"order placed", b"your cart is waiting"]
