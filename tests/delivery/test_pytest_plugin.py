"""The pytest plugin works in a separate pytest run."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

TESTS = """
    import pytest
    from mqlake import CommitLogConfig, Message

    def test_a_new_store_is_empty(mq_store):
        assert mq_store.topics() == []
        for number in range(3):
            mq_store.put(Message("orders", b"%d" % number))
        with mq_store.consumer("g", "orders", idle_s=0) as consumer:
            assert [m.body for m in consumer] == [b"0", b"1", b"2"]

    def test_the_next_store_is_empty_too(mq_store):
        assert mq_store.topics() == []

    def test_a_closed_store_can_be_reopened(mq_store_factory):
        with mq_store_factory("shop") as store:
            store.put(Message("orders", b"1"))
        assert mq_store_factory("shop").topics() == ["orders"]
        assert mq_store_factory("other").topics() == []

    class TestOtherSettings:
        @pytest.fixture
        def mq_store_settings(self, mq_store_settings):
            return {**mq_store_settings, "commit_log": CommitLogConfig(file_size_bytes=65536)}

        def test_are_used(self, mq_store):
            assert mq_store.stats().file_size_bytes == 65536
"""


def test_each_test_gets_its_own_store(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-n0")
    result.assert_outcomes(passed=4)


def test_the_plugin_is_an_entry_point() -> None:
    from importlib.metadata import entry_points

    assert entry_points(group="pytest11")["mqlake"].value == "mqlake.pytest_plugin"
