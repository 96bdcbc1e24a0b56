"""The bookkeeping of one queue: what is read ahead, handed out, committed."""

from __future__ import annotations

import asyncio

from mqlake import Message, StoredMessage
from mqlake.client.remote_queue import RemoteQueue, Stage
from mqlake.kernel import encode_record
from mqlake.kernel.hosts import pack_host
from mqlake.remoting.bodies import MessageQueue

HOST = pack_host("127.0.0.1:10911")


def stored(*offsets: int) -> list[StoredMessage]:
    message = Message("T", b"x", born_host="127.0.0.1:1")
    return [StoredMessage(encode_record(message, 0, offset, offset * 100, 1, HOST, False)) for offset in offsets]


def reading(start: int = 0) -> RemoteQueue:
    queue = RemoteQueue(MessageQueue("T", "a", 0), 0.0)
    queue.stage = Stage.READING
    queue.move(start)
    return queue


def test_what_was_taken_and_not_handed_out_is_given_again() -> None:
    queue = reading()
    queue.add(stored(0, 1, 2, 3), 4)
    taken = queue.take(4)
    queue.hand_out(taken[1:2], queue.version)
    queue.put_back()
    queue.commit(queue.given)
    assert queue.committed == 2
    assert [message.queue_offset for message in queue.take(9)] == [2, 3]


def test_what_was_taken_is_in_flight_at_once_and_put_back_if_nobody_got_it() -> None:
    queue = reading()
    queue.add(stored(0, 1), 2)
    assert not queue.is_in_flight
    queue.take(2)
    assert queue.is_in_flight and queue.given == 0
    queue.put_back()
    queue.commit(queue.given)
    assert not queue.is_in_flight and queue.committed == 0
    assert [message.queue_offset for message in queue.take(9)] == [0, 1]


def test_a_commit_moves_up_to_what_was_handed_out_and_never_back() -> None:
    queue = reading()
    queue.add(stored(0, 1, 2), 3)
    queue.hand_out(queue.take(2), queue.version)
    queue.commit(99)
    assert queue.committed == 2
    queue.commit(1)
    assert queue.committed == 2


def test_what_the_filter_left_out_is_committed_when_nothing_before_it_waits() -> None:
    queue = reading()
    queue.add([], 10)
    assert queue.committed == 10
    queue.add(stored(12), 20)
    assert queue.committed == 10
    queue.hand_out(queue.take(1), queue.version)
    queue.add([], 30)
    assert queue.committed == 10
    queue.commit(queue.given)
    assert queue.committed == 30


def test_a_move_drops_what_was_read_and_handed_out_before_it() -> None:
    queue = reading()
    queue.add(stored(0, 1, 2), 3)
    version, taken = queue.version, queue.take(2)
    queue.move(7)
    queue.hand_out(taken, version)  # the caller's thread was late
    assert (queue.next_offset, queue.committed, queue.is_in_flight, queue.has_messages) == (7, 7, False, False)
    queue.put_back()
    queue.commit(queue.given)
    assert queue.committed == 7


def test_a_leaving_queue_settles_with_the_commit_of_what_is_in_flight() -> None:
    async def main() -> None:
        queue = reading()
        queue.add(stored(0, 1), 2)
        taken = queue.take(1)
        queue.stop()
        assert not queue.has_messages
        waiting = asyncio.create_task(queue.settle(60.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        queue.hand_out(taken, queue.version)
        queue.commit(1)
        await waiting
        assert queue.committed == 1
        queue.put_back()
        assert not queue.has_messages, "the rest is the next owner's"
        await queue.settle(0.0)

    asyncio.run(main())


def test_no_more_is_read_while_much_waits() -> None:
    queue = reading()
    queue.add(stored(*range(1_000)), 1_000)
    assert not queue.has_room
    queue.take(1)
    assert queue.has_room
