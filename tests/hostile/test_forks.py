"""A fork leaves the parent's store alone: in the child every call is refused at once, and its end changes nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import textwrap
from pathlib import Path

import pytest

from mqlake import MessageStore
from tests.hostile.programs import kill, line_of, run, start

EVERY_CALL = """
import functools
import mqlake.errors
store = open_small(path)
store.put(message(1, queue_id=0))
store.create_topic("set-up")
consumer = store.consumer("group", "orders")
assert consumer.poll(5)
transaction = store.transaction()
transaction.put(message(2))
assert store.wait_dispatched()
spare = list((path / "mqlake" / "spare").iterdir())
checkpoint = (path / "mqlake" / "checkpoint").read_bytes()
assert (path / "abort").exists() and spare

held = {
    "port.put": store.port.put, "port": lambda port=store.port: port.ends,
    "retention.hold": store.retention.hold, "retention.release": store.retention.release,
    "delivery.create_topic": store.delivery.create_topic, "delivery.persist": store.delivery.persist,
    "topics": store.delivery.topics.get, "groups": store.delivery.groups.get, "consumers": store.delivery.consumers.lag,
    "transactions": store.transactions.begin,
}
arguments = {"port": (), "delivery.persist": (), "retention.hold": ("child", 0), "port.put": (message(9),)}

def refused(call):
    began = time.monotonic()
    try:
        call()
    except mqlake.errors.StoreForked:
        return time.monotonic() - began < 0.5
    return False

def in_child():
    calls = {
        **{f"held {name}": functools.partial(call, *arguments.get(name, ["x"])) for name, call in held.items()},
        "put": lambda: store.put(message(3)),
        "put_many": lambda: store.put_many([message(3)]),
        "put to a new topic": lambda: store.put(message(3, "new")),
        "flush": store.flush,
        "read": lambda: store.read("orders"),
        "waiting read": lambda: store.read("orders", start=1, wait_s=60),
        "find": lambda: store.find("orders", "key-1"),
        "topics": store.topics,
        "stats": store.stats,
        "health": store.health,
        "delete_topic": lambda: store.delete_topic("orders"),
        "create_topic": lambda: store.create_topic("another"),
        "topic": lambda: store.topic("set-up"),
        "consumer": lambda: store.consumer("group", "orders"),
        "poll": lambda: consumer.poll(60),
        "iteration": lambda: next(iter(consumer)),
        "commit of a consumer": consumer.commit,
        "transaction": store.transaction,
        "put in a transaction": lambda: transaction.put(message(4)),
        "commit of a transaction": transaction.commit,
        "waiting": store.waiting,
        "retain": store.retain,
        "lag": lambda: store.lag("group"),
    }
    wrong = [name for name, call in calls.items() if not refused(call)]
    assert not wrong, f"not refused in the child: {wrong}"
    consumer.close()
    store.close()
    store.close()
"""

WITH_OS_FORK = """
child = os.fork()
if child == 0:
    try:
        in_child()
        sys.exit(0)  # with all that the interpreter does at its end
    except AssertionError as error:
        print(error, flush=True)
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0, "the child failed"
"""

WITH_MULTIPROCESSING = """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=in_child)
child.start()
child.join()
assert child.exitcode == 0, "the child failed"
"""

THE_PARENT_IS_UNTOUCHED = """
assert (path / "abort").exists() and list((path / "mqlake" / "spare").iterdir()) == spare
assert checkpoint == (path / "mqlake" / "checkpoint").read_bytes()
store.put(message(5, queue_id=0))
transaction.commit()
assert [m.body for m in store.read("orders", start=1, wait_s=5)]
store.close()
assert not (path / "abort").exists()
"""


@pytest.mark.parametrize("fork", [WITH_OS_FORK, WITH_MULTIPROCESSING], ids=["os.fork", "multiprocessing"])
def test_in_a_forked_child_every_call_is_refused_at_once_and_the_parent_is_untouched(tmp_path: Path, fork: str) -> None:
    run(EVERY_CALL + fork + THE_PARENT_IS_UNTOUCHED, tmp_path / "store")


def test_an_iteration_that_the_parent_began_gives_the_child_nothing(tmp_path: Path) -> None:
    """Not even what it had read ahead: the parent's progress would not know of it."""
    run(
        """
        store = open_small(path)
        store.put_many([message(number, queue_id=0) for number in range(10)])
        assert store.wait_dispatched()
        consumer = store.consumer("group", "orders")
        begun = iter(consumer)
        assert next(begun).body == b"body 0"
        child = os.fork()
        if child == 0:
            try:
                next(begun)
            except StoreForked:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0, "the child got a message"
        assert next(begun).body == b"body 1"
        store.close()
        """,
        tmp_path / "store",
    )


