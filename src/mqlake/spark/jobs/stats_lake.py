"""Statistics in a lake: written split by split, and read back with the byte ranges that they count.

A pipeline keeps the rows of each range that it processes (`keep_stats`), so its files of the table `stats` are
contiguous. Only a contiguous chain is used. A range that was archived without being counted ends the chain, and
everything after it is counted from the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.spark.jobs.stats_rows import ROWS, merge
from mqlake.spark.jobs.stats_split import stats_split
from mqlake.spark.split import Split

if TYPE_CHECKING:
    from mqlake.lake.entries import LakeFile
    from mqlake.lake.snapshot import LakeSnapshot
    from mqlake.lake.stores import Member


def keep_stats(lake: str, member: Member, split: Split) -> pa.Table:
    """Write the rows of a split to the lake, even if there are none: a range without a file counts as not counted.

    Runs in a worker.
    """
    from mqlake.lake.entries import LakeFile, done
    from mqlake.lake.parquet import write_table
    from mqlake.lake.paths import table_path
    from mqlake.lake.storage import storage_at

    rows = stats_split(split, member.name, trend=False)  # many rows, of use only while they are new
    path = table_path("stats", member.identity, split.start, split.end)
    written = write_table(storage_at(lake), path, rows, ("kind", "store", "topic", "tags"))
    times = pc.min_max(rows["time"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()))
    bounds = times["min"].as_py(), times["max"].as_py()
    return done([LakeFile("stats", path, member.name, split.start, split.end, *written, *bounds)])


@dataclass(frozen=True)
class LakeRows:
    """What a lake has counted."""

    rows: pa.Table = field(default_factory=ROWS.empty_table)
    covered: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The part [start, end) of each store's log that is in `rows`."""


def lake_rows(lake: str, paths: Sequence[str]) -> LakeRows:
    """Return the rows of the stores at these paths, named by path. Without paths, return those of all stores."""
    from mqlake.lake import Lake
    from mqlake.lake.parquet import read_table

    opened = Lake.open(lake)
    snapshot = opened.snapshot()
    names = _names(opened.place, snapshot, paths) if paths else {name: name for name in snapshot.stores}
    tables, covered = [], {}
    for name, store in names.items():
        chain = chain_of(snapshot.files("stats", name))
        if chain:
            covered[store] = chain[0].start, chain[-1].end
            read = [read_table(opened.storage, file, ROWS) for file in chain]
            tables += [_under(store, table) for table in read]
    return LakeRows(merge(tables), covered)


def _names(lake: str, snapshot: LakeSnapshot, paths: Sequence[str]) -> dict[str, str]:
    """Map the names of known stores in the lake to their paths. Raises WrongLake if one is a different store by now."""
    from mqlake.lake.identity import identity_of
    from mqlake.lake.stores import check_seam, refuse_strangers

    refuse_strangers(lake, snapshot, [Path(path) for path in paths], "name its own lake, or none")
    identities = {identity_of(Path(path)): path for path in paths}
    names = {}
    for name, state in snapshot.stores.items():
        if state.identity in identities:
            check_seam(lake, state, Path(identities[state.identity]))
            names[name] = identities[state.identity]
    return names


def chain_of(files: Sequence[LakeFile]) -> list[LakeFile]:
    """Return the files from the first one up to the first gap."""
    chain: list[LakeFile] = []
    for file in files:
        if chain and file.start != chain[-1].end:
            break
        chain.append(file)
    return chain


def _under(store: str, table: pa.Table) -> pa.Table:
    return table.set_column(ROWS.get_field_index("store"), ROWS.field("store"), pa.repeat(store, table.num_rows))
