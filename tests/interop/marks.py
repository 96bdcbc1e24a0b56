"""Marks for all tests with a real RocketMQ."""

from __future__ import annotations

import pytest

from tests.interop.rocketmq import available

WITH_ROCKETMQ = [
    pytest.mark.skipif(available() is not None, reason=f"real RocketMQ cannot run here: {available()}"),
    pytest.mark.timeout(900),  # the first run builds the Java project
    pytest.mark.xdist_group("rocketmq"),
]
