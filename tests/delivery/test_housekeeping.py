"""Due services are called, by a worker or by hand. A service that fails stops no other."""

from __future__ import annotations

from pathlib import Path

from mqlake import DeliveryConfig
from mqlake.delivery.housekeeping import Housekeeping
from mqlake.runtime.workers import State, Workers
from tests.helpers import eventually, message, open_small


def by_hand() -> Housekeeping:
    """Return one without threads."""
    return Housekeeping(None)


def test_a_service_is_called_when_due_and_returns_its_next_due_time() -> None:
    calls: list[int] = []
    housekeeping = by_hand()

    def every_ten(now_ms: int) -> int:
        calls.append(now_ms)
        return now_ms + 10

    housekeeping.add("ten", every_ten, 5)
    assert [housekeeping.step(now_ms) for now_ms in (0, 5, 14, 15)] == [5, 15, 15, 25]
    assert calls == [5, 15]
    housekeeping.call_by(every_ten, 17)
    housekeeping.call_by(every_ten, 20)
    assert housekeeping.step(17) == 27 and calls == [5, 15, 17]


def test_a_failed_service_shows_in_health_and_the_others_continue() -> None:
    calls: list[int] = []
    workers = Workers()
    housekeeping = Housekeeping(workers)

    def full(now_ms: int) -> int:
        raise OSError(28, "No space left on device")

    def broken(now_ms: int) -> int:
        raise TypeError("no such thing")

    def works(now_ms: int) -> int:
        calls.append(now_ms)
        return now_ms + 10

    housekeeping.add("full", full)
    housekeeping.add("broken", broken)
    housekeeping.add("works", works)
    assert eventually(lambda: len(calls) > 3)
    states = {each.name: (each.state, each.error) for each in workers.health()}
    assert states["works"] == (State.RUNNING, None)
    assert states["full"] == (State.RETRYING, "[Errno 28] No space left on device")
    assert states["broken"] == (State.FAILED, "no such thing")
    assert isinstance(housekeeping.failure, TypeError)
    housekeeping.close()


def test_call_by_counts_while_the_service_is_running() -> None:
    housekeeping = by_hand()

    def service(now_ms: int) -> int:
        housekeeping.call_by(service, 50)
        return 100

    housekeeping.add("service", service)
    assert housekeeping.step(0) == 50


def test_the_worker_calls_a_due_service_and_stops_at_close() -> None:
    calls: list[int] = []
    housekeeping = Housekeeping(Workers())

    def service(now_ms: int) -> int:
        calls.append(now_ms)
        return now_ms + 1

    housekeeping.add("service", service)
    assert eventually(lambda: len(calls) > 3)
    housekeeping.close()
    count = len(calls)
    assert not eventually(lambda: len(calls) > count, 0.05)


def test_an_auto_created_topic_is_written_while_the_store_is_open(tmp_path: Path) -> None:
    with open_small(tmp_path, delivery=DeliveryConfig(persist_interval_ms=10)) as store:
        store.put(message(1))
        assert eventually((tmp_path / "config" / "topics.json").exists)
