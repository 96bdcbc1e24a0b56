"""What connections, brokers, masters and slaves can raise."""

from __future__ import annotations

from pathlib import Path

from mqlake.errors.root import StoreError


class BadFrame(StoreError):
    """Bytes from a connection are no frame of the remoting protocol. What follows cannot be read: close it."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        super().__init__(where, found, expected)
        self.where, self.found, self.expected = where, found, expected

    def __str__(self) -> str:
        return f"frame: {self.where}: found {self.found}; expected {self.expected}"


class BadRequest(StoreError):
    """A request lacks a field, or a field or its body has a value that cannot be used."""

    def __init__(self, field: str, found: str, expected: str) -> None:
        super().__init__(field, found, expected)
        self.field, self.found, self.expected = field, found, expected

    def __str__(self) -> str:
        return f"request: {self.field}: found {self.found}; expected {self.expected}"


class RemoteError(StoreError):
    """The root of what a client's call to a broker or a name server raises. `address` says which one."""

    address: str


class RequestRefused(RemoteError):
    """The answer's code is not success. `code` is its number and `code_name` RocketMQ's name for it."""

    def __init__(self, address: str, request: str, code: int, code_name: str, remark: str) -> None:
        super().__init__(address, request, code, code_name, remark)
        self.address, self.request, self.code, self.code_name, self.remark = address, request, code, code_name, remark

    def __str__(self) -> str:
        return f"{self.address} refused {self.request}: {self.code_name} ({self.code}): {self.remark or 'no remark'}"


class RequestTimeout(RemoteError):
    """No answer came in time. The broker may have done what was asked."""

    def __init__(self, address: str, request: str, timeout_s: float) -> None:
        super().__init__(address, request, timeout_s)
        self.address, self.request, self.timeout_s = address, request, timeout_s

    def __str__(self) -> str:
        return f"{self.address} did not answer {self.request} within {self.timeout_s:g} s; it may have been done"


class NotConnected(RemoteError):
    """No connection could be opened, or it broke before the answer."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}; is a broker running there, and does it use TLS as this client does?"


class NoRoute(RemoteError):
    """No name server knows the topic, and no broker creates topics by their first message; or no master has it now."""

    def __init__(self, address: str, topic: str, is_known: bool = False) -> None:
        """`is_known`: the topic has a route, but no queue that takes messages."""
        super().__init__(address, topic, is_known)
        self.address, self.topic, self.is_known = address, topic, is_known

    def __str__(self) -> str:
        if self.is_known:
            return (
                f"{self.address} knows topic {self.topic}, but no master that takes messages for it: there are only "
                "slaves now, or the topic may only be read"
            )
        return f"{self.address} knows no topic {self.topic}; create it, or let the broker create topics by themselves"


class ReplicationError(StoreError):
    """The root of what keeps a master and a slave apart for good. Cut connections are no such error."""


class BadTransfer(ReplicationError):
    """Bytes from a connection are no frame of the replication protocol. What follows cannot be read: close it."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        super().__init__(where, found, expected)
        self.where, self.found, self.expected = where, found, expected

    def __str__(self) -> str:
        return f"replication: {self.where}: found {self.found}; expected {self.expected}"


class MasterAlive(ReplicationError):
    """A promotion was refused, because two masters would both take messages. Nothing was changed."""

    def __init__(self, path: Path, master: str) -> None:
        super().__init__(path, master)
        self.path, self.master = path, master

    def __str__(self) -> str:
        return (
            f"{self.path} is not promoted: the master at {self.master} still accepts connections; stop it first, or "
            "name the right address if another process listens there now"
        )


class MasterUnknown(ReplicationError):
    """A promotion was refused, because it cannot be seen from here whether the old master is gone."""

    def __init__(self, path: Path, master: str, reason: str) -> None:
        super().__init__(path, master, reason)
        self.path, self.master, self.reason = path, master, reason

    def __str__(self) -> str:
        return (
            f"{self.path} is not promoted: whether the master at {self.master} is gone cannot be seen from here: "
            f"{self.reason}; name it by its IP address, or mend this; if you have made sure by other means that it "
            "takes no more messages, say so with --gone"
        )


