"""What real clients and a real RocketMQ 5.5 broker sent is read as their recorder read it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mqlake.kernel import Command, decode_commands, encode_command
from mqlake.remoting import headers
from mqlake.remoting.bodies import Heartbeat, Route, decode_batch, decode_records, read_json
from mqlake.remoting.frames import MAX_FRAME_BYTES, FrameReader
from tests.golden.wire_frames import CLIENTS, Frame, all_exchanges, exchanges


def frames(client: str) -> list[Frame]:
    return [frame for each in exchanges(client) for frame in (each.request, each.response) if frame and frame.is_whole]


def as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_recorded_frame_is_read_as_its_recorder_read_it(client: str) -> None:
    for frame in frames(client):
        (command,) = FrameReader().feed(frame.data)
        expected = frame.header
        assert (command.code, command.opaque, command.flag) == (frame.code, expected["opaque"], expected["flag"])
        assert (command.language, command.version) == (expected["language"], expected["version"])
        assert command.remark == expected["remark"]
        assert command.fields == {name: as_text(value) for name, value in expected["extFields"].items()}
        assert command.binary == (expected["serialize"] == "ROCKETMQ")
        assert command.body == frame.body


@pytest.mark.parametrize("client", CLIENTS)
def test_a_command_that_is_written_again_is_read_as_the_same(client: str) -> None:
    for frame in frames(client):
        (command,) = FrameReader().feed(frame.data)
        again = encode_command(command)
        assert FrameReader().feed(again) == [command]
        if command.binary and command.remark != "":
            assert sorted(again) == sorted(frame.data), "a binary header has only one form but for the order of fields"


def test_frames_that_arrive_in_pieces_of_any_size_give_the_same_commands() -> None:
    whole = b"".join(frame.data for frame in frames("java-5.5") if len(frame.data) < 4096)
    expected, end = decode_commands(whole, 0, MAX_FRAME_BYTES)
    assert end == len(whole) and len(expected) > 100
    for size in (1, 3, 7, 100, 5000):
        reader = FrameReader()
        found: list[Command] = []
        for at in range(0, len(whole), size):
            found += reader.feed(whole[at : at + size])
        assert found == expected
        assert reader.kept_bytes == 0


TYPED = {
    10: headers.SendHeader,
    310: headers.SendHeaderV2,
    320: headers.SendHeaderV2,
    324: headers.SendHeader,
    325: headers.SendHeaderV2,
    11: headers.PullHeader,
    361: headers.PullHeader,
    12: headers.QueryMessageHeader,
    14: headers.QueryOffsetHeader,
    15: headers.UpdateOffsetHeader,
    17: headers.CreateTopicHeader,
    29: headers.SearchOffsetHeader,
    30: headers.QueueHeader,
    31: headers.QueueHeader,
    32: headers.QueueHeader,
    33: headers.ViewMessageHeader,
    35: headers.UnregisterHeader,
    36: headers.SendBackHeader,
    37: headers.EndTransactionHeader,
    38: headers.GroupHeader,
    39: headers.CheckTransactionHeader,
    40: headers.GroupHeader,
    105: headers.RouteHeader,
    222: headers.ResetOffsetHeader,
    326: headers.ReplyHeader,
    370: headers.RecallHeader,
    200050: headers.PopHeader,
    200051: headers.AckHeader,
    200053: headers.AckHeader,
}
COMMON = {"bname", "n", "lo", "ns", "nsd", "ReqT", "AccessKey", "OnsChannel", "Signature", "SecurityToken"}
UNUSED = {"requestSource", "proxyFrowardClientId", "force", "suspend", "liteTopic", "isC"}


def test_every_recorded_request_of_a_typed_header_is_read_without_leaving_a_field_out() -> None:
    seen = set()
    for each in all_exchanges():
        kind: type[headers.Header] | None = TYPED.get(each.request.code)
        if kind is None:
            continue
        seen.add(each.request.code)
        fields = {name: as_text(value) for name, value in each.request.header["extFields"].items()}
        written = kind.read(fields).write()
        wanted = {name for name, value in fields.items() if name not in COMMON | UNUSED}
        assert wanted <= set(written), (each.client, each.case, each.request.code)
        for name in wanted:
            assert written[name] == {"0": "false", "1": "true"}.get(fields[name], fields[name]) or (
                written[name] == fields[name]
            )
    assert seen == set(TYPED)


def test_recorded_bodies_are_read() -> None:
    beats = routes = records = batches = 0
    for each in all_exchanges():
        request, response = each.request, each.response
        if request.code == 34:
            beat = Heartbeat.decode(request.body)
            assert beat.client_id and Heartbeat.decode(beat.encode()) == beat
            beats += 1
        if request.code == 320 and request.is_whole:
            assert [body for _, body, _ in decode_batch(request.body)]
            batches += 1
        if response is None or response.code != 0 or not response.is_whole:
            continue
        if request.code == 105:
            route = Route.decode(response.body)
            assert route.encode(standard=b'{"0":' in response.body) == response.body
            routes += 1
        if request.code in (11, 12, 33, 361, 200050):
            assert decode_records(response.body)
            records += 1
        if request.code in (202, 208, 222):
            assert "offsetTable" in read_json(response.body)
    assert min(beats, routes, records, batches) > 0
