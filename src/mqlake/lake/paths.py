"""File names in the lake. They follow from the content, so the same work gives the same names."""

from __future__ import annotations

from mqlake.lake.entries import TableName


def table_path(table: TableName, identity: str, start: int, end: int) -> str:
    """Return the path of a table's file for [start, end) of a log."""
    return f"{table}/{identity[:12]}-{start:020d}-{end:020d}.parquet"
