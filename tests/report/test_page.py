"""The report page: self-contained, true to its numbers, and safe with any text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from mqlake.report import render, scales, times
from mqlake.report.data import Bucket, CheckFacts, Damage, LakeFacts, Step, StoreFacts, TopicFacts
from mqlake.report.naming import title_of
from tests.report.samples import HOSTILE, NOW, SAMPLES, busy, empty, hostile, one_message

VOID = {"meta", "br", "line", "rect", "input", "path", "polyline"}


class Page(HTMLParser):
    """Parse a page and assert that every opened tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self.titles: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)
        elif "style" not in self.open:
            self.text += data


@pytest.mark.parametrize("name", SAMPLES)
def test_every_page_is_well_formed_loads_nothing_and_has_no_script(name: str) -> None:
    text = render(SAMPLES[name]())
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not [a for a in page.attributes if a[1] in ("src", "href") or a[1].startswith("on")]
    assert "url(" not in text and "@import" not in text and "http://" not in text and "https://" not in text
    assert "default-src 'none'" in text
    for svg in re.findall(r"<svg.*?</svg>", text):
        ET.fromstring(svg)
        assert "nan" not in svg and "inf" not in svg


@pytest.mark.parametrize("name", SAMPLES)
def test_every_mark_lies_inside_its_drawing(name: str) -> None:
    for svg in re.findall(r"<svg.*?</svg>", render(SAMPLES[name]())):
        root = ET.fromstring(svg)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for rect in root.iter("rect"):
            x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
            assert x >= -0.01 and x + float(rect.attrib["width"]) <= width + 3.01
            assert y >= -0.01 and y + float(rect.attrib["height"]) <= height + 0.01


def test_outside_texts_are_escaped() -> None:
    text = render(hostile())
    assert "<script" not in text
    page = Page(text)
    assert HOSTILE in page.text
    assert HOSTILE in page.titles[0]
    assert any(HOSTILE in (value or "") for _, name, value in page.attributes if name == "title")


def test_the_page_of_an_empty_store_reports_no_messages() -> None:
    page = Page(render(empty()))
    assert "no messages" in page.text
    assert "No messages were counted." in page.text
    assert "No damage found" in page.text


def test_one_message_is_reported_in_the_singular_and_drawn() -> None:
    page = Page(render(one_message()))
    assert "1message" in page.text and "1topic" in page.text and "1queue" in page.text
    assert "2026-01-01 00:00:00.000 to 2026-01-01 00:00:00.001 UTC" in page.text
    assert any("1 per millisecond" in title for title in page.titles), "not 1,000 per second"


@pytest.mark.parametrize(
    ("apart_ms", "told"),
    [(1_000, "per second"), (60_000, "per minute"), (3_600_000, "per hour"), (86_400_000, "per day")],
)
def test_a_rate_is_counted_by_a_unit_that_gives_it_a_number(apart_ms: int, told: str) -> None:
    steps = [Step(NOW + n * apart_ms, 1, 100) for n in range(12)]
    page = Page(render(replace(one_message(), steps=steps, step_ms=1_000, messages=12)))
    assert f"Messages {told}" in page.text and f"Bytes {told}" in page.text


def test_the_numbers_on_an_axis_differ() -> None:
    year = 365 * 86_400_000
    for apart_ms in (7, 900, 40_000, 3_000_000, 86_400_000, year):
        steps = [Step(NOW + n * apart_ms, 1, 130) for n in range(11)]
        text = render(replace(one_message(), steps=steps, step_ms=1, messages=11))
        for axis in re.findall(r'<div class="y".*?</div>', text):
            shown = re.findall(r">([^<]+)</span>", axis)
            assert len(shown) == len(set(shown)) > 1, (apart_ms, shown)


def test_many_topics_show_as_the_largest_and_a_sum_of_the_others_with_their_rows_folded_away() -> None:
    report = SAMPLES["many"]()
    page = Page(render(report))
    assert "485 more topics: " in page.text
    for topic in report.topics:
        assert topic.name in page.text


def test_a_topic_has_its_traffic_keys_tags_retries_and_dead_letters_in_one_row() -> None:
    topic = TopicFacts("orders", 900, 9_000, 1.0, 40, 100, True, 27, 3, [1, 5, 2])
    page = render(replace(one_message(), topics=[topic, TopicFacts("%RETRY%billing", 27, 270, 1.0, None)]))
    row = next(line for line in re.findall(r"<tr>(.*?)</tr>", page) if ">orders<" in line)
    assert [Page(cell).text for cell in re.findall(r"<td.*?>.*?</td>", row)][-4:] == [
        *(f"≈{scales.NBSP}40", f"≥{scales.NBSP}100", "27", "3")
    ]
    points = ET.fromstring(re.findall(r"<svg.*?</svg>", row)[0]).find("polyline")
    assert points is not None and points.attrib["points"] == "0 15 60 1 120 12", "as high as its highest step"
    assert 'class="spark"' not in render(replace(one_message(), topics=[topic._replace(trend=[8])])), "one step only"
    assert "1 topic of a consumer group: 27 messages" in Page(page).text, "and the copies are not among the topics"


