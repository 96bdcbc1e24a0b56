"""A consumer gets every message at least once, in queue order, and resumes where its group stopped."""

from __future__ import annotations

import asyncio
import itertools
import math
import subprocess
import sys
import textwrap
import threading
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqlake import (
    DeliveryConfig,
    InvalidConfig,
    InvalidFilter,
    Message,
    MessagesLost,
    MessageStore,
    NotPermitted,
    OffsetOutOfRange,
    Sql,
    StoreClosed,
    UnknownGroup,
    UnknownTopic,
)
from mqlake.delivery.registry.topics import Permission
from tests.helpers import covers, eventually, message, open_small, writer_of
from tests.interrupting import interrupt_at


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_small(tmp_path / "s") as opened:
        opened.create_topic("orders", 1)
        yield opened


def fill(store: MessageStore, count: int, first: int = 0, topic: str = "orders", **fields: Any) -> None:
    for number in range(first, first + count):
        store.put(message(number, topic, body=b"%d" % number, **fields))


def numbers(messages: Any) -> list[int]:
    return [int(each.body) for each in messages]


@covers("P1")
def test_iteration_yields_all_messages_and_the_next_consumer_resumes_after_them(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("orders", 1)
        fill(store, 10)
        with store.consumer("billing", "orders", idle_s=0) as consumer:
            assert numbers(consumer) == list(range(10))
    with open_small(tmp_path) as store:
        fill(store, 5, 10)
        with store.consumer("billing", "orders", idle_s=0) as consumer:
            assert numbers(consumer) == [10, 11, 12, 13, 14]
        with store.consumer("audit", "orders", idle_s=0) as other:
            assert len(numbers(other)) == 15  # each group has its own progress


def test_after_an_error_in_the_block_the_failed_message_and_later_ones_are_delivered_again(store: MessageStore) -> None:
    fill(store, 10)
    with pytest.raises(ZeroDivisionError), store.consumer("g", "orders") as consumer:
        for each in consumer:
            if int(each.body) == 3:
                raise ZeroDivisionError
    with store.consumer("g", "orders", idle_s=0) as consumer:
        assert numbers(consumer) == list(range(3, 10))


def test_leaving_the_block_by_break_commits_exactly_the_delivered_messages(store: MessageStore) -> None:
    fill(store, 10)
    with store.consumer("g", "orders") as consumer:
        for each in consumer:
            if int(each.body) == 3:
                break
    with store.consumer("g", "orders", idle_s=0) as consumer:
        assert numbers(consumer) == list(range(4, 10))


def test_an_interrupted_and_restarted_loop_misses_no_message(store: MessageStore) -> None:
    fill(store, 10)
    seen: list[int] = []
    with store.consumer("g", "orders", idle_s=0) as consumer:
        while len(seen) < 10:
            for each in consumer:
                seen.append(int(each.body))
                if len(seen) % 3 == 0:
                    break
    assert seen == list(range(10))


def test_close_does_not_commit_the_message_that_is_being_processed(store: MessageStore) -> None:
    fill(store, 3)
    consumer = store.consumer("g", "orders")
    assert int(next(iter(consumer)).body) == 0
    consumer.close()
    with store.consumer("g", "orders", idle_s=0) as again:
        assert numbers(again) == [0, 1, 2]


def test_a_poll_commits_the_messages_of_the_previous_poll(store: MessageStore) -> None:
    fill(store, 10)
    consumer = store.consumer("g", "orders")
    assert numbers(consumer.poll(limit=4)) == [0, 1, 2, 3]
    assert store.lag("g")[-1].message_count == 10
    assert numbers(consumer.poll(limit=4)) == [4, 5, 6, 7]
    assert store.lag("g")[-1].message_count == consumer.lag() == 6
    consumer.close()
    with store.consumer("g", "orders", idle_s=0) as again:
        assert numbers(again) == list(range(4, 10))


def test_without_auto_commit_only_commit_moves_progress(store: MessageStore) -> None:
    fill(store, 10)
    with store.consumer("g", "orders", auto_commit=False, idle_s=0) as consumer:
        batch = consumer.poll(limit=5)
        assert consumer.lag() == 10
        consumer.commit(batch[2])
        assert consumer.lag() == 7
        consumer.commit(batch[1])  # an earlier message: progress does not move back
        assert consumer.lag() == 7
        consumer.commit()
        assert consumer.lag() == 5
        for each in consumer:
            if int(each.body) == 7:
                consumer.commit()
        assert consumer.lag() == 2
    with store.consumer("g", "orders", idle_s=0) as again:
        assert numbers(again) == [8, 9]
    with pytest.raises(NotPermitted, match="the consumer is closed"):
        consumer.commit()


def test_batches_yields_lists(store: MessageStore) -> None:
    fill(store, 10)
    with store.consumer("g", "orders", idle_s=0) as consumer:
        assert [numbers(batch) for batch in consumer.batches(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert store.lag("g", "orders")[0].message_count == 0
    with pytest.raises(InvalidConfig, match="limit"):
        store.consumer("g", "orders").poll(limit=0)


@pytest.mark.parametrize("seconds", ["1", True, math.nan])
def test_what_is_no_number_of_seconds_is_refused(store: MessageStore, seconds: Any) -> None:
    """A wait for NaN would never end: no time is later."""
    fill(store, 1)
    with pytest.raises(InvalidConfig, match="idle_s"):
        store.consumer("g", "orders", idle_s=seconds)
    with pytest.raises(InvalidConfig, match="timeout_s"):
        store.consumer("g", "orders").poll(seconds)
    with pytest.raises(InvalidConfig, match="timeout_s"):
        asyncio.run(store.consumer("g", "orders").poll_async(seconds))


@covers("P7")
def test_a_poll_waits_on_all_queues_and_returns_at_once(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("orders", 8)
        consumer = store.consumer("g", "orders")
        assert consumer.poll(0.01) == []
        for queue_id in (5, 0, 7):
            threading.Timer(0.05, store.put, [message(1, queue_id=queue_id)]).start()
            began = time.monotonic()
            found = consumer.poll(10.0)
            assert [each.queue_id for each in found] == [queue_id] and time.monotonic() - began < 5
        consumer.close()


def test_iteration_waits_for_messages_and_ends_when_the_consumer_is_closed(store: MessageStore) -> None:
    consumer = store.consumer("g", "orders")
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend(numbers(consumer)))
    thread.start()
    fill(store, 3)
    assert eventually(lambda: store.lag("g", "orders")[0].message_count == 0)
    consumer.close()
    thread.join(10)
    assert not thread.is_alive() and seen == [0, 1, 2]


def test_closing_the_store_ends_a_waiting_consumer(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    consumer = store.consumer("g", "orders")
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            for _ in consumer:
                pass
        except StoreClosed as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    store.close()
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(StoreClosed):
        store.consumer("g", "orders")


@covers("P8")
def test_a_new_group_starts_at_the_given_position(store: MessageStore) -> None:
    fill(store, 5)
    time.sleep(0.01)
    middle = datetime.now(UTC)
    time.sleep(0.01)
    fill(store, 5, 5)
    found = {}
    for name, start in {"a": "first", "b": "last", "c": middle, "d": 7, "e": {0: 9}}.items():
        with store.consumer(name, "orders", start=start, idle_s=0) as consumer:  # type: ignore[arg-type]
            found[name] = numbers(consumer)
    assert found == {"a": list(range(10)), "b": [], "c": [5, 6, 7, 8, 9], "d": [7, 8, 9], "e": [9]}
    fill(store, 1, 10)
    with store.consumer("b", "orders", start="first", idle_s=0) as consumer:
        assert numbers(consumer) == [10]  # the group has progress, so `start` is ignored
    with pytest.raises(OffsetOutOfRange, match=r"offset 99 is outside of \[0, 11\)"):
        store.consumer("f", "orders", start=99)
    with pytest.raises(InvalidConfig, match="start"):
        store.consumer("f", "orders", start="middle")
    with pytest.raises(InvalidConfig, match="topic orders has only queues 0"):
        store.consumer("f", "orders", start={5: 1})
    assert store.delivery.groups.find("f") is not None and store.delivery.consumers.count_of("f") == 0


def test_the_position_of_start_last_is_durable_before_any_commit(tmp_path: Path) -> None:
    """A group started at the end, and its process died before the first commit. It must not start at a later end."""
    program = f"""
        import os, sys
        from mqlake import Message, MessageStore
        store = MessageStore.open({str(tmp_path)!r})
        store.create_topic("orders", 1)
        store.put(Message("orders", b"0"))
        store.consumer("g", "orders", start="last")
        store.put(Message("orders", b"1"))
        store.flush()
        os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    with MessageStore.open(tmp_path) as store:
        with store.consumer("g", "orders", start="last", idle_s=0) as consumer:
            assert numbers(consumer) == [1]


@covers("P1")
def test_a_message_is_delivered_again_if_the_process_is_killed_before_the_commit(tmp_path: Path) -> None:
    program = f"""
        import os
        from mqlake import Message, MessageStore
        store = MessageStore.open({str(tmp_path)!r})
        store.create_topic("orders", 1)
        for number in range(20):
            store.put(Message("orders", b"%d" % number))
        consumer = store.consumer("g", "orders", auto_commit=False)
        consumer.poll(limit=5)
        consumer.commit(durable=True)
        print(*[int(m.body) for m in consumer.poll(limit=5)], flush=True)
        os.kill(os.getpid(), 9)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["5", "6", "7", "8", "9"], done.stderr
    with MessageStore.open(tmp_path) as store:
        with store.consumer("g", "orders", idle_s=0) as consumer:
            assert numbers(consumer) == list(range(5, 20))


def test_progress_is_saved_if_a_program_exits_without_closing(tmp_path: Path) -> None:
    program = f"""
        from mqlake import Message, MessageStore
        store = MessageStore.open({str(tmp_path)!r})
        store.put(Message("orders", b"0", queue_id=0))
        consumer = store.consumer("g", "orders")
        consumer.poll()
        consumer.commit()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
    with MessageStore.open(tmp_path) as store:
        assert sum(each.message_count for each in store.lag("g")) == 0


def test_progress_is_written_while_the_store_is_open(tmp_path: Path) -> None:
    with open_small(tmp_path, delivery=DeliveryConfig(persist_interval_ms=10)) as store:
        fill(store, 4, queue_id=0)
        with store.consumer("g", "orders", idle_s=0) as consumer:
            numbers(consumer)
        content = b'"orders@g":{\n\t\t\t0:4,'
        assert eventually(lambda: content in (tmp_path / "config/consumerOffset.json").read_bytes())
        assert b'"groupTopicMap":{\n\t\t"g":["orders"]' in (tmp_path / "config/consumerOffset.json").read_bytes()


def test_reset_moves_the_whole_group_and_its_open_consumers(store: MessageStore) -> None:
    fill(store, 10)
    consumer = store.consumer("g", "orders", auto_commit=False)
    given = consumer.poll(limit=6)
    store.reset("g", "orders", 2)
    consumer.commit(given[-1])  # delivered before the reset, so it has no effect
    assert store.lag("g", "orders")[0].offset == 2
    assert numbers(consumer.poll(limit=3)) == [2, 3, 4]
    consumer.reset("last")
    assert consumer.poll() == [] and consumer.lag() == 0
    consumer.reset(datetime.fromtimestamp(0, UTC))
    assert numbers(consumer.poll(limit=1)) == [0]
    with pytest.raises(OffsetOutOfRange):
        consumer.reset(11)
    with pytest.raises(UnknownGroup, match="'h'"):
        store.reset("h", "orders", "first")
    consumer.close()


def test_after_a_reset_inside_a_loop_the_loop_continues_at_the_new_position(store: MessageStore) -> None:
    fill(store, 6)
    seen = []
    with store.consumer("g", "orders", idle_s=0) as consumer:
        for each in consumer:
            seen.append(int(each.body))
            if len(seen) == 4:
                consumer.reset("first")
    assert seen == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]


def test_filters_select_messages_and_progress_moves_past_the_others(store: MessageStore) -> None:
    for number in range(300):
        tags = {0: "a", 1: "b"}.get(number % 100, "c")
        store.put(message(number, body=b"%d" % number, tags=tags, properties={"price": str(number)}))
    with store.consumer("g", "orders", filter="a || b", idle_s=0) as consumer:
        assert numbers(consumer) == [0, 1, 100, 101, 200, 201]
    assert store.lag("g", "orders")[0].message_count == 0
    with store.consumer("h", "orders", filter=Sql("price BETWEEN 10 AND 12 OR TAGS = 'a'"), idle_s=0) as consumer:
        assert numbers(consumer) == [0, 10, 11, 12, 100, 200]
    with store.consumer("i", "orders", filter="none", auto_commit=False, idle_s=0) as consumer:
        assert numbers(consumer) == [] and consumer.lag() == 0
    with pytest.raises(InvalidFilter):
        store.consumer("j", "orders", filter="||")


def test_messages_deleted_by_retention_are_listed_as_lost_or_raise(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("orders", 1)
        fill(store, 5)
        consumer = store.consumer("g", "orders", auto_commit=False)
        assert numbers(consumer.poll(limit=2)) == [0, 1]
        consumer.commit()
        fill(store, 300, 5, keys="k" * 500)
        store.wait_dispatched()
        assert store.retain(keep_bytes=70_000).file_count > 0
        first = store.queues("orders")[0].first_offset
        assert first > 5
        strict = store.consumer("strict", "orders", start=first, on_lost="fail")
        assert numbers(consumer.poll(limit=1)) == [first]
        assert consumer.lost == [("orders", 0, 2, first, 305)] and consumer.lost[0].message_count == first - 2
        consumer.close()
        store.delivery.offsets.set("orders@strict", 0, 1)
        strict.close()
        with store.consumer("strict", "orders", on_lost="fail") as strict:
            with pytest.raises(MessagesLost, match=rf"progress is at 1, the queue has \[{first}, 305\).*on_lost"):
                strict.poll()
        with pytest.raises(InvalidConfig, match="must be one of skip, fail"):
            store.consumer("g", "orders", on_lost="cry")


def test_progress_after_the_queues_end_moves_back_to_it_and_no_new_message_is_skipped(store: MessageStore) -> None:
    """A power cut may take the unsynced end of a log while the progress that RocketMQ wrote survives."""
    fill(store, 5)
    store.delivery.offsets.set("orders@g", 0, 9)
    with store.consumer("g", "orders", idle_s=0) as consumer:
        assert numbers(consumer) == []
        assert consumer.lost == [("orders", 0, 9, 0, 5)]
        fill(store, 5, 5)
        assert numbers(consumer) == [5, 6, 7, 8, 9]


def test_progress_is_written_only_after_the_log_is_durable(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        fill(store, 50)
        with store.consumer("g", "orders", idle_s=0) as consumer:
            numbers(consumer)
            end = writer_of(store).dispatcher.dispatched
            store.delivery.persist()
            assert store.stats().durable_end >= end


def test_consuming_an_unknown_topic_creates_it_or_raises_as_configured(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        with store.consumer("g", "news", idle_s=0) as consumer:
            store.put(message(1, "news"))
            assert len(list(consumer)) == 1
    with open_small(tmp_path, delivery=DeliveryConfig(auto_create_topics=False, auto_create_groups=False)) as store:
        with pytest.raises(UnknownTopic, match="'olds'"):
            store.consumer("g", "olds")
        with pytest.raises(UnknownGroup, match=r"'h': not in this store; it has g"):
            store.consumer("h", "news")
        store.update_topic("news", permission=Permission.WRITE)
        with pytest.raises(NotPermitted, match="READ is needed"):
            store.consumer("g", "news")
        store.update_group("g", enabled=False)
        with pytest.raises(NotPermitted, match="not enabled"):
            store.consumer("g", "news")


def test_a_queue_created_later_is_read_from_its_first_message(store: MessageStore) -> None:
    fill(store, 2)
    with store.consumer("g", "orders", start="last") as consumer:
        assert consumer.poll() == []
        store.put(message(7, queue_id=9))
        assert [(each.queue_id, each.body) for each in consumer.poll(20.0)] == [(9, b"body 7")]


def test_a_light_queue_is_consumed_by_its_own_queue_offsets(store: MessageStore) -> None:
    fill(store, 3)
    for number in range(4):
        store.put(message(number, properties={"INNER_MULTI_DISPATCH": "%LMQ%123"}))
    with store.consumer("g", "%LMQ%123", auto_commit=False, idle_s=0) as consumer:
        found = [each for each in consumer if each.queue_offset]
        assert len(found) == 4 and consumer.lag() == 4
        consumer.commit()
        assert consumer.lag() == 0
    store.reset("g", "%LMQ%123", 0)
    with store.consumer("g", "%LMQ%123", auto_commit=False, idle_s=0) as consumer:
        consumer.commit(consumer.poll()[1])
        assert consumer.lag() == 2


def test_damaged_messages_are_skipped(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("orders", 1)
        fill(store, 10)
        store.wait_dispatched()
        receipt = store.get(store.first_offset)
        file = writer_of(store).log_files.file_at(0)
        assert file is not None
        file.pages[receipt.size + 90] ^= 1  # in the body of the second
        with store.consumer("g", "orders", idle_s=0) as consumer:
            assert numbers(consumer) == [0, *range(2, 10)]
        assert store.lag("g", "orders")[0].message_count == 0


def test_one_consumer_can_read_several_topics(store: MessageStore) -> None:
    fill(store, 3)
    fill(store, 3, 10, "payments")
    with store.consumer("g", ["orders", "payments"], idle_s=0) as consumer:
        assert sorted(numbers(consumer)) == [0, 1, 2, 10, 11, 12]
    assert {each.topic for each in store.lag("g")} == {"orders", "payments"}


def test_the_error_for_the_lag_of_an_unknown_group_or_topic_lists_the_known_ones(store: MessageStore) -> None:
    store.consumer("g", "orders").close()
    with pytest.raises(UnknownGroup, match="it has g"):
        store.lag("h")
    with pytest.raises(UnknownTopic, match="progress of group g on orders"):
        store.lag("g", "payments")
    assert store.groups() == ["g"]


def test_a_message_put_while_iterating_is_delivered_in_order(store: MessageStore) -> None:
    fill(store, 3)
    seen = []
    with store.consumer("g", "orders", idle_s=0) as consumer:
        for each in consumer:
            seen.append(int(each.body))
            if len(seen) < 8:
                store.put(Message("orders", b"%d" % (len(seen) + 2)))
    assert seen == list(range(10))


def test_what_an_interrupted_poll_read_is_given_by_the_next_unless_it_was_just_returning(store: MessageStore) -> None:
    fill(store, 3)
    not_given = 0
    for number in itertools.count():
        with store.consumer(f"g{number}", "orders", auto_commit=False) as consumer:
            assert numbers(consumer.poll(limit=1)) == [0]
            was_interrupted = interrupt_at(number, partial(consumer.poll, limit=1), ("consumer.py", "cursor.py"))
            given = [each for _ in range(3) for each in numbers(consumer.poll(limit=1))]
            if not was_interrupted:
                break
            not_given += given != [1, 2]
    assert number > 30, "at least some lines were interrupted"
    assert not_given <= 2, "they are handed out, and then the call returns"
