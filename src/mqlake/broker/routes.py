"""The name server's part: where topics are. There is one broker, this one, and its slaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.broker.connection import Connection
from mqlake.broker.refusals import FAQ, Refusal
from mqlake.delivery.registry.system_topics import RETRY_PREFIX
from mqlake.delivery.registry.topics import Permission, Topic
from mqlake.kernel import Command
from mqlake.remoting.bodies import BrokerData, QueueData, Route, write_json
from mqlake.remoting.codes import V4_9_4, RequestCode, ResponseCode
from mqlake.remoting.command import response
from mqlake.remoting.headers import RouteHeader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker, Handler

ORDER_ENABLE = "orderMessageEnable"


class Routes:
    """Answers what clients ask a name server."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._values: dict[tuple[str, str], str] = {}
        """Key-value settings by namespace and key, as long as this process runs."""
        self._serves_order = False
        """orderMessageEnable: routes name the order of queues that a tool has set."""
        self._is_wiped = False
        """Routes show all topics without the permission to write: a tool takes the broker out of service."""

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._clusters,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._nothing,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._nothing,
            RequestCode.PUT_KV_CONFIG: self._put_value,
            RequestCode.GET_KV_CONFIG: self._get_value,
            RequestCode.DELETE_KV_CONFIG: self._delete_value,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._values_of,
            RequestCode.GET_NAMESRV_CONFIG: self._config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._unwipe,
        }

    def _route(self, connection: Connection, command: Command) -> Command:
        header = RouteHeader.read(command.fields)
        topic = self._broker.parts.topics.announced(self._find(header.topic))
        route = Route(
            queues=[
                QueueData(
                    self._settings.broker_name,
                    topic.read_queue_count,
                    topic.write_queue_count,
                    int(topic.permission) & ~(Permission.WRITE if self._is_wiped else 0),
                    int(topic.more.get("topicSysFlag") or 0),
                )
            ],
            brokers=[
                BrokerData(
                    self._settings.cluster,
                    self._settings.broker_name,
                    self._broker.parts.slaves.addresses(),
                )
            ],
            order_topic_conf=self._values.get(("ORDER_TOPIC_CONFIG", topic.name)) if self._serves_order else None,
        )
        standard = command.version >= V4_9_4 or header.accept_standard_json_only is True
        return response(command, body=route.encode(standard=standard))

    def _find(self, name: str) -> Topic:
        known = self._broker.parts.topics.table.find(name)
        if known is None and name.startswith(RETRY_PREFIX):
            # A consumer asks for it before its first heart beat, and would ask again only after 30 seconds.
            group = name.removeprefix(RETRY_PREFIX)
            if self._broker.delivery.config.auto_create_groups or group in self._broker.delivery.groups:
                known = self._broker.parts.topics.retry_topic(group)
        if known is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {name}{FAQ}"
            )
        return known

    def _clusters(self, connection: Connection, command: Command) -> Command:
        name, cluster = self._settings.broker_name, self._settings.cluster
        broker = {
            "brokerAddrs": {str(number): at for number, at in self._broker.parts.slaves.addresses().items()},
            "brokerName": name,
            "cluster": cluster,
            "enableActingMaster": False,
        }
        body = {"brokerAddrTable": {name: broker}, "clusterAddrTable": {cluster: [name]}}
        return response(command, body=write_json(body))

    def _topics(self, connection: Connection, command: Command) -> Command:
        return response(command, body=write_json({"topicList": list(self._broker.parts.topics.table.names)}))

    def _topics_of_cluster(self, connection: Connection, command: Command) -> Command:
        names = self._broker.parts.topics.table.names if command.fields.get("cluster") == self._settings.cluster else ()
        return response(command, body=write_json({"topicList": list(names)}))

    def _system_topics(self, connection: Connection, command: Command) -> Command:
        names = [self._settings.cluster, self._settings.broker_name]
        return response(command, body=write_json({"brokerAddr": self._broker.address, "topicList": names}))

    def _nothing(self, connection: Connection, command: Command) -> Command:
        """The broker's own table is the only one: it was changed there."""
        return response(command)

    # ---- settings of the name server

    def _config(self, connection: Connection, command: Command) -> Command:
        return response(command, body=f"{ORDER_ENABLE}={str(self._serves_order).lower()}\n".encode())

    def _update_config(self, connection: Connection, command: Command) -> Command:
        lines = bytes(command.body).decode("utf-8", "replace").splitlines()
        changes = dict(line.partition("=")[::2] for line in lines if line.strip())
        others = sorted(changes.keys() - {ORDER_ENABLE})
        if others:
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"{', '.join(others)}: only {ORDER_ENABLE} can be changed")
        if changes:
            self._serves_order = changes[ORDER_ENABLE].strip().lower() == "true"
        return response(command)

    def _wipe(self, connection: Connection, command: Command) -> Command:
        return self._set_wiped(command, True, "wipeTopicCount")

    def _unwipe(self, connection: Connection, command: Command) -> Command:
        return self._set_wiped(command, False, "addTopicCount")

    def _set_wiped(self, command: Command, wiped: bool, counted: str) -> Command:
        if command.fields.get("brokerName") != self._settings.broker_name:
            return response(command, fields={counted: "0"})
        self._is_wiped = wiped
        return response(command, fields={counted: str(len(self._broker.parts.topics.table.names))})

    # ---- key-value settings

    def _put_value(self, connection: Connection, command: Command) -> Command:
        fields = command.fields
        self._values[fields.get("namespace", ""), fields.get("key", "")] = fields.get("value", "")
        return response(command)

    def _get_value(self, connection: Connection, command: Command) -> Command:
        namespace, key = command.fields.get("namespace", ""), command.fields.get("key", "")
        value = self._values.get((namespace, key))
        if value is None:
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return response(command, fields={"value": value})

    def _delete_value(self, connection: Connection, command: Command) -> Command:
        self._values.pop((command.fields.get("namespace", ""), command.fields.get("key", "")), None)
        return response(command)

    def _values_of(self, connection: Connection, command: Command) -> Command:
        namespace = command.fields.get("namespace", "")
        table = {key: value for (space, key), value in self._values.items() if space == namespace}
        if not table:
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return response(command, body=write_json({"table": table}))
