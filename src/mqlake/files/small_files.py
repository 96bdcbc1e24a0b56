"""Small files that appear or are replaced whole: a power cut leaves the old one or the new one, never a part."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from mqlake.files.mapped_file import sync_directory


def replace_file(path: Path, content: bytes, scratch: Path) -> None:
    """Write, sync, rename, sync the folder. `scratch` is a folder on the same file system, for the making."""
    temporary = _written(scratch / f"{path.name}.new", content)
    temporary.replace(path)
    sync_directory(path.parent)


def create_file(path: Path, content: bytes, scratch: Path) -> bool:
    """The same for a name that must be new; False where it is taken, and then nothing changes."""
    temporary = _written(scratch / f"{path.name}.{os.getpid()}.{threading.get_ident()}.new", content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync_directory(path.parent)
    return True


def _written(temporary: Path, content: bytes) -> Path:
    temporary.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return temporary
