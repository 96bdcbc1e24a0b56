"""Access control: every request is checked before its handler sees it.

A request carries `AccessKey` and `Signature`: the HMAC-SHA1, under the key's secret, of the values of all its other
fields in the order of their names, and of its body. A refused request stores nothing and changes nothing; its
connection stays. Refusals are RocketMQ's own: code 1 with an AclException's text for a `plain_acl.yml`, code 16 for
users of RocketMQ 5.

A file that changes is read again within `WATCH_S`. One that is broken is refused at the start; later it is logged, and
the rules before it stay in force.
"""

from __future__ import annotations

import base64
import hmac
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqlake.broker.accounts import Account, Kind, Need, Right, Rules, Style, read_plain, read_users
from mqlake.broker.files import Marks, marks_of
from mqlake.broker.needs import is_open, needs_of
from mqlake.broker.refusals import Refusal
from mqlake.delivery.registry.system_topics import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, UNDECIDED_TOPIC
from mqlake.errors import InvalidConfig
from mqlake.kernel import Command
from mqlake.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from mqlake.broker.connection import Connection

ACCESS_KEY, SIGNATURE, UNIQUE_QUERY = "AccessKey", "Signature", "_UNIQUE_KEY_QUERY"
UNSIGNED: Final = frozenset({SIGNATURE, "__ZONE_NAME", "__ZONE_MODE"})
"""Fields that clients add after they signed."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
INTERNAL: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, UNDECIDED_TOPIC})
"""Topics that hold the messages of other topics: for administrators."""
ACL_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
PROPERTIES: Final = frozenset(
    {"aclEnable", "authenticationEnabled", "authorizationEnabled", "initAuthenticationUser", "authConfigPath"}
    | {f"{kind}{what}" for kind in ("authentication", "authorization") for what in ("Provider", "Strategy")}
    | {f"{kind}MetadataProvider" for kind in ("authentication", "authorization")}
    | {"innerClientAuthenticationCredentials", "migrateAuthFromV1Enabled"}
)
"""RocketMQ's settings of access control, those that need nothing here among them."""
PLAIN_FILE, USERS_FILE = "plain_acl.yml", "users.json"
_log = logging.getLogger(__name__)


class Access:
    """The rules in force, and the file they come from."""

    def __init__(self, read: Callable[[], Rules], file: Path | None) -> None:
        self._read, self._file = read, file
        self._marks: Marks = marks_of(file)
        self.rules = read()

    @classmethod
    def from_file(cls, path: Path, first_user: str | None = None, *, authorize: bool = True) -> Access:
        """Take a plain_acl.yml, or a JSON file of users."""
        if path.suffix == ".json":
            return cls(lambda: read_users(path, first_user, authorize), path)
        return cls(lambda: read_plain(path), path)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], file: Path | None, folder: Path) -> Access | None:
        """Return the access control of a broker.conf in a folder; None if it is off."""
        plain, users, authorize = (
            _is_on(properties, name) for name in ("aclEnable", "authenticationEnabled", "authorizationEnabled")
        )
        if plain and users:
            raise InvalidConfig("aclEnable", "true", "excludes authenticationEnabled=true: choose one of them")
        if authorize and not users:
            raise InvalidConfig("authorizationEnabled", "true", "needs authenticationEnabled=true")
        first = properties.get("initAuthenticationUser")
        if file is not None:
            if (plain and file.suffix == ".json") or (users and file.suffix != ".json"):
                raise InvalidConfig("acl", str(file), "must be a .yml file with aclEnable, .json with authentication")
            return cls.from_file(file, first, authorize=authorize or not users)
        if plain:
            return cls.from_file(folder / PLAIN_FILE)
        if users:
            path = folder / USERS_FILE
            if path.exists():
                return cls.from_file(path, first, authorize=authorize)
            return cls(lambda: read_users(None, first, authorize), None)
        return None

    def refresh(self) -> None:
        """Read the file again if it changed."""
        marks = marks_of(self._file)
        if marks == self._marks:
            return
        self._marks = marks
        try:
            self.rules = self._read()
            _log.info("%s was read again: %d accounts", self._file, len(self.rules.accounts))
        except InvalidConfig as error:
            _log.error("the access rules stay as they were: %s", error)

    # ---- checks

    def check(self, connection: Connection, command: Command) -> None:
        """Refuse a request of someone who is unknown or may not do it."""
        rules = self.rules
        if connection.host in rules.white or is_open(connection.broker, command):
            return
        account = self._account(rules, command)
        if connection.host in account.white:
            return
        if not _is_signed(account, command):
            raise _refusal(
                rules, f"Check signature failed for accessKey={account.name}", other="check signature failed."
            )
        if rules.authorize:
            self._authorize(rules, account, connection, command)

    @staticmethod
    def _account(rules: Rules, command: Command) -> Account:
        name = command.fields.get(ACCESS_KEY)
        if not name:
            raise _refusal(rules, "No accessKey is configured", other="username cannot be null.")
        account = rules.accounts.get(name)
        if account is None:
            raise _refusal(rules, f"No acl config for {name}", other=f"User:{name} is not found.")
        if not account.is_enabled:
            raise _refusal(rules, "", other=f"User:{name} is disabled.")
        return account

    @staticmethod
    def _authorize(rules: Rules, account: Account, connection: Connection, command: Command) -> None:
        if account.is_admin and (rules.style is Style.USERS or not account.rights):
            return
        broker = connection.broker
        needs = needs_of(command.code)
        if needs is None:
            if not account.is_admin:
                raise _no_admin(rules, account, connection, command)
            return
        free = (TRACE_TOPIC, f"{broker.settings.cluster}_REPLY_TOPIC")
        for need in needs(broker, command):
            if need.right is Right.PUB and need.name in free:
                continue
            if need.name in INTERNAL and not account.is_admin:
                raise _no_admin(rules, account, connection, command)
            if not account.has(need):
                raise _no_right(rules, account, connection, need)


