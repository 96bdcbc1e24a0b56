"""What a benchmark ran on, and how it is made fair."""

from __future__ import annotations

import mmap
import os
import platform
from pathlib import Path

from mqlake import __version__
from mqlake.kernel import KERNEL

MADV_POPULATE_WRITE = 23


def describe() -> dict[str, str]:
    """The machine, the kernel in use, the versions."""
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
    """Write to fresh memory once and give it back.

    On a virtual machine the first write to a page makes the host find memory for it, many times dearer than the write
    itself. Whoever runs first would pay for it, so it is paid before anyone runs.
    """
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    pages = mmap.mmap(-1, max(1 << 20, min(size, available // 2)))
    pages.madvise(MADV_POPULATE_WRITE)
    pages.close()


def resident_mb() -> float:
    """Memory of this process that is no page of a file."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return (int(fields["VmRSS"].split()[0]) - int(fields["RssFile"].split()[0])) / 1024