def test_what_needs_attention_is_named_at_the_top_and_only_then() -> None:
    page = render(busy())
    (banner,) = re.findall(r'<div class="banner bad".*?</div>', page)
    assert page.index(banner) < page.index('class="tiles"')
    for expected in (
        "1 damaged place in the log: readers skip 306",
        "Worker dispatch has failed since 2026-01-01 00:00:00 UTC: OSError: [Errno 5] Input/output error",
        "The pipeline&#x27;s last run: failed, StageFailed",
        "2 consumer groups lag by 19,131 messages; the oldest waits for 2",
    ):
        assert expected in banner
    lagging = replace(one_message(), lag=busy().lag)
    assert 'class="banner warn"' in render(lagging), "lag alone is a warning"
    assert 'class="banner' not in render(replace(one_message(), lag=[busy().lag[-1]])), "a group without lag"


def test_the_store_is_a_column_only_where_there_are_several() -> None:
    assert "<th>store</th>" not in render(busy())
    second = StoreFacts("/data/broker-b/store", 0, 1, 0, 1)
    assert render(replace(busy(), stores=[*busy().stores, second])).count("<th>store</th>") >= 5
    elsewhere = [Damage("/data/broker-c/store", 1, 2, "torn")]
    assert "<th>store</th>" in render(replace(busy(), damage=elsewhere)), "a store that only a lake knows"


@pytest.mark.parametrize(
    ("stores", "lake", "title"),
    [
        (["/data/shop"], None, "shop"),
        (["/home/mq/broker-a/store"], "/lake", "broker-a/store"),
        (["/a/x", "/b/y"], None, "x and y"),
        (["/a/x", "/b/y", "/c/z"], None, "x, y and z"),
        (["/a/x", "/b/x"], None, "2 stores"),
        ([f"/a/{n}" for n in range(9)], None, "9 stores"),
        ([], "s3://bucket/shops", "shops"),
        (["/"], None, "/"),
        ([], None, "Message report"),
    ],
)
def test_a_page_is_named_after_its_store(stores: list[str], lake: str | None, title: str) -> None:
    assert title_of(stores, lake) == title


def test_every_chart_has_a_name_and_a_table_with_its_numbers() -> None:
    report = busy()
    page = Page(render(report))
    named = [value for tag, name, value in page.attributes if tag == "svg" and name == "aria-label"]
    assert len([name for name in named if name and "over time" in name]) == 2
    assert page.tags.count("details") >= 5
    steps, _ = times.rebinned(report.steps, report.step_ms)
    assert all(scales.count(step.messages) in page.text for step in steps)


def test_problems_are_reported_in_words_not_by_colour_alone() -> None:
    page = Page(render(busy()))
    assert "1 damaged place" in page.text
    assert "failed" in page.text and "StageFailed: archive of it: No space left on device" in page.text
    assert "1 error, 1,300 warnings" in page.text and "record-crc" in page.text
    assert "and 301 more in the lake's table findings" in page.text
    assert "lake-3fa9" in page.text
    assert "4,321 messages of RocketMQ's own topics" in page.text


def test_a_page_says_if_the_pipeline_found_nothing_or_never_ran() -> None:
    whole = CheckFacts(bytes=1 << 20, counts={})
    lake = LakeFacts(path="/data/lake", version=3, committed_ms=None, check=whole)
    text = Page(render(replace(empty(), lake=lake))).text
    assert "No broken promise found" in text and "1 MiB of log" in text.replace(scales.NBSP, " ")
    assert "No pipeline has run on this lake." in text
    assert "promise" not in Page(render(replace(empty(), lake=replace(lake, check=None)))).text, "nothing was checked"


# ---- scales


def test_merged_steps_lose_no_message_and_leave_no_hole() -> None:
    steps = [Step(NOW + at, 3, 10) for at in (0, 100, 5_000, 86_400_000, 90_000_000)]
    found, axis = times.rebinned(steps, 100)
    assert sum(step.messages for step in found) == 15 and sum(step.bytes for step in found) == 50
    assert len(found) <= times.MAX_BARS and axis.width % 100 == 0
    assert [step.time_ms for step in found] == [found[0].time_ms + n * axis.width for n in range(len(found))]
    alone, _ = times.rebinned(steps[:1], 100)
    assert len(alone) == times.MIN_BARS and sum(step.messages for step in alone) == 3


