"""What Spark, the lake and SQL can raise."""

from __future__ import annotations

from pathlib import Path

from mqlake.errors.root import StoreError


class QueryFailed(StoreError):
    """DuckDB or Spark cannot parse a query, or the query failed while it ran."""

    def __init__(self, reason: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(reason, line, column)
        self.reason, self.line, self.column = reason, line, column

    def __str__(self) -> str:
        return self.reason if self.line is None else f"line {self.line}, column {self.column}: {self.reason}"


class SparkNotStarted(StoreError):
    """Spark did not start, or its cluster could not be reached."""

    def __init__(self, master: str, reason: str) -> None:
        super().__init__(master, reason)
        self.master, self.reason = master, reason

    def __str__(self) -> str:
        return (
            f"Spark did not start with the master {self.master!r}: {self.reason}; name a running one, like "
            "spark://host:7077, or local[*] for this machine (mqlake --verbose shows Spark's own output)"
        )


class NotOnConnect(StoreError):
    """A session of Spark Connect runs its functions on the server. What must run in this program cannot use it."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what, instead)
        self.what, self.instead = what, instead

    def __str__(self) -> str:
        return f"{self.what} does not run on Spark Connect; {self.instead}"


class MissingExtra(StoreError):
    """An optional package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return f"{self.what} needs an optional package: pip install 'mqlake[{self.extra}]'"


class OtherRows(StoreError):
    """A job with this id wrote other rows before. Nothing was written."""

    def __init__(self, store: Path, job: str, what: str, before: str, now: str) -> None:
        super().__init__(store, job, what, before, now)
        self.store, self.job, self.what, self.before, self.now = store, job, what, before, now

    def __str__(self) -> str:
        return (
            f"{self.store}: the job {self.job!r} {self.what} {self.before}, and now it has {self.now}: nothing was "
            "written; give these rows another jobId, or write the same rows as before"
        )


class ChangedUnderRead(StoreError):
    """A task did not find what its plan says. Spark fails the task, so none of its rows count."""

    def __init__(self, store: str, offset: int, found: str, expected: str) -> None:
        super().__init__(store, offset, found, expected)
        self.store, self.offset, self.found, self.expected = store, offset, found, expected

    def __str__(self) -> str:
        return (
            f"{self.store}: offset {self.offset}: found {self.found}; expected {self.expected}; "
            "call load() again to read the store as it is now"
        )


class PositionLost(StoreError):
    """A stream's position is before the log's first byte or after its end, or the log is not the one that was read."""

    def __init__(self, store: str, position: int, found: str, effect: str = "continues without what is lost") -> None:
        """`effect`: what the stream does if loss is accepted."""
        super().__init__(store, position, found, effect)
        self.store, self.position, self.found, self.effect = store, position, found, effect

    def __str__(self) -> str:
        return (
            f"{self.store}: the stream is at {self.position}, {self.found}; "
            "restore the log, or start again with a new checkpoint folder, or set failOnDataLoss=false: then the "
            f"stream {self.effect}; a gate (store.retention.hold) keeps the log that a stream still needs"
        )


class NotALake(StoreError):
    """The folder holds something else, does not exist, or has a newer format."""

    def __init__(self, path: Path | str, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path, self.reason, self.remedy = path, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


class LakeInUse(StoreError):
    """Only one job at a time may change a lake. Readers need no lock."""

    def __init__(self, path: Path | str, holder: str) -> None:
        super().__init__(path, holder)
        self.path, self.holder = path, holder

    def __str__(self) -> str:
        return f"{self.path}: {self.holder} is changing this lake; wait for it, or stop it"


class WrongLake(StoreError):
    """What the lake holds under this store's name comes from another store. Nothing was written."""

    def __init__(self, lake: Path | str, store: str, found: str, remedy: str) -> None:
        super().__init__(lake, store, found, remedy)
        self.lake, self.store, self.found, self.remedy = lake, store, found, remedy

    def __str__(self) -> str:
        return f"{self.lake}: {self.store}: {self.found}; {self.remedy}"


class LakeGap(StoreError):
    """The log starts after the lake's end: retention, or another tool, deleted bytes before they were archived."""

    def __init__(self, lake: Path | str, store: str, end: int, first_offset: int) -> None:
        super().__init__(lake, store, end, first_offset)
        self.lake, self.store, self.end, self.first_offset = lake, store, end, first_offset

    def __str__(self) -> str:
        return (
            f"{self.lake}: {self.store}: the lake ends at {self.end}, the log begins at {self.first_offset}: "
            f"{self.first_offset - self.end} bytes were deleted before they were archived; restore the files, "
            "or continue without them (--accept-gap), which lists them as lost"
        )


class StageFailed(StoreError):
    """A stage of the pipeline failed. Nothing of the batch counts; the next run repeats it."""

    def __init__(self, stage: str, what: str, cause: str) -> None:
        super().__init__(stage, what, cause)
        self.stage, self.what, self.cause = stage, what, cause

    def __str__(self) -> str:
        return f"{self.stage} of {self.what}: {self.cause}"


class LakeConflict(StoreError):
    """A commit contradicts what the lake holds by now. Nothing was committed."""

    def __init__(self, lake: Path | str, found: str, expected: str) -> None:
        super().__init__(lake, found, expected)
        self.lake, self.found, self.expected = lake, found, expected

    def __str__(self) -> str:
        return (
            f"{self.lake}: found {self.found}; expected {self.expected}; "
            "run the job again: it continues at the lake's end"
        )


class VersionGone(StoreError):
    """The version of a lake was forgotten, or does not exist yet."""

    def __init__(self, lake: Path | str, version: int, first: int, newest: int) -> None:
        super().__init__(lake, version, first, newest)
        self.lake, self.version, self.first, self.newest = lake, version, first, newest

    def __str__(self) -> str:
        return f"{self.lake}: there is no version {self.version}; there are {self.first} to {self.newest}"


class StorageFailed(StoreError):
    """An object store refused a request, or did not answer after several tries."""

    def __init__(self, place: str, what: str, found: str) -> None:
        super().__init__(place, what, found)
        self.place, self.what, self.found = place, what, found

    def __str__(self) -> str:
        return f"{self.place}: {self.what}: {self.found}; check the address, the bucket and the credentials"


class MissingJava(StoreError):
    """No Java was found, or it is too old for Spark."""

    def __init__(self, found: str, needed: int) -> None:
        super().__init__(found, needed)
        self.found, self.needed = found, needed

    def __str__(self) -> str:
        return (
            f"Spark needs Java {self.needed} or newer; found {self.found}; install one (Debian and Ubuntu: "
            f"apt-get install openjdk-{self.needed}-jre-headless) or set JAVA_HOME to one"
        )
