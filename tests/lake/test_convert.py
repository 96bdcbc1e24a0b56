"""A lake of the older format becomes a new one: the same rows, proved, and opening the old one says what to do.

`data/lake-format-1.tar.gz` was written by version 0.1.0: 160 messages of several topics, one of them damaged, archived
in small splits, partly compacted, with removed files that are still there.
"""

from __future__ import annotations

import json
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from mqlake.errors import BadFile, NotALake
from mqlake.lake import Lake
from mqlake.lake import convert as converting
from mqlake.lake.convert import convert
from mqlake.lake.find import find
from mqlake.lake.verify import verify
from tests.lake.jobs import rows_in

OLD = Path(__file__).parent / "data" / "lake-format-1.tar.gz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(OLD) as packed:
        packed.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old" / "lake"


def old_rows(lake: Path, table: str) -> list[dict[str, Any]]:
    """Return what the old manifest's commits name, read without any of our code."""
    files: dict[str, Any] = {}
    for path in sorted((lake / "_mqlake" / "manifest").glob("*.json")):
        line, crc = path.read_bytes().splitlines()
        assert int(crc, 16) == zlib.crc32(line + b"\n")
        commit = json.loads(line)
        for gone in commit.get("remove", ()):
            del files[gone]
        files |= {file["path"]: file for file in commit.get("add", ())}
    rows = []
    for path_of, file in files.items():
        if file["table"] == table:
            rows += pq.ParquetFile(lake / path_of).read().to_pylist(maps_as_pydicts="strict")
    return sorted(rows, key=lambda row: row["physical_offset"])


def test_opening_an_old_lake_says_how_to_convert_it(old: Path) -> None:
    with pytest.raises(NotALake, match=r"older format, .* mqlake lake convert"):
        Lake.open(old)
    with pytest.raises(NotALake, match="mqlake lake convert"):
        Lake.open(old, create=True)


@pytest.mark.parametrize("window", [converting.WINDOW_BYTES, 5_000])
def test_a_converted_lake_has_the_same_rows_in_the_new_layout(
    old: Path, tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converting, "WINDOW_BYTES", window)
    expected = old_rows(old, "messages")
    done = convert(str(old), str(tmp_path / "new"))
    assert done.rows == len(expected) == 159
    assert rows_in(tmp_path / "new") == expected
    lake = Lake.open(tmp_path / "new")
    assert verify(lake) == []
    snapshot = lake.snapshot()
    assert len(snapshot.files("messages")) == 1 if window > 5_000 else len(snapshot.files("messages")) > 5
    (state,) = snapshot.stores.values()
    assert state.seam is not None and [gap for gap in state.gaps if "CRC" in gap.reason]
    keys = [(row["key_hash"], row["physical_offset"]) for row in rows_in(tmp_path / "new", "index")]
    assert sorted(keys) == sorted((row["key_hash"], row["physical_offset"]) for row in old_rows(old, "index"))
    row = expected[10]
    assert row["physical_offset"] in find(lake, row["topic"], row["keys"][0]).column("physical_offset").to_pylist()
    assert lake.identity == json.loads((old / "_mqlake" / "lake.json").read_text())["id"], "the gates are the same"


def test_a_conversion_refuses_a_damaged_lake_and_a_place_that_is_taken(old: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").touch()
    with pytest.raises(NotALake, match=r"thesis\.tex"):
        convert(str(old), str(tmp_path / "taken"))
    convert(str(old), str(tmp_path / "new"))
    with pytest.raises(NotALake, match="already holds a lake"):
        convert(str(old), str(tmp_path / "new"))
    with pytest.raises(NotALake, match="needs no conversion"):
        convert(str(tmp_path / "new"), str(tmp_path / "newer"))
    for path in (old / "messages").rglob("*.parquet"):
        content = bytearray(path.read_bytes())
        content[50] ^= 1
        path.write_bytes(content)
    with pytest.raises(BadFile, match="CRC"):
        convert(str(old), str(tmp_path / "other"))
    assert Lake.open(tmp_path / "other").snapshot().version == 0
