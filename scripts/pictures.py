"""Draws the pictures of the docs: `python scripts/pictures.py` writes docs/pictures/*.svg.

Diagrams are drawn from the lines below; plots from the tables of docs/performance.md and docs/durability.md, so that a
figure is written once. A test fails if the files are not what this program draws. The colours follow the reader's
light or dark screen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 640
STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2430; }
.small { font-size: 12px; fill: #555e70; }
.bold { font-weight: 600; font-size: 13px; }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12.5px; }
.box { fill: #f4f6fb; stroke: #8a94ab; }
.main { fill: #e3e8fb; stroke: #3f51b5; }
.good { fill: #d8f0e0; stroke: #2e7d4f; }
.bad { fill: #fbe3df; stroke: #b3402e; }
.line { stroke: #5b667d; fill: none; stroke-width: 1.4; }
.tip { fill: #5b667d; }
.dash { stroke-dasharray: 4 3; }
.bar { fill: #3f51b5; }
.weak { fill: #aab4d8; }
.grid { stroke: #d5dae6; }
.one { stroke: #b3402e; stroke-width: 1.4; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7ef; }
.small { fill: #a7afc0; }
.box { fill: #2b3040; stroke: #7d879e; }
.main { fill: #2f3868; stroke: #8c9eff; }
.good { fill: #1f4a31; stroke: #6cc08b; }
.bad { fill: #5a2b24; stroke: #e08a7b; }
.line { stroke: #a7afc0; }
.tip { fill: #a7afc0; }
.bar { fill: #8c9eff; }
.weak { fill: #56609a; }
.grid { stroke: #3b4254; }
.one { stroke: #e08a7b; }
}
"""


class Box(NamedTuple):
    """A rectangle with lines of text; the first is bold."""

    x: float
    y: float
    width: float
    height: float
    lines: Sequence[str]
    kind: str = "box"

    @property
    def left(self) -> tuple[float, float]:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> tuple[float, float]:
        return self.x + self.width, self.y + self.height / 2

    @property
    def top(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height

    def draw(self) -> str:
        shape = (
            f'<rect class="{self.kind}" x="{self.x:g}" y="{self.y:g}" width="{self.width:g}" '
            f'height="{self.height:g}" rx="7"/>'
        )
        middle, step = self.y + self.height / 2, 18
        first = middle - step * (len(self.lines) - 1) / 2 + 5
        return shape + "".join(
            words(self.x + self.width / 2, first + step * number, line, "bold" if number == 0 else "small")
            for number, line in enumerate(self.lines)
        )


def words(x: float, y: float, line: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(line)}</text>'


def arrow(begin: tuple[float, float], end: tuple[float, float], label: str = "", kind: str = "line") -> str:
    """A straight line with a tip, and a label above its middle, or beside it if it is upright."""
    (x1, y1), (x2, y2) = begin, end
    length = math.hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    tip = [(x2, y2), (x2 - 9 * dx - 4 * dy, y2 - 9 * dy + 4 * dx), (x2 - 9 * dx + 4 * dy, y2 - 9 * dy - 4 * dx)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in tip)
    line = f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2 - 8 * dx:.1f}" y2="{y2 - 8 * dy:.1f}"/>'
    made = line + f'<polygon class="tip" points="{points}"/>'
    if label:
        upright = abs(dy) > abs(dx)
        x, y = (x1 + x2) / 2 + (8 if upright else 0), (y1 + y2) / 2 + (4 if upright else -6)
        made += words(x, y, label, "small", "start" if upright else "middle")
    return made


def picture(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" '
        f'role="img"><title>{escape(title)}</title><style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"
    )


# ---- diagrams


