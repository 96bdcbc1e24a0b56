"""The parts of a broker, and the table of the requests that each of them answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqlake.broker.admin import Admin
from mqlake.broker.assignment import Assignments
from mqlake.broker.connection import Connection
from mqlake.broker.membership import Members
from mqlake.broker.offsets import Offsets
from mqlake.broker.pop import Pops
from mqlake.broker.progress import Progress
from mqlake.broker.pull import Pulls
from mqlake.broker.query import Queries
from mqlake.broker.queue_locks import QueueLocks
from mqlake.broker.replication import ReplicationRequests
from mqlake.broker.reply import Replies
from mqlake.broker.routes import Routes
from mqlake.broker.runtime_info import RuntimeInfo
from mqlake.broker.send import Sends
from mqlake.broker.send_back import SendBacks
from mqlake.broker.slaves import Slaves
from mqlake.broker.stats import Stats
from mqlake.broker.topics import TopicRequests
from mqlake.broker.transactions import BrokerTransactions
from mqlake.remoting.codes import POP_CODES

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler


class Part(Protocol):
    """Answers requests of one kind."""

    def handlers(self) -> dict[int, Handler]: ...


class Parts:
    """Everything that answers requests. A part finds the others here."""

    def __init__(self, broker: Broker) -> None:
        self.stats = Stats(broker.loop)
        self.topics = TopicRequests(broker)
        self.members = Members(broker)
        self.slaves = Slaves(broker)
        self.routes = Routes(broker)
        self.transactions = BrokerTransactions(broker)
        self.locks = QueueLocks(broker)
        self.sends = Sends(broker, self.stats)
        self.pulls = Pulls(broker)
        self.pops = Pops(broker)
        self.offsets = Offsets(broker)
        self.send_backs = SendBacks(broker)
        self.queries = Queries(broker)
        self.replies = Replies(broker)
        self.admin = Admin(broker)
        self.progress = Progress(broker)
        self.runtime_info = RuntimeInfo(broker)
        self.assignments = Assignments(broker)
        self.replication = ReplicationRequests(broker)

    def handlers(self) -> dict[int, Handler]:
        found: dict[int, Handler] = {}
        parts: list[Part] = [
            *(self.topics, self.members, self.routes, self.transactions, self.locks, self.sends, self.pulls),
            *(self.offsets, self.send_backs, self.queries, self.replies, self.admin, self.progress),
            *(self.runtime_info, self.assignments, self.pops, self.replication, self.slaves),
        ]
        for part in parts:
            found |= part.handlers()
        found |= {cut: found[code] for cut, code in POP_CODES.items() if code in found}
        return found

    def disconnected(self, connection: Connection) -> None:
        self.members.disconnected(connection)
        self.slaves.disconnected(connection)
        self.pops.disconnected(connection)
        self.pulls.disconnected(connection)

    def close(self) -> None:
        self.stats.close()
        self.pops.close()
        self.pulls.close()