def test_a_fork_while_other_threads_consume_and_commit_leaves_no_lock_held_in_the_child(tmp_path: Path) -> None:
    run(
        """
        store = open_small(path)
        for number in range(50):
            store.put(message(number, queue_id=0))
        consumer = store.consumer("group", "orders", progress=path.with_name("progress.json"))
        stop = threading.Event()

        def consume():
            while not stop.is_set():
                consumer.poll()
                consumer.reset("first")

        thread = threading.Thread(target=consume)
        thread.start()
        for number in range(16):
            child = os.fork()
            if child == 0:
                signal.alarm(5)
                for call in (consumer.poll, consumer.commit, consumer.reset, lambda: store.transactions.undecided()):
                    try:
                        call()
                    except StoreError as error:
                        if type(error).__name__ != "StoreForked":
                            os._exit(1)
                consumer.close()
                sys.exit(0)
            assert (status := os.waitpid(child, 0)[1]) == 0, (number, status)
        stop.set()
        thread.join()
        store.close()
        """,
        tmp_path / "store",
    )


def test_a_consumers_own_progress_can_be_used_again_after_the_parent_died(tmp_path: Path) -> None:
    parent = start(
        """
        store = open_small(path)
        store.put(message(1), durability=Durability.DISK)
        consumer = store.consumer("group", "orders", progress=path.with_name("progress.json"))
        if os.fork() == 0:
            print("ready", flush=True)  # the child has let go of the lock by now
        signal.pause()
        """,
        tmp_path / "store",
    )
    assert line_of(parent) == "ready"
    parent.kill()
    parent.wait()
    try:
        with MessageStore.open(tmp_path / "store") as store:
            with store.consumer("group", "orders", progress=tmp_path / "progress.json") as consumer:
                assert [m.body for m in consumer.poll(5)] == [b"body 1"]
    finally:
        kill(parent)


def test_children_of_a_busy_parent_never_hang(tmp_path: Path) -> None:
    run(
        """
        import gc
        store = open_small(path, flush=FlushConfig(sync=True))
        stop = threading.Event()

        def write():
            for number in range(10**9):
                if stop.is_set():
                    return
                store.put(message(number), durability=[Durability.DISK, Durability.PAGE_CACHE][number % 2])
                store.read("orders", start=0)

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: "orders" in store.topics())
        for number in range(16):
            child = os.fork()
            if child == 0:
                signal.alarm(5)  # a child that hangs ends by this signal
                try:
                    if number % 4 == 0:
                        with MessageStore.open(path, read_only=True) as reader:
                            reader.read("orders")
                    elif number % 4 == 1:
                        del store, write, threads
                        gc.collect()
                    elif number % 4 == 2:
                        store.close()
                    else:
                        try:
                            store.put(message(0))
                        except StoreError:
                            pass
                except BaseException as error:
                    print(repr(error), flush=True)
                    os._exit(1)
                sys.exit(0)
            assert (status := os.waitpid(child, 0)[1]) == 0, (number, status)
        stop.set()
        for thread in threads:
            thread.join()
        store.close()
        """,
        tmp_path / "store",
    )


