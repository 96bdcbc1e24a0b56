"""Small files that are replaced whole: a power cut leaves the old one or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path

from mqlake.files.mapped_file import sync_directory


def replace_file(path: Path, content: bytes, scratch: Path) -> None:
    """Write, sync, rename, sync the folder. `scratch` is a folder on the same file system, for the making."""
    scratch.mkdir(parents=True, exist_ok=True)
    temporary = scratch / f"{path.name}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    sync_directory(path.parent)
