"""A lake in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.

Address and credentials come from the usual environment variables (`AWS_…`, `GOOGLE_…`, `AZURE_…`), or from
`lake/settings.py` where those are absent. Nothing is renamed or locked: a name is created by a conditional request that
the server decides, a file becomes visible when its upload completes, and of two jobs that commit the same version one
loses.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from mqlake.errors import MissingExtra, StorageFailed
from mqlake.kernel import crc32
from mqlake.lake.settings import added_settings
from mqlake.lake.storage import Listed

try:
    import obstore
    from obstore import exceptions
    from obstore.store import from_url
except ImportError:
    raise MissingExtra("a lake in an object store", "object-store") from None

PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4
"""Parts are uploaded while the next ones are encoded."""
UNSIGNED = "AWS_UNSIGNED_PAYLOAD"
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
RETRY_S = 120.0
"""How long requests are repeated that fail or get no answer."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0
MAX_RETRIES = 100_000
"""So many that RETRY_S decides: twenty are over after a few seconds if connections are refused."""
TAIL_BYTES = 1 << 16
"""Read at once from the end of a file, where Parquet has its footer."""


class ObjectStorage:
    """The files of a lake below one prefix of a bucket."""

    exclusive = False

    def __init__(self, place: str) -> None:
        self.place = place
        self._store = _store(place, tuple(sorted(added_settings().items())))

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStorage, (self.place,)

    def read(self, name: str) -> bytes:
        with self._errors("read", name):
            return bytes(obstore.get(self._store, name).bytes())

    def create(self, name: str, content: bytes) -> bool:
        """Create a file. If a request is repeated because its answer was lost, the file that exists is this one.

        The client does not repeat a conditional request whose connection broke, because it cannot know that.
        """
        deadline, pause = time.monotonic() + RETRY_S, FIRST_PAUSE_S
        while True:
            try:
                with self._errors("create", name):
                    obstore.put(self._store, name, content, mode="create")
                return True
            except FileExistsError:
                return self.read(name) == content
            except StorageFailed as error:
                if not isinstance(error.__cause__, exceptions.GenericError) or time.monotonic() > deadline:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_S)

    def replace(self, name: str, content: bytes) -> None:
        with self._errors("write", name):
            obstore.put(self._store, name, content)

    def files(self, prefix: str) -> Iterator[Listed]:
        with self._errors("list", prefix):
            for chunk in obstore.list(self._store, prefix.rstrip("/") or None, chunk_size=1000):
                for found in chunk:
                    yield Listed(found["path"], found["size"], found["last_modified"].timestamp())

    def top(self) -> list[str] | None:
        with self._errors("list", ""):
            found = obstore.list_with_delimiter(self._store, None)
        names = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return sorted(name.rstrip("/") for name in names)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, many with one request. Where a missing one is an error, the others are deleted one by one."""
        listed = list(names)
        try:
            with self._errors("delete", ", ".join(listed[:1])):
                obstore.delete(self._store, listed)
        except FileNotFoundError:
            for name in listed if len(listed) > 1 else ():
                self.delete([name])

    def size(self, name: str) -> int:
        with self._errors("look at", name):
            return int(obstore.head(self._store, name)["size"])

    def open_input(self, name: str) -> io.RawIOBase:
        return ObjectInput(self, name, self.size(name))

    def read_range(self, name: str, start: int, end: int) -> bytes:
        with self._errors("read", name):
            return bytes(obstore.get_range(self._store, name, start=start, end=end))

    def open_output(self, name: str) -> ObjectOutput:
        return ObjectOutput(self, name)

    def writer(self, name: str) -> Any:
        return obstore.open_writer(self._store, name, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

    def lock(self) -> AbstractContextManager[None]:
        return nullcontext()

    def sync(self, folder: str) -> None:
        """Do nothing: what an object store has acknowledged is durable."""

    @contextmanager
    def _errors(self, what: str, name: str) -> Iterator[None]:
        """Turn the errors of the object store into ours."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.place}/{name}") from None
        except exceptions.AlreadyExistsError:
            raise FileExistsError(f"{self.place}/{name}") from None
        except exceptions.BaseError as error:
            raise StorageFailed(self.place, f"{what} {name}".strip(), str(error).splitlines()[0]) from error


class ObjectInput(io.RawIOBase):
    """A file that is read in ranges. The end is kept, because Parquet begins there."""

    def __init__(self, storage: ObjectStorage, name: str, size: int) -> None:
        self._storage, self._name, self._size = storage, name, size
        self._at = 0
        self._tail: bytes | None = None
        self._reading = threading.Lock()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        content = self._between(self._at, end) if self._at < end else b""
        self._at += len(content)
        return content

    def _between(self, start: int, end: int) -> bytes:
        tail_at = max(0, self._size - TAIL_BYTES)
        if start < tail_at:
            return self._storage.read_range(self._name, start, end)
        with self._reading:
            if self._tail is None:
                self._tail = self._storage.read_range(self._name, tail_at, self._size)
        return self._tail[start - tail_at : end - tail_at]


class ObjectOutput:
    """A file being uploaded in parts. It appears when the upload completes; an abandoned one never does."""

    def __init__(self, storage: ObjectStorage, name: str) -> None:
        self._storage, self._name = storage, name
        self._writer = storage.writer(name)
        self.size = 0
        self.crc = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Write all of `data`. A no-op once the file is closed: Arrow may still try to finish an abandoned file."""
        if not self.closed:
            self.crc = crc32(data, self.crc)
            self.size += len(data)
            with self._storage._errors("write", self._name):
                self._writer.write(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: Arrow calls this before the file is complete."""

    def close(self) -> None:
        """Do nothing: Arrow calls this before the file is complete."""

    def commit(self) -> None:
        self.closed = True
        with self._storage._errors("write", self._name):
            self._writer.close()

    def drop(self) -> None:
        self.closed = True
        self._writer = None


@cache
def _store(place: str, added: tuple[tuple[str, str], ...]) -> Any:
    """Return the client for a place. It keeps its connections, so there is one for each process.

    `added` are settings that the environment lacks, under the names of its variables.
    """
    try:
        pauses: Any = {"init_backoff": timedelta(seconds=FIRST_PAUSE_S), "max_backoff": timedelta(seconds=MAX_PAUSE_S)}
        retry: Any = {"retry_timeout": timedelta(seconds=RETRY_S), "max_retries": MAX_RETRIES, "backoff": pauses}
        config: Any = {name.lower(): value for name, value in added}
        client: Any = {"allow_http": True} if config.pop("aws_allow_http", "") else None
        if place.startswith("s3:") and UNSIGNED not in os.environ and _is_safe(os.environ | dict(added)):
            config[UNSIGNED.lower()] = "true"
        return from_url(place, config=config or None, client_options=client, retry_config=retry)
    except exceptions.BaseError as error:
        raise StorageFailed(place, "open", str(error).splitlines()[0]) from error


def _is_safe(environment: Mapping[str, str]) -> bool:
    """Return whether bytes cannot change on their way: TLS protects them, or they do not leave this machine.

    Then requests need no SHA-256 of what they send, which takes client and server as long as sending it. Without TLS,
    it is what tells the server that the bytes are right.
    """
    endpoint = urlsplit(next((environment[name] for name in ENDPOINTS if environment.get(name)), ""))
    return endpoint.scheme != "http" or endpoint.hostname in ("127.0.0.1", "::1", "localhost")
