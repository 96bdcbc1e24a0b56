"""What `make dist` makes installs and works in an empty environment, with and without extras, on every Python here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MINORS = (11, 12, 13)
GENERATED = "_compiled.c"

CORE = """
import mqlake
from mqlake import Message, MessageStore
from mqlake.kernel import KERNEL

assert KERNEL == "compiled"
with MessageStore.open("store") as store:
    store.put(Message("orders", b"17", keys=["17"]), durability=mqlake.Durability.DISK)
    assert store.find("orders", "17")[0].body == b"17"
    try:
        list(store.scan())
    except mqlake.MissingExtra as error:
        assert "mqlake[arrow]" in str(error)
    else:
        raise AssertionError("scanned without pyarrow")
"""

EXTRAS = """
import shutil

import mqlake.spark
from mqlake import Message, MessageStore

with MessageStore.open("store") as store:
    assert sum(batch.num_rows for batch in store.scan()) == 1
if shutil.which("java"):
    spark = mqlake.spark.session("local[1]")
    assert spark.read.format("mqlake").option("columns", "topic").load("store").collect()[0].topic == "orders"
    spark.stop()
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command of an environment that knows nothing of this checkout."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "MQLAKE_PURE", "MQLAKE_RECORD_LOCKS"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def interpreter(minor: int) -> str | None:
    """Return a Python of this minor version that runs."""
    versions = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"))
    for candidate in [shutil.which(f"python3.{minor}"), *map(str, versions)]:
        if candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
            return candidate
    return None


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, made from the files of this checkout, built ones included."""
    pytest.importorskip("build")
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", dist, ROOT, cwd=dist)
    (found,) = dist.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module", params=MINORS, ids=lambda minor: f"3.{minor}")
def wheel(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A Python, and the wheel that it built from the source distribution alone."""
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"no Python 3.{request.param} here")
    place = tmp_path_factory.mktemp("wheel")
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, source, cwd=place)
    (found,) = place.glob("*.whl")
    return python, found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_source_distribution_has_what_a_build_needs_and_nothing_generated(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert {"_compiled.pyx", "record.pxi", "crc32.h", "failsync.c", "LICENSE", "CHANGELOG.md", "format.md"} <= names
    assert GENERATED not in names
    assert not any(name.endswith((".so", ".pyc")) for name in names)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_wheel_works_in_an_empty_environment_without_extras_and_with_all(
    wheel: tuple[str, Path], tmp_path: Path
) -> None:
    python, built = wheel
    with zipfile.ZipFile(built) as archive:
        names = {Path(name).name for name in archive.namelist()}
    assert not {GENERATED, "_compiled.pyx", "failsync.c"} & names
    run(python, "-m", "venv", "empty", cwd=tmp_path)
    inside = tmp_path / "empty" / "bin" / "python"
    run(inside, "-m", "pip", "install", "--quiet", built, cwd=tmp_path)
    assert "compiled kernel" in run(tmp_path / "empty" / "bin" / "mqlake", "--version", cwd=tmp_path)
    run(inside, "-c", CORE, cwd=tmp_path)
    run(inside, "-m", "pip", "install", "--quiet", f"mqlake[all] @ file://{built}", cwd=tmp_path)
    run(inside, "-c", EXTRAS, cwd=tmp_path)
