"""Who may do what: the accounts of a `plain_acl.yml` of RocketMQ 4.9, or of a JSON file of users as in RocketMQ 5.

A secret is turned into the start of its HMAC as soon as it is read, and is kept nowhere else: no text that is logged,
shown or answered can hold it. Errors of the two files name a place and a rule, never a value that may be a secret.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqlake.broker.addresses import WhiteList
from mqlake.broker.plain_yaml import parse
from mqlake.errors import InvalidConfig

MAX_FILE_BYTES = 1 << 20
NOBODY = WhiteList()
MIN_KEY_CHARS = 7
"""RocketMQ refuses an access key or secret key of six characters or fewer."""


class Right(enum.Flag):
    """What one may do with a topic or a group."""

    NONE = 0
    PUB = enum.auto()
    SUB = enum.auto()
    ANY = PUB | SUB


RIGHTS = {"DENY": Right.NONE, "PUB": Right.PUB, "SUB": Right.SUB, "PUB|SUB": Right.ANY, "SUB|PUB": Right.ANY}


class Kind(enum.Enum):
    TOPIC = "Topic"
    GROUP = "Group"


@dataclass(frozen=True, slots=True)
class Need:
    """One right that a request needs: any of the rights on this topic or group."""

    kind: Kind
    name: str
    right: Right


class Style(enum.Enum):
    """Whose rules and whose answers."""

    PLAIN = "plain_acl.yml of RocketMQ 4.9"
    USERS = "users of RocketMQ 5"


@dataclass(frozen=True, slots=True)
class Account:
    """An access key, or a user."""

    name: str
    mac: hmac.HMAC = field(repr=False)
    """The HMAC of the secret, before any content."""
    is_admin: bool = False
    is_enabled: bool = True
    white: WhiteList = NOBODY
    default_topic: Right = Right.NONE
    default_group: Right = Right.NONE
    rights: Mapping[tuple[Kind, str], Right] = field(default_factory=dict)

    def has(self, need: Need) -> bool:
        default = self.default_topic if need.kind is Kind.TOPIC else self.default_group
        return bool(self.rights.get((need.kind, need.name), default) & need.right)


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that decides about a request."""

    style: Style
    accounts: Mapping[str, Account]
    white: WhiteList = NOBODY
    authorize: bool = True
    """Whether rights are checked; in RocketMQ 5 a broker may check identities only."""