def overview() -> str:
    writers = [
        Box(8, 20, 168, 56, ["Your program", "MessageStore.put"]),
        Box(8, 96, 168, 56, ["RocketMQ clients", "mqlake serve"]),
        Box(8, 172, 168, 56, ["A RocketMQ master", "mqlake attach"]),
    ]
    log = Box(236, 20, 168, 76, ["commit log", "all messages, in order", "commitlog/"], "main")
    queues = Box(236, 126, 168, 48, ["consume queues", "by topic"])
    index = Box(236, 184, 168, 48, ["index", "by key and tag"])
    readers = [
        Box(464, 20, 168, 46, ["Consumers, workers", "groups, retries, delays"]),
        Box(464, 78, 168, 46, ["SQL, Arrow", "DuckDB, Polars"]),
        Box(464, 136, 168, 46, ["Spark, the lake", "Parquet, Delta"]),
        Box(464, 194, 168, 46, ["Slaves, backups", "byte for byte"]),
    ]
    parts = [box.draw() for box in (*writers, log, queues, index, *readers)]
    parts += [arrow(box.right, (log.x, log.y + 20 + 18 * number)) for number, box in enumerate(writers)]
    parts += [arrow(log.bottom, queues.top, "derived")]
    parts += [arrow((404, 34 + 16 * number), box.left) for number, box in enumerate(readers)]
    return picture(252, "One log, many readers", parts)


def life() -> str:
    put = Box(8, 16, 150, 60, ["put", "your thread"])
    log = Box(236, 16, 168, 60, ["commit log", "mapped file"], "main")
    disk = Box(482, 16, 150, 60, ["disk", "durable end"], "good")
    dispatch = Box(236, 116, 168, 52, ["dispatch", "one worker"])
    queue = Box(8, 208, 196, 60, ["consume queue", "20 bytes a message"])
    index = Box(222, 208, 196, 60, ["index", "20 bytes a key"])
    others = Box(436, 208, 196, 60, ["positions file", "for other processes"])
    read = Box(8, 308, 410, 52, ["read, find, consumers", "entry → record, CRC checked"])
    follow = Box(436, 308, 196, 52, ["followers", "no lock"])
    boxes = (put, log, disk, dispatch, queue, index, others, read, follow)
    parts = [box.draw() for box in boxes]
    parts += [
        arrow(put.right, log.left, "append"),
        arrow(log.right, disk.left, "fdatasync"),
        arrow(log.bottom, dispatch.top, "what is visible"),
        arrow((270, 168), (170, 208)),
        arrow(dispatch.bottom, index.top),
        arrow((370, 168), (470, 208)),
        arrow(queue.bottom, (106, 308)),
        arrow(index.bottom, (320, 308)),
        arrow(others.bottom, follow.top),
    ]
    return picture(372, "The life of a message", parts)


def ends() -> str:
    y, left, right = 84, 20, 620
    marks = [
        ("first", 40, "oldest file", False),
        ("dispatched", 300, "in queues and index", True),
        ("durable", 400, "synced", False),
        ("committed", 500, "page cache", True),
        ("appended", 600, "put", False),
    ]
    parts = [
        f'<rect class="good" x="40" y="{y}" width="360" height="30"/>',
        f'<rect class="box" x="400" y="{y}" width="100" height="30"/>',
        f'<rect class="bad" x="500" y="{y}" width="100" height="30"/>',
        words(170, y + 20, "survives a power cut", "small"),
        words(450, y + 20, "a killed process", "small"),
        words(550, y + 20, "pool only", "small"),
        f'<line class="line" x1="{left}" y1="{y + 30}" x2="{right}" y2="{y + 30}"/>',
    ]
    for name, x, remark, below in marks:
        line = (y + 30, y + 56) if below else (y - 26, y)
        parts.append(f'<line class="line" x1="{x}" y1="{line[0]}" x2="{x}" y2="{line[1]}"/>')
        at = y + 72 if below else y - 50
        anchor = {40: "start", 600: "end"}.get(x, "middle")
        parts += [words(x, at, name, "bold", anchor), words(x, at + 17, remark, "small", anchor)]
    parts.append(
        words(
            20,
            y + 118,
            "Readers may see up to the durable end with sync flush, up to the committed end otherwise.",
            "small",
            "start",
        )
    )
    return picture(y + 132, "The ends of the log", parts)


