"""Append records that were prepared elsewhere: packed records, staged batches."""
