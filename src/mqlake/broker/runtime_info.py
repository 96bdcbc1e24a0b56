"""What the broker says of itself: runtime figures, settings, statistics."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal
from mqlake.kernel import Command
from mqlake.remoting.bodies import write_json
from mqlake.remoting.codes import VERSION, RequestCode, ResponseCode
from mqlake.remoting.command import response

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

VERSION_NAME = "V5_5_0"
IDLE: Final = {
    **{f"{pool}ThreadPoolQueueCapacity": "100000" for pool in ("ack", "litePull", "EndTransaction")},
    **{f"{pool}ThreadPoolQueueHeadWaitTimeMills": "0" for pool in ("ack", "litePull")},
    **{f"{pool}ThreadPoolQueueSize": "0" for pool in ("ack", "litePull")},
    **dict.fromkeys(("EndTransactionQueueSize", "dispatchMaxBuffer", "remainTransientStoreBufferNumbs"), "0"),
}
"""Of queues and buffers that RocketMQ's broker has and this one does not: tools print them."""


class RuntimeInfo:
    """Answers what `clusterList`, `brokerStatus` and dashboards read."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._day = datetime.now().date()
        self._at_midnight = (0, 0)
        self._day_before = (0, 0)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self._info,
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.UPDATE_BROKER_CONFIG: self._change,
            RequestCode.VIEW_BROKER_STATS_DATA: self._stats,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: self._cold_reads,
        }

    def _roll(self) -> None:
        """Note the totals at midnight."""
        today, stats = datetime.now().date(), self._broker.parts.stats
        if today != self._day:
            self._day_before = self._at_midnight if today - self._day == timedelta(days=1) else (0, 0)
            self._day, self._at_midnight = today, (stats.put.messages.count, stats.get.messages.count)

    def _info(self, connection: Connection, command: Command) -> Command:
        self._roll()
        broker, stats = self._broker, self._broker.parts.stats
        port = broker.port
        now_ms = time.time_ns() // 1_000_000
        import shutil

        usage = shutil.disk_usage(port.layout.root)
        ratio = f"{usage.used / usage.total:.2f}"
        rate, got = (" ".join([f"{each.messages.rate:.3f}"] * 3) for each in (stats.put, stats.get))
        oldest = port.log.first_offset
        put, get = stats.put.messages.count, stats.get.messages.count
        table = {
            "bootTimestamp": broker.started_ms,
            "brokerActive": "true",
            "brokerVersion": VERSION,
            "brokerVersionDesc": VERSION_NAME,
            "commitLogDirCapacity": f"Total : {_size(usage.total)}, Free : {_size(usage.free)}.",
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{port.layout.commit_log}": ratio,
            "commitLogMaxOffset": port.ends.appended,
            "commitLogMinOffset": oldest,
            "consumeQueueDiskRatio": ratio,
            "dispatchBehindBytes": port.ends.appended - port.ends.dispatched,
            "earliestMessageTimeStamp": self._earliest(),
            "getFoundTps": got,
            "getMissTps": "0.0 0.0 0.0",
            "getTotalTps": got,
            "getTransferedTps": got,
            "getTransferredTps": got,
            "msgGetTotalTodayMorning": self._at_midnight[1],
            "msgGetTotalTodayNow": get,
            "msgGetTotalYesterdayMorning": self._day_before[1],
            "msgPutTotalTodayMorning": self._at_midnight[0],
            "msgPutTotalTodayNow": put,
            "msgPutTotalYesterdayMorning": self._day_before[0],
            "pageCacheLockTimeMills": 0,
            "pullThreadPoolQueueCapacity": 100_000,
            "pullThreadPoolQueueHeadWaitTimeMills": 0,
            "pullThreadPoolQueueSize": broker.parts.pulls.parked_count,
            "putMessageAverageSize": f"{stats.put.bytes.count / max(put, 1):.1f}",
            "putMessageSizeTotal": stats.put.bytes.count,
            "putMessageFailedTimes": 0,
            "putMessageEntireTimeMax": 0,
            "putMessageTimesTotal": put,
            "putTps": rate,
            "queryThreadPoolQueueCapacity": 20_000,
            "queryThreadPoolQueueHeadWaitTimeMills": 0,
            "queryThreadPoolQueueSize": 0,
            "remainHowManyDataToCommit": _size(port.ends.appended - port.ends.committed),
            "remainHowManyDataToFlush": _size(port.ends.appended - port.ends.durable),
            "runtime": f"[ {(now_ms - broker.started_ms) // 1000} seconds ]",
            "sendThreadPoolQueueCapacity": 10_000,
            "sendThreadPoolQueueHeadWaitTimeMills": 0,
            "sendThreadPoolQueueSize": broker.blocked_count,
            "startAcceptSendRequestTimeStamp": 0,
            **IDLE,
            "timerCongestNum": 0,
            "timerDequeueTps": "0.0",
            "timerEnqueueTps": "0.0",
            "timerOffsetBehind": 0,
            "timerReadBehind": 0,
        }
        return response(command, body=write_json({"table": {name: str(value) for name, value in table.items()}}))

    def _earliest(self) -> int:
        """Return the store time of the log's first message."""
        port = self._broker.port
        if port.ends.visible <= port.log.first_offset:
            return -1
        try:
            return port.reader.get(port.log.first_offset).store_timestamp
        except Exception:
            return -1

    # ---- settings

    def _config(self, connection: Connection, command: Command) -> Command:
        lines = "".join(f"{name}={value}\n" for name, value in sorted(self._properties().items()))
        version = f'{{"counter":0,"stateVersion":0,"timestamp":{self._broker.started_ms}}}'
        return response(command, fields={"version": version}, body=lines.encode())

    def _properties(self) -> dict[str, str]:
        """Return the settings in use, under RocketMQ's names."""
        from mqlake.broker.settings import NAMES
        from mqlake.config import SETTINGS

        broker, config = self._broker, self._broker.store.config
        found: dict[str, object] = {name: getattr(broker.settings, setting) for name, setting in NAMES.items()}
        for name, (section, key, _) in SETTINGS.items():
            part = getattr(config, section) if section else config
            if hasattr(part, key):
                found[name] = getattr(part, key)
        address, _, port = broker.address.rpartition(":")
        found |= {"brokerIP1": address, "listenPort": port, "brokerId": broker.settings.broker_id}
        found["brokerRole"] = config.replication.role.name
        found |= {"storePathRootDir": broker.store.path, "namesrvAddr": ""}
        found["flushDiskType"] = "SYNC_FLUSH" if config.flush.sync else "ASYNC_FLUSH"
        return {name: _shown(value) for name, value in found.items() if value is not None}

    def _change(self, connection: Connection, command: Command) -> Command:
        """Change settings until the broker stops; RocketMQ writes them to its file too."""
        from mqlake.broker.settings import CHANGEABLE
        from mqlake.config import parse_properties

        wanted = parse_properties(bytes(command.body).decode("utf-8", "replace"))
        fixed = sorted(wanted.keys() - CHANGEABLE)
        if fixed:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"{', '.join(fixed)}: cannot be changed while the broker runs; change broker.conf and start it again",
            )
        self._broker.settings = self._broker.settings.changed(wanted)
        return response(command)

    # ---- statistics

    def _stats(self, connection: Connection, command: Command) -> Command:
        name, key = command.fields.get("statsName", ""), command.fields.get("statsKey", "")
        counter = self._broker.parts.stats.find(name, key)
        if counter is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        minute = {"avgpt": 0.0, "sum": counter.count, "tps": counter.rate}
        body = {"statsDay": minute, "statsHour": minute, "statsMinute": minute}
        return response(command, body=write_json(body))

    def _cold_reads(self, connection: Connection, command: Command) -> Command:
        """Answer as a broker whose flow control of cold reads is off, as it is by default: nothing is counted."""
        tables: dict[str, dict[str, int]] = {"configTable": {}, "runtimeTable": {}}
        limits = {"cgColdReadThreshold": 3 << 20, "globalColdReadThreshold": 100 << 20}
        return response(command, body=write_json({**tables, **limits, "globalAcc": 0}))


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.1f} TiB"
