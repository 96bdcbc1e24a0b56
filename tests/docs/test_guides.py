"""Every program and every command of the guides does what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Session, blocks_of, matches

DOCS = ROOT / "docs"
PAGES = [DOCS / "start.md", *sorted((DOCS / "guides").glob("*.md")), *sorted((DOCS / "operations").glob("*.md"))]


def run(page: Path, folder: Path, *, long: bool) -> None:
    session = Session(folder, timeout_s=500 if long else 110)
    try:
        for block in blocks_of(page.read_text(encoding="utf-8")):
            if long or not block.long:
                session.run(block)
    finally:
        session.close()


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).with_suffix("").as_posix()


@pytest.mark.timeout(300)  # a dozen programs one after the other, on a machine that may be busy
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_blocks_of_a_page_run_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path / "reader", long=False)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.long for block in blocks_of(page.read_text("utf-8")))], ids=name_of
)
def test_the_blocks_of_a_page_run_those_on_spark_included(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path / "reader", long=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_program_that_a_page_saves_is_run_by_a_later_command(page: Path) -> None:
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    for index, block in enumerate(blocks):
        later = "".join(each.text for each in blocks[index + 1 :] if each.language == "console")
        assert not block.title or block.title in later


def test_a_page_that_says_something_else_than_a_command_prints_is_noticed(tmp_path: Path) -> None:
    page = "```console\n$ echo one; echo two\none\n…\nthree\n```\n"
    session = Session(tmp_path / "reader")
    (block,) = blocks_of(page)
    with pytest.raises(AssertionError, match="printed"):
        session.run(block)
    assert matches("one\n…o\n", "one  \n\ntwo\n")
