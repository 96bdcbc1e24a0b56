"""The machine a benchmark runs on, and how runs are made fair."""

from __future__ import annotations

import mmap
import os
import platform
from pathlib import Path

from mqlake import __version__
from mqlake.kernel import KERNEL

MADV_POPULATE_WRITE = 23


def describe() -> dict[str, str]:
    """Return the machine, the kernel in use and the versions."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB",
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
        "mqlake": f"{__version__}, {KERNEL} kernel",
    }


def touch_memory(size: int) -> None:
    """Write to fresh memory once and free it.

    On a virtual machine the first write to a page makes the host allocate memory for it, which costs many times more
    than the write itself. The side that runs first would pay for it, so it is paid before either runs.
    """
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    pages = mmap.mmap(-1, max(1 << 20, min(size, available // 2)))
    pages.madvise(MADV_POPULATE_WRITE)
    pages.close()


def resident_mb(process: int | str = "self") -> float:
    """Return the resident memory of a process without pages of files."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines() if ":" in line
    )
    return (int(fields["VmRSS"].split()[0]) - int(fields["RssFile"].split()[0])) / 1024
