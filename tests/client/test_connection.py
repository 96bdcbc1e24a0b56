"""Connections against a server of the test's own: time limits, broken connections, signatures, TLS."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mqlake.client.security import Credentials
from mqlake.client.session import Session
from mqlake.errors import NotConnected, RequestRefused, RequestTimeout
from mqlake.kernel import Command, encode_command
from mqlake.remoting.bodies import Heartbeat
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import request, response
from mqlake.remoting.frames import FrameReader

Serve = Callable[[asyncio.StreamWriter, Command], Awaitable[None]]
ASK = RequestCode.GET_MAX_OFFSET


async def answer(writer: asyncio.StreamWriter, command: Command) -> None:
    writer.write(encode_command(response(command, fields={"offset": "7"})))


class Server:
    """A server that passes every command to a function."""

    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None) -> None:
        self._serve = serve
        self._tls = tls
        self.commands: list[Command] = []
        self.connection_count = 0
        self.address = ""

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        frames = FrameReader()
        while data := await reader.read(1 << 16):
            for command in frames.feed(data):
                self.commands.append(command)
                await self._serve(writer, command)
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


def test_an_answer_goes_to_the_call_that_asked_whatever_the_order() -> None:
    async def main() -> None:
        held: list[Command] = []

        async def reverse(writer: asyncio.StreamWriter, command: Command) -> None:
            held.append(command)
            if len(held) == 3:
                for each in reversed(held):
                    writer.write(encode_command(response(each, fields={"offset": each.fields["topic"]})))

        async with Server(reverse) as server:
            session = Session("127.0.0.1:1")
            calls = [session.call(server.address, ASK, {"topic": name}) for name in "abc"]
            assert [each.fields["offset"] for each in await asyncio.gather(*calls)] == ["a", "b", "c"]
            assert server.connection_count == 1
            await session.close()

    asyncio.run(main())


def test_a_call_without_an_answer_ends_with_its_time_limit() -> None:
    async def main() -> None:
        async def silence(writer: asyncio.StreamWriter, command: Command) -> None:
            return None

        async with Server(silence) as server:
            session = Session("127.0.0.1:1")
            with pytest.raises(RequestTimeout, match=r"30 GET_MAX_OFFSET within 0\.1 s"):
                await session.call(server.address, ASK, timeout_s=0.1)
            await session.close()
            with pytest.raises(NotConnected, match="closed"):
                await session.call(server.address, ASK)

    asyncio.run(main())


def test_a_connection_that_breaks_fails_its_calls_at_once_and_the_next_opens_another() -> None:
    async def main() -> None:
        async def break_first(writer: asyncio.StreamWriter, command: Command) -> None:
            if command.fields["topic"] == "bad":
                writer.close()
            else:
                await answer(writer, command)

        async with Server(break_first) as server:
            session = Session("127.0.0.1:1")
            with pytest.raises(NotConnected):
                await session.call(server.address, ASK, {"topic": "bad"}, timeout_s=60.0)
            assert (await session.call(server.address, ASK, {"topic": "good"})).fields == {"offset": "7"}
            assert server.connection_count == 2
            await session.close()

    asyncio.run(main())


def test_bytes_that_are_no_frame_close_the_connection() -> None:
    async def main() -> None:
        async def garbage(writer: asyncio.StreamWriter, command: Command) -> None:
            writer.write(b"\xff" * 64)

        async with Server(garbage) as server:
            session = Session("127.0.0.1:1")
            with pytest.raises(NotConnected):
                await session.call(server.address, ASK, timeout_s=60.0)
            await session.close()

    asyncio.run(main())


def test_a_refusal_has_the_code_by_name_and_the_remark() -> None:
    async def main() -> None:
        async def refuse(writer: asyncio.StreamWriter, command: Command) -> None:
            code = ResponseCode.SYSTEM_BUSY if command.fields["topic"] == "known" else 31_000
            writer.write(encode_command(response(command, code, remark="too much")))

        async with Server(refuse) as server:
            session = Session("127.0.0.1:1")
            with pytest.raises(RequestRefused, match=r"refused 30 GET_MAX_OFFSET: SYSTEM_BUSY \(2\): too much"):
                await session.call(server.address, ASK, {"topic": "known"})
            with pytest.raises(RequestRefused, match=r"UNKNOWN \(31000\)"):
                await session.call(server.address, ASK, {"topic": "unknown"})
            await session.close()

    asyncio.run(main())


def test_a_broker_gets_a_heart_beat_before_anything_else_on_every_connection() -> None:
    async def main() -> None:
        async def break_later(writer: asyncio.StreamWriter, command: Command) -> None:
            await answer(writer, command)
            if command.code == ASK:
                writer.close()

        async with Server(break_later) as server:
            session = Session("127.0.0.1:1", beat=lambda: Heartbeat("me", ["group"]))
            for _ in range(2):
                await session.call(server.address, ASK, {"topic": "T"})
                await asyncio.sleep(0.05)
            codes = [command.code for command in server.commands]
            assert codes == [RequestCode.HEART_BEAT, ASK, RequestCode.HEART_BEAT, ASK]
            await session.close()

    asyncio.run(main())


def test_requests_of_a_broker_are_answered_and_unknown_ones_refused() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def ask_back(writer: asyncio.StreamWriter, command: Command) -> None:
            if command.is_response:
                if command.opaque == 102:
                    asked.set()
                return
            writer.write(encode_command(request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {}, opaque=101)))
            writer.write(encode_command(request(RequestCode.GET_CONSUMER_RUNNING_INFO, {}, opaque=102)))
            await answer(writer, command)

        async def running(_: object, command: Command) -> Command:
            return response(command, fields={"mine": "yes"})

        async with Server(ask_back) as server:
            session = Session("127.0.0.1:1")
            session.handlers[RequestCode.GET_CONSUMER_RUNNING_INFO] = running
            await session.call(server.address, ASK)
            await asyncio.wait_for(asked.wait(), 60)
            answers = {command.opaque: command for command in server.commands if command.is_response}
            assert answers[101].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert answers[102].fields == {"mine": "yes"}
            await session.close()

    asyncio.run(main())


def test_another_name_server_is_asked_when_one_is_gone() -> None:
    async def main() -> None:
        async with Server(answer) as server:
            session = Session(f"127.0.0.1:1;{server.address}")
            for _ in range(2):
                address, _answer = await session.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
                assert address == server.address
            assert session.name_servers.startswith(server.address), "the one that answered is asked first"
            await session.close()

    asyncio.run(main())


# ---- security


def test_requests_are_signed_as_rocketmq_signs_them() -> None:
    """HMAC-SHA1 over the values in the order of their names, then the body: from `AclClientRPCHook`."""
    command = Command(10, fields={"topic": "T", "b": "x", "AccessKey": "old"}, body=b"body")
    credentials = Credentials("key", "secret", "token")
    credentials.sign(command)
    assert command.fields["AccessKey"] == "key" and command.fields["SecurityToken"] == "token"
    first = command.fields["Signature"]
    import base64
    import hashlib
    import hmac

    expected = hmac.new(b"secret", b"keytokenxTbody", hashlib.sha1).digest()
    assert base64.b64decode(first) == expected
    credentials.sign(command)
    assert command.fields["Signature"] == first, "the signature does not cover itself"
    assert "secret" not in repr(credentials) and "token" not in repr(credentials)


def test_every_request_of_a_session_with_credentials_is_signed() -> None:
    async def main() -> None:
        async with Server(answer) as server:
            session = Session(server.address, credentials=Credentials("key", "secret"))
            await session.call(server.address, ASK, {"topic": "T"})
            await session.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert all(command.fields["Signature"] for command in server.commands)
            await session.close()

    asyncio.run(main())


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(chain)]
    subprocess.run(command, check=True, capture_output=True)
    return key, chain


def test_tls_verifies_the_server(certificate: tuple[Path, Path]) -> None:
    key, chain = certificate

    async def main() -> None:
        of_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        of_server.load_cert_chain(chain, key)
        async with Server(answer, of_server) as server:
            trusting = Session("127.0.0.1:1", tls=ssl.create_default_context(cafile=str(chain)))
            assert (await trusting.call(server.address, ASK)).fields == {"offset": "7"}
            await trusting.close()
            strict = Session("127.0.0.1:1", tls=True)
            with pytest.raises(NotConnected, match="certificate"):
                await strict.call(server.address, ASK)
            await strict.close()

    asyncio.run(main())
