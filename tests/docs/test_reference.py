"""The reference lists every public name, and every field of a message."""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import mqlake
from mqlake.kernel import reference

PAGES = Path(__file__).parents[2] / "docs" / "reference"
MESSAGES = (PAGES / "messages.md").read_text(encoding="utf-8")


def fields_in(heading: str) -> set[str]:
    """Return the names in the first column of the table under a heading."""
    part = MESSAGES.split(f"## {heading}\n")[1].split("\n## ")[0]
    return {name for cell in re.findall(r"^\| (`.*?) \|", part, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}


def test_the_table_of_a_message_has_every_argument() -> None:
    assert fields_in("Message") == set(inspect.signature(mqlake.Message).parameters)


@pytest.mark.parametrize(
    ("heading", "public", "twin"),
    [
        ("PutReceipt", mqlake.PutReceipt, reference.PutReceipt),
        ("StoredMessage", mqlake.StoredMessage, reference.StoredRecord),
    ],
)
def test_the_tables_of_receipts_and_stored_messages_have_every_field(heading: str, public: type, twin: type) -> None:
    told = fields_in(heading)
    for name in told:
        assert hasattr(public, name), name
    public_fields = {name for name in dir(twin) if not name.startswith("_") and not callable(getattr(twin, name))}
    assert public_fields <= told, public_fields - told


def test_every_public_name_is_on_a_page_of_the_reference() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    everything = "\n".join(pages.values())
    errors = {name for name in mqlake.__all__ if inspect.isclass(getattr(mqlake, name, None))}
    errors = {name for name in errors if issubclass(getattr(mqlake, name), mqlake.StoreError)}
    missing = [name for name in mqlake.__all__ if name not in errors and not re.search(rf"\b{name}\b", everything)]
    assert missing == ["__version__"]


def test_the_examples_in_docstrings_of_the_reference_are_shown_as_code() -> None:
    """Markdown shows as code what is indented by four more columns than the text around it."""
    wrong = []
    pages = "\n".join(path.read_text(encoding="utf-8") for path in PAGES.glob("*.md"))
    for name in re.findall(r"^::: (\S+)", pages, re.MULTILINE):
        named = pkgutil.resolve_name(name)
        for thing in (named, *vars(named).values()):
            text = inspect.getdoc(thing) or ""
            wrong += [f"{name}: {line}" for line in re.findall(r"^(?:async )?(?:with|for) .*:$", text, re.MULTILINE)]
    assert wrong == []
