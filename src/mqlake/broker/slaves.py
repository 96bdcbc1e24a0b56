"""Slaves of this broker that register with it as with a name server, so that routes show them.

A RocketMQ 5.x slave learns from its registration where its master serves the log: its own setting of that it forgets.
A registration holds until the slave takes it back, until its connection ends, or two minutes after the last one: slaves
repeat it every 30 seconds. Only slaves of this broker can register: other brokers need a name server outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import Refusal
from mqlake.config import parse_address
from mqlake.errors import BadRequest, InvalidConfig
from mqlake.kernel import Command
from mqlake.remoting.bodies import write_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import response

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

EXPIRES_S: Final = 120.0
MAX_SLAVES: Final = 64
"""As many as a master serves."""
MAX_ADDRESS: Final = 255
MAX_ID: Final = (1 << 63) - 1
MASTER_ID: Final = 0


class _Slave(NamedTuple):
    address: str
    told_at: float
    connection: Connection


class Slaves:
    """The slaves that are registered, by broker id."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._slaves: dict[int, _Slave] = {}

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._members,
        }

    def addresses(self) -> dict[int, str]:
        """Return where this broker and its slaves are, by broker id."""
        due = self._broker.loop.time() - EXPIRES_S
        self._slaves = {number: each for number, each in self._slaves.items() if each.told_at >= due}
        found = {number: each.address for number, each in self._slaves.items()}
        return dict(sorted({**found, self._settings.broker_id: self._broker.address}.items()))

    def disconnected(self, connection: Connection) -> None:
        """Forget who registered over this connection and over no later one."""
        self._slaves = {number: each for number, each in self._slaves.items() if each.connection is not connection}

    # ---- requests

    def _register(self, connection: Connection, command: Command) -> Command:
        """Take a slave; answer where its master is. Its topics are the master's, so the body is not read."""
        number, address = self._read(command)
        others = {known: each for known, each in self._slaves.items() if known != number and each.address != address}
        self._slaves = others  # one address is one slave, also after its id was changed
        if len(self.addresses()) > MAX_SLAVES:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"register broker failed: {MAX_SLAVES} slaves are registered")
        self._slaves[number] = _Slave(address, self._broker.loop.time(), connection)
        fields = {}
        if self._settings.broker_id == MASTER_ID:
            fields["masterAddr"] = self._broker.address
            if self._broker.replication_address is not None:
                fields["haServerAddr"] = self._broker.replication_address
        return response(command, fields=fields)

    def _unregister(self, connection: Connection, command: Command) -> Command:
        number, address = self._read(command)
        known = self._slaves.get(number)
        if known is not None and known.address == address:
            del self._slaves[number]
        return response(command)

    def _read(self, command: Command) -> tuple[int, str]:
        """Return the broker id and the address of a slave of this broker; Refusal for every other broker."""
        fields, settings = command.fields, self._settings
        name, cluster = fields.get("brokerName"), fields.get("clusterName")
        if (name, cluster) != (settings.broker_name, settings.cluster):
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"only slaves of broker {settings.broker_name} in cluster {settings.cluster} can register here, not "
                f"{name} in {cluster}: start a name server for several brokers",
            )
        text, address = fields.get("brokerId", ""), fields.get("brokerAddr", "")
        if not text.isascii() or not text.isdecimal() or len(text) > len(str(MAX_ID)) or int(text) > MAX_ID:
            raise BadRequest("brokerId", repr(text[:40]), "a whole number")
        if int(text) in (MASTER_ID, settings.broker_id):
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"broker id {text} of {settings.broker_name} cannot register here: 0 is the master, and "
                f"{settings.broker_id} is this broker; a slave needs an id of its own (brokerId)",
            )
        try:
            parse_address("brokerAddr", address if len(address) <= MAX_ADDRESS else "")
        except InvalidConfig:
            raise BadRequest("brokerAddr", repr(address[:40]), "HOST:PORT") from None
        return int(text), address

    def _members(self, connection: Connection, command: Command) -> Command:
        """Answer GET_BROKER_MEMBER_GROUP: the addresses of one broker by id."""
        fields = command.fields
        name, cluster = fields.get("brokerName", ""), fields.get("clusterName", "")
        is_this = (name, cluster) == (self._settings.broker_name, self._settings.cluster)
        addresses = {str(number): at for number, at in self.addresses().items()} if is_this else {}
        group = {"brokerAddrs": addresses, "brokerName": name, "cluster": cluster}
        return response(command, body=write_json({"brokerMemberGroup": group}))