def test_the_time_axis_begins_with_the_first_message_and_ends_with_the_last() -> None:
    for span in (7, 150, 4_000, 86_400_000, 400 * 86_400_000):
        steps = [Step(NOW + at, 1, 1) for at in (0, span // 3, span)]
        axis = times.axis_of(steps, 1)
        assert axis.start <= NOW < axis.start + axis.width or axis.step_count == times.MIN_BARS
        assert axis.end - axis.width <= NOW + span < axis.end or axis.step_count == times.MIN_BARS
        assert times.MIN_BARS <= axis.step_count <= times.MAX_BARS


def test_a_few_messages_of_a_wrong_clock_do_not_squeeze_all_others_into_one_bar() -> None:
    steps = [Step(0, 1, 1), *(Step(NOW + n * 1_000, 100, 1) for n in range(60)), Step(NOW * 3, 2, 1)]
    found, axis = times.rebinned(steps, 1_000)
    assert len(found) == 60 and (axis.before, axis.after) == (1, 2)
    report = replace(one_message(), steps=steps, step_ms=1_000, messages=6_003)
    assert "not drawn: 1 message before and 2 messages after this time" in Page(render(report)).text
    few = [Step(0, 1, 1), *steps[1:4]]
    assert times.axis_of(few, 1_000).before == 0, "one of three hundred counts"
    assert times.axis_of([Step(0, 1, 1), *steps[1:8]], 1_000).before == 1, "one of seven hundred does not"


def test_times_have_milliseconds_only_where_seconds_are_equal() -> None:
    assert times.moments([NOW, NOW + 1]) == ["2026-01-01 00:00:00.000", "2026-01-01 00:00:00.001"]
    assert times.moments([NOW, NOW + 1_000]) == ["2026-01-01 00:00:00", "2026-01-01 00:00:01"]
    assert [text for _, text in times.time_ticks(NOW, NOW + 10)] == [
        *("00:00.000", "00:00.002", "00:00.004", "00:00.006", "00:00.008", "00:00.010")
    ]


def test_buckets_are_merged_into_doublings() -> None:
    found = scales.doublings([Bucket(0, 1, 5), Bucket(5, 6, 1), Bucket(7, 8, 2), Bucket(40, 48, 1)])
    assert [(b.low, b.high) for b in found] == [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 64)]
    assert [b.messages for b in found] == [5, 0, 0, 3, 0, 0, 1]
    assert scales.doublings([]) == []
    assert len(scales.doublings([Bucket(1 << 20, 2 << 20, 1)])) == scales.MIN_BUCKETS


def test_a_percentile_is_the_bucket_that_holds_it() -> None:
    buckets = [Bucket(0, 1, 50), Bucket(1, 2, 40), Bucket(8, 10, 9), Bucket(100, 120, 1)]
    assert [scales.percentile(buckets, share) for share in (0.5, 0.9, 0.99, 0.999)] == buckets
    assert scales.percentile([], 0.5) is None


@pytest.mark.parametrize("highest", [0.3, 1, 7, 99, 100, 1234, 5e6, 1e13])
def test_ticks_are_round_and_reach_the_highest(highest: float) -> None:
    for base in (10, 1024):
        found = scales.ticks(highest, base=base)
        assert found[0] == 0 and found[-1] >= highest and 2 <= len(found) <= 6
        assert found[-2] < highest
    assert all(tick == int(tick) for tick in scales.ticks(highest, whole=True))


def test_numbers_are_short_and_have_no_trailing_zeroes() -> None:
    assert [scales.short(n) for n in (0, 1, 999, 1000, 1234, 99_960, 999_600, 10**9)] == [
        *("0", "1", "999", "1k", "1.23k", "100k", "1M", "1G")
    ]
    sizes = [scales.size(n).replace(scales.NBSP, " ") for n in (0, 1023, 1024, 1536, 1 << 30, 5 << 50)]
    assert sizes == ["0 B", "1023 B", "1 KiB", "1.5 KiB", "1 GiB", "5 PiB"]
    times = [scales.duration(n).replace(scales.NBSP, " ") for n in (0, 12.34, 1500, 90_000, 7_200_000, 200_000_000)]
    assert times == ["0 ms", "12.3 ms", "1.5 s", "1.5 min", "2 h", "2.31 d"]
    assert scales.percent(0.00001).replace(scales.NBSP, " ") == "< 0.1 %"


def test_impossible_times_are_shown_as_numbers() -> None:
    assert times.moment(NOW) == "2026-01-01 00:00:00"
    assert times.moment(10**18) == f"{10**18} ms"
