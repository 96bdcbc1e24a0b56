"""Every capability of sections A to P has a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
LIST = TESTS.parent / "docs" / "capabilities.md"


def listed() -> set[str]:
    return set(re.findall(r"^\| ([A-P]\d+) \|", LIST.read_text(encoding="utf-8"), re.MULTILINE))


def covered() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("covers"):
                        for argument in decorator.args:
                            found.setdefault(ast.literal_eval(argument), []).append(node.name)
    return found


def test_every_listed_capability_is_covered_by_a_test() -> None:
    assert len(listed()) > 90
    missing = sorted(listed() - covered().keys(), key=lambda name: (name[0], int(name[1:])))
    assert not missing, f"no test covers {', '.join(missing)}"