def durability() -> str:
    faults = ["process killed", "power cut", "disk or machine lost"]
    levels = [
        ("MEMORY", "in a buffer, at most 0.2 s", (False, False, False)),
        ("PAGE_CACHE", "in the page cache, at most 10 s", (True, False, False)),
        ("DISK", "synced", (True, True, False)),
        ("REPLICA", "synced, and on another machine", (True, True, True)),
    ]
    parts = [words(296 + 122 * number, 24, fault, "small") for number, fault in enumerate(faults)]
    for row, (level, remark, survives) in enumerate(levels):
        y = 38 + 54 * row
        parts += [words(8, y + 21, level, "bold mono", "start"), words(8, y + 39, remark, "small", "start")]
        parts += [
            Box(240 + 122 * number, y, 112, 44, ["kept" if kept else "may be lost"], "good" if kept else "bad").draw()
            for number, kept in enumerate(survives)
        ]
    return picture(262, "What survives what", parts)


def pipeline() -> str:
    stores = [
        Box(8, 16 + 64 * number, 130, 50, [name, "log"]) for number, name in enumerate(("store a", "store b", "slave"))
    ]
    stages = [
        Box(196, 16 + 48 * number, 122, 38, [name], "main")
        for number, name in enumerate(("check", "archive", "index", "stats"))
    ]
    tables = [
        Box(376, 16 + 48 * number, 122, 38, [name])
        for number, name in enumerate(("findings", "messages", "index", "stats"))
    ]
    parts = [box.draw() for box in (*stores, *stages, *tables)]
    parts += [arrow(box.right, (196, 107)) for box in stores]
    parts += [arrow(stage.right, table.left) for stage, table in zip(stages, tables, strict=True)]
    engines = ["Spark", "Polars", "DuckDB", "Trino, Athena"]
    parts += [words(528, 40 + 48 * number, name, "", "start") for number, name in enumerate(engines)]
    parts += [arrow((498, 35 + 48 * number), (524, 35 + 48 * number)) for number in range(4)]
    parts += [
        '<rect class="line dash" x="366" y="6" width="142" height="196" rx="8"/>',
        words(437, 222, "the lake: one commit for all four", "small"),
        words(257, 222, "a task: a byte range", "small"),
    ]
    return picture(234, "The pipeline", parts)


def replication() -> str:
    master = Box(8, 60, 170, 70, ["master", "RocketMQ or mqlake", "takes writes"], "main")
    slave = Box(288, 60, 170, 70, ["slave", "the same bytes", "refuses writes"])
    readers = [
        Box(500, 8, 132, 46, ["SQL, Spark"]),
        Box(500, 72, 132, 46, ["the lake"]),
        Box(500, 136, 132, 46, ["promote", "a new master"], "good"),
    ]
    parts = [box.draw() for box in (master, slave, *readers)]
    parts += [
        arrow((178, 82), (288, 82), "its log"),
        arrow((288, 112), (178, 112)),
        words(233, 130, "what it has", "small"),
        *[arrow((458, 78 + 17 * number), box.left) for number, box in enumerate(readers)],
        words(8, 156, "a SYNC_MASTER waits for the answer", "small", "start"),
    ]
    return picture(192, "Master and slave", parts)


def files() -> str:
    entry = Box(8, 24, 186, 62, ["queue entry, 20 bytes", "offset 0 | size 144 | tag"])
    key = Box(8, 118, 186, 62, ["index entry, 20 bytes", "hash | offset 0 | time"])
    record = Box(
        300,
        24,
        332,
        156,
        [
            "record, 144 bytes, at offset 0",
            "size, magic, CRC of the body, queue",
            "queue offset, physical offset, flags",
            "times and hosts",
            "body: Hello RocketMQ",
            "topic: TopicTest",
            "properties: KEYS, TAGS",
        ],
        "main",
    )
    parts = [box.draw() for box in (entry, key, record)]
    parts += [
        words(101, 16, "consumequeue/TopicTest/1", "small mono"),
        words(101, 110, "index/…", "small mono"),
        words(466, 16, "commitlog/00000000000000000000", "small mono"),
        arrow(entry.right, (300, 70), "points at"),
        arrow(key.right, (300, 134), "points at"),
    ]
    return picture(192, "How files refer to each other", parts)


