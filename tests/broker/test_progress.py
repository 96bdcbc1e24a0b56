"""How far groups are: commits, resets, copies, and what their members say."""

from __future__ import annotations

import json
from collections.abc import Callable

from mqlake.broker.in_thread import BrokerThread
from mqlake.kernel import Command
from mqlake.remoting.bodies import decode_records, read_json
from mqlake.remoting.command import request, response
from tests.broker.test_pop import handles, pop_fields
from tests.broker.wire import Wire

PLACE = {"topic": "T", "queueId": "0"}


def commit(wire: Wire, offset: int, group: str = "G") -> Command:
    return wire.call(15, {**PLACE, "consumerGroup": group, "commitOffset": str(offset)})


def progress(wire: Wire, group: str = "G") -> str:
    return wire.call(14, {**PLACE, "consumerGroup": group}).fields["offset"]


def reset(wire: Wire, **fields: str) -> Command:
    return wire.call(222, {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true", **fields})


def filled(broker: BrokerThread, wire: Wire, count: int = 5) -> None:
    for number in range(count):
        wire.put("T", b"%d" % number)
    broker.store.wait_dispatched()


def test_progress_of_a_group_that_nobody_made_is_refused(wire: Wire) -> None:
    wire.put("T", b"x")
    refused = commit(wire, 1)
    assert (refused.code, refused.remark) == (26, "Group G not exist!")
    assert wire.call(352, {"group": "G"}).code == 0, "asking for its settings makes it"
    assert commit(wire, 1).code == 0


def test_a_member_that_does_not_know_of_a_reset_does_not_undo_it(broker: BrokerThread, wire: Wire) -> None:
    filled(broker, wire)
    wire.beat("c1", "G", "T")
    commit(wire, 5)
    assert reset(wire).code == 0
    late = commit(wire, 5)
    assert (late.code, late.remark, progress(wire)) == (0, "Offset has been previously reset", "0")
    told = wire.pull("G", "T", offset=5, sysFlag="5", commitOffset="5")
    assert (told.code, told.fields["nextBeginOffset"], progress(wire)) == (21, "0", "0")
    assert (commit(wire, 3).remark, progress(wire)) == (None, "3")


def test_a_group_that_pops_goes_where_it_is_reset_to(broker: BrokerThread, wire: Wire) -> None:
    filled(broker, wire)
    first = decode_records(wire.call(200050, pop_fields()).body)
    assert [each.body for each in first] == [b"0", b"1", b"2", b"3", b"4"]
    assert reset(wire, queueId="0", offset="3").code == 0
    assert [each.body for each in decode_records(wire.call(200050, pop_fields()).body)] == [b"3", b"4"]


def test_a_reset_of_a_queue_that_is_not_there_is_refused(broker: BrokerThread, wire: Wire) -> None:
    filled(broker, wire)
    wire.beat("c1", "G", "T")
    assert reset(wire, queueId="9", offset="2").code == 1


def test_progress_is_copied_to_another_group(broker: BrokerThread, wire: Wire) -> None:
    filled(broker, wire)
    wire.beat("c1", "G", "T")
    commit(wire, 4)
    assert wire.call(314, {"srcGroup": "G", "destGroup": "COPY", "topic": "T", "offline": "true"}).code == 0
    assert wire.call(314, {"srcGroup": "G", "destGroup": "ALL"}).code == 0
    assert (progress(wire, "COPY"), progress(wire, "ALL")) == ("4", "4")


def test_the_members_of_a_group_say_how_far_they_are(wire: Wire, connect: Callable[[], Wire]) -> None:
    wire.put("T", b"x")
    member = connect()
    member.beat("c1", "G", "T")
    asked = wire.send(request(223, {"topic": "T", "group": "G", "clientAddr": ""}))
    question = member.next_request(221)
    assert question.fields == {"topic": "T", "group": "G"}
    queue = json.dumps({"brokerName": "broker-a", "queueId": 0, "topic": "T"}, separators=(",", ":"))
    member.send(response(question, body=f'{{"messageQueueTable":{{{queue}:7}}}}'.encode()))
    told = read_json(wire.answer_to(asked).body)["consumerTable"]
    assert {json.loads(key)["queueId"]: offset for key, offset in told["c1"].items()} == {0: 7}
    nobody = wire.call(223, {"topic": "T", "group": "OFF"})
    assert nobody.code == 1 and "OFF" in str(nobody.remark)


def test_a_new_group_that_pops_a_young_queue_gets_everything(broker: BrokerThread, wire: Wire) -> None:
    filled(broker, wire, 3)
    found = wire.call(200050, pop_fields(initMode="1"))
    assert [each.body for each in decode_records(found.body)] == [b"0", b"1", b"2"]


def test_acknowledging_what_no_queue_has_is_refused(broker: BrokerThread, wire: Wire) -> None:
    filled(broker, wire, 1)
    known = {**PLACE, "consumerGroup": "G", "offset": "0", "extraInfo": "0 1 1000 0 0 broker-a 0 0"}
    wrong = ({"topic": "NONE"}, {"queueId": "9"}, {"offset": "99"}, {"offset": "-1"})
    assert [wire.call(200051, known | each).code for each in wrong] == [17, 13, 208, 208]
    assert wire.call(200151, body=b"{}").code == 208


def test_a_pop_in_order_says_how_often_its_messages_came(broker: BrokerThread, wire: Wire) -> None:
    filled(broker, wire, 2)
    assert wire.call(200050, pop_fields(order="true", queueId="0")).fields["orderCountInfo"] == "0 0 0"


# ---- topics that are deleted and made again


def remade(broker: BrokerThread, wire: Wire, count: int) -> None:
    """Delete the topic, and fill the next one of its name."""
    assert wire.call(215, {"topic": "T"}).code == 0
    for number in range(count):
        wire.put("T", b"new %d" % number)
    broker.store.wait_dispatched()


def test_a_member_of_a_topic_that_is_made_again_is_led_to_its_beginning(broker: BrokerThread, wire: Wire) -> None:
    """Its own offset is of the deleted topic, and exists in the new one too."""
    filled(broker, wire)
    wire.beat("c1", "G", "T")
    commit(wire, 5)
    remade(broker, wire, 8)
    late = commit(wire, 5)
    assert late.remark == "Offset has been previously reset"
    told = wire.pull("G", "T", offset=5, sysFlag="5", commitOffset="5")
    assert (told.code, told.fields["nextBeginOffset"]) == (21, "0")
    assert wire.call(14, {**PLACE, "consumerGroup": "G", "setZeroIfNotFound": "false"}).code == 22, "nothing is skipped"


def test_an_offset_beyond_a_topic_that_is_made_again_leads_to_its_beginning(
    broker: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    """Every member of a broadcast group is led, and readers that send no heart beat."""
    filled(broker, wire)
    remade(broker, wire, 2)
    for reader in (wire, connect()):
        told = reader.pull("G", "T", offset=5)
        assert (told.code, told.fields["nextBeginOffset"]) == (21, "0")


def test_a_group_that_pops_gets_all_of_a_topic_that_is_made_again(broker: BrokerThread, wire: Wire) -> None:
    filled(broker, wire)
    (old, *_) = handles(wire.call(200050, pop_fields(poll_ms=0)))
    remade(broker, wire, 8)
    found = decode_records(wire.call(200050, pop_fields()).body)
    assert [each.body for each in found] == [b"new %d" % number for number in range(8)]
    wire.call(200051, old)
    assert progress(wire) == "0", "a handle of the deleted topic acknowledges nothing"
