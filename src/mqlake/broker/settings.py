"""What the broker says of itself and what it allows, under RocketMQ's own property names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mqlake.errors import InvalidConfig

DEFAULT_NAME_SERVER_PORT = 9876
DEFAULT_BROKER_PORT = 10911
DEFAULT_METRICS_PORT = 5557
"""RocketMQ's own port for Prometheus."""
LONGEST = 18
"""Digits of a number that certainly fits 64 bits."""
AUTO_CREATE_KEY = "TBW102"
"""The topic whose settings a topic gets that is created by its first message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of the server. Those of the store are in `StoreConfig`."""

    broker_name: str = "broker-a"
    """brokerName"""
    broker_id: int = 0
    """brokerId: 0 is a master, any other a slave."""
    cluster: str = "DefaultCluster"
    """brokerClusterName"""
    region: str = "DefaultRegion"
    """regionId"""
    trace_on: bool = True
    """traceOn: producers trace unless it says no."""
    permission: int = 6
    """brokerPermission: 4 lets clients read, 2 lets them write."""
    property_filter: bool = True
    """enablePropertyFilter: SQL92 filters. RocketMQ's default is off."""
    long_polling: bool = True
    """longPollingEnable"""
    short_polling_ms: int = 1_000
    """shortPollingTimeMills: how long a pull is held if long polling is off."""
    max_pull_count: int = 32
    """maxTransferCountOnMessageInMemory"""
    max_pull_bytes: int = 262_144
    """maxTransferBytesOnMessageInMemory"""
    reject_transactions: bool = False
    """rejectTransactionMessage"""
    store_replies: bool = True
    """storeReplyMessageEnable"""
    recall: bool = True
    """recallMessageEnable"""
    light_queues: bool = False
    """enableLmq, which needs enableMultiDispatch: a message may enter light queues (%LMQ%…) beside its own queue."""
    multi_dispatch: bool = False
    """enableMultiDispatch"""
    max_connections: int = 10_000
    """serverSocketMaxConnections, a name of our own, as the next three."""
    max_connections_per_address: int = 5_000
    """serverSocketMaxConnectionsPerAddress"""
    max_requests: int = 16_384
    """serverChannelMaxRequests: so many requests of one connection wait for their answers; more are refused."""
    handshake_ms: int = 10_000
    """serverHandshakeTimeoutMillis: for the TLS handshake, and for the first whole frame after it."""
    idle_s: int = 120
    """serverChannelMaxIdleTimeSeconds: a connection without a whole frame for so long is closed."""

    def __post_init__(self) -> None:
        for name, setting in NAMES.items():
            if name.startswith("server") and getattr(self, setting) < 1:
                raise InvalidConfig(name, getattr(self, setting), "must be 1 or more")

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerSettings:
        """Return the settings given by RocketMQ's names; others belong to the store or are not needed."""
        return cls().changed(properties)

    def changed(self, properties: Mapping[str, str]) -> BrokerSettings:
        """Return these settings with those given by RocketMQ's names."""
        changes: dict[str, Any] = {}
        kinds = {each.name: str(each.type) for each in fields(self)}
        for name, setting in NAMES.items():
            if name in properties:
                changes[setting] = _value(name, properties[name], kinds[setting])
        return replace(self, **changes)


NAMES = {
    "brokerName": "broker_name",
    "brokerId": "broker_id",
    "brokerClusterName": "cluster",
    "regionId": "region",
    "traceOn": "trace_on",
    "brokerPermission": "permission",
    "enablePropertyFilter": "property_filter",
    "longPollingEnable": "long_polling",
    "shortPollingTimeMills": "short_polling_ms",
    "maxTransferCountOnMessageInMemory": "max_pull_count",
    "maxTransferBytesOnMessageInMemory": "max_pull_bytes",
    "rejectTransactionMessage": "reject_transactions",
    "storeReplyMessageEnable": "store_replies",
    "recallMessageEnable": "recall",
    "enableLmq": "light_queues",
    "enableMultiDispatch": "multi_dispatch",
    "serverSocketMaxConnections": "max_connections",
    "serverSocketMaxConnectionsPerAddress": "max_connections_per_address",
    "serverChannelMaxRequests": "max_requests",
    "serverHandshakeTimeoutMillis": "handshake_ms",
    "serverChannelMaxIdleTimeSeconds": "idle_s",
}
CHANGEABLE = frozenset(
    {
        "brokerPermission",
        "enablePropertyFilter",
        "longPollingEnable",
        "shortPollingTimeMills",
        "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInMemory",
        "rejectTransactionMessage",
        "storeReplyMessageEnable",
        "recallMessageEnable",
    }
)
"""What a running broker can change."""


def _value(name: str, text: str, kind: str) -> Any:
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise InvalidConfig(name, text, "must be true or false")
        return text.lower() == "true"
    if kind == "int":
        if not text.isdecimal() or len(text) > LONGEST:
            raise InvalidConfig(name, text[: LONGEST + 1], f"must be a whole number of at most {LONGEST} digits")
        return int(text)
    return text
