"""Two brokers of mqlake, master and slave: what was confirmed survives the loss of the master."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from mqlake import Message, MessageStore, StoreConfig
from mqlake.client import Producer
from mqlake.client.sending import SendStatus
from mqlake.errors import InvalidConfig, MasterAlive, MasterUnknown, RemoteError, StoreLocked
from mqlake.files.layout import Layout
from mqlake.inspect.repair import repair
from mqlake.replication import follow
from mqlake.replication.fetch import MasterSource
from mqlake.replication.promotion import Promotion, promote, read_epoch
from tests.replication.served import ServedBroker
from tests.replication.slaves import until


class Load:
    """Sends from several threads until it is stopped; `confirmed` has what was answered OK."""

    def __init__(self, name_server: str, name: str, threads: int = 4) -> None:
        self.confirmed: list[bytes] = []
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._send, args=(name_server, f"{name}-{number}"), daemon=True)
            for number in range(threads)
        ]
        for each in self._threads:
            each.start()

    def _send(self, name_server: str, name: str) -> None:
        number = 0
        with Producer(name_server, group=name) as producer:
            while not self._stopping:
                body = f"{name}-{number}".encode()
                number += 1
                try:
                    receipt = producer.send(Message("orders", body), timeout_s=2)
                except RemoteError:
                    continue
                if receipt.status is SendStatus.OK:
                    self.confirmed.append(body)

    def stop(self) -> None:
        self._stopping = True
        for each in self._threads:
            each.join(60)


def attached(master: ServedBroker) -> bool:
    with MessageStore.open(master.directory, read_only=True) as store:
        return any(each.in_sync for each in store.stats().slaves)


def lose_the_master(master_path: Path, slave_path: Path, name: str, seconds: float) -> list[bytes]:
    """Run a pair under load, kill the master, promote the slave; return what was confirmed."""
    with ServedBroker(master_path, "--role", "sync-master", "--ha-listen", "127.0.0.1:0") as master:
        at = "{}:{}".format(*master.ready().slaves)
        options = ("--role", "slave", "--master", at, "--master-broker", master.addresses["broker"])
        with ServedBroker(slave_path, *options) as slave:
            slave.ready()
            until(lambda: attached(master), "the slave to follow")
            with pytest.raises(StoreLocked):
                promote(slave_path, ["127.0.0.1:1"])  # the slave still runs
            load = Load(master.name_server, name)
            until(lambda: len(load.confirmed) > 50, "messages")
            time.sleep(seconds)
            with pytest.raises(MasterAlive):
                promote(slave_path, [at, master.addresses["broker"]])
            master.kill()
            load.stop()
            slave.stop()
    promoted = promote(slave_path, [at, master.addresses["broker"]])
    assert promoted.start_offset > 0
    return load.confirmed


def bodies(path: Path) -> set[bytes]:
    with MessageStore.open(path, read_only=True) as store:
        return {
            each.body
            for queue in store.queues("orders")
            for start in range(queue.first_offset, queue.end_offset, 1000)
            for each in store.read("orders", queue_id=queue.queue_id, start=start, limit=1000)
        }


def test_what_a_sync_master_confirmed_survives_its_kill_on_the_promoted_slave(tmp_path: Path) -> None:
    confirmed = lose_the_master(tmp_path / "a", tmp_path / "b", "first", 0.5)
    missing = set(confirmed) - bodies(tmp_path / "b")
    assert not missing, f"{len(missing)} of {len(confirmed)} confirmed messages are gone"
    with ServedBroker(tmp_path / "b", "--role", "async-master", "--ha-listen", "127.0.0.1:0") as served:
        with Producer(served.ready().name_server, group="later") as producer:
            assert producer.send(Message("orders", b"after")).status is SendStatus.OK
        served.stop()
    assert b"after" in bodies(tmp_path / "b")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_was_confirmed_survives_many_losses_of_the_master(tmp_path: Path) -> None:
    """Each promoted store is the next master; its slave begins anew, and has everything that was ever confirmed."""
    confirmed: list[bytes] = []
    for number in range(12):
        confirmed += lose_the_master(tmp_path / str(number), tmp_path / str(number + 1), f"r{number}", 1 + number % 3)
        missing = set(confirmed) - bodies(tmp_path / str(number + 1))
        assert not missing, f"round {number}: {len(missing)} of {len(confirmed)} confirmed messages are gone"


def test_a_slave_serves_its_log_to_further_slaves_and_to_heal_from(tmp_path: Path) -> None:
    at, file_size = ("--ha-listen", "127.0.0.1:0"), str(1 << 20)
    with ServedBroker(tmp_path / "a", "--role", "async-master", *at, mappedFileSizeCommitLog=file_size) as first:
        master = "{}:{}".format(*first.ready().slaves)
        with ServedBroker(
            tmp_path / "b", "--role", "slave", "--master", master, *at, mappedFileSizeCommitLog=file_size
        ) as second:
            slave = "{}:{}".format(*second.ready().slaves)
            with Producer(first.name_server, group="chain") as producer:
                for number in range(20):
                    last = producer.send(Message("orders", b"%d" % number, keys=["k"]))
            with MessageStore.open(tmp_path / "a", read_only=True) as store:
                until(lambda: store.end_offset > last.physical_offset, "the last message to be visible")
                end = store.end_offset
            with follow(
                tmp_path / "c",
                slave,
                config=StoreConfig.from_properties({"mappedFileSizeCommitLog": file_size}),
                begin_offset=0,
            ) as further:
                assert further.slave is not None
                assert further.slave.wait_caught_up(30, end_offset=end)
            log = tmp_path / "c" / "commitlog" / f"{0:020d}"
            whole = log.read_bytes()
            with log.open("r+b") as file:
                file.seek(1000)
                file.write(b"damage")
            assert repair(tmp_path / "c", source=MasterSource(*second.slaves)).after.holds
            assert log.read_bytes() == whole
    assert bodies(tmp_path / "c") == {b"%d" % number for number in range(20)}


def test_promote_says_what_it_did_and_refuses_while_the_master_lives(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store") as store:
        store.put(Message("orders", b"x"))
    with ServedBroker(tmp_path / "other", "--role", "async-master", "--ha-listen", "127.0.0.1:0") as alive:
        at = "{}:{}".format(*alive.ready().slaves)
        command = [sys.executable, "-m", "mqlake", "promote", str(tmp_path / "store"), "--master", at]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert refused.returncode != 0 and "still accepts connections; stop it first" in refused.stderr
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "promoted: epoch 1" in done.stdout
    assert promote(tmp_path / "store", [at]).epoch == 2


@pytest.mark.parametrize(
    "trouble",
    [
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        OSError(errno.EACCES, "Permission denied"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
    ],
    ids=[
        *("its name does not resolve", "no descriptor", "no way into its network", "a firewall here"),
        *("its machine cannot be reached", "silence"),
    ],
)
def test_a_master_that_cannot_be_asked_is_not_taken_for_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: OSError
) -> None:
    """Only a refused connection says that nobody is there."""
    with MessageStore.open(tmp_path / "store") as store:
        store.put(Message("orders", b"x"))

    def fail(*_: object, **__: object) -> None:
        raise trouble

    with monkeypatch.context() as patch:
        if isinstance(trouble, socket.gaierror):
            patch.setattr("mqlake.replication.promotion.socket.getaddrinfo", fail)
        else:
            patch.setattr("mqlake.replication.promotion.socket.socket.connect", fail)
        with pytest.raises(MasterUnknown, match=f"{trouble.strerror}; name it by its IP address") as told:
            promote(tmp_path / "store", ["10.0.0.7:10912"])
        assert "--gone" in str(told.value)
        assert not (tmp_path / "store" / "mqlake" / "epoch").exists(), "nothing was changed"
        assert promote(tmp_path / "store", ["10.0.0.7:10912"], is_gone=True).epoch == 1


def test_a_master_that_answers_at_one_of_the_addresses_of_its_name_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageStore.open(tmp_path / "store") as store:
        store.put(Message("orders", b"x"))
    with socket.create_server(("127.0.0.1", 0)) as alive:
        port = alive.getsockname()[1]
        addresses = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr("mqlake.replication.promotion.socket.getaddrinfo", lambda *_, **__: addresses)
        for is_gone in (False, True):
            with pytest.raises(MasterAlive):
                promote(tmp_path / "store", [f"master:{port}"], is_gone=is_gone)


def test_a_paused_master_is_not_taken_for_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts no connection, and one that waits in vain looks like one to a machine that is switched off."""
    monkeypatch.setattr("mqlake.replication.promotion.PATIENCE_S", 0.3)
    with MessageStore.open(tmp_path / "store") as store:
        store.put(Message("orders", b"x"))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as paused, ExitStack() as waiting:
        at = "{}:{}".format(*paused.getsockname())
        for _ in range(8):
            connection = waiting.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(paused.getsockname())
        with pytest.raises(MasterUnknown, match="timed out"):
            promote(tmp_path / "store", [at])
        assert not (tmp_path / "store" / "mqlake" / "epoch").exists()
        assert promote(tmp_path / "store", [at], is_gone=True).epoch == 1


