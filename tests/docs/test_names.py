"""What the docs name exists: modules, classes, methods."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "mqlake"
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PATH = re.compile(r"[\w./-]+\.(py|pyx|pxi|h)")
MEMBER = re.compile(r"[A-Z][a-z]\w*(\.\w+)+")
ROCKETMQ = {"FileChannel.write"}


@pytest.fixture(scope="module")
def paths() -> set[str]:
    folders = (ROOT / "src", ROOT / "tests", ROOT / "benchmarks", ROOT / "examples")
    return {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*.*")}


@pytest.fixture(scope="module")
def words() -> set[str]:
    """Every word of the sources."""
    files = (path for path in SOURCE.rglob("*.*") if path.suffix in {".py", ".pyi", ".pyx", ".pxi"})
    return {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def named(page: Path) -> list[str]:
    """Return what a page has in code font, outside of its blocks of code."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_module_and_method_that_a_page_names_exists(page: Path, paths: set[str], words: set[str]) -> None:
    missing = [
        name
        for name in named(page)
        if (PATH.fullmatch(name) and name.islower() and not any(f"/{path}".endswith(f"/{name}") for path in paths))
        or (MEMBER.fullmatch(name) and name not in ROCKETMQ and set(re.findall(r"\w+", name)) - words)
    ]
    assert not missing
