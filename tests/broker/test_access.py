"""Access control: who is known and may do it is served; everyone else is refused, and nothing is stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqlake.broker import server as server_module
from mqlake.broker.access import ACL_EXCEPTION, Access, content_of, signature_of
from mqlake.broker.accounts import new_mac
from mqlake.broker.addresses import WhiteList
from mqlake.broker.in_thread import BrokerThread
from mqlake.broker.needs import NEEDS
from mqlake.broker.plain_yaml import parse
from mqlake.client import Consumer, Credentials
from mqlake.errors import InvalidConfig, RequestRefused
from mqlake.kernel import Command
from mqlake.remoting.bodies import decode_records
from mqlake.remoting.codes import POP_CODES
from mqlake.remoting.command import request, single
from tests.broker.wire import Wire, pull_fields, send_fields
from tests.golden.wire_frames import all_exchanges

SECRET, ADMIN_SECRET = "a-secret-77", "root-secret-88"
PLAIN = f"""\
# as RocketMQ 4.9 ships it
globalWhiteRemoteAddresses:
- 10.10.103.*
- '192.168.0.*'

accounts:
- accessKey: shop-key
  secretKey: {SECRET}
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - orders=PUB|SUB   # both
  - bills=SUB
  - "alarms=PUB"
  groupPerms:
  - billing=SUB
- accessKey: root-key
  secretKey: "{ADMIN_SECRET}"
  admin: true
"""
USERS = {
    "users": [
        {"username": "root", "password": ADMIN_SECRET, "userType": "Super"},
        {"username": "shop", "password": SECRET, "topicPerms": ["orders=PUB|SUB"], "groupPerms": ["billing=SUB"]},
        {"username": "gone", "password": SECRET, "userStatus": "disable"},
    ]
}


class Signer(Wire):
    """A connection that signs what it asks, as RocketMQ's clients do."""

    def __init__(self, address: str, key: str = "shop-key", secret: str = SECRET) -> None:
        super().__init__(address)
        self.key, self.secret = key, secret

    def sign(self, command: Command) -> Command:
        command.fields = {**command.fields, "AccessKey": self.key}
        content = "".join(command.fields[name] for name in sorted(command.fields)).encode() + command.body
        made = hmac.new(self.secret.encode(), content, hashlib.sha1).digest()
        command.fields["Signature"] = base64.b64encode(made).decode()
        return command

    def call(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return self.answer_to(self.send(self.sign(request(code, fields, body))))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN)
    return path


@pytest.fixture
def guarded(plain: Path, start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    return start_broker(access=Access.from_file(plain))


@pytest.fixture
def signer(guarded: BrokerThread) -> Iterator[Signer]:
    with Signer(guarded.address) as wire:
        yield wire


@pytest.fixture
def root(guarded: BrokerThread) -> Iterator[Signer]:
    with Signer(guarded.address, "root-key", ADMIN_SECRET) as wire:
        yield wire


def stored_bytes(broker: BrokerThread) -> int:
    return broker.store.stats().appended_end


# ---- signatures


def test_signatures_of_recorded_clients_are_reproduced() -> None:
    """The C++ client signs every request, here with an empty secret."""
    mac, count = new_mac(""), 0
    for each in all_exchanges():
        signature = each.request.header.get("extFields", {}).get("Signature")
        if signature is None or not each.request.is_whole:
            continue
        command = single(each.request.data)
        assert signature_of(mac, content_of(command), command.body).decode() == signature
        count += 1
    assert count > 20


def test_a_right_signature_is_served(guarded: BrokerThread, signer: Signer) -> None:
    assert signer.put("orders", b"x", TAGS="a").code == 0
    guarded.store.wait_dispatched()
    answer = signer.pull("billing", "orders")
    assert answer.code == 0 and [each.body for each in decode_records(answer.body)] == [b"x"]


def test_a_unique_key_query_is_served_whether_its_flag_is_signed_or_not(
    guarded: BrokerThread, signer: Signer, root: Signer
) -> None:
    signer.put("orders", b"x", UNIQ_KEY="U1")
    fields = {"topic": "orders", "key": "U1", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    after = signer.sign(request(12, fields))
    after.fields["_UNIQUE_KEY_QUERY"] = "true"
    assert signer.answer_to(signer.send(after)).code == 0
    assert signer.call(12, {**fields, "_UNIQUE_KEY_QUERY": "true"}).code == 0
    changed = signer.sign(request(12, fields))
    changed.fields["key"] = "U2"
    assert signer.answer_to(signer.send(changed)).code == 1


def test_fields_that_a_client_adds_after_signing_do_not_matter(signer: Signer) -> None:
    command = signer.sign(request(310, send_fields("orders"), b"x"))
    command.fields |= {"__ZONE_NAME": "z", "__ZONE_MODE": "m"}
    assert signer.answer_to(signer.send(command)).code == 0


# ---- refusals


def without(name: str) -> Callable[[Command], None]:
    def change(command: Command) -> None:
        del command.fields[name]

    return change


def with_field(name: str, value: str) -> Callable[[Command], None]:
    def change(command: Command) -> None:
        command.fields[name] = value

    return change


def with_body(command: Command) -> None:
    command.body = b"y"


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        (without("AccessKey"), "No accessKey is configured"),
        (with_field("AccessKey", ""), "No accessKey is configured"),
        (with_field("AccessKey", "nobody"), "No acl config for nobody"),
        (without("Signature"), "Check signature failed for accessKey=shop-key"),
        (with_field("Signature", "AAAA"), "Check signature failed for accessKey=shop-key"),
        (with_field("Signature", "ä€"), "Check signature failed for accessKey=shop-key"),
        (with_field("b", "bills"), "Check signature failed for accessKey=shop-key"),
        (with_field("z", "1"), "Check signature failed for accessKey=shop-key"),
        (with_body, "Check signature failed for accessKey=shop-key"),
    ],
)
def test_a_request_that_is_not_rightly_signed_stores_nothing_and_the_connection_stays(
    change: Callable[[Command], None], remark: str, guarded: BrokerThread, signer: Signer
) -> None:
    before = stored_bytes(guarded)
    command = signer.sign(request(310, send_fields("orders"), b"x"))
    change(command)
    answer = signer.answer_to(signer.send(command))
    assert (answer.code, answer.remark) == (1, ACL_EXCEPTION + remark)
    assert stored_bytes(guarded) == before
    assert signer.put("orders", b"x").code == 0


