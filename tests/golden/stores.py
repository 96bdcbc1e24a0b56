"""The golden stores: directories that a real RocketMQ wrote, and what a real RocketMQ serves from them."""

from __future__ import annotations

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

from mqlake import StoreConfig
from mqlake.config import read_properties

DATA = Path(__file__).parent / "data"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz"))


class GoldenStore:
    """A fresh copy of one golden store."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        with tarfile.open(DATA / f"{name}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
        self.path = directory / name
        self.properties_file = directory / f"{name}.properties"
        self.properties = read_properties(self.properties_file)
        self.config = StoreConfig.from_properties(self.properties)

    def expected(self, *kinds: str) -> list[dict[str, Any]]:
        """Return lines of the dump of this store by the RocketMQ release that wrote it."""
        with lzma.open(DATA / f"{self.name}.jsonl.xz", "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] in kinds]
