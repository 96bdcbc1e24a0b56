"""A repaired store keeps all promises again, and every record outside the damaged bytes is served."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import mqlake
from mqlake import BadFile, MessageStore, StoreConfig, StoreLocked, check
from mqlake.codec.queue_entry import ENTRY, FILLER_SIZE
from mqlake.errors import NotAStore
from mqlake.inspect.dump import dump_lines
from mqlake.inspect.fillers import fillers
from mqlake.inspect.repair import repair
from mqlake.kernel import check_record, dispatch_records
from mqlake.torture.faults.damage import KINDS, damage
from tests.golden.stores import GoldenStore
from tests.helpers import LOG_FILE, SMALL_FILES, message, open_small
from tests.inspect.rebuilding import rebuild_here

Served = dict[int, tuple[str, int, int, bytes]]
SEEDS = range(3)


def fill(path: Path) -> None:
    draw = random.Random(1)
    with open_small(path) as store:
        for number in range(400):
            topic = draw.choice(["orders", "payments", "audit"])
            body = draw.randbytes(draw.randrange(1, 800))
            store.put(message(number, topic, queue_id=draw.randrange(3), body=body))
    (path / "config/topics.json").write_text('{"table":{"a@b":{0:5,1:7}}}')
    (path / "config/topics.json.bak").write_text('{"table":{}}')


def served(path: Path) -> Served:
    """Return all that a reader gets through the queues, by physical offset."""
    found: Served = {}
    with MessageStore.open(path, read_only=True) as store:
        for topic in store.topics():
            for queue in store.queues(topic):
                at = queue.first_offset
                while messages := store.read(topic, queue_id=queue.queue_id, start=at, limit=50):
                    for each in messages:
                        found[each.physical_offset] = topic, queue.queue_id, each.queue_offset, each.record
                    at = messages[-1].queue_offset + 1
    return found


def damaged_records(told: dict[str, Any], before: Served) -> set[int]:
    """Return the records that the damage touched."""
    folder, _, name = told["file"].partition("/")
    if folder != "commitlog" or "offset" not in told:
        return set()
    start = int(name) + told["offset"]
    return {
        offset
        for offset, (*_, record) in before.items()
        if offset < start + told["length"] and start < offset + len(record)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Served]:
    path = tmp_path_factory.mktemp("whole") / "store"
    fill(path)
    return path, served(path)


@pytest.fixture
def store(whole: tuple[Path, Served], tmp_path: Path) -> Path:
    shutil.copytree(whole[0], tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("files", ["commitlog/*", "consumequeue/**/*", "index/*", "mqlake/*", "config/*", "**/*"])
@pytest.mark.parametrize("kind", KINDS)
def test_seeded_damage_is_repaired_and_costs_only_what_it_touched(
    kind: str, files: str, seed: int, store: Path, whole: tuple[Path, Served]
) -> None:
    try:
        told = damage(store, seed, files=files, kind=kind)
    except ValueError:
        return  # this kind does not apply to these files
    report = repair(store)
    assert report.after.holds, (told, report.after.findings)
    assert mqlake.check(store).holds
    before, after = whole[1], served(store)
    touched = damaged_records(told, before)
    assert {offset for offset in before if offset not in after} <= touched, told
    assert all(after[offset] == before[offset] for offset in before if offset in after and offset not in touched)
    assert after.keys() <= before.keys()
    if kind == "flip_bit":
        assert len(before) - len(after) <= 1


@pytest.mark.parametrize("at", [12, 15, 20, 27, 39])
def test_a_header_that_its_neighbours_contradict_is_corrected(at: int, store: Path, whole: tuple[Path, Served]) -> None:
    """With one bit of queue id, queue offset or state flipped, the message returns to its place and is not lost."""
    offset = sorted(whole[1])[200]
    with (store / f"commitlog/{offset - offset % LOG_FILE:020d}").open("r+b") as file:
        file.seek(offset % LOG_FILE + at)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    assert {row.what for row in mqlake.check(store).findings if row.severity == 2} == {
        "record-header",
        "seal-broken",
    }
    assert repair(store).after.holds
    assert served(store) == whole[1]


@pytest.mark.parametrize("at", [52, 53, 64 + 4, 64 + 5], ids=["born", "born", "store", "store"])
def test_a_port_that_rocketmq_cannot_decode_is_corrected(at: int, store: Path, whole: tuple[Path, Served]) -> None:
    offset = sorted(whole[1])[7]
    file = store / "commitlog" / f"{offset // LOG_FILE * LOG_FILE:020d}"
    with file.open("r+b") as log:
        log.seek(offset % LOG_FILE + at)
        log.write(b"\x40")
    report = repair(store)
    assert [action.what for action in report.actions][:1] == ["mend-host"]
    assert report.after.holds
    assert served(store) == whole[1]


def test_a_topic_that_its_neighbours_contradict_is_corrected(store: Path, whole: tuple[Path, Served]) -> None:
    offset = sorted(whole[1])[200]
    topic, _, _, record = whole[1][offset]
    with (store / f"commitlog/{offset - offset % LOG_FILE:020d}").open("r+b") as file:
        file.seek(offset % LOG_FILE + record.rindex(topic.encode()))
        file.write(bytes([ord(topic[0]) ^ 0x80]))
    assert repair(store).after.holds
    assert served(store) == whole[1]


def test_repair_backs_up_what_it_overwrites_or_removes(store: Path, whole: tuple[Path, Served]) -> None:
    offset = sorted(whole[1])[200]
    file = store / f"commitlog/{offset - offset % LOG_FILE:020d}"
    data = bytearray(file.read_bytes())
    data[offset % LOG_FILE + 88] ^= 1
    file.write_bytes(data)
    (store / "commitlog/notes.txt").write_text("hello")
    backup = repair(store).backup
    assert backup is not None and backup.parent == store / "mqlake/backup"
    lines = [json.loads(line) for line in (backup / "manifest").read_text().splitlines()]
    kept = {(line["file"], line["offset"]): line for line in lines}
    record = kept[f"commitlog/{file.name}", offset % LOG_FILE]
    saved = (backup / record["savedAs"]).read_bytes()[record["savedAt"] :][: record["length"]]
    assert saved == data[offset % LOG_FILE :][: len(whole[1][offset][3])]
    assert (backup / kept["commitlog/notes.txt", 0]["savedAs"]).read_text() == "hello"
    assert any(name.startswith("consumequeue/") for name, _ in kept) and any(
        name.startswith("index/") for name, _ in kept
    )


def test_a_whole_store_is_not_changed(store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    report = repair(store)
    assert report.done and report.actions == () and report.backup is None
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_repairing_a_copy_does_not_change_the_store(store: Path, tmp_path: Path) -> None:
    damage(store, 1, files="commitlog/*", kind="zero_pages")
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    report = repair(store, to=tmp_path / "copy")
    assert report.path == tmp_path / "copy" and report.after.holds and mqlake.check(report.path).holds
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    with pytest.raises(NotAStore, match="exists already"):
        repair(store, to=tmp_path / "copy")


def test_nothing_is_changed_before_it_is_confirmed(store: Path) -> None:
    damage(store, 1, files="commitlog/*", kind="zero_pages")
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    report = repair(store, confirm=lambda found, actions: bool(found.holds or not actions))
    assert not report.done and report.actions
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_live_store_is_refused(store: Path, tmp_path: Path) -> None:
    with MessageStore.open(store):
        for to in (None, tmp_path / "copy"):
            with pytest.raises(StoreLocked):
                repair(store, to=to)


def test_a_truncated_json_is_restored_from_its_bak(store: Path) -> None:
    (store / "config/topics.json").write_text('{"table":')
    (store / "config/lost.json").write_text("{")
    report = repair(store)
    assert {row.what for row in report.before.findings} == {"config-json", "config-lost"}
    assert (store / "config/topics.json").read_text() == '{"table":{}}'
    assert not (store / "config/lost.json").exists()
    assert report.after.holds


# ---- entries of a wrong kind

FILES = [
    *("lock", "abort", "checkpoint", "config/topics.json", "config/timercheck", "config/delayOffset.json"),
    *("mqlake/settings.json", "mqlake/deleted-topics", "mqlake/deleted-topics.bak", "mqlake/checkpoint"),
    *("mqlake/positions", "mqlake/timer", "mqlake/scars", "mqlake/gates/archive", "mqlake/identity"),
    "mqlake/epoch",
    *("mqlake/clock.json", "mqlake/health.json", "mqlake/recovery.json", f"consumequeue/orders/0/{0:020d}"),
]
FOLDERS = [
    *("consumequeue", "consumequeue/orders", "consumequeue/orders/0", "config", "index", "timerlog"),
    *("mqlake", "mqlake/spare", "mqlake/scratch", "mqlake/backup", "mqlake/gates", "mqlake/staging", "mqlake/sinks"),
]
HINTS = ("mqlake/clock.json", "mqlake/health.json", "mqlake/recovery.json")
"""What is there instead of these is ignored."""


def put_in_place_of(path: Path, kind: str) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if kind == "folder":
        path.mkdir()
        (path / "mine").write_text("keep")
    elif kind == "file":
        path.write_text("keep")
    elif kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to("/nonexistent/file" if kind == "link to nothing" else path.name)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in FILES for kind in ("folder", "FIFO", "link to nothing")),
        *((name, kind) for name in FOLDERS for kind in ("file", "FIFO", "link to nothing")),
        *((name, "link to itself") for name in ("lock", "abort", "checkpoint", "config", "mqlake/scratch")),
    ],
)
def test_an_entry_of_a_wrong_kind_is_named_moved_away_and_costs_nothing(
    name: str, kind: str, store: Path, whole: tuple[Path, Served]
) -> None:
    put_in_place_of(store / name, kind)
    assert name in {row.file for row in check(store).findings if row.what == "file-irregular"}
    if name not in HINTS and name.split("/")[0] != "consumequeue" and name.count("/") < 2:
        with pytest.raises(BadFile) as caught:
            open_small(store)
        assert caught.value.file == store / name
        assert str(caught.value).endswith(f"; run: mqlake repair {store}")
    elif name in HINTS:
        with open_small(store):
            pass
        put_in_place_of(store / name, kind)  # a writer replaces what can be replaced
    report = repair(store)
    assert report.after.holds
    assert ("move-away", name) in {(action.what, action.file) for action in report.actions}
    assert report.backup is not None
    kept = {path.name.partition(".wrong-kind")[0] for path in (report.backup / "wrong-kind").rglob("*")}
    assert Path(name).name in kept
    if kind in ("file", "folder"):
        assert b"keep" in {path.read_bytes() for path in (report.backup / "wrong-kind").rglob("*") if path.is_file()}
    with open_small(store) as opened:
        assert opened.put(message(0, queue_id=0)).queue_offset >= 0
    after = served(store)
    assert {offset: after[offset] for offset in whole[1]} == whole[1]


def test_a_folder_instead_of_a_log_file_costs_the_records_of_that_file_only(
    store: Path, whole: tuple[Path, Served]
) -> None:
    put_in_place_of(store / f"commitlog/{0:020d}", "folder")
    with pytest.raises(BadFile, match="found a folder; expected a file; run: mqlake repair"):
        open_small(store)
    repair(store)
    left = {offset: message for offset, message in whole[1].items() if offset >= LOG_FILE}
    assert left
    assert {offset: message for offset, message in served(store).items() if offset >= LOG_FILE} == left


def test_nothing_is_moved_before_it_is_confirmed_not_even_a_wrong_lock(store: Path) -> None:
    put_in_place_of(store / "lock", "folder")
    assert not repair(store, confirm=lambda before, actions: False).done
    assert (store / "lock" / "mine").exists()


@pytest.mark.parametrize("name", ["consumequeue", "index", "config", "mqlake"])
def test_a_reader_names_a_file_where_the_store_has_a_folder(name: str, store: Path) -> None:
    put_in_place_of(store / name, "file")
    with pytest.raises(BadFile, match=f"{name}: found a file; expected a folder; run: mqlake repair"):
        open_small(store, read_only=True)


def test_a_queue_whose_messages_are_all_gone_keeps_its_queue_offsets(tmp_path: Path) -> None:
    golden = GoldenStore("v5-retention", tmp_path)
    with MessageStore.open(golden.path, config=golden.config, read_only=True) as opened:
        ends = {(topic, q.queue_id): q.end_offset for topic in opened.topics() for q in opened.queues(topic)}
    damage(golden.path, 3, files="commitlog/*", kind="zero_pages")
    assert repair(golden.path, config=golden.config).after.holds
    with MessageStore.open(golden.path, config=golden.config, read_only=True) as opened:
        for (topic, queue_id), end in ends.items():
            assert opened.queues(topic)[queue_id].end_offset == end


@pytest.mark.parametrize("name", ["v4-crash-torn-tail", "v5-crash-no-queues", "v4-empty-next-file", "v5-crash"])
def test_stores_from_a_crashed_rocketmq_are_repaired(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    assert repair(golden.path, config=golden.config).after.holds
    assert not (golden.path / "abort").exists()


@pytest.mark.parametrize(
    "length", [92, 93, 101, 102, 103, 5000, (1 << 20) + 1, (1 << 20) + 91, (1 << 20) + 92, 3 << 20]
)
def test_fillers_are_whole_records_that_fill_a_gap_exactly(length: int) -> None:
    made = fillers(1000, 1000 + length, 77)
    data = b"".join(record for _, record in made)
    assert len(data) == length
    at = 0
    while at < length:
        size = check_record(data, at, length, 1000 + at, True)
        assert 92 <= size <= 1 << 20
        at += size
    _, why, runs, keys, count, _, timestamp = dispatch_records(data, 0, length, 1000, length, (), True, True)
    assert (why, runs, keys, count, timestamp) == (1, [], b"", len(made), 77)


DYING_REPAIR = """
    import os, sys
    from pathlib import Path

    left = int(sys.argv[2])

    def dies(call):
        def counted(*arguments, **named):
            global left
            left -= 1
            if left == 0:
                os._exit(9)
            return call(*arguments, **named)
        return counted

    for owner, name in ((os, "fsync"), (os, "fdatasync"), (os, "pwrite"), (os, "truncate"), (os, "ftruncate"),
                        (Path, "rename"), (Path, "replace"), (Path, "unlink"), (Path, "touch"), (Path, "mkdir")):
        setattr(owner, name, dies(getattr(owner, name)))
    from mqlake.inspect.repair import repair
    repair(sys.argv[1])
    print(int(sys.argv[2]) - left)