def test_a_wrong_secret_is_refused_also_for_one_way_sends(guarded: BrokerThread) -> None:
    before = stored_bytes(guarded)
    with Signer(guarded.address, secret="not-the-secret") as wire:
        command = wire.sign(request(310, send_fields("orders"), b"x"))
        command.flag = 2
        wire.send(command)
        assert wire.put("orders", b"x").code == 1
    assert stored_bytes(guarded) == before


def batch_to(topic: str) -> tuple[int, dict[str, str], bytes]:
    return 320, {**send_fields(topic), "m": "true"}, b""


REFUSED: list[tuple[int, dict[str, str], bytes]] = [
    (310, send_fields("bills"), b"x"),
    (310, send_fields("new-topic"), b"x"),
    (10, {"topic": "orders", **send_fields("bills")}, b"x"),
    batch_to("bills"),
    (325, send_fields("bills"), b"x"),
    (310, send_fields("%RETRY%others"), b"x"),
    (310, send_fields("SCHEDULE_TOPIC_XXXX"), b"x"),
    (11, pull_fields("billing", "alarms"), b""),
    (11, pull_fields("others", "orders"), b""),
    (361, pull_fields("others", "orders"), b""),
    (3442, {**pull_fields("others", "orders"), "invisibleTime": "1", "pollTime": "0", "bornTime": "0"}, b""),
    (12, {"topic": "alarms", "key": "k"}, b""),
    (15, {"consumerGroup": "others", "topic": "orders", "queueId": "0", "commitOffset": "1"}, b""),
    (38, {"consumerGroup": "others"}, b""),
    (35, {"clientID": "c", "consumerGroup": "others"}, b""),
    (34, {}, json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "others"}]}).encode()),
    (41, {}, json.dumps({"consumerGroup": "others", "clientId": "c", "mqSet": []}).encode()),
    (400, {}, json.dumps({"consumerGroup": "billing", "topic": "alarms"}).encode()),
    (200151, {}, json.dumps({"acks": [{"c": "others", "t": "orders", "q": 0, "so": 0, "pt": 1}]}).encode()),
    (105, {"topic": "%RETRY%others"}, b""),
    (370, {"topic": "bills", "recallHandle": "x"}, b""),
    (222, {"topic": "orders", "group": "others", "timestamp": "0"}, b""),
    (321, {"topic": "orders", "queueId": "0", "index": "0", "count": "1", "consumerGroup": "others"}, b""),
    *((code, {"topic": "orders"}, b"") for code in (17, 215, 216, 25, 26, 200, 207, 21, 201, 43, 100, 317, 2003, 9999)),
]