def test_a_child_leaves_the_temporary_files_of_a_read_only_store_alone(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    run(
        """
        writer = open_small(path)
        for number in range(20):
            writer.put(message(number, queue_id=number % 2))
        writer.flush()
        import shutil
        copy = path.with_name("copy")
        shutil.copytree(path, copy)
        writer.close()
        (copy / "mqlake" / "checkpoint").unlink(missing_ok=True)
        store = MessageStore.open(copy, read_only=True)  # stopped uncleanly: it builds queues of its own
        assert list(Path(os.environ["TMPDIR"]).iterdir())
        child = os.fork()
        if child == 0:
            try:
                store.read("orders")
            except StoreError as error:
                store.close()
                sys.exit(0 if type(error).__name__ == "StoreForked" else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert list(Path(os.environ["TMPDIR"]).iterdir()), "the child removed them"
        for queue_id in range(2):
            assert len(store.read("orders", queue_id=queue_id)) == 10
        assert len(store.find("orders", "key-3")) == 1
        store.close()
        assert not list(Path(os.environ["TMPDIR"]).iterdir())
        """,
        tmp_path / "store",
        env=os.environ | {"TMPDIR": str(temporary)},
    )


def test_after_the_parent_died_the_store_opens_although_a_child_lives(tmp_path: Path) -> None:
    parent = start(
        """
        store = open_small(path)
        store.put(message(1), durability=Durability.DISK)
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True)  # it has come to its senses: before that it still has the descriptor
            signal.pause()
        signal.pause()
        """,
        tmp_path / "store",
    )
    child = int(line_of(parent))
    parent.kill()
    parent.wait()
    try:
        assert Path(f"/proc/{child}").exists()
        with MessageStore.open(tmp_path / "store") as store:
            assert [m.body for m in store.read("orders")] == [b"body 1"]
    finally:
        kill(parent)


MASTER = """
from mqlake.replication.master import Master
store = open_small(path, replication=ReplicationConfig(listen_port=0, heartbeat_interval_ms=50))
print(Master(store.port).address[1], flush=True)
"""
BROKER = """
from mqlake.broker.in_thread import BrokerThread
broker = BrokerThread(path)
print(broker.address.rpartition(":")[2], flush=True)
"""
SLAVE = """
follows = ReplicationConfig(role=Role.SLAVE, master_address=sys.argv[2])
store = open_small(path, replication=follows)
"""
FORK = """
input()
if os.fork() == 0:
    print("ready", flush=True)  # it has closed its copies by now
signal.pause()
"""


def is_hung_up(connection: socket.socket) -> bool:
    """Read until the other side closes; return whether it does."""
    connection.settimeout(10)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def go_on(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()


@pytest.mark.parametrize("server", [MASTER, BROKER], ids=["replication", "broker"])
def test_after_the_parent_died_nobody_answers_at_its_port_although_a_child_lives(tmp_path: Path, server: str) -> None:
    parent = start(server + FORK, tmp_path / "store")
    try:
        port = int(line_of(parent))
        go_on(parent)
        assert line_of(parent) == "ready"
        parent.kill()
        parent.wait()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
    finally:
        kill(parent)


def test_slaves_learn_that_their_master_died_although_a_child_lives(tmp_path: Path) -> None:
    parent = start(MASTER + FORK, tmp_path / "store")
    try:
        with socket.create_connection(("127.0.0.1", int(line_of(parent)))) as slave:
            slave.sendall((1).to_bytes(8, "big"))
            assert slave.recv(1), "a heartbeat: it has accepted"
            go_on(parent)
            assert line_of(parent) == "ready"
            parent.kill()
            assert is_hung_up(slave)
    finally:
        kill(parent)


def test_a_master_learns_that_its_slave_died_although_a_child_lives(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        slave = start(SLAVE + FORK, tmp_path / "store", f"127.0.0.1:{door.getsockname()[1]}")
        try:
            door.settimeout(30)
            connection, _ = door.accept()
            with connection:
                connection.settimeout(30)
                assert connection.recv(8), "its request: it has connected"
                go_on(slave)
                assert line_of(slave) == "ready"
                slave.kill()
                assert is_hung_up(connection)
        finally:
            kill(slave)


def test_a_forked_child_gives_keys_of_its_own(tmp_path: Path) -> None:
    """A transaction is decided, and a timed message cancelled, by its key."""
    program = """
    from mqlake.delivery.later.routing import new_key
    new_key()
    children = []
    for _ in range(2):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, new_key().encode())
            os._exit(0)
        os.wait()
        children.append(os.read(reading, 100).decode())
    print(len({*children, new_key()}))
    """
    assert run(textwrap.dedent(program), tmp_path) == "3\n"
