"""What files, disks and the bytes in them can raise, and how errors of the system become errors of this family."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from mqlake.errors.root import StoreError


class DiskFull(StoreError):
    """A file could not be allocated. Nothing was written; the caller may retry the put later.

    `size_bytes` is 0 where no size is known: a store that was being opened.
    """

    def __init__(self, path: Path, size_bytes: int, cause: str) -> None:
        super().__init__(path, size_bytes, cause)
        self.path, self.size_bytes, self.cause = path, size_bytes, cause

    def __str__(self) -> str:
        if not self.size_bytes:  # not a log file: the store could not be opened, or a small file not be made
            return f"{self.path}: the disk is full ({self.cause}); free space, then try again"
        return (
            f"{self.path}: {self.size_bytes} bytes could not be allocated ({self.cause}); "
            "free space or use a smaller file size, then put again"
        )


class DiskAboveLimit(DiskFull):
    """Disk use is above the configured limit. Puts resume once there is space; the store need not be reopened."""

    def __init__(self, path: Path, used_percent: int, full_percent: int, resume_percent: int) -> None:
        super().__init__(path, 0, f"the disk is {used_percent} % full")
        self.args = (path, used_percent, full_percent, resume_percent)
        self.used_percent, self.full_percent, self.resume_percent = used_percent, full_percent, resume_percent

    def __str__(self) -> str:
        return (
            f"{self.path}: the disk is {self.used_percent} % full; puts are refused above {self.full_percent} % "
            f"(diskSpaceWarningLevelRatio) until use falls to {self.resume_percent} %; free some space"
        )


class FileFailed(StoreError):
    """The system would not make, open or map a file, or start a thread; the disk is not full. Nothing was written."""

    REMEDIES = MappingProxyType(
        {
            errno.EMFILE: "raise the limit of open files (ulimit -n), or close files and sockets of this process",
            errno.ENFILE: "the whole system has no descriptors left: raise fs.file-max, or end other processes",
            errno.ENOMEM: "free memory, or raise vm.max_map_count",
            errno.EAGAIN: "free memory, or raise the limits of memory and threads (ulimit -v, ulimit -u)",
            errno.EIO: "the disk reports an error: look at the kernel's log (dmesg) before you write on",
            errno.EACCES: "change its permissions, or run as a user that has them",
            errno.EPERM: "change its permissions, or run as a user that has them",
            errno.EROFS: "its file system is read-only: open the store with read_only=True",
        }
        | dict.fromkeys(
            (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENXIO),
            "something else has its name: look at it (ls -l), or run `mqlake repair`, which moves it away",
        )
    )

    def __init__(self, path: Path, action: str, number: int, reason: str) -> None:
        super().__init__(path, action, number, reason)
        self.path, self.action, self.number, self.reason = path, action, number, reason

    def __str__(self) -> str:
        remedy = self.REMEDIES.get(self.number, "look at the system's log, then try again")
        return f"{self.path}: could not be {self.action} ({self.reason}); {remedy}"


class BadFile(StoreError):
    """A file of the store has a size or a name that does not fit its neighbours."""

    def __init__(self, file: Path | str, found: str, expected: str) -> None:
        super().__init__(file, found, expected)
        self.file, self.found, self.expected = file, found, expected

    def __str__(self) -> str:
        return f"{self.file}: found {self.found}; expected {self.expected}"


class BadConfigFile(StoreError):
    """A state file under `config/` cannot be read, and neither can its backup."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}; replace it with an intact copy, or remove it and its .bak to start without "
            "its contents"
        )


class NotWritten(StoreError):
    """A small file could not be written. It holds what it held before, and so does memory."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(path, cause)
        self.path, self.cause = path, cause

    def __str__(self) -> str:
        return f"{self.path}: it cannot be written ({self.cause}), and nothing was changed; mend that and try again"


class CorruptRecord(StoreError):
    """Bytes of the commit log contradict their own header.

    Recovery, reads, scans and dispatch catch it: damage before the watermark becomes a scar that they skip. It reaches
    the caller from a look-up by physical offset, and from a scan with on_damage="fail".
    """

    def __init__(self, file: Path, physical_offset: int, reason: str) -> None:
        super().__init__(file, physical_offset, reason)
        self.file, self.physical_offset, self.reason = file, physical_offset, reason

    def __str__(self) -> str:
        return f"{self.file.name}: record at {self.physical_offset}: {self.reason}"


class CorruptBody(StoreError, ValueError):
    """A compressed body cannot be decompressed. If the record's CRC is right, the body was stored that way."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the body cannot be decompressed: {self.reason}; `raw_body` holds the bytes as stored"


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})


def is_disk_full(error: Exception) -> bool:
    """Return whether the disk has no space left, or the user's quota is used up."""
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in FULL)


def is_passing(error: Exception) -> bool:
    """Return whether the same call may succeed later by itself: space, descriptors or memory ran out."""
    if isinstance(error, FileFailed):
        return error.number in PASSING
    return is_disk_full(error) or (isinstance(error, OSError) and error.errno in PASSING)


@contextmanager
def typed_errors(path: Path, action: str) -> Iterator[None]:
    """Raise FileFailed or DiskFull instead of OSError, about the file that it names, or about `path`."""
    try:
        yield
    except OSError as error:
        named = Path(error.filename) if isinstance(error.filename, str) else path
        raise file_error(named, action, 0, error) from error


def file_error(path: Path, action: str, size_bytes: int, error: OSError) -> StoreError:
    """Return the error for what the system said while a file was made, opened or given blocks."""
    reason = error.strerror or str(error)
    if is_disk_full(error):
        return DiskFull(path, size_bytes, reason)
    return FileFailed(path, action, error.errno or 0, reason)