@pytest.mark.parametrize(("code", "fields", "body"), REFUSED, ids=lambda value: value if isinstance(value, int) else "")
def test_a_request_without_its_right_is_refused(
    code: int, fields: dict[str, str], body: bytes, guarded: BrokerThread, signer: Signer
) -> None:
    before, topics = stored_bytes(guarded), set(guarded.store.topics())
    answer = signer.call(code, dict(fields), body)
    assert answer.code == 1 and answer.remark is not None
    assert answer.remark.startswith((f"{ACL_EXCEPTION}No default permission", f"{ACL_EXCEPTION}Need admin permission"))
    assert stored_bytes(guarded) == before and set(guarded.store.topics()) == topics


def test_a_stored_message_is_shown_only_to_those_who_may_read_its_topic(
    guarded: BrokerThread, signer: Signer, root: Signer
) -> None:
    own = signer.put("alarms", b"x").fields["msgId"]  # may be written by this key, not read
    other = root.put("bills", b"y").fields["msgId"]
    guarded.store.wait_dispatched()
    hidden, shown = ({"offset": str(int(each[-16:], 16))} for each in (own, other))
    assert signer.call(33, {**hidden, "topic": "orders"}).code == 1
    assert signer.call(33, {**shown, "topic": "orders"}).code == 0
    back = {"group": "billing", "delayLevel": "0", "originTopic": "orders"}
    before = stored_bytes(guarded)
    assert "alarms" in str(signer.call(36, {**hidden, **back}).remark)
    assert stored_bytes(guarded) == before
    assert root.call(33, hidden).code == 0


def test_a_transaction_is_ended_only_by_those_who_may_write_its_topic(guarded: BrokerThread, root: Signer) -> None:
    half = root.put("bills", b"x", TRAN_MSG="true", PGROUP="P")
    assert half.code == 0
    end = {
        "producerGroup": "P",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": str(int(half.fields["msgId"][-16:], 16)),
        "commitOrRollback": "8",
    }
    with Signer(guarded.address) as other:
        assert "bills" in str(other.call(37, {**end, "topic": "orders"}).remark)
    assert root.call(37, end).code == 0
    assert [message.body for message in guarded.store.read("bills", wait_s=20)] == [b"x"]


@pytest.mark.parametrize(("name", "value"), [("UNIQ_KEY", "AB12"), ("__transactionId__", "T1")])
def test_a_half_message_joins_no_transaction_of_others(
    name: str, value: str, guarded: BrokerThread, signer: Signer, root: Signer
) -> None:
    """Whoever may write its topic ends it, and must not end theirs with it."""
    root.put("bills", b"now")
    half = root.put("bills", b"x", TRAN_MSG="true", PGROUP="P", UNIQ_KEY="AB12", __transactionId__="T1")
    joins = {"TRAN_MSG": "true", "PGROUP": "P", name: value}
    own = signer.call(310, send_fields("orders", 0, joins), b"y")
    assert (half.code, half.fields["transactionId"], own.code) == (0, "AB12", 0)

    def end(wire: Signer, sent: Command, decision: str) -> Command:
        place = str(int(sent.fields["msgId"][-16:], 16))
        fields = {"tranStateTableOffset": sent.fields["queueOffset"], "commitLogOffset": place}
        return wire.call(37, {**fields, "producerGroup": "P", "commitOrRollback": decision})

    assert end(signer, own, "12").code == 0
    assert end(root, half, "8").code == 0
    assert [message.body for message in guarded.store.read("bills", start=1, wait_s=20)] == [b"x"]


def test_a_timed_message_is_recalled_only_by_those_who_may_write_its_topic(
    guarded: BrokerThread, signer: Signer, root: Signer
) -> None:
    """Neither a handle that names another topic nor a cancellation that a client writes itself reaches it."""
    due_ms = time.time_ns() // 1_000_000 + 3_000
    assert signer.put("orders", b"x").code == root.put("bills", b"now").code == 0
    root.put("bills", b"later", TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY="AB12")
    handle = base64.urlsafe_b64encode(f"v1 orders broker-a {due_ms} AB12".encode()).decode()
    assert signer.call(370, {"topic": "orders", "recallHandle": handle}).code == 0
    for name in ("AB12", "bills+AB12"):
        assert signer.put("orders", b"0", TIMER_DELIVER_MS=str(due_ms), TIMER_DEL_UNIQKEY=name).code == 0
    assert [each.body for each in guarded.store.read("bills", start=1, wait_s=20)] == [b"later"]


