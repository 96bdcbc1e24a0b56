"""The cache of open queue files: a bounded number for the whole process, however many queues there are.

A store may have a hundred thousand queues, and a process only a thousand descriptors. A queue file is opened on use and
closed after others were used more recently. A reader keeps its bytes when a file is closed: a view keeps the mapping
alive. The few files of the log and the index are not counted here and stay open.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import TYPE_CHECKING

from mqlake.runtime.locks import make_global_lock

if TYPE_CHECKING:
    from mqlake.files.mapped_file import MappedFile

SHARE = 8
"""The process may open one queue file per this many allowed descriptors. Each takes two descriptors: Python's `mmap`
keeps one of its own."""
FEWEST, MOST = 8, 1024


def allowed_count() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if limit == resource.RLIM_INFINITY else min(max(limit // SHARE, FEWEST), MOST)


class OpenFiles:
    """Open files, oldest first. A file that was used since it was last checked gets another round (second chance)."""

    def __init__(self) -> None:
        self._lock = make_global_lock("file_cache")
        self._owners: OrderedDict[MappedFile, dict[int, MappedFile]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def admit(self, file: MappedFile, owner: dict[int, MappedFile]) -> None:
        """Keep a file open, under its start in `owner`, until others need the room."""
        with self._lock:
            owner[file.start] = file
            self._owners[file] = owner
            self._shrink_to(allowed_count())

    def _shrink_to(self, count: int) -> None:
        while len(self._owners) > count:
            file, owner = self._owners.popitem(last=False)
            if file.was_used and count:
                file.was_used = False
                self._owners[file] = owner
            else:
                self._drop(file, owner)

    @staticmethod
    def _drop(file: MappedFile, owner: dict[int, MappedFile]) -> None:
        if owner.get(file.start) is file:
            del owner[file.start]

    def close(self, files: list[MappedFile]) -> None:
        """Close those of these files that are open."""
        with self._lock:
            for file in files:
                owner = self._owners.pop(file, None)
                if owner is not None:
                    self._drop(file, owner)

    def close_all(self) -> None:
        """Close every file: something else needs the descriptors."""
        with self._lock:
            self._shrink_to(0)


open_files = OpenFiles()
