"""A signal handler that raises in a call of the client loses nothing and blocks nobody."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.hostile.programs import run
from tests.plain_locks import plain_locks

BEGIN = """
    import random
    from mqlake.broker.in_thread import BrokerThread
    from mqlake.client import Consumer, Producer
    class Interrupted(Exception):
        pass
    armed = []
    def interrupt(_, frame):
        while armed and frame is not None:  # inside of mqlake's own code only
            if "mqlake/client" in frame.f_code.co_filename:
                armed.clear()
                raise Interrupted
            frame = frame.f_back
        signal.setitimer(signal.ITIMER_REAL, 0.0003 if armed else 0)
    signal.signal(signal.SIGALRM, interrupt)
    def interrupted(work):
        armed.append(True)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.002))
        try:
            return work()
        except Interrupted:
            return None
        finally:
            armed.clear()
    random.seed(5)
    broker = BrokerThread(path)
    producer = Producer(broker.name_server)
"""


def test_messages_of_an_interrupted_poll_are_delivered_by_the_next(tmp_path: Path) -> None:
    program = """
        producer.send_many([Message("T", b"%d" % number) for number in range(3000)])
        got = set()
        with Consumer(broker.name_server, "G", "T") as consumer:
            while len(got) < 3000:
                got.update(each.body for each in interrupted(lambda: consumer.poll(5, 8)) or ())
        producer.close()
        broker.close()
        print(len(got))
    """
    out = run(textwrap.dedent(BEGIN) + textwrap.dedent(program), tmp_path, env=plain_locks(), limit_s=100)
    assert out == "3000\n"


def test_an_interrupted_send_leaves_the_client_working(tmp_path: Path) -> None:
    program = """
        for number in range(500):
            interrupted(lambda: producer.send(Message("T", b"x")))
        assert producer.send(Message("T", b"last")).queue_offset >= 0
        producer.close()
        broker.close()
        print("done")
    """
    out = run(textwrap.dedent(BEGIN) + textwrap.dedent(program), tmp_path, env=plain_locks(), limit_s=100)
    assert out == "done\n"


def test_a_consumer_whose_making_or_closing_was_interrupted_leaves_its_group(tmp_path: Path) -> None:
    program = """
        from mqlake.client import Admin
        producer.send(Message("T", b"x"))
        for number in range(60):
            consumer = interrupted(lambda: Consumer(broker.name_server, "G", "T"))
            if consumer is not None:
                interrupted(consumer.close)
        with Admin(broker.name_server) as admin:
            assert eventually(lambda: not admin.members("G"), 20)
        producer.close()
        broker.close()
        print("done")
    """
    out = run(textwrap.dedent(BEGIN) + textwrap.dedent(program), tmp_path, env=plain_locks(), limit_s=100)
    assert out == "done\n"