"""


def dying_repair(store: Path, after: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(DYING_REPAIR), str(store), str(after)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_repair_killed_at_any_moment_can_be_run_again(whole: tuple[Path, Served], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(whole[0], broken)
    told = [
        damage(broken, 3, files="commitlog/*", kind="swap"),
        damage(broken, 5, files="consumequeue/**/*", kind="flip_bit"),
        damage(broken, 1, files="config/*.json", kind="half_json"),
    ]
    offset = sorted(whole[1])[200]
    swapped = {told[0]["file"]: told[0]["other"], told[0]["other"]: told[0]["file"]}
    name = f"commitlog/{offset - offset % LOG_FILE:020d}"
    with (broken / swapped.get(name, name)).open("r+b") as file:
        file.seek(offset % LOG_FILE + 88)
        file.write(b"????")
    (broken / "commitlog/notes.txt").write_text("hello")
    counted = tmp_path / "counted"
    shutil.copytree(broken, counted)
    steps = int(dying_repair(counted, 1 << 30).stdout)
    draw = random.Random(7)
    for after in draw.sample(range(1, steps + 1), 20):
        store = tmp_path / "store"
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(broken, store)
        assert dying_repair(store, after).returncode == 9
        again = repair(store)
        assert again.after.holds, (after, again.after.findings)
        found = served(store)
        assert found == {at: record for at, record in whole[1].items() if at != offset}, (after, len(found))


def test_a_topic_whose_only_message_is_lost_is_empty_and_takes_new_messages(store: Path) -> None:
    with MessageStore.open(store) as opened:
        receipt = opened.put(message(1, "lonely", queue_id=0))
        opened.put(message(2, "orders", queue_id=0))
    with (store / f"commitlog/{receipt.physical_offset - receipt.physical_offset % LOG_FILE:020d}").open("r+b") as file:
        file.seek(receipt.physical_offset % LOG_FILE + 88)
        file.write(b"????")
    assert repair(store).after.holds
    with MessageStore.open(store) as opened:
        assert opened.put(message(3, "lonely", queue_id=0)).queue_offset == 0
    assert mqlake.check(store).holds


@pytest.mark.parametrize("place", [5_000, LOG_FILE + 5_000, 2 * LOG_FILE + 5_000], ids=["1st", "2nd", "3rd file"])
def test_dispatch_of_a_repaired_log_writes_the_entries_of_the_repair(place: int, tmp_path: Path) -> None:
    """A slave derives its queues from the log alone, and so does a store whose queues were lost."""
    path, slave = tmp_path / "s", tmp_path / "slave"
    with open_small(path) as store:
        made = [store.put(message(number, queue_id=0, body=bytes(500))).physical_offset for number in range(600)]
    lost = next(offset for offset in made if offset > place)
    with (path / f"commitlog/{lost - lost % LOG_FILE:020d}").open("r+b") as file:
        file.seek(lost % LOG_FILE)
        file.write(bytes(1200))
    assert repair(path).after.findings == ()
    shutil.copytree(path / "commitlog", slave / "commitlog")
    open_small(slave).close()
    assert queue_bytes(slave) == queue_bytes(path)
    assert mqlake.check(slave).holds


def queue_bytes(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "consumequeue/orders/0").iterdir()}


@pytest.mark.parametrize("lost", [1, 3])
def test_queue_offsets_of_messages_lost_at_the_end_are_not_reused(lost: int, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_small(path) as store:
        receipts = [store.put(message(number, queue_id=0)) for number in range(10)]
    with (path / f"commitlog/{0:020d}").open("r+b") as file:
        file.seek(receipts[10 - lost].physical_offset)
        file.write(bytes(LOG_FILE - receipts[10 - lost].physical_offset))
    assert repair(path).after.findings == ()
    for number in range(2):
        with open_small(path) as store:
            assert store.put(message(100 + number, queue_id=0)).queue_offset == 10 + number
        assert mqlake.check(path).findings == ()
    with open_small(path, read_only=True) as store:
        found = [m.keys[0] for m in store.read("orders", queue_id=0, limit=100)]
        assert list(dict.fromkeys(found)) == [*(f"key-{n}" for n in range(10 - lost)), "key-100", "key-101"]


def lose_the_end(path: Path, count: int, lost: int) -> None:
    """Repair a store whose queue "orders" 0 lost the last messages of `count`."""
    with open_small(path) as store:
        made = [store.put(message(number, queue_id=0, body=bytes(200))) for number in range(count)]
        store.put(message(0, "others"))
    for receipt in made[-lost:]:
        change_byte(path, receipt.physical_offset + 95, 1)
    assert repair(path).after.findings == ()


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("count", [10, 600], ids=["in the first file", "in a later one"])
def test_every_rebuild_of_a_queue_that_ends_with_lost_messages_writes_the_entries_of_the_repair(
    count: int, lost: int, tmp_path: Path
) -> None:
    path, opened = tmp_path / "s", tmp_path / "opened"
    lose_the_end(path, count, lost)
    shutil.copytree(path, opened)
    shutil.rmtree(opened / "consumequeue")
    open_small(opened).close()
    rebuild_here(path, tmp_path / "built")
    assert queue_bytes(opened) == queue_bytes(tmp_path / "built") == queue_bytes(path)
    for number in range(2):
        assert mqlake.check(opened).findings == ()
        with open_small(opened) as store:
            assert store.put(message(number, queue_id=0)).queue_offset == count + number


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("count", [10, 600], ids=["in the first file", "in a later one"])
def test_a_queue_whose_last_entry_points_inside_a_file_is_a_finding_that_repair_mends(
    count: int, lost: int, tmp_path: Path
) -> None:
    """RocketMQ fails at every pull of such an entry."""
    path = tmp_path / "s"
    lose_the_end(path, count, lost)
    whole = queue_bytes(path)
    position = (count - 1) * 20
    file = path / f"consumequeue/orders/0/{position - position % 2000:020d}"
    with file.open("r+b") as queue:
        queue.seek(position % 2000 + 8)
        queue.write(FILLER_SIZE.to_bytes(4, "big"))
    (found,) = mqlake.check(path).findings
    assert (found.what, path / found.file, found.offset) == ("queue-hole", file, position % 2000)
    assert repair(path).after.findings == ()
    assert queue_bytes(path) == whole


def test_a_store_without_its_log_folder_is_repaired_with_files_of_its_own_size(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    shutil.rmtree(tmp_path / "s/commitlog")
    report = repair(tmp_path / "s")
    assert report.done
    sizes = {file.stat().st_size for file in (tmp_path / "s/commitlog").iterdir()}
    assert sizes == {LOG_FILE}
    with open_small(tmp_path / "s") as store:
        assert store.put(message(1)).physical_offset >= 0


@pytest.mark.parametrize("change", [-1, 5, "half"])
def test_a_damaged_spare_file_costs_no_message_and_changes_no_file_of_the_log(
    change: int | str, tmp_path: Path
) -> None:
    with open_small(tmp_path / "live") as store:
        for number in range(100):
            store.put(message(number))
        store.flush()
        shutil.copytree(tmp_path / "live", tmp_path / "s", ignore=shutil.ignore_patterns("scratch", "spare"))
    spare = tmp_path / "s/mqlake/spare" / f"{LOG_FILE:020d}"
    spare.parent.mkdir()
    spare.write_bytes(bytes(LOG_FILE // 2 if change == "half" else LOG_FILE + int(change)))
    before = served(tmp_path / "s")
    assert len(before) == 100
    assert repair(tmp_path / "s").after.severity == mqlake.Severity.NOTE
    assert served(tmp_path / "s") == before


def change_byte(path: Path, offset: int, mask: int) -> None:
    with (path / f"commitlog/{offset - offset % LOG_FILE:020d}").open("r+b") as file:
        file.seek(offset % LOG_FILE)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ mask]))


def test_each_message_is_dumped_once_after_the_last_file_was_lost(store: Path, whole: tuple[Path, Served]) -> None:
    """Entries of the lost messages name no message, except the last one of a queue, which RocketMQ needs."""
    lost = sorted((store / "commitlog").iterdir())[-1]
    lost.unlink()
    assert repair(store).after.findings == ()
    kept = {offset for offset in whole[1] if offset < int(lost.name)}
    with mqlake.MessageStore.open(store, read_only=True) as opened:
        lines = list(dump_lines(opened._reading, {}, walk=False, keys=False, tags=False))
        ends = {
            (topic, queue.queue_id): queue.end_offset for topic in opened.topics() for queue in opened.queues(topic)
        }
    found = [line for line in lines if line["kind"] == "message"]
    assert sorted(line["physicalOffset"] for line in found) == sorted(kept)
    assert all(line["cqOffset"] == line["queueOffset"] for line in found)
    for topic, queue_id, queue_offset, _ in whole[1].values():
        assert ends[topic, queue_id] > queue_offset, "its queue offset is not given again"
    for (topic, queue_id), end in ends.items():
        own = [each[2] for offset, each in whole[1].items() if each[:2] == (topic, queue_id) and offset in kept]
        folder = store / "consumequeue" / topic / str(queue_id)
        entries = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
        lost_ones = list(ENTRY.iter_unpack(entries))[max(own) + 1 : end - 1]
        assert all(entry[:2] == (int(lost.name) - LOG_FILE, FILLER_SIZE) for entry in lost_ones)
    with open_small(store) as opened:
        for (topic, queue_id), end in ends.items():
            assert opened.put(message(1, topic, queue_id=queue_id)).queue_offset == end
            assert [each.queue_offset for each in opened.read(topic, queue_id=queue_id, start=end)] == [end]
    assert mqlake.check(store).findings == ()


WRONG_NAMES = [f"{7 * LOG_FILE:020d}", "0" * 19, f"{1:020d}", f"{0:020d}.old"]


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_log_file_under_any_wrong_name_costs_no_message(
    name: str, number: int, store: Path, whole: tuple[Path, Served]
) -> None:
    """The oldest and the newest file too, whose place is not between the names of others."""
    sorted((store / "commitlog").iterdir())[number].rename(store / "commitlog" / name)
    assert "file-misnamed" in {row.what for row in mqlake.check(store).findings}
    assert repair(store).after.severity <= mqlake.Severity.WARNING
    assert served(store) == whole[1]


def test_log_files_that_all_have_the_names_of_others_cost_no_message(store: Path, whole: tuple[Path, Served]) -> None:
    for path in sorted((store / "commitlog").iterdir(), reverse=True):
        path.rename(path.with_name(f"{int(path.name) + 9 * LOG_FILE:020d}"))
    assert repair(store).after.severity <= mqlake.Severity.WARNING
    assert served(store) == whole[1]


def test_one_wrong_own_offset_does_not_place_a_file(store: Path, whole: tuple[Path, Served]) -> None:
    """No CRC covers the offset in a record."""
    change_byte(store, 28, 0x10)
    (store / f"commitlog/{0:020d}").rename(store / "commitlog/aside")
    repair(store)
    assert served(store).keys() == whole[1].keys() - {0}


STORE_TIME_AT, BODY_AT = 56, 88


@pytest.mark.parametrize("apart", [20, 1])
def test_a_wrong_store_time_before_damage_costs_no_record_after_it(apart: int, store: Path) -> None:
    """No CRC covers a store time. One that is too high must not make leftovers of what was written later."""
    before = served(store)
    offsets = sorted(before)
    change_byte(store, offsets[40 - apart] + STORE_TIME_AT + 1, 0x10)
    change_byte(store, offsets[40] + BODY_AT, 1)
    shutil.copytree(store, store.with_name("opened"))
    open_small(store.with_name("opened")).close()
    repair(store)
    after = served(store)
    assert after.keys() == before.keys() - {offsets[40]}
    assert after.keys() == served(store.with_name("opened")).keys()


@pytest.mark.parametrize("stop", ["closed by mqlake", "closed by RocketMQ"])
@pytest.mark.parametrize("first_after", [100, 90])
def test_a_clock_that_was_set_back_before_damage_costs_no_record_after_it(
    stop: str, first_after: int, store: Path
) -> None:
    before = served(store)
    offsets = sorted(before)
    for offset in offsets[first_after:]:
        with (store / f"commitlog/{offset - offset % LOG_FILE:020d}").open("r+b") as file:
            file.seek(offset % LOG_FILE + STORE_TIME_AT)
            time_ms = int.from_bytes(file.read(8), "big") - 3_600_000
            file.seek(-8, 1)
            file.write(time_ms.to_bytes(8, "big"))
    change_byte(store, offsets[100] + BODY_AT, 1)
    if stop == "closed by RocketMQ":
        shutil.rmtree(store / "mqlake")
    repair(store, config=StoreConfig(**SMALL_FILES))
    assert served(store).keys() == before.keys() - {offsets[100]}
