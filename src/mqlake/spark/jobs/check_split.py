"""Check one split of the log: its records, and the queue entries that belong to them. Runs in a worker.

This is the walk of `check`, over the split alone, with the same findings and texts. Missing queue offsets, headers that
contradict their neighbours, and the index need the whole log: `audit` checks those.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from mqlake.config import StoreConfig
from mqlake.errors import ChangedUnderRead
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import file_name
from mqlake.inspect.check import look_at_log
from mqlake.inspect.check_queues import QueueCheck
from mqlake.inspect.findings import Findings
from mqlake.inspect.log_map import Ends, LogMap
from mqlake.inspect.piece import GRID, How, Looker, Piece
from mqlake.inspect.survey import Placement, open_file
from mqlake.logs.deleted_topics import deleted_topics_of
from mqlake.spark.jobs.audit import table_of
from mqlake.spark.split import Split


def check_split(split: Split, *, queues: bool = True, config: StoreConfig | None = None) -> pa.Table:
    """Return the findings of one byte range as `audit` does. `queues` is False if the store's queues are not valid."""
    layout = Layout(Path(split.store))
    findings = Findings(layout.root)
    ends = Ends(live=True, limit=split.end, watermark=split.end, checkpoint=None)
    log = LogMap(Placement(_files(layout, split), {}, []), split.file_size, ends)
    batch_topics = frozenset(path.name for path in layout.batch_queues.glob("*"))
    delays_ms = (config or StoreConfig()).delays_ms
    how = How(
        split.store,
        GRID,
        split.queue_file_size,
        delays_ms,
        batch_topics,
        1,
        1,
        None,
        deleted_topics_of(layout),
        queues=queues,
    )
    looker = Looker(how)
    queue_check = QueueCheck(layout, split.queue_file_size, log, findings)

    def look(file: MappedFile, position: int, end: int) -> Piece:
        piece = looker.look(file, position, end, (0, 1))
        queue_check.take(piece)
        return piece

    log.walk(look, split.start)
    look_at_log(layout, log, findings)
    return table_of(split.store, findings.rows())


def _files(layout: Layout, split: Split) -> dict[int, MappedFile]:
    files = {}
    for start in range(split.start - split.start % split.file_size, split.end, split.file_size):
        file = open_file(layout.commit_log / file_name(start), start)
        if file is None:
            found = f"no file {file_name(start)}: it was deleted after this split was planned"
            raise ChangedUnderRead(split.store, start, found, f"the log up to {split.end}")
        files[start] = file
    return files
