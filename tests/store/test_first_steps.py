"""What a newcomer tries first: every wrong call says what to do instead, and every name shows itself."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mqlake
from mqlake import Durability, InvalidConfig, InvalidMessage, Message, MessageStore, PutReceipt, StoreLocked
from mqlake.kernel import reference
from tests.helpers import message, open_small

PURE_MESSAGE = reference.Message


def test_a_store_that_is_called_instead_of_opened_names_the_call(tmp_path: Path) -> None:
    for path in (str(tmp_path), tmp_path):
        with pytest.raises(TypeError, match=f"MessageStore.open\\('{tmp_path}'\\)"):
            MessageStore(path)  # type: ignore[arg-type]


def test_a_store_that_this_process_has_open_says_so(tmp_path: Path) -> None:
    with open_small(tmp_path), pytest.raises(StoreLocked, match=r"this process .* already has it open"):
        open_small(tmp_path)


def test_dir_lists_every_public_name_before_any_is_used() -> None:
    program = "import mqlake; print(set(mqlake.__all__) - set(dir(mqlake)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
    assert all(hasattr(mqlake, name) for name in mqlake.__all__)


def test_the_signature_of_a_message_names_its_fields() -> None:
    found = inspect.signature(Message)
    expected = inspect.signature(PURE_MESSAGE)
    assert list(found.parameters) == list(expected.parameters)
    assert [each.default for each in found.parameters.values()] == [
        each.default for each in expected.parameters.values()
    ]
    assert [each.kind for each in found.parameters.values()] == [each.kind for each in expected.parameters.values()]
    assert list(inspect.signature(PutReceipt).parameters)[:3] == ["topic", "queue_id", "queue_offset"]


@pytest.mark.parametrize("kind", [Message, PURE_MESSAGE])
def test_help_of_a_message_shows_what_each_field_is(kind: type) -> None:
    text = pydoc.plain(pydoc.render_doc(kind))
    for name in inspect.signature(PURE_MESSAGE).parameters:
        assert name in text
    assert "deliver it after so many seconds" in text


def test_a_durability_prints_its_name() -> None:
    assert str(Durability.DISK) == f"{Durability.DISK}" == "DISK"
    assert f"{Durability.DISK:>6}" == "  DISK"
    assert int(Durability.DISK) == 2 and Durability.PAGE_CACHE < Durability.DISK


@pytest.mark.parametrize("kind", [Message, PURE_MESSAGE])
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (17, "keys: found 17; expected one key or several, each of type str"),
        (0, "keys: found 0; expected one key or several, each of type str"),
        (b"17", "keys: found b'17'; expected one key or several, each of type str"),
        ([17], "keys: found 17; expected keys of type str"),
        (["a b"], "keys: found 'a b'; expected keys that are not empty and hold no space"),
    ],
)
def test_keys_that_are_no_texts_are_refused_for_that_reason(kind: type[Message], keys: object, said: str) -> None:
    with pytest.raises(InvalidMessage) as error:
        kind("orders", b"", keys=keys)  # type: ignore[arg-type]
    assert str(error.value).startswith(said)


def test_a_time_is_sought_by_a_datetime_as_by_milliseconds(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        first = store.put(message(0))
        moment = datetime.fromtimestamp(first.store_timestamp // 1000, UTC)
        moment += timedelta(milliseconds=first.store_timestamp % 1000)
        assert store.seek_time("orders", first.store_timestamp) == store.seek_time("orders", moment) == 0
        assert store.seek_time("orders", moment.astimezone().replace(tzinfo=None)) == 0
        assert store.seek_time("orders", moment + timedelta(microseconds=1)) == 1
        with pytest.raises(InvalidConfig, match="must be a datetime, or milliseconds since 1970"):
            store.seek_time("orders", "yesterday")  # type: ignore[arg-type]


def test_the_library_prints_nothing_unasked(tmp_path: Path) -> None:
    """Without a handler, Python prints a library's warnings to standard error."""
    program = f"""
import logging, mqlake
with mqlake.MessageStore.open({str(tmp_path / "store")!r}) as store:
    logging.getLogger("mqlake.store.recovery").warning("found a scar")
    logging.getLogger("mqlake.runtime.workers").error("failed")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
