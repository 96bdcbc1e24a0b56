"""Damaged directories: files that are missing, empty, short, long, doubled, misnamed, or not files at all.

The store must open with everything in the intact part of its log, or refuse with one sentence that names the command
to run. The bytes decide what is intact: a record counts if all of it is unchanged and in place.
"""

from __future__ import annotations

import itertools
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path

from mqlake.torture.judge import open_and_read
from mqlake.torture.pristine import CONFIG, ENTRY, LOG_BYTES, Pristine, closed_store, crashed_store
from mqlake.torture.row import Outcome, Row

COUNT = 60
REPAIR = "mqlake repair"
HELD = "held by another process"
HOLDER = """
import sys, time
from mqlake import MessageStore
store = MessageStore.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""
Shape = Callable[[Path, random.Random], object]
"""A function that damages the store at a path."""


# ---- one file


def _first_log(store: Path) -> Path:
    return sorted((store / "commitlog").iterdir())[0]


def _middle_log(store: Path) -> Path:
    return sorted((store / "commitlog").iterdir())[1]


def _last_log(store: Path) -> Path:
    return sorted((store / "commitlog").iterdir())[-1]


def _queue(store: Path) -> Path:
    return sorted((store / "consumequeue").glob("*/*/*"))[0]


def _index(store: Path) -> Path:
    return sorted((store / "index").iterdir())[0]


FILES: dict[str, Callable[[Path], Path]] = {
    "first log file": _first_log,
    "middle log file": _middle_log,
    "last log file": _last_log,
    "queue file": _queue,
    "index file": _index,
    "checkpoint": lambda store: store / "checkpoint",
    "own checkpoint": lambda store: store / "mqlake" / "checkpoint",
    "positions": lambda store: store / "mqlake" / "positions",
    "settings": lambda store: store / "mqlake" / "settings.json",
}


def _noise(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size))


def _half(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _extend(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 9000)))


def _one_short(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _double(path: Path, rng: random.Random) -> None:
    shutil.copyfile(path, path.with_name(path.name + ".bak"))


def _misname(path: Path, rng: random.Random) -> None:
    path.rename(path.with_name(f"x{path.name}"))


DAMAGES: dict[str, Shape] = {
    "missing": lambda path, rng: path.unlink(),
    "empty": lambda path, rng: path.write_bytes(b""),
    "all zeros": lambda path, rng: path.write_bytes(bytes(path.stat().st_size)),
    "noise": _noise,
    "cut in half": _half,
    "a byte short": _one_short,
    "too long": _extend,
    "a folder": _folder,
    "doubled": _double,
    "misnamed": _misname,
}


# ---- the whole folder


def _stale_next_log(store: Path, rng: random.Random) -> None:
    """Add a log file from an earlier use after the last: whole records, with other physical offsets."""
    shutil.copyfile(_first_log(store), _next_log(store))


def _next_log(store: Path) -> Path:
    return store / "commitlog" / f"{int(_last_log(store).name) + LOG_BYTES:020d}"


def _queues_past_the_log(store: Path, rng: random.Random) -> None:
    """Add queue entries for records that the log does not have."""
    queue = _queue(store)
    data = bytearray(queue.read_bytes())
    end = next(at for at in range(0, len(data), ENTRY) if not any(data[at : at + ENTRY]))
    for at in range(end, min(end + 5 * ENTRY, len(data)), ENTRY):
        data[at : at + ENTRY] = struct.pack(">qiq", 100 * LOG_BYTES + at, 100, 0)
    queue.write_bytes(data)


def _garbage_queues(store: Path, rng: random.Random) -> None:
    for queue in (store / "consumequeue").glob("*/*/*"):
        _noise(queue, rng)


def _only(*names: str) -> Shape:
    def shape(store: Path, rng: random.Random) -> None:
        for path in store.iterdir():
            if path.name not in names:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return shape


def _without(name: str) -> Shape:
    return lambda store, rng: shutil.rmtree(store / name)


def _emptied(name: str) -> Shape:
    def shape(store: Path, rng: random.Random) -> None:
        shutil.rmtree(store / name)
        (store / name).mkdir()

    return shape


def _file_for_folder(name: str) -> Shape:
    def shape(store: Path, rng: random.Random) -> None:
        shutil.rmtree(store / name)
        (store / name).write_text("not a folder")

    return shape


def _foreign(name: str) -> Shape:
    def shape(store: Path, rng: random.Random) -> None:
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_text("not of this store")

    return shape


def _abort_folder(store: Path, rng: random.Random) -> None:
    (store / "abort").unlink(missing_ok=True)
    (store / "abort").mkdir()


FOLDERS: dict[str, Shape] = {
    "no queues": _without("consumequeue"),
    "no index": _without("index"),
    "no log": _without("commitlog"),
    "nothing of our own": _without("mqlake"),
    "an empty log folder": _emptied("commitlog"),
    "empty queues folder": _emptied("consumequeue"),
    "the log alone": _only("commitlog"),
    "log and queues alone": _only("commitlog", "consumequeue"),
    "our own folder alone": _only("mqlake"),
    "an empty folder": _only(),
    "one queue missing": lambda store, rng: shutil.rmtree(_queue(store).parent),
    "a file for the log's folder": _file_for_folder("commitlog"),
    "a file for the queues' folder": _file_for_folder("consumequeue"),
    "a file for the index's folder": _file_for_folder("index"),
    "a file for our own folder": _file_for_folder("mqlake"),
    "queues longer than the log": _queues_past_the_log,
    "queues of noise": _garbage_queues,
    "an empty next log file": lambda store, rng: _next_log(store).touch(),
    "a next log file of zeros": lambda store, rng: _next_log(store).write_bytes(bytes(LOG_BYTES)),
    "a next log file of an older life": _stale_next_log,
    "a foreign file in the root": _foreign("notes.txt"),
    "a foreign file in the log": _foreign("commitlog/notes.txt"),
    "a foreign file among the topics": _foreign("consumequeue/notes.txt"),
    "a foreign file among the queues": _foreign("consumequeue/orders/notes.txt"),
    "a foreign file in a queue": _foreign("consumequeue/orders/0/notes.txt"),
    "a foreign file in the index": _foreign("index/notes.txt"),
    "a folder for the lock": lambda store, rng: _folder(store / "lock", rng),
    "a folder for RocketMQ's mark of a crash": _abort_folder,
    "half JSON in the settings": lambda store, rng: (store / "mqlake/settings.json").write_text('{"maxHas'),
}


class Shapes(Row):
    name = "shapes"
    title = "damaged directories (empty, short, extra, missing middle, …): 120 shapes, closed and crashed"
    allowed = "opens with all that is intact, or refuses with one sentence and the repair command"
    share = 1
    cases = 240

    @cached_property
    def _stores(self) -> list[Pristine]:
        return [closed_store(self.folder / "closed", COUNT), crashed_store(self.folder / "crashed", COUNT)]

    @cached_property
    def _shapes(self) -> list[tuple[str, Shape]]:
        """Return 120 shapes. Each is applied to both stores."""
        files = itertools.product(FILES, DAMAGES)
        found = [(f"{file}: {kind}", _of(FILES[file], DAMAGES[kind])) for file, kind in files]
        return [*FOLDERS.items(), (HELD, lambda store, rng: None), *found]

    def run(self, case: int, folder: Path) -> Outcome:
        name, shape = self._shapes[case // 2]
        pristine = self._stores[case % 2]
        rng = self.random(case)
        store = pristine.copy_to(folder / "store")
        shape(store, rng)
        shutil.copytree(store, folder / "before", symlinks=True)
        intact = pristine.intact_in(store)
        outcome = Outcome(faults=1, acknowledged=len(intact))
        with _held(store) if name == HELD else nullcontext():
            served = open_and_read(store, CONFIG, rng)
        if served.refused is not None:
            outcome.count("refused", _not_a_good_refusal(served.refused), "refused without a remedy")
        else:
            outcome.judge(served, [record.ack for record in intact], {record.number for record in pristine.records})
        outcome.note(f"{name}, of the {pristine.path.name} store")
        return outcome


def _of(file: Callable[[Path], Path], damage: Shape) -> Shape:
    return lambda store, rng: damage(file(store), rng)


def _not_a_good_refusal(text: str) -> list[str]:
    """Return the text unless it is one sentence of a StoreError with the command to run; a lock needs no command."""
    names_a_way = REPAIR in text or (text.startswith("StoreLocked") and "read_only=True" in text)
    return [] if names_a_way and "\n" not in text else [text]


@contextmanager
def _held(store: Path) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.kill()
