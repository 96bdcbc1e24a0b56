"""POP: messages are handed out for a time, and come back unless they are acknowledged."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest

from mqlake import DiskFull, Durability, Message, PutReceipt
from mqlake.broker.in_thread import BrokerThread
from mqlake.broker.pop_queue import PopQueue
from mqlake.kernel import Command
from mqlake.remoting.bodies import decode_records, read_json, write_json
from mqlake.remoting.command import request
from mqlake.store.read import SCANNED_ENTRIES
from mqlake.store.writer import Writer
from tests.broker.wire import Wire


def pop_fields(invisible_ms: int = 60_000, poll_ms: int = 20_000, **more: str) -> dict[str, str]:
    return {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "-1",
        "maxMsgNums": "32",
        "initMode": "0",
        "invisibleTime": str(invisible_ms),
        "pollTime": str(poll_ms),
        "expType": "TAG",
        "exp": "*",
        "order": "false",
        "bornTime": str(time.time_ns() // 1_000_000),
        "bname": "broker-a",
        **more,
    }


def handles(answer: Command) -> list[dict[str, str]]:
    """Return the fields of an acknowledgement for each message, as the Java client makes them."""
    starts = {tuple(each.split(" ")[:2]): each.split(" ")[2] for each in answer.fields["startOffsetInfo"].split(";")}
    found = []
    for each in answer.fields["msgOffsetInfo"].split(";"):
        kind, queue_id, offsets = each.split(" ")
        for offset in offsets.split(","):
            times = f"{answer.fields['popTime']} {answer.fields['invisibleTime']} {answer.fields['reviveQid']}"
            text = f"{starts[kind, queue_id]} {times} {kind} broker-a {queue_id} {offset}"
            topic = "T" if kind == "0" else "%RETRY%G_T"
            found.append(
                {"consumerGroup": "G", "topic": topic, "queueId": queue_id, "offset": offset, "extraInfo": text}
            )
    return found


def test_a_popped_message_is_not_popped_again_once_acknowledged(broker: BrokerThread, wire: Wire) -> None:
    for number in range(8):
        wire.put("T", b"%d" % number, queue_id=number % 4)
    broker.store.wait_dispatched()
    answer = wire.call(200050, pop_fields(invisible_ms=300))
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert {message.body for message in decode_records(answer.body)} == {b"%d" % number for number in range(8)}
    for each in handles(answer):
        assert wire.call(200051, each).code == 0
    again = wire.call(200050, pop_fields(poll_ms=900))
    assert (again.code, again.fields["msgOffsetInfo"]) == (210, "")
    assert wire.call(14, {"consumerGroup": "G", "topic": "T", "queueId": "0"}).fields["offset"] == "2"


def test_a_message_that_is_not_acknowledged_comes_back_with_a_count(wire: Wire) -> None:
    wire.put("T", b"x")
    first = wire.call(200050, pop_fields(invisible_ms=200))
    (message,) = decode_records(first.body)
    assert message.reconsume_times == 0
    second = wire.call(200050, pop_fields())
    (again,) = decode_records(second.body)
    assert (again.topic, again.body, again.reconsume_times) == ("T", b"x", 1)
    assert second.fields["msgOffsetInfo"] == "1 0 0" and again.properties["POP_CK"].split(" ")[4] == "1"
    assert again.properties["ORIGIN_GROUP"] == "G"
    (handle,) = handles(second)
    assert handle["extraInfo"] == again.properties["POP_CK"]
    assert wire.call(200051, handle).code == 0


def test_a_changed_time_makes_the_old_handle_worthless(wire: Wire) -> None:
    wire.put("T", b"x")
    (handle,) = handles(wire.call(200050, pop_fields()))
    time.sleep(0.002)  # the new handle differs by its time
    changed = wire.call(200053, {**handle, "invisibleTime": "300"})
    assert changed.code == 0 and changed.fields["invisibleTime"] == "300"
    assert wire.call(200053, {**handle, "invisibleTime": "300"}).code == 208
    assert wire.call(200051, handle).code == 0, "and has no effect"
    (again,) = decode_records(wire.call(200050, pop_fields()).body)
    assert again.reconsume_times == 1


def test_a_pop_waits_for_a_message(wire: Wire, connect: Callable[[], Wire]) -> None:
    wire.call(17, {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"})
    asked = wire.send(request(200050, pop_fields()))
    connect().put("T", b"new", queue_id=3)
    assert [message.body for message in decode_records(wire.answer_to(asked).body)] == [b"new"]


@pytest.mark.parametrize(("kind", "wanted"), [("SQL92", "a = 1"), ("TAG", "wanted")])
def test_a_pop_passes_over_all_messages_that_do_not_match(
    broker: BrokerThread, wire: Wire, kind: str, wanted: str
) -> None:
    """There are more than it looks at in one step."""
    others = [Message("T", b"other", queue_id=0, tags="other", properties={"a": "0"}) for _ in range(100)]
    for _ in range(SCANNED_ENTRIES // 100 + 1):
        broker.store.put_many(others)
    broker.store.put(Message("T", b"wanted", queue_id=0, tags="wanted", properties={"a": "1"}))
    broker.store.wait_dispatched()
    answer = wire.call(200050, pop_fields(expType=kind, exp=wanted))
    assert [message.body for message in decode_records(answer.body)] == [b"wanted"]


def test_a_message_that_cannot_be_put_again_is_tried_again_after_a_pause(
    broker: BrokerThread, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.put("T", b"x")
    tries: list[float] = []
    put = Writer.put

    def refuse_twice(self: Writer, message: Message, durability: Durability | None = None) -> PutReceipt:
        if message.topic.startswith("%RETRY%") and len(tries) < 2:
            tries.append(time.monotonic())
            raise DiskFull(broker.store.path, 1, "full")
        return put(self, message, durability)

    monkeypatch.setattr(Writer, "put", refuse_twice)
    assert wire.call(200050, pop_fields(invisible_ms=10)).code == 0
    again = wire.call(200050, pop_fields())
    assert [message.body for message in decode_records(again.body)] == [b"x"]
    assert tries[1] - tries[0] > 0.5


def test_a_batch_of_acknowledgements_counts_like_single_ones(broker: BrokerThread, wire: Wire) -> None:
    for _ in range(3):
        wire.put("T", b"x")
    broker.store.wait_dispatched()
    answer = wire.call(200050, pop_fields())
    ack = {"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "it": 60_000, "pt": int(answer.fields["popTime"])}
    body = write_json({"brokerName": "broker-a", "acks": [{**ack, "b": [3]}]})
    assert wire.call(200151, body=body).code == 0
    assert wire.call(14, {"consumerGroup": "G", "topic": "T", "queueId": "0"}).fields["offset"] == "2"


def test_millions_of_set_bits_in_an_acknowledgement_cost_no_more_than_their_bytes(
    broker: BrokerThread, wire: Wire
) -> None:
    for _ in range(3):
        wire.put("T", b"x")
    broker.store.wait_dispatched()
    popped_ms = int(wire.call(200050, pop_fields()).fields["popTime"])
    ack = {"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "it": 60_000, "pt": popped_ms, "b": "/" * (1 << 19)}
    body = write_json({"acks": [ack]})
    tracemalloc.start()
    try:
        assert wire.call(200151, body=body).code == 0
        assert tracemalloc.get_traced_memory()[1] < 32 << 20, "a list of all bits takes 100 MiB"
    finally:
        tracemalloc.stop()
    assert wire.call(14, {"consumerGroup": "G", "topic": "T", "queueId": "0"}).fields["offset"] == "3"


ACK = {"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "pt": 1, "b": "AQ=="}


@pytest.mark.parametrize(
    ("acks", "found"),
    [
        ({"x": 1}, "acks: found JSON of the type dict"),
        (None, "acks: found JSON of the type NoneType"),
        ([5], "acks: found JSON of the type int"),
        ([{}], "acks: c: found None"),
        ([{**ACK, "t": 2}], "acks: t: found 2"),
        ([{**ACK, "q": True}], "acks: q: found True"),
        ([{**ACK, "so": "x"}], "acks: so: found 'x'"),
        ([{**ACK, "so": 1e300}], "acks: so: found 1e+300"),
        ([{**ACK, "pt": {}}], "acks: pt: found {}"),
        ([{**ACK, "b": "x"}], "acks: b: found 'x'"),
        ([{**ACK, "b": "\u00e9"}], "acks: b: found"),
        ([{**ACK, "b": 5}], "acks: b: found 5"),
        ([{**ACK, "b": [{}]}], "acks: b: found [{}]"),
    ],
)
def test_an_acknowledgement_of_a_wrong_type_is_refused_by_the_field(acks: object, found: str, wire: Wire) -> None:
    answer = wire.call(200151, body=write_json({"acks": acks}))
    assert answer.code == 1 and str(answer.remark).startswith(f"request: {found}")


def test_progress_stays_before_the_first_message_that_is_not_acknowledged() -> None:
    queue = PopQueue("G", "T", 0, 5)
    for offset in range(5):
        queue.hand_out(offset, 100, 7)
    assert queue.take_off(1, 7) and queue.take_off(2, 7) and queue.progress == 0
    assert not queue.take_off(0, 8), "another pop"
    queue.hand_out(0, 200, 9)
    assert queue.by_pop == {7: {3, 4}, 9: {0}}
    assert queue.take_off(0, 9) and queue.progress == 3
    assert queue.take_off(4, 7) and queue.take_off(3, 7) and queue.progress == 5 and not queue.by_pop


def test_what_was_handed_out_is_popped_again_after_a_restart(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    with Wire(broker.address) as wire:
        wire.put("T", b"x")
        assert wire.call(200050, pop_fields()).code == 0
    broker.close()
    with Wire(start_broker().address) as wire:
        assert [message.body for message in decode_records(wire.call(200050, pop_fields()).body)] == [b"x"]


def test_queues_are_assigned_by_pop_if_the_group_asks_for_it(wire: Wire) -> None:
    wire.put("T", b"x")
    wire.beat("c1", "G", "T")
    asked = write_json({"clientId": "c1", "consumerGroup": "G", "messageModel": "CLUSTERING", "topic": "T"})

    def assigned() -> list[tuple[int, str]]:
        found = read_json(wire.call(400, body=asked).body)["messageQueueAssignments"]
        return [(each["messageQueue"]["queueId"], each["mode"]) for each in found]

    assert assigned() == [(queue_id, "PULL") for queue_id in range(4)]
    wire.call(401, body=write_json({"consumerGroup": "G", "topic": "T", "mode": "POP", "popShareQueueNum": 8}))
    assert assigned() == [(-1, "POP")]
