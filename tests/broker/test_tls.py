"""TLS: plain and encrypted clients on one port, enforced TLS, certificates of clients; on both event loops."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake.broker import server as server_module
from mqlake.broker.access import Access
from mqlake.broker.in_thread import LOOPBACK, BrokerThread
from mqlake.broker.listening import Address, require_safety, serve
from mqlake.broker.settings import BrokerSettings
from mqlake.broker.tls import Tls, TlsMode, TlsSettings
from mqlake.errors import InvalidConfig
from mqlake.remoting.bodies import decode_records
from mqlake.remoting.command import request
from tests.broker.conftest import SMALL
from tests.broker.test_serve import SERVE, start
from tests.broker.wire import Wire, send_fields

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="certificates are made with the openssl command")


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    make = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    subprocess.run([str(OPENSSL), *make, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def server_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("server"), "broker")


class TlsWire(Wire):
    """A connection under TLS that checks the broker's certificate."""

    def __init__(self, address: str, trusted: Path, own: tuple[Path, Path] | None = None) -> None:
        super().__init__(address)
        context = ssl.create_default_context(cafile=str(trusted))
        if own is not None:
            context.load_cert_chain(*own)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")


def permissive(files: tuple[Path, Path]) -> Tls:
    return Tls(TlsSettings(TlsMode.PERMISSIVE, *files))


def enforcing(files: tuple[Path, Path]) -> Tls:
    return Tls(TlsSettings(TlsMode.ENFORCING, *files))


def test_permissive_serves_plain_and_encrypted_clients_on_one_port(
    server_files: tuple[Path, Path], start_broker: Callable[..., BrokerThread]
) -> None:
    broker = start_broker(tls=permissive(server_files))
    for address in (broker.name_server, broker.address):
        with Wire(address) as plain, TlsWire(address, server_files[0]) as secret:
            assert plain.put("T", b"plain").code == 0
            assert secret.put("T", b"secret").code == 0
    assert [m.body for m in broker.store.read("T", wait_s=20)] == [b"plain", b"secret"] * 2


def test_enforcing_serves_no_plain_client(
    server_files: tuple[Path, Path], start_broker: Callable[..., BrokerThread]
) -> None:
    broker = start_broker(tls=enforcing(server_files))
    with Wire(broker.address) as plain:
        plain.send(request(310, send_fields("T"), b"x"))
        assert is_hung_up(plain.socket)
    with TlsWire(broker.address, server_files[0]) as secret:
        assert secret.put("T", b"secret").code == 0
    assert [m.body for m in broker.store.read("T", wait_s=20)] == [b"secret"]


def is_hung_up(connection: socket.socket) -> bool:
    """Wait for the end of a connection; what comes before it is no frame."""
    connection.settimeout(30)
    try:
        while data := connection.recv(4096):
            assert data[:1] != b"\0"
    except ConnectionResetError:
        pass
    return True


def test_large_answers_and_many_requests_pass_through_tls(
    server_files: tuple[Path, Path], start_broker: Callable[..., BrokerThread]
) -> None:
    broker = start_broker(tls=permissive(server_files))
    body = os.urandom(3 << 20)
    with TlsWire(broker.address, server_files[0]) as wire:
        assert wire.put("T", body).code == 0
        asked = [wire.send(request(310, send_fields("U"), b"%d" % i)) for i in range(200)]
        assert [wire.answer_to(each).code for each in asked] == [0] * 200
        broker.store.wait_dispatched()
        assert [message.body for message in decode_records(wire.pull("G", "T").body)] == [body]


def test_clients_without_a_trusted_certificate_are_refused_if_one_is_required(
    server_files: tuple[Path, Path], tmp_path: Path, start_broker: Callable[..., BrokerThread]
) -> None:
    known, stranger = make_certificate(tmp_path, "known"), make_certificate(tmp_path, "stranger")
    broker = start_broker(
        tls=Tls(TlsSettings(TlsMode.ENFORCING, *server_files, ca=known[0], client_auth=ssl.CERT_REQUIRED))
    )
    with TlsWire(broker.address, server_files[0], known) as wire:
        assert wire.put("T", b"x").code == 0
    for own in (None, stranger):
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            TlsWire(broker.address, server_files[0], own).put("T", b"y")
    assert [m.body for m in broker.store.read("T", wait_s=20)] == [b"x"]


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
def test_who_does_not_end_the_handshake_in_time_is_hung_up_on(
    mode: TlsMode, sent: bytes, server_files: tuple[Path, Path], start_broker: Callable[..., BrokerThread]
) -> None:
    tls = Tls(TlsSettings(mode, *server_files))
    broker = start_broker(tls=tls, settings=BrokerSettings(handshake_ms=300))
    with Wire(broker.address) as slow:
        slow.socket.sendall(sent)
        assert is_hung_up(slow.socket)
    guests = broker.served.broker.guests
    deadline = time.monotonic() + 30
    while guests.count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with TlsWire(broker.address, server_files[0]) as wire:
        assert wire.put("T", b"x").code == 0


