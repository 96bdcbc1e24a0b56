"""Read a Delta log as other engines do, to check what they see. The lake's own readers use the manifest."""

from __future__ import annotations

import io
import json

import pyarrow.parquet as pq

from mqlake.lake.delta import LOG, entry_name
from mqlake.lake.entries import TableName
from mqlake.lake.storage import Storage


def live_files(storage: Storage, table: TableName, version: int) -> dict[str, int]:
    """Return path and size of the files of a version of a table. Raises FileNotFoundError if an entry is missing."""
    try:
        begun = int(json.loads(storage.read(f"{table}/{LOG}/_last_checkpoint"))["version"])
    except FileNotFoundError:
        begun = -1
    files: dict[str, int] = {}
    if 0 <= begun <= version:
        content = storage.read(f"{table}/{LOG}/{begun:020d}.checkpoint.parquet")
        added = pq.read_table(io.BytesIO(content), columns=["add"]).column("add").to_pylist()
        files = {f"{table}/{add['path']}": add["size"] for add in added if add is not None}
    else:
        begun = -1
    for number in range(begun + 1, version + 1):
        for line in storage.read(entry_name(table, number)).splitlines():
            action = json.loads(line)
            if "remove" in action:
                del files[f"{table}/{action['remove']['path']}"]
            if "add" in action:
                assert f"{table}/{action['add']['path']}" not in files, "a file is added once"
                files[f"{table}/{action['add']['path']}"] = action["add"]["size"]
    return files
