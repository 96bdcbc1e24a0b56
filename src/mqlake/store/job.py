"""A store that is opened for writing for one piece of work, and closed again: a repair, a batch of Spark's sink."""

from __future__ import annotations

import os
import weakref

from mqlake.config import StoreConfig
from mqlake.runtime.whole import make_whole
from mqlake.store.life import Life
from mqlake.store.writer import Writer, open_writer


class WriterJob:
    """A store that is open for writing for one piece of work: `with open_job(...) as writer`.

    It is opened and closed on threads of their own, so that no interrupt leaves it half open. If the program goes on,
    the next one who opens the store waits until it is closed.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        closers = [writer.close]
        self._life = Life(writer.layout.root, closers, writer.give_up, writer.workers.include_current, writer.leave)
        weakref.finalize(self, self._life.close_unreferenced).atexit = False

    def __enter__(self) -> Writer:
        return self._writer

    def __exit__(self, *error: object) -> None:
        self._writer.leave()
        make_whole(self._life.close)


def open_job(path: str | os.PathLike[str], config: StoreConfig, *, create: bool = True) -> WriterJob:
    """Open a store as `open_writer` does, for one piece of work, on any thread."""
    return make_whole(lambda: WriterJob(open_writer(path, config, create=create)))