class SlaveRefused(ReplicationError):
    """A slave cannot follow this master from where it is. Its connection is closed; both stores are as they were."""

    def __init__(self, slave: str, wanted: int, first: int, end: int, reason: str) -> None:
        super().__init__(slave, wanted, first, end, reason)
        self.slave, self.wanted, self.first, self.end, self.reason = slave, wanted, first, end, reason

    def __str__(self) -> str:
        return (
            f"slave {self.slave} asks for the log from {self.wanted}, and this master has [{self.first}, {self.end}): "
            f"{self.reason}; set the slave up anew, from an empty folder or from a backup of this store"
        )


class ControllerMode(ReplicationError):
    """The other side is a RocketMQ 5 broker in controller mode, which replicates by another protocol."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who

    def __str__(self) -> str:
        return (
            f"replication: {self.who} is a broker in controller mode, whose protocol is not spoken here; "
            "run it with enableControllerMode=false"
        )


class FilesDiffer(ReplicationError):
    """The master's log files have another size than the slave's. Nothing more is appended."""

    def __init__(self, path: Path, file_size: int, boundary: int | None) -> None:
        """`boundary`: where a file of the master's begins or ends, if that showed."""
        super().__init__(path, file_size, boundary)
        self.path, self.file_size, self.boundary = path, file_size, boundary

    def __str__(self) -> str:
        at = "in the middle of a file here" if self.boundary is None else f"at offset {self.boundary}"
        return (
            f"{self.path}: log files have {self.file_size} bytes here, and the master's do not: one of them begins or "
            f"ends {at}; replicate into an empty folder with the master's mappedFileSizeCommitLog"
        )


class NoMaster(ReplicationError):
    """No master sends its log from this address. What was appended before stays."""

    def __init__(self, master: str, silent_s: float, last: str | None) -> None:
        """`last`: why the last connection ended, or could not be opened."""
        super().__init__(master, silent_s, last)
        self.master, self.silent_s, self.last = master, silent_s, last

    def __str__(self) -> str:
        last = f" ({self.last})" if self.last is not None else ""
        return (
            f"{self.master}: no master has sent its log for {self.silent_s:.1f} s{last}; is it running, and is this "
            "its replication port (haListenPort, 10912 unless it is set)?"
        )


class NotOnMaster(ReplicationError):
    """The master sends nothing from the offset that was asked for. Nothing was appended, and nothing is lost here."""

    def __init__(self, path: Path, master: str, offset: int, reason: str, remedy: str) -> None:
        super().__init__(path, master, offset, reason, remedy)
        self.path, self.master, self.offset, self.reason, self.remedy = path, master, offset, reason, remedy

    def __str__(self) -> str:
        where = f"{self.path}: the master at {self.master} has no bytes at offset {self.offset}"
        return f"{where}: {self.reason}; {self.remedy}"


class Diverged(ReplicationError):
    """Master and slave have different logs. Nothing was appended, and they are never merged."""

    def __init__(self, path: Path, master: str, offset: int, end: int, found: str) -> None:
        """`offset`: where they part; `end`: where the slave's log ends; `found`: how it shows."""
        super().__init__(path, master, offset, end, found)
        self.path, self.master, self.offset, self.end, self.found = path, master, offset, end, found

    def __str__(self) -> str:
        return (
            f"{self.path}: this log and the one of the master at {self.master} part at offset {self.offset}: "
            f"{self.found}; {self.end - self.offset} bytes from there on exist only here; save what you need of them "
            "(mqlake scan), then replicate into an empty folder instead; if they are damaged (mqlake check), heal "
            f"them: mqlake repair {self.path} --from {self.master}"
        )
