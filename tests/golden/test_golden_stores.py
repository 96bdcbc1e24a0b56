"""Stores that a real RocketMQ wrote open here, and serve message for message what RocketMQ serves from them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake import MessageStore
from tests.golden.stores import NAMES, GoldenStore

REFUSED_BY_ROCKETMQ = {"v4-empty-next-file": "v4-next-file"}
"""4.9 does not start with an empty next file. The dump of the same store without that file is the expectation."""
KEYS_LOST_BY_ROCKETMQ = {"v5-crash-exact-fit"}
"""5.5 drops its index after the crash and indexes only the last ten files again. Here all keys are found."""
INDEXED_TAGS_HERE = {name for name in NAMES if name.startswith("v4-crash")}
"""4.9 indexes no tags. After a crash the index is built here, with tags."""

Line = dict[str, Any]


def lines_of(path: Path, golden: GoldenStore, *, read_only: bool) -> list[Line]:
    with MessageStore.open(path, config=golden.config, read_only=read_only, deliver=False) as store:
        return list(store.dump(golden.properties, walk=True, keys=True, tags=True))


def of_kind(lines: list[Line], *kinds: str) -> list[Line]:
    return [line for line in lines if line["kind"] in kinds]


def offsets_by_key(lines: list[Line]) -> dict[tuple[str, str], set[int]]:
    return {(line["topic"], line["key"]): set(line["offsets"]) for line in lines}


def expectation_of(golden: GoldenStore) -> GoldenStore:
    """Return the store whose dump says what must be served."""
    return GoldenStore(REFUSED_BY_ROCKETMQ.get(golden.name, golden.name), golden.path.parent / "expected")


def release_of(golden: GoldenStore) -> str:
    return "4.9.8" if golden.name.startswith("v4") else "5.5.1"


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return GoldenStore(request.param, tmp_path)


@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "recovered"])
def test_every_message_and_every_record_is_what_rocketmq_serves(
    golden: GoldenStore, read_only: bool, record_property: Callable[[str, object], None]
) -> None:
    lines = lines_of(golden.path, golden, read_only=read_only)
    expected = expectation_of(golden)
    kinds = ("message", "unreadable", "record", "blank", "end")
    found, wanted = of_kind(lines, *kinds), expected.expected(*kinds)
    if golden.name in REFUSED_BY_ROCKETMQ:  # another run of the same messages, with other times
        found, wanted = [[without_times(line) for line in part] for part in (found, wanted)]
    assert found == wanted
    store, wanted_store = lines[0], expected.expected("store")[0]
    for field in ("load", "minPhyOffset", "maxPhyOffset", "queues", "settings"):
        assert store[field] == wanted_store[field]
    if not read_only:
        counts = {f"{kind}s": len(of_kind(lines, kind)) for kind in ("message", "record")}
        record_property(f"compared: mqlake on stores of RocketMQ {release_of(golden)}", {"stores": 1, **counts})


@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "recovered"])
def test_every_key_look_up_finds_what_rocketmq_finds(
    golden: GoldenStore, read_only: bool, record_property: Callable[[str, object], None]
) -> None:
    lines = lines_of(golden.path, golden, read_only=read_only)
    expected = expectation_of(golden)
    for kind in ("key", "tag"):
        found, wanted = offsets_by_key(of_kind(lines, kind)), offsets_by_key(expected.expected(kind))
        if kind == "tag" and golden.name in INDEXED_TAGS_HERE:
            assert not wanted
        elif golden.name in KEYS_LOST_BY_ROCKETMQ:
            assert all(found[key] >= wanted[key] for key in wanted)
        else:
            assert found == wanted
        if not read_only:
            record_property(
                f"compared: mqlake on stores of RocketMQ {release_of(golden)}", {f"{kind} look-ups": len(wanted)}
            )


def test_a_read_only_open_changes_nothing(golden: GoldenStore) -> None:
    before = files_of(golden.path)
    lines_of(golden.path, golden, read_only=True)
    assert files_of(golden.path) == before


NOT_COMPARABLE = {
    **{f"v{v}-crash-no-queues": "its queues were deleted" for v in (4, 5)},
    **{f"v{v}-crash-torn-tail": "its queue and index name the torn record" for v in (4, 5)},
    **{f"v{v}-retention": "its queues and index begin before what is left of the log" for v in (4, 5)},
    "v5-inner-batch": "batch queues are not derived here",
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_COMPARABLE])
def test_queues_and_index_derived_from_rocketmqs_log_are_rocketmqs_byte_for_byte(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    log_only = tmp_path / "log-only"
    shutil.copytree(golden.path / "commitlog", log_only / "commitlog")
    (log_only / "abort").touch()  # after an unclean stop no derived file is trusted
    index = dataclasses.replace(golden.config.index, tags=name.startswith("v5"))
    with MessageStore.open(log_only, config=dataclasses.replace(golden.config, index=index), deliver=False):
        pass
    assert files_of(log_only / "consumequeue") == files_of(golden.path / "consumequeue")
    # Index files are named after the time they were made; their content depends on the log only.
    assert [*files_of(log_only / "index").values()] == [*files_of(golden.path / "index").values()]


def test_a_recovered_store_opens_again_with_the_same_content(golden: GoldenStore) -> None:
    first = lines_of(golden.path, golden, read_only=False)
    assert lines_of(golden.path, golden, read_only=False) == first
    assert lines_of(golden.path, golden, read_only=True) == first


def files_of(directory: Path) -> dict[str, bytes]:
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def without_times(line: Line) -> Line:
    return {key: value for key, value in line.items() if key not in ("storeTimestamp", "recordSha1")}