def content_of(command: Command, *, without: str = "") -> bytes:
    """Return what a client signs of its fields; the body comes after it."""
    fields = command.fields
    values = [fields[name] for name in sorted(fields) if name not in UNSIGNED and name != without]
    return "".join(values).encode()


def signature_of(mac: hmac.HMAC, content: bytes, body: bytes) -> bytes:
    made = mac.copy()
    made.update(content)
    made.update(body)
    return base64.b64encode(made.digest())


def _is_signed(account: Account, command: Command) -> bool:
    """Compare signatures in constant time. Clients until 4.9.3 leave one field out, later ones do not."""
    given = command.fields.get(SIGNATURE, "").encode()
    if hmac.compare_digest(given, signature_of(account.mac, content_of(command), command.body)):
        return True
    if UNIQUE_QUERY not in command.fields:
        return False
    content = content_of(command, without=UNIQUE_QUERY)
    return hmac.compare_digest(given, signature_of(account.mac, content, command.body))


def _refusal(rules: Rules, plain: str, *, other: str) -> Refusal:
    if rules.style is Style.PLAIN:
        return Refusal(ResponseCode.SYSTEM_ERROR, ACL_EXCEPTION + plain)
    return Refusal(ResponseCode.NO_PERMISSION, other)


def _no_admin(rules: Rules, account: Account, connection: Connection, command: Command) -> Refusal:
    plain = f"Need admin permission for request code={command.code}, but accessKey={account.name} is not"
    cluster = f"Cluster:{connection.broker.settings.cluster}"
    return _refusal(rules, plain, other=_denied(account, cluster, connection))


def _no_right(rules: Rules, account: Account, connection: Connection, need: Need) -> Refusal:
    plain = f"No default permission for {need.name}"
    if need.kind is Kind.GROUP:
        plain += " of group"
    return _refusal(rules, plain, other=_denied(account, f"{need.kind.value}:{need.name}", connection))


def _denied(account: Account, resource: str, connection: Connection) -> str:
    return f"User:{account.name} has no permission to access {resource} from {connection.host}, no matched policies."


def _is_on(properties: Mapping[str, str], name: str) -> bool:
    text = properties.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidConfig(name, text, "must be true or false")
    return text == "true"
