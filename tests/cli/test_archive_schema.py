"""`mqlake archive --schema` and `mqlake lake type`: how schemas are named."""

from __future__ import annotations

import click
import pytest

from mqlake.cli.archive import schemas_of


def test_schemas_are_named_by_topic() -> None:
    given = ("orders=orders.json", "payments=infer", "rest=a INT COMMENT 'a=b'")
    assert schemas_of(given) == {"orders": "orders.json", "payments": "infer", "rest": "a INT COMMENT 'a=b'"}


@pytest.mark.parametrize("text", ["orders", "=infer", "orders=", "orders= "])
def test_a_schema_without_topic_or_columns_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="TOPIC=SCHEMA"):
        schemas_of((text,))
