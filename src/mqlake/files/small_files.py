"""Small files, created or replaced atomically: a power cut leaves the old file or the new one, never a part."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from mqlake.errors import BadFile, file_error
from mqlake.files.mapped_file import open_regular, sync_directory

PART_BYTES: Final = 1 << 20
"""`os.read` allocates as much as it is asked for, and most files are far smaller than their limit."""


def read_small_file(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes. Raises BadFile for anything else.

    Raises FileNotFoundError if there is none. A FIFO or a device could block the reader, so opening never waits.
    """
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        parts = []
        left = limit + 1
        while left and (part := os.read(descriptor, min(left, PART_BYTES))):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        raise file_error(path, "read", 0, error) from error
    finally:
        os.close(descriptor)
    if not left:
        raise BadFile(path, f"more than {limit} bytes", f"at most {limit}: it is not what its name says; move it away")
    return b"".join(parts)


def read_whole_file(path: Path) -> bytes:
    """Return the bytes of a regular file of any size, in the same way."""
    descriptor = open_regular(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        try:
            return file.read()
        except OSError as error:
            raise file_error(path, "read", 0, error) from error


def replace_file(path: Path, content: bytes, scratch: Path) -> None:
    """Replace a file: write, sync, rename, sync the folder. `scratch` is a folder on the same file system."""
    temporary = _written(scratch / f"{path.name}.new", content)
    temporary.replace(path)
    sync_directory(path.parent)


def publish_file(path: Path, content: bytes) -> None:
    """Replace a file that is only a hint for others: readers find all of it, but a power cut may take it."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)  # a FIFO that somebody left there would block
    temporary.write_bytes(content)
    temporary.replace(path)


def create_file(path: Path, content: bytes, scratch: Path) -> bool:
    """Create a file the same way. Return False, and change nothing, if the name exists."""
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
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK  # never wait for a FIFO's reader
    descriptor = os.open(temporary, flags, 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return temporary


def remove_folder(folder: Path) -> None:
    """Delete a folder and all in it, as far as that works. A folder that is not there costs nothing."""
    if folder.exists():
        import shutil  # it loads three compressors: not for a start that has nothing to delete

        shutil.rmtree(folder, ignore_errors=True)
