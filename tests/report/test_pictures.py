"""The report page as a browser shows it: light and dark, on a phone and on a wide screen, for real stores."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mqlake.cli.main import mqlake
from mqlake.report import render
from mqlake.report.data import Step
from tests.report.chromium import Chromium, Scheme, find_chromium
from tests.report.samples import NOW, busy, hostile, one_message
from tests.report.stores import STORES, TOPIC_COUNT

PROGRAM = find_chromium()
WIDTHS = (400, 1_400)
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
PAGES = [*STORES, "busy", "hostile"]
MOST_BYTES = 1_000_000
BACKGROUNDS = {"light": (244, 246, 248), "dark": (15, 20, 24)}

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: the report page is not looked at"),
    pytest.mark.xdist_group("chromium"),
]

UNREADABLE = """(() => {
  const linear = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const below = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length == 3 || colour[3] > 0) return colour;
    }
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some(node => node.nodeType == 3 && node.textContent.trim());
    if (!own || element.closest("svg")) continue;
    const pair = [parts(getComputedStyle(element).color), below(element)].map(light).sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) found.push([element.className, element.textContent.slice(0, 40), contrast]);
  }
  return found;
})()"""
"""Texts with less contrast than WCAG's AA asks for."""
OVERLAPPING = """(() => {
  const found = [];
  for (const axis of document.querySelectorAll(".x, .y")) {
    const labels = [...axis.children].map(label => [label, label.getBoundingClientRect()]);
    const boxes = labels.filter(([, box]) => box.width);
    for (const [one, a] of boxes) for (const [other, b] of boxes)
      if (one !== other && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
        found.push([one.textContent, other.textContent]);
  }
  return found;
})()"""
"""Labels of an axis that lie on each other."""
CLIPPED = """[...document.body.querySelectorAll("*")].filter(element =>
  element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX == "hidden"
  && !element.title && !element.closest("[title]")).map(element => element.outerHTML.slice(0, 80))"""
"""Texts that are cut off and have no tooltip with the rest."""
OUTSIDE = """[...document.querySelectorAll("section *, .banner *, .tile *")].filter(element => {
  const box = element.getBoundingClientRect();
  return box.width && !element.closest(".scroll") && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map(element => element.outerHTML.slice(0, 80))"""
"""What sticks out of the window, without what scrolls in its own box."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in PAGES}
    for name, make in STORES.items():
        make(folder / name)
        result = CliRunner().invoke(mqlake, ["report", str(folder / name), "--out", str(found[name])])
        assert result.exit_code == 0, result.output
    found["busy"].write_text(render(busy()))
    found["hostile"].write_text(render(hostile()))
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM) as found:
        yield found


def pixels(picture: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_nothing_sticks_out_overlaps_or_is_cut_off(
    browser: Chromium, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.open(pages[name], width=width, scheme="light")
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(OUTSIDE) == []
    assert browser.ask(OVERLAPPING) == []
    assert browser.ask(CLIPPED) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_labels_of_any_length_of_time_have_room(browser: Chromium, tmp_path: Path, width: int) -> None:
    for span in (1, 30, 59, 700, 6_000, 59_000, 300_000, 7_100_000, 86_399_000, 86_400_000 * 6, 86_400_000 * 900):
        steps = [Step(NOW + at, 1_000_000_000, 1 << 40) for at in (0, span // 2, span)]
        page = tmp_path / f"{span}.html"
        page.write_text(render(replace(one_message(), steps=steps, step_ms=1)))
        browser.open(page, width=width, scheme="light")
        assert browser.ask("document.documentElement.scrollWidth") <= width
        assert browser.ask(OVERLAPPING) == [] and browser.ask(OUTSIDE) == [], span


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["empty", "damaged", "busy"])
def test_every_text_has_the_contrast_that_readers_need(
    browser: Chromium, pages: dict[str, Path], name: str, scheme: Scheme
) -> None:
    browser.open(pages[name], width=1_400, scheme=scheme)
    assert browser.ask(UNREADABLE) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_pictures_show_the_page_light_or_dark_and_are_the_same_each_time(
    browser: Chromium, pages: dict[str, Path], width: int
) -> None:
    shown = {}
    for scheme in SCHEMES:
        browser.open(pages["damaged"], width=width, scheme=scheme)
        shown[scheme] = browser.picture()
        found = pixels(shown[scheme])
        assert found.shape[1] == width and found.shape[0] > 900, "the whole page"
        assert tuple(found[2, 2].tolist()) == BACKGROUNDS[scheme]
        assert len(np.unique(found.astype(np.int32) @ (1 << 16, 1 << 8, 1))) > 50, "not blank"
    assert shown["light"] != shown["dark"]
    browser.open(pages["damaged"], width=width, scheme="light")
    assert (pixels(browser.picture()) == pixels(shown["light"])).all()


def test_the_banner_names_what_is_wrong_and_a_store_in_order_has_none(
    browser: Chromium, pages: dict[str, Path]
) -> None:
    browser.open(pages["damaged"], width=1_400, scheme="light")
    box = browser.ask("(({top, width}) => [top, width])(document.querySelector('.banner').getBoundingClientRect())")
    assert box[0] < 200 and box[1] > 1_000, "at the top, over the whole page"
    text = browser.ask("document.querySelector('.banner').innerText")
    assert "1 damaged place" in text and "1 consumer group lags by" in text
    for name in ("empty", "many-topics"):
        browser.open(pages[name], width=1_400, scheme="light")
        assert browser.ask("document.querySelector('.banner')") is None


def test_cards_lie_in_two_columns_of_similar_height_on_a_wide_screen(browser: Chromium, pages: dict[str, Path]) -> None:
    script = """[...document.querySelectorAll('.pack>div')].map(column =>
        [column.getBoundingClientRect().left, column.lastElementChild.getBoundingClientRect().bottom])"""
    browser.open(pages["busy"], width=1_400, scheme="light")
    (left, left_end), (right, right_end) = browser.ask(script)
    assert left < right and abs(left_end - right_end) < 250
    browser.open(pages["busy"], width=400, scheme="light")
    assert len({place for place, _ in browser.ask(script)}) == 1, "one below the other on a phone"


def test_a_page_of_two_thousand_topics_is_small_and_shows_their_traffic(
    browser: Chromium, pages: dict[str, Path]
) -> None:
    assert pages["many-topics"].stat().st_size < MOST_BYTES
    browser.open(pages["many-topics"], width=1_400, scheme="light")
    assert f"{TOPIC_COUNT - 15:,} more topics" in browser.ask("document.body.innerText")
    box = "(({width, height}) => [width, height])(document.querySelector('.spark polyline').getBoundingClientRect())"
    width, height = browser.ask(box)
    assert width > 60 and height > 10
    assert browser.ask("document.documentElement.scrollHeight") < 5_000, "the others are folded away"
