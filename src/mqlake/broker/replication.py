"""What slaves ask a master beside its log: progress of delayed and timed messages; and what tools ask about slaves.

Topics, groups and consumers' progress are answered by the parts that tools ask for them too. A RocketMQ slave asks for
all of it every minute (SlaveSynchronize), partly through the port two below the broker's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.broker.connection import Connection
from mqlake.config import Role
from mqlake.delivery.later.timer_files import CHECK, Check
from mqlake.files.small_files import read_small_file
from mqlake.kernel import Command
from mqlake.remoting.bodies import write_json
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import response

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

MAX_DELAY_OFFSETS = 1 << 20
NO_DELAYS = b'{"offsetTable":{}}'
NO_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}


class ReplicationRequests:
    """Answers slaves, and questions about them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        blocking = self._broker.blocking
        return {
            RequestCode.GET_ALL_DELAY_OFFSET: blocking(self._delay_offsets),
            RequestCode.GET_TIMER_CHECK_POINT: blocking(self._timer_check),
            RequestCode.GET_TIMER_METRICS: self._timer_metrics,
            RequestCode.GET_BROKER_HA_STATUS: self._status,
        }

    def _delay_offsets(self, connection: Connection, command: Command) -> Command:
        """Return the file as it is: what it says is delivered was durable before."""
        try:
            body = read_small_file(self._broker.port.layout.config / "delayOffset.json", MAX_DELAY_OFFSETS)
        except FileNotFoundError:
            body = NO_DELAYS
        return response(command, body=body)

    def _timer_check(self, connection: Connection, command: Command) -> Command:
        """Return where a timer begins that takes over: at the first message that is still pending."""
        found = Check.read(self._broker.port.layout)
        return response(command, body=CHECK.pack(*found))

    def _timer_metrics(self, connection: Connection, command: Command) -> Command:
        """Pending messages are not counted by topic here."""
        return response(command, body=write_json({"dataVersion": NO_VERSION, "timingCount": {}}))

    def _status(self, connection: Connection, command: Command) -> Command:
        port = self._broker.port
        slaves = port.replicas.slaves()
        body = {
            "master": port.config.replication.role is not Role.SLAVE,
            "masterCommitLogMaxOffset": port.ends.committed,
            "inSyncSlaveNums": sum(each.in_sync for each in slaves),
            "haConnectionInfo": [
                {
                    "addr": each.address,
                    "slaveAckOffset": each.confirmed_offset,
                    "diff": each.lag_bytes,
                    "inSync": each.in_sync,
                    "transferFromWhere": each.sent_offset,
                    "transferredByteInSecond": 0,
                }
                for each in slaves
            ],
        }
        return response(command, body=write_json(body))
