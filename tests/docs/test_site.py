"""The site holds together: links lead somewhere, pictures are up to date, and mkdocs has nothing to complain about."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "scripts" / "pictures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors_of(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    slugs = (re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in HEADING.findall(text))
    return {re.sub(r"[-\s]+", "-", slug) for slug in slugs} | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        assert not anchor or anchor in anchors_of(path), link


def test_the_pictures_are_what_their_program_draws(pictures: ModuleType) -> None:
    """After a change of a figure in a table: python scripts/pictures.py."""
    folder = DOCS / "pictures"
    assert {path.stem for path in folder.iterdir()} == set(pictures.PICTURES)
    for name, draw in pictures.PICTURES.items():
        drawn = draw()
        xml.dom.minidom.parseString(drawn)
        assert (folder / f"{name}.svg").read_text(encoding="utf-8") == drawn, name


@pytest.mark.long
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link)[^>]*?(?:src|href)=\"?(https?:[^\" >]+)", page.read_text("utf-8"))
        assert not loaded, page