def read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise InvalidConfig("acl", str(path), f"must have at most {MAX_FILE_BYTES} bytes")
        return data.decode()
    except OSError as error:
        raise InvalidConfig("acl", str(path), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfig("acl", str(path), "must be UTF-8") from None


# ---- RocketMQ 4.9

RIGHT_KEYS = frozenset({"defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"})
ACCOUNT_KEYS = RIGHT_KEYS | {"accessKey", "secretKey", "whiteRemoteAddress", "admin"}
FILE_KEYS = frozenset({"globalWhiteRemoteAddresses", "accounts", "dataVersion"})


def read_plain(path: Path) -> Rules:
    """Read a plain_acl.yml; InvalidConfig says where it is wrong."""
    name = str(path)
    found = parse(read_text(path), name)
    _known(found, FILE_KEYS, name)
    white = WhiteList.parse(_texts(found.get("globalWhiteRemoteAddresses"), f"{name}: globalWhiteRemoteAddresses"))
    listed = found.get("accounts") or []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise InvalidConfig(name, "accounts", "must be a list of accounts")
    if not listed and not found.get("globalWhiteRemoteAddresses"):
        raise InvalidConfig(name, "no accounts", "must name an account or a white address: nobody could connect")
    accounts = (_plain_account(each, i, name) for i, each in enumerate(listed, 1))
    return Rules(Style.PLAIN, _by_name(accounts, name), white)


def _plain_account(each: dict[str, Any], number: int, name: str) -> Account:
    where = f"{name}: account {number}"
    _known(each, ACCOUNT_KEYS, where)
    key, secret = _text(each, "accessKey", where), _text(each, "secretKey", where)
    if len(key) < MIN_KEY_CHARS or len(secret) < MIN_KEY_CHARS:
        raise InvalidConfig(where, "accessKey, secretKey", f"must have {MIN_KEY_CHARS} characters or more each")
    white = each.get("whiteRemoteAddress")
    return Account(
        key,
        new_mac(secret),
        is_admin=_choice(each, "admin", {"true": True, "false": False, "": False}, where),
        white=WhiteList.parse(_texts([white] if white else None, where)),
        **_rights(each, where),
    )


# ---- RocketMQ 5

USER_KEYS = RIGHT_KEYS | {"username", "password", "userType", "userStatus"}
TYPES = {"super": True, "normal": False, "": False}
STATES = {"enable": True, "disable": False, "": True}


def read_users(path: Path | None, first: str | None, authorize: bool) -> Rules:
    """Read a file of users and the `initAuthenticationUser` of a broker.conf, which a user of the file replaces."""
    users: list[Account] = []
    if path is not None:
        found = _json(read_text(path), str(path))
        _known(found, frozenset({"users"}), str(path))
        listed = found.get("users")
        if not isinstance(listed, list):
            raise InvalidConfig(str(path), "users", "must be a list of users")
        users += (_user(each, f"{path}: user {i}") for i, each in enumerate(listed, 1))
    accounts = _by_name(users, str(path))
    if first is not None:
        user = _user(_json(first, "initAuthenticationUser"), "initAuthenticationUser", is_super=True)
        accounts.setdefault(user.name, user)
    if not accounts:
        raise InvalidConfig("authenticationEnabled", "no users", "name one: initAuthenticationUser, or a file of users")
    return Rules(Style.USERS, accounts, authorize=authorize)


def _user(each: Any, where: str, *, is_super: bool = False) -> Account:
    if not isinstance(each, dict):
        raise InvalidConfig(where, type(each).__name__, "must be an object with username and password")
    _known(each, USER_KEYS, where)
    return Account(
        _text(each, "username", where),
        new_mac(_text(each, "password", where)),
        is_admin=is_super or _choice(each, "userType", TYPES, where),
        is_enabled=_choice(each, "userStatus", STATES, where),
        **_rights(each, where),
    )


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidConfig(name, f"line {error.lineno}", f"must be JSON: {error.msg}") from None
    if not isinstance(found, dict):
        raise InvalidConfig(name, type(found).__name__, "must be an object")
    return found


# ---- both


def new_mac(secret: str) -> hmac.HMAC:
    return hmac.new(secret.encode(), digestmod=hashlib.sha1)


def _known(found: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for key in found:
        if key not in known:
            raise InvalidConfig(where, key, f"is none of {', '.join(sorted(known))}")


def _by_name(accounts: Iterable[Account], name: str) -> dict[str, Account]:
    found: dict[str, Account] = {}
    for account in accounts:
        if account.name in found:
            raise InvalidConfig(name, account.name, "is named by two accounts")
        found[account.name] = account
    return found


def _text(each: Mapping[str, Any], key: str, where: str) -> str:
    value = each.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidConfig(where, key, "must be a text, and not empty")
    return value


def _choice(each: Mapping[str, Any], key: str, choices: Mapping[str, bool], where: str) -> bool:
    value = each.get(key)
    text = "" if value is None else str(value).lower()
    if text not in choices:
        raise InvalidConfig(where, key, f"must be one of {', '.join(filter(None, choices))}")
    return choices[text]


def _texts(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidConfig(where, type(value).__name__, "must be a list of texts")
    return value


def _right(value: Any, where: str) -> Right:
    if value is None:
        return Right.NONE
    text = str(value).replace(" ", "")
    if text not in RIGHTS:
        raise InvalidConfig(where, text, f"must be one of {', '.join(RIGHTS)}")
    return RIGHTS[text]


def _rights(each: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what both files say in the same words."""
    rights: dict[tuple[Kind, str], Right] = {}
    for kind, key in ((Kind.TOPIC, "topicPerms"), (Kind.GROUP, "groupPerms")):
        for text in _texts(each.get(key), f"{where}, {key}"):
            name, separator, right = (part.strip() for part in text.partition("="))
            if not separator or not name:
                raise InvalidConfig(f"{where}, {key}", text, "must read NAME=PUB|SUB, with PUB, SUB or DENY")
            rights[kind, name] = _right(right, f"{where}, {key}")
    return {
        "rights": rights,
        "default_topic": _right(each.get("defaultTopicPerm"), f"{where}, defaultTopicPerm"),
        "default_group": _right(each.get("defaultGroupPerm"), f"{where}, defaultGroupPerm"),
    }