def test_routes_are_open_and_traces_are_free(guarded: BrokerThread, signer: Signer) -> None:
    signer.put("orders", b"x")
    with Wire(guarded.name_server) as unknown:
        assert unknown.call(105, {"topic": "orders"}).code == 0
        assert unknown.call(105, {"topic": "%RETRY%billing"}).code == 1
        assert unknown.call(106).code == 1
    assert signer.call(105, {"topic": "%RETRY%billing"}).code == 0
    assert signer.put("RMQ_SYS_TRACE_TOPIC", b"x").code == 0


def test_an_administrator_may_do_everything(root: Signer) -> None:
    topic = {"topic": "new", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "defaultTopic": "TBW102"}
    assert root.call(17, topic).code == 0
    assert root.put("new", b"x").code == 0
    config = root.call(26)
    assert config.code == 0 and SECRET.encode() not in config.body


def test_every_request_that_the_broker_answers_is_in_the_table(broker: BrokerThread) -> None:
    assert set(broker.served.broker.handlers) - set(POP_CODES) == set(NEEDS)


# ---- users of RocketMQ 5


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.json"
    path.write_text(json.dumps(USERS))
    return path


@pytest.mark.parametrize(
    ("name", "secret", "remark"),
    [
        ("", SECRET, "username cannot be null."),
        ("nobody", SECRET, "User:nobody is not found."),
        ("gone", SECRET, "User:gone is disabled."),
        ("shop", "wrong-one", "check signature failed."),
    ],
)
def test_unknown_users_are_refused_as_rocketmq_5_does(
    name: str, secret: str, remark: str, users: Path, start_broker: Callable[..., BrokerThread]
) -> None:
    broker = start_broker(access=Access.from_file(users))
    with Signer(broker.address, name, secret) as wire:
        answer = wire.put("orders", b"x")
    assert (answer.code, answer.remark) == (16, remark)
    assert stored_bytes(broker) == 0


def test_users_have_rights_if_authorization_is_on(users: Path, start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(access=Access.from_file(users))
    with Signer(broker.address, "shop") as shop, Signer(broker.address, "root", ADMIN_SECRET) as root:
        assert shop.put("orders", b"x").code == 0
        answer = shop.put("bills", b"x")
        assert answer.code == 16 and answer.remark is not None
        assert answer.remark.startswith("User:shop has no permission to access Topic:bills from 127.0.0.1")
        assert shop.call(26).code == 16
        assert root.put("bills", b"x").code == 0


def test_authentication_alone_lets_known_users_do_everything(
    tmp_path: Path, start_broker: Callable[..., BrokerThread]
) -> None:
    first = json.dumps({"username": "first", "password": SECRET})
    properties = {"authenticationEnabled": "true", "initAuthenticationUser": first}
    access = Access.from_properties(properties, None, tmp_path)
    broker = start_broker(access=access)
    with Signer(broker.address, "first") as wire, Wire(broker.address) as unknown:
        assert wire.put("any", b"x").code == 0
        assert unknown.put("any", b"x").code == 16


# ---- files


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(
    plain: Path,
    start_broker: Callable[..., BrokerThread],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(server_module, "WATCH_S", 0.02)
    broker = start_broker(access=Access.from_file(plain))
    with Signer(broker.address) as wire:
        assert wire.put("bills", b"x").code == 1
        replace(plain, PLAIN.replace("bills=SUB", "bills=PUB"))
        until(lambda: wire.put("bills", b"x").code == 0)
        with caplog.at_level(logging.ERROR):
            replace(plain, PLAIN.replace("admin: true", "admin: maybe"))
            until(lambda: "the access rules stay as they were" in caplog.text)
        assert wire.put("bills", b"x").code == 0
        plain.unlink()
        until(lambda: "cannot be read" in caplog.text)
        assert wire.put("bills", b"x").code == 0
    assert SECRET not in caplog.text and ADMIN_SECRET not in caplog.text


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("admin: true", "admin: maybe"),
        ("secretKey: a", "secretkey: a"),
        (f"secretKey: {SECRET}", "secretKey: short"),
        ("orders=PUB|SUB", "orders=WRITE"),
        ("orders=PUB|SUB", "orders"),
        ("10.10.103.*", "10.10.*"),
        ("10.10.103.*", "10.10.300.*"),
        ("accessKey: root-key", "accessKey: shop-key"),
        ("  admin: true", "   admin: true"),
        ("  admin: true", "\tadmin: true"),
        (f"secretKey: {SECRET}", f"secretKey: &x {SECRET}"),
        (f"secretKey: {SECRET}", f"secretKey: [{SECRET}]"),
        (f"secretKey: {SECRET}", f"{SECRET}"),
        ("accounts:", "acounts:"),
        ("admin: true", "admin: true\n  admin: false"),
    ],
)
def test_a_broken_file_is_refused_at_the_start_without_showing_a_secret(old: str, new: str, plain: Path) -> None:
    assert PLAIN.count(old) >= 1
    plain.write_text(PLAIN.replace(old, new))
    with pytest.raises(InvalidConfig) as caught:
        Access.from_file(plain)
    assert SECRET not in str(caught.value) and ADMIN_SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value) and "short" not in repr(caught.value)


