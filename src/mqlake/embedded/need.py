"""Which columns and topics of `messages` a query needs, from DuckDB's plan of it.

DuckDB pushes columns and filters into files that it reads itself, but not into a stream of Arrow batches. So a query is
planned over an empty table first. Each read in the plan names its columns, and the filter right above it its conjuncts.
A column that no read names is null in the stream; it cannot change the answer. The filter stays in the query, so a
conjunct that is not understood only costs time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

SCAN = "ARROW_SCAN"
RECURSION = "REC_"
_TOPIC = re.compile(r"topic = '((?:[^']|'')*)'")
_TEXT = re.compile(r"'(?:[^']|'')*'")


class Need(NamedTuple):
    """What a query reads of `messages`."""

    columns: frozenset[str]
    topics: frozenset[str] | None
    """Only these topics; None for all."""
    read_count: int


NOTHING = Need(frozenset(), None, 0)


def need_of(plan: list[dict[str, Any]]) -> Need:
    """Return what a plan, as EXPLAIN (FORMAT json) shows it, needs."""
    reads = [read for node in plan for read in _reads(node, None)]
    columns = frozenset(name for names, _ in reads for name in names)
    topics = reads[0][1] if len(reads) == 1 else None  # one stream serves all reads
    return Need(columns, topics, len(reads))


def _reads(node: dict[str, Any], above: str | None) -> Iterator[tuple[list[str], frozenset[str] | None]]:
    shown = node.get("extra_info", {})
    if SCAN in node["name"]:
        names = shown.get("Projections", [])
        yield [names] if isinstance(names, str) else list(names), topics_of(above) if above is not None else None
    condition = shown.get("Expression") if node["name"].strip() == "FILTER" else None
    times = 2 if node["name"].startswith(RECURSION) else 1  # each step of a recursive query reads again
    for child in node.get("children", []) * times:
        yield from _reads(child, condition if isinstance(condition, str) else None)


def topics_of(condition: str) -> frozenset[str] | None:
    """Return the topics that a filter lets through, if one of its conjuncts names them."""
    for part in _parts(condition, " AND "):
        found = [_TOPIC.fullmatch(_bare(each)) for each in _parts(part, " OR ")]
        if found and all(found):
            return frozenset(each[1].replace("''", "'") for each in found if each is not None)
    return None


def _parts(text: str, word: str) -> list[str]:
    """Split an expression at a word that is outside of parentheses and texts."""
    text = _bare(text)
    hidden = _TEXT.sub(lambda found: "x" * len(found[0]), text)
    cuts, depth = [0], 0
    for place, letter in enumerate(hidden):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and hidden.startswith(word, place):
            cuts += [place, place + len(word)]
    return [text[start:end] for start, end in zip(cuts[::2], [*cuts[1::2], len(text)], strict=True)]


def _bare(text: str) -> str:
    """Return an expression without the parentheses around all of it."""
    while text.startswith("(") and text.endswith(")"):
        depth = 0
        hidden = _TEXT.sub(lambda found: "x" * len(found[0]), text)
        for place, letter in enumerate(hidden):
            depth += (letter == "(") - (letter == ")")
            if depth == 0 and place < len(text) - 1:
                return text
        text = text[1:-1]
    return text
