"""The examples of the README run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    for left in (10, 10):  # the second time the group goes on behind the first
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
    exec(code, {})
    assert capsys.readouterr().out == "[b'order placed', b'your cart is waiting']\n"
