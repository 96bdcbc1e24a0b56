"""The rows of statistics that a lake has, and which bytes of which logs they count.

A pipeline writes the rows of each range that it takes into the lake (`stats_split`), so its files of the table `stats`
lie end to end. Only such a chain is believed: a range that was archived without being counted ends it, and what lies
behind is counted from the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from mqlake.spark.stats_rows import ROWS, merge

if TYPE_CHECKING:
    from mqlake.lake.entries import LakeFile
    from mqlake.lake.snapshot import LakeSnapshot


@dataclass(frozen=True)
class LakeRows:
    """What a lake has counted."""

    rows: pa.Table = field(default_factory=ROWS.empty_table)
    covered: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The part [start, end) of each store's log that is in `rows`."""


def lake_rows(lake: str, paths: Sequence[str]) -> LakeRows:
    """The rows of the stores at these paths, under their paths; without paths, those of all stores of the lake."""
    from mqlake.lake import Lake

    opened = Lake.open(lake)
    snapshot = opened.snapshot()
    names = _names(snapshot, paths) if paths else {name: name for name in snapshot.stores}
    tables, covered = [], {}
    for name, store in names.items():
        chain = chain_of(snapshot.files("stats", name))
        if chain:
            covered[store] = chain[0].start, chain[-1].end
            read = [pq.read_table(opened.root / file.path, schema=ROWS) for file in chain]
            tables += [_under(store, table) for table in read]
    return LakeRows(merge(tables), covered)


def _names(snapshot: LakeSnapshot, paths: Sequence[str]) -> dict[str, str]:
    """For the stores that the lake knows: their names in it, and their paths."""
    from mqlake.lake.identity import identity_of

    identities = {identity_of(Path(path)): path for path in paths}
    return {name: identities[state.identity] for name, state in snapshot.stores.items() if state.identity in identities}


def chain_of(files: Sequence[LakeFile]) -> list[LakeFile]:
    """The files from the first on that follow on each other without a gap."""
    chain: list[LakeFile] = []
    for file in files:
        if chain and file.start != chain[-1].end:
            break
        chain.append(file)
    return chain


def _under(store: str, table: pa.Table) -> pa.Table:
    return table.set_column(ROWS.get_field_index("store"), ROWS.field("store"), pa.repeat(store, table.num_rows))
