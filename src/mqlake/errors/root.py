"""The root of the family, which every module here needs."""

from __future__ import annotations


class StoreError(Exception):
    """The root of the family: `except StoreError` catches everything that mqlake raises on purpose."""