def test_rules_show_no_secret(plain: Path, users: Path) -> None:
    for path in (plain, users):
        shown = repr(Access.from_file(path).rules)
        assert "shop" in shown and SECRET not in shown and ADMIN_SECRET not in shown


def test_settings_that_contradict_each_other_are_refused(plain: Path, users: Path, tmp_path: Path) -> None:
    for properties, file in (
        ({"aclEnable": "true", "authenticationEnabled": "true"}, None),
        ({"authorizationEnabled": "true"}, None),
        ({"aclEnable": "true"}, users),
        ({"authenticationEnabled": "true"}, plain),
        ({"authenticationEnabled": "true"}, None),
        ({"aclEnable": "yes"}, None),
        ({"aclEnable": "true"}, tmp_path / "none.yml"),
    ):
        with pytest.raises(InvalidConfig):
            Access.from_properties(properties, file, tmp_path / "empty")
    assert Access.from_properties({}, None, tmp_path) is None
    assert Access.from_properties({"aclEnable": "true"}, None, plain.parent) is not None


def test_the_yaml_of_acl_files_is_read() -> None:
    assert parse(PLAIN, "f")["accounts"][1] == {"accessKey": "root-key", "secretKey": ADMIN_SECRET, "admin": "true"}
    text = "---\na:\n  - x: 1\n    y:\n    - p#q\n    - '# r'\n  -\n    \nb: ~\nc:\nd: 'it: is'\n"
    assert parse(text, "f") == {"a": [{"x": "1", "y": ["p#q", "# r"]}, None], "b": None, "c": None, "d": "it: is"}


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.0.0.7", "10.0.0.7", "10.0.0.70"),
        ("10.0.0.*", "10.0.0.255", "10.0.1.0"),
        ("10.0.1-20.*", "10.0.20.3", "10.0.21.3"),
        ("10.0.0.{1,2}", "10.0.0.2", "10.0.0.3"),
        ("10.0.0.1,10.0.0.9", "10.0.0.9", "10.0.0.2"),
        ("1::ac5:78:1-200:*", "1::ac5:78:100:5", "1::ac5:78:300:5"),
        ("::1", "::1", "127.0.0.1"),
    ],
)
def test_white_lists_hold_the_addresses_that_rocketmqs_patterns_mean(pattern: str, inside: str, outside: str) -> None:
    found = WhiteList.parse([pattern])
    assert inside in found and outside not in found and "" not in found
    assert inside in WhiteList.parse(["*"]) and inside not in WhiteList.parse([])


def test_white_addresses_need_no_key(plain: Path, start_broker: Callable[..., BrokerThread]) -> None:
    plain.write_text(PLAIN.replace("10.10.103.*", "127.0.0.*"))
    with Wire(start_broker("all", access=Access.from_file(plain)).address) as wire:
        assert wire.put("anything", b"x").code == 0
    plain.write_text(PLAIN.replace("whiteRemoteAddress:", "whiteRemoteAddress: 127.0.0.1"))
    broker = start_broker("one", access=Access.from_file(plain))
    with Signer(broker.address, secret="wrong") as known, Wire(broker.address) as unknown:
        assert known.put("anything", b"x").code == 0
        assert unknown.put("anything", b"x").code == 1


@pytest.mark.parametrize(
    ("secret", "topic"), [("wrong", "orders"), (SECRET, "alarms")], ids=["a wrong secret", "no right to read"]
)
def test_a_consumer_that_is_not_let_in_hears_of_it(guarded: BrokerThread, secret: str, topic: str) -> None:
    with pytest.raises(RequestRefused, match="AclException"):
        with Consumer(guarded.name_server, "billing", topic, credentials=Credentials("shop-key", secret)) as consumer:
            consumer.poll(10)
