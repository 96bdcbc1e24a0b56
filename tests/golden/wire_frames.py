"""Frames of real clients with a real RocketMQ 5.5 broker: see wire/README.md."""

from __future__ import annotations

import base64
import functools
import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "wire"
CLIENTS = sorted(path.name.removesuffix(".jsonl.xz") for path in FOLDER.glob("*.jsonl.xz"))


@dataclass(frozen=True)
class Frame:
    """One recorded frame with its header as the recorder decoded it."""

    header: dict[str, Any]
    data: bytes

    @property
    def code(self) -> int:
        return int(self.header["code"])

    @property
    def is_whole(self) -> bool:
        return "bodyCutAt" not in self.header

    @property
    def body(self) -> bytes:
        return self.data[8 + (int.from_bytes(self.data[4:8], "big") & 0xFFFFFF) :]


@dataclass(frozen=True)
class Exchange:
    """A request and its response, if one came."""

    client: str
    case: str
    peer: str
    request: Frame
    response: Frame | None


@functools.cache
def exchanges(client: str) -> list[Exchange]:
    with lzma.open(FOLDER / f"{client}.jsonl.xz", "rt") as lines:
        return [_exchange(json.loads(line)) for line in lines]


def _exchange(line: dict[str, Any]) -> Exchange:
    request = _frame(line["request"])
    assert request is not None
    return Exchange(line["client"], line["case"], line["peer"], request, _frame(line["response"]))


def _frame(value: dict[str, Any] | None) -> Frame | None:
    return None if value is None else Frame(value, base64.b64decode(value["frame"]))


def all_exchanges() -> list[Exchange]:
    return [each for client in CLIENTS for each in exchanges(client)]