@pytest.mark.parametrize(
    "note",
    [
        *({"epoch": epoch} for epoch in ("x", None, 1.5, -9, True)),
        *({"start_offset": "a"}, {"promoted_ms": None}, {"masters": 5}, {"masters": [5]}),
    ],
    ids=str,
)
def test_a_damaged_note_of_the_last_promotion_counts_as_none(tmp_path: Path, note: dict[str, object]) -> None:
    with MessageStore.open(tmp_path / "store") as store:
        store.put(Message("orders", b"x"))
    layout = Layout(tmp_path / "store")
    whole = {"epoch": 3, "start_offset": 0, "promoted_ms": 1, "masters": ["127.0.0.1:1"]}
    layout.epoch.write_text(json.dumps(whole))
    assert read_epoch(layout) == Promotion(3, 0, 1, ("127.0.0.1:1",))
    layout.epoch.write_text(json.dumps(whole | note))
    assert read_epoch(layout) is None
    assert promote(tmp_path / "store", [], is_gone=True).epoch == 1


def test_promote_without_an_address_needs_the_word_that_the_master_is_gone(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store") as store:
        store.put(Message("orders", b"x"))
    with pytest.raises(InvalidConfig, match="name an address"):
        promote(tmp_path / "store", [])
    assert promote(tmp_path / "store", [], is_gone=True).epoch == 1