# ---- plots


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table after a heading of a page, without its head."""
    text = (DOCS / page).read_text(encoding="utf-8").split(f"{heading}\n", 1)[1]
    lines = re.split(r"\n(?!\|)", text[text.index("|---") :], maxsplit=1)[0].splitlines()[1:]
    return [[re.sub(r"\*\*|`", "", cell).strip() for cell in line.strip("|").split("|")] for line in lines]


def bars(title: str, rows: Sequence[tuple[str, float, str]], *, log: bool, mark: float | None = None) -> str:
    """Horizontal bars, each with its name above it and its figure at its end."""
    left, right, step = 8, 340 if log else 470, 44
    most = max(value for _, value, _ in rows)

    def place(value: float) -> float:
        share = math.log10(value) / math.log10(most) if log else value / most
        return left + (right - left) * share

    parts = [words(left, 18, title, "bold", "start")]
    for number, (name, value, shown) in enumerate(rows):
        y = 40 + step * number
        kind = "weak" if mark is not None and value < mark else "bar"
        parts += [
            words(left, y, name, "small", "start"),
            f'<rect class="{kind}" x="{left}" y="{y + 6}" width="{place(value) - left:.1f}" height="16" rx="2"/>',
            words(max(place(value), place(mark or 1)) + 8, y + 19, shown, "small", "start"),
        ]
        if mark is not None:
            x = place(mark)
            parts.append(f'<line class="one" x1="{x:.1f}" y1="{y + 3}" x2="{x:.1f}" y2="{y + 25}"/>')
    return picture(38 + step * len(rows), title, parts)


def _ratios(page: str, heading: str, ratio: int, pair: tuple[int, int]) -> list[tuple[str, float, str]]:
    found = []
    for row in rows_of(page, heading):
        match = re.match(r"([\d.]+) ×", row[ratio])
        if match and re.search(r"/s\b", row[pair[0]]):
            first, second = (row[index].replace("/s", "").split(" (")[0] for index in pair)
            found.append((row[0], float(match[1]), f"{float(match[1]):.2f} × ({first} : {second})"))
    return found


def store_plot() -> str:
    rows = _ratios("performance.md", "# Performance", 5, (3, 4))
    return bars("mqlake compared with RocketMQ 5.5 (line: equally fast)", rows, log=False, mark=1.0)


def broker_plot() -> str:
    rows = _ratios("performance.md", "## The broker", 4, (2, 3))
    return bars("The broker compared with RocketMQ 5.5 (line: equally fast)", rows, log=False, mark=1.0)


def kafka_plot() -> str:
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    anchor = next(line for line in text.splitlines() if line.startswith("Compared with a Kafka topic"))
    rows = [
        (row[0], float(row[4].split()[0]), f"{row[4]} ({row[2]} : {row[3]})")
        for row in rows_of("performance.md", anchor)
    ]
    return bars("On Spark, compared with a Kafka topic (line: equally fast)", rows, log=False, mark=1.0)


def faults_plot() -> str:
    rows = []
    for row in rows_of("durability.md", "## Measured"):
        tried, acknowledged = (int(row[index].replace(",", "")) for index in (1, 2))
        name = row[0].split(":")[0]
        rows.append((f"{name}: {tried:,} times", float(acknowledged), f"{acknowledged:,}; lost {row[3]}"))
    return bars("Acknowledged messages that went through each fault (logarithmic)", rows, log=True)


PICTURES: dict[str, Callable[[], str]] = {
    "overview": overview,
    "life": life,
    "ends": ends,
    "durability": durability,
    "pipeline": pipeline,
    "replication": replication,
    "files": files,
    "plot-store": store_plot,
    "plot-broker": broker_plot,
    "plot-kafka": kafka_plot,
    "plot-faults": faults_plot,
}

if __name__ == "__main__":
    folder = DOCS / "pictures"
    folder.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")