def test_uvloop_serves_both_kinds_too(server_files: tuple[Path, Path], tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    answers: list[int] = []

    async def main() -> None:
        served = await serve(tmp_path / "s", LOOPBACK, LOOPBACK, config=SMALL, tls=permissive(server_files))

        def ask() -> None:
            address = str(served.address)
            with Wire(address) as plain, TlsWire(address, server_files[0]) as secret:
                answers.append(plain.put("T", b"plain").code)
                answers.append(secret.put("T", b"s" * 100_000).code)

        await asyncio.to_thread(ask)
        await served.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert answers == [0, 0]


def test_a_new_certificate_is_taken_for_new_connections_and_a_broken_one_is_not(
    tmp_path: Path,
    start_broker: Callable[..., BrokerThread],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(server_module, "WATCH_S", 0.02)
    files = make_certificate(tmp_path, "broker")
    broker = start_broker(tls=permissive(files))
    first = tmp_path / "first.pem"
    first.write_bytes(files[0].read_bytes())
    with TlsWire(broker.address, first) as old:
        make_certificate(tmp_path, "broker")
        deadline = time.monotonic() + 30
        while not is_trusted(broker.address, files[0]):
            assert time.monotonic() < deadline
        assert old.put("T", b"x").code == 0
        good = tmp_path / "good.pem"
        good.write_bytes(files[0].read_bytes())
        files[0].write_text("no certificate")
        deadline = time.monotonic() + 30
        while f"the certificate stays as it was: tls = '{files[0]}" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert is_trusted(broker.address, good)


def is_trusted(address: str, trusted: Path) -> bool:
    try:
        with TlsWire(address, trusted) as wire:
            return wire.put("T", b"x").code == 0
    except ssl.SSLError:
        return False


# ---- settings


def test_settings_have_rocketmqs_names(server_files: tuple[Path, Path]) -> None:
    cert, key = map(str, server_files)
    files = {"tls.server.certPath": cert, "tls.server.keyPath": key}
    read = TlsSettings.from_properties
    assert read({}) is None and read({"tls.server.mode": "permissive"}) is None
    assert read({**files, "tls.server.mode": "disabled"}) is None
    found = read({**files, "tls.server.mode": "enforcing", "tls.server.keyPassword": "hidden"})
    assert found is not None and found.mode is TlsMode.ENFORCING and "hidden" not in repr(found)
    default = read(files)
    assert default is not None and default.mode is TlsMode.PERMISSIVE
    for wrong in (
        {"tls.server.mode": "enforcing"},
        {"tls.server.certPath": cert},
        {**files, "tls.server.mode": "maybe"},
        {**files, "tls.server.need.client.auth": "require"},
        {**files, "tls.server.need.client.auth": "always"},
    ):
        with pytest.raises(InvalidConfig):
            read(wrong)
    with pytest.raises(InvalidConfig, match="certificate"):
        Tls(TlsSettings(TlsMode.ENFORCING, Path(key), Path(key)))


def test_only_access_control_or_enforced_tls_opens_the_broker_to_other_machines(
    server_files: tuple[Path, Path], tmp_path: Path
) -> None:
    acl = tmp_path / "plain_acl.yml"
    acl.write_text("accounts:\n- accessKey: some-key\n  secretKey: some-secret\n")
    everywhere = [Address("0.0.0.0", 1)]
    require_safety([LOOPBACK, Address("::1", 1)], None, None)
    require_safety(everywhere, Access.from_file(acl), None)
    require_safety(everywhere, None, enforcing(server_files))
    require_safety(everywhere, None, None, is_insecure=True)
    for tls in (None, permissive(server_files)):
        with pytest.raises(InvalidConfig, match="--insecure"):
            require_safety([LOOPBACK, *everywhere], None, tls)


def test_serve_takes_certificates_and_access_rules(server_files: tuple[Path, Path], tmp_path: Path) -> None:
    acl = tmp_path / "plain_acl.yml"
    acl.write_text("accounts:\n- accessKey: some-key\n  secretKey: some-secret\n")
    config = tmp_path / "broker.conf"
    config.write_text(f"aclEnable=true\ntls.server.certPath={server_files[0]}\nserverChannelMaxRequests=100\n")
    more = ("--config", str(config), "--tls-key", str(server_files[1]), "--tls-mode", "enforcing")
    process, _, address = start(tmp_path / "store", *more)
    try:
        with TlsWire(address, server_files[0]) as wire:
            assert "No accessKey" in str(wire.put("T", b"x").remark)
        with Wire(address) as plain:
            plain.send(request(106))
            assert is_hung_up(plain.socket)
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_serve_refuses_a_broken_file_and_makes_no_store(tmp_path: Path) -> None:
    acl = tmp_path / "plain_acl.yml"
    acl.write_text("accounts:\n- accessKey: some-key\n  secretKey: [some-secret]\n")
    done = subprocess.run([*SERVE, str(tmp_path / "s"), "--acl", str(acl)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "line 3" in done.stderr and "some-secret" not in done.stderr
    assert not (tmp_path / "s").exists()
