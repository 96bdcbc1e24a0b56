"""The real mqadmin of RocketMQ 5.5 and 4.9, unmodified, shows and does what it does with RocketMQ's broker."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.clients.artefacts import missing
from tests.clients.endpoints import Endpoint
from tests.clients.tools import Tool
from tests.clients.wire import create_topic

pytestmark = [
    pytest.mark.skipif(missing("java", "mvn") is not None, reason=f"no mqadmin here: {missing('java', 'mvn')}"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("clients-others"),
]


@dataclass
class World:
    """A broker with a topic of eight messages, a group that consumed them, and its producer."""

    tool: Tool
    topic: str
    group: str
    sent: list[dict[str, Any]]

    @property
    def broker(self) -> str:
        return self.tool.endpoint.broker


@pytest.fixture(scope="module", params=["5.5", "4.9"])
def world(request: pytest.FixtureRequest, endpoint_of: Callable[[str], Endpoint]) -> Iterator[World]:
    release = request.param
    endpoint = endpoint_of(release)
    topic, group = f"mqadmin-{release[0]}", f"mqadmin-group-{release[0]}"
    create_topic(endpoint.broker, topic)
    create_topic(endpoint.broker, f"%RETRY%{group}", queues=1)
    with Tool(endpoint, release) as tool:
        tool.ask(consume={"topic": topic, "group": group})
        sent = [
            tool.ask(send={"topic": topic, "queue": i % 4, "body": f"body-{i}", "key": f"key-{i}", "tag": "TagA"})
            for i in range(8)
        ]
        assert len(tool.ask(consumed={"topic": topic, "group": group, "count": 8})["bodies"]) == 8
        yield World(tool, topic, group, sent)


def test_cluster_list_names_the_broker(world: World) -> None:
    (row,) = world.tool.table("clusterList")
    assert (row["Cluster Name"], row["Broker Name"], row["BID"]) == ("DefaultCluster", "broker-a", "0")
    assert row["Addr"] == world.broker
    assert row["Version"].startswith("V")


def test_cluster_list_with_more_statistics_names_the_broker(world: World) -> None:
    (row,) = world.tool.table("clusterList", "-m")
    assert (row["Cluster Name"], row["Broker Name"]) == ("DefaultCluster", "broker-a")


def test_topic_list_has_the_topic(world: World) -> None:
    assert world.topic in world.tool.mqadmin("topicList").split()


def test_topic_list_of_a_cluster_has_the_topics_group(world: World) -> None:
    said = world.tool.mqadmin("topicList", "-c", "DefaultCluster")
    assert any(line.split() == ["DefaultCluster", world.topic, world.group] for line in said.splitlines()), said


def test_topic_route_has_the_brokers_address_and_queues(world: World) -> None:
    said = world.tool.mqadmin("topicRoute", "-t", world.topic)
    assert f'"{world.broker}"' in said
    assert re.search(r'"readQueueNums":\s*4', said) and re.search(r'"writeQueueNums":\s*4', said)


def test_topic_cluster_list_names_the_cluster(world: World) -> None:
    assert world.tool.mqadmin("topicClusterList", "-t", world.topic).split() == ["DefaultCluster"]


def test_topic_status_has_the_offsets_of_each_queue(world: World) -> None:
    rows = world.tool.table("topicStatus", "-t", world.topic)[:4]
    assert [(row["Broker Name"], row["QID"], row["Min Offset"], row["Max Offset"]) for row in rows] == [
        ("broker-a", str(queue), "0", "2") for queue in range(4)
    ]


def test_update_topic_makes_a_topic_and_delete_topic_removes_it(world: World) -> None:
    name = f"{world.topic}-made"
    said = world.tool.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", name, "-r", "5", "-w", "5")
    assert f"create topic to {world.broker} success" in said
    world.tool.until(lambda: name in world.tool.mqadmin("topicList").split(), "the topic is listed")
    assert re.search(r'"readQueueNums":\s*5', world.tool.mqadmin("topicRoute", "-t", name))
    said = world.tool.mqadmin("updateTopic", "-b", world.broker, "-t", name, "-r", "6", "-w", "6", "-p", "4")
    assert f"create topic to {world.broker} success" in said
    world.tool.until(
        lambda: re.search(r'"perm":\s*4', world.tool.mqadmin("topicRoute", "-t", name)) is not None, "it may be read"
    )
    assert f"delete topic [{name}] from cluster [DefaultCluster] success" in world.tool.mqadmin(
        "deleteTopic", "-c", "DefaultCluster", "-t", name
    )
    world.tool.until(lambda: name not in world.tool.mqadmin("topicList").split(), "the topic is gone")


def test_update_topic_perm_changes_the_right(world: World) -> None:
    name = f"{world.topic}-perm"
    create_topic(world.broker, name)
    said = world.tool.mqadmin("updateTopicPerm", "-b", world.broker, "-t", name, "-p", "2")
    assert "success" in said
    world.tool.until(
        lambda: re.search(r'"perm":\s*2', world.tool.mqadmin("topicRoute", "-t", name)) is not None, "it is changed"
    )


def test_update_sub_group_makes_a_group_and_delete_sub_group_removes_it(world: World) -> None:
    name = f"{world.group}-made"
    said = world.tool.mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", name, "-r", "7", "-q", "1")
    assert f"create subscription group to {world.broker} success" in said
    said = world.tool.mqadmin("getConsumerConfig", "-g", name)
    assert re.search(r"retryMaxTimes\s*=\s*7", said), said
    said = world.tool.mqadmin("deleteSubGroup", "-c", "DefaultCluster", "-g", name)
    assert f"delete subscription group [{name}] from broker [{world.broker}]" in said
    assert not re.search(r"retryMaxTimes\s*=\s*7", world.tool.mqadmin("getConsumerConfig", "-g", name))


def test_consumer_progress_of_a_group_has_no_lag(world: World) -> None:
    def consumed() -> bool:
        rows = world.tool.table("consumerProgress", "-g", world.group)
        mine = [row for row in rows if row.get("Topic") == world.topic]
        return [(row["QID"], row["Broker Offset"], row["Consumer Offset"]) for row in mine] == [
            (str(queue), "2", "2") for queue in range(4)
        ]

    world.tool.until(consumed, "the group has committed")
    assert "Diff Total: 0" in world.tool.mqadmin("consumerProgress", "-g", world.group)


def test_consumer_progress_lists_the_groups(world: World) -> None:
    rows = world.tool.table("consumerProgress")
    assert ("1", "CLUSTERING") in [(row["Count"], row["Model"]) for row in rows if row["Group"] == world.group[:64]]


def test_consumer_connection_shows_the_client_and_its_subscription(world: World) -> None:
    said = world.tool.mqadmin("consumerConnection", "-g", world.group)
    assert re.search(r"127\.0\.0\.1:\d+\s+JAVA\s+V" + world.tool.release.replace(".", "_"), said), said
    assert re.search(rf"^(Topic: )?{world.topic}\s+(SubExpression: )?\*", said, re.MULTILINE), said
    assert "ConsumeType: CONSUME_PASSIVELY" in said and "MessageModel: CLUSTERING" in said
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in said


def test_consumer_connection_of_no_consumer_says_so(world: World) -> None:
    said = world.tool.mqadmin("consumerConnection", "-g", f"{world.group}-nobody")
    assert "CODE: 206" in said or "Not found" in said or "CODE: 17" in said, said


def test_producer_connection_shows_the_client(world: World) -> None:
    said = world.tool.mqadmin("producerConnection", "-g", "mqadmin-producer", "-t", world.topic)
    assert re.search(r"127\.0\.0\.1:\d+\s+JAVA\s+V" + world.tool.release.replace(".", "_"), said) or re.search(
        r"\S+:\d+\s+JAVA\s+V" + world.tool.release.replace(".", "_"), said
    ), said


def test_consumer_status_shows_the_running_clients(world: World) -> None:
    said = world.tool.mqadmin("consumerStatus", "-g", world.group)
    assert re.search(r"1\s+\S+@i\d+", said), said


def test_broker_status_has_the_runtime_figures(world: World) -> None:
    said = world.tool.mqadmin("brokerStatus", "-b", world.broker)
    names = {line.split(":")[0].strip() for line in said.splitlines()}
    assert {
        *("brokerVersionDesc", "bootTimestamp", "putTps", "msgPutTotalTodayNow", "commitLogMaxOffset"),
        *("commitLogMinOffset", "sendThreadPoolQueueSize", "runtime", "earliestMessageTimeStamp"),
    } <= names, said


def test_broker_config_is_shown_and_can_be_changed(world: World) -> None:
    said = world.tool.mqadmin("getBrokerConfig", "-b", world.broker)
    assert re.search(r"^brokerName\s*=\s*broker-a$", said, re.MULTILINE), said[:2000]
    changed = world.tool.mqadmin(
        "updateBrokerConfig", "-b", world.broker, "-k", "maxTransferCountOnMessageInMemory", "-v", "33"
    )
    assert f"update broker config success, {world.broker}" in changed
    said = world.tool.mqadmin("getBrokerConfig", "-b", world.broker)
    assert re.search(r"^maxTransferCountOnMessageInMemory\s*=\s*33$", said, re.MULTILINE)


def test_query_msg_by_key_finds_the_id(world: World) -> None:
    world.tool.until(
        lambda: world.sent[3]["id"] in world.tool.mqadmin("queryMsgByKey", "-t", world.topic, "-k", "key-3"),
        "the message is found",
    )
    rows = world.tool.table("queryMsgByKey", "-t", world.topic, "-k", "key-3")
    assert [(row["Message ID"], row["QID"], row["Offset"]) for row in rows] == [(world.sent[3]["id"], "3", "0")]


def test_query_msg_by_id_shows_the_message_and_who_consumed_it(world: World) -> None:
    topic = ["-t", world.topic] if world.tool.release == "5.5" else []
    said = world.tool.mqadmin("queryMsgById", "-i", world.sent[5]["offsetId"], *topic)
    facts = _facts(said)
    assert (facts["Topic"], facts["Tags"], facts["Queue ID"], facts["Queue Offset"]) == (
        world.topic,
        "[TagA]",
        "1",
        "1",
    ), said
    assert "[key-5]" in said and world.group in said


def test_query_msg_by_unique_key_shows_the_message(world: World) -> None:
    said = world.tool.mqadmin("queryMsgByUniqueKey", "-i", world.sent[6]["id"], "-t", world.topic)
    facts = _facts(said)
    assert (facts["Topic"], facts["Queue ID"], facts["Queue Offset"]) == (world.topic, "2", "1"), said


def test_query_msg_by_offset_shows_the_message(world: World) -> None:
    said = world.tool.mqadmin("queryMsgByOffset", "-t", world.topic, "-b", "broker-a", "-i", "3", "-o", "1")
    facts = _facts(said)
    assert facts["OffsetID"] == world.sent[7]["offsetId"], said


def test_print_msg_prints_every_body(world: World) -> None:
    said = world.tool.mqadmin("printMsg", "-t", world.topic, "-d", "true")
    assert sorted(re.findall(r"BODY: (\S+)", said)) == [f"body-{i}" for i in range(8)], said


def test_send_message_and_consume_message_work_from_the_command_line(world: World) -> None:
    name = f"{world.topic}-line"
    create_topic(world.broker, name)
    world.tool.until(lambda: "broker-a" in world.tool.mqadmin("topicRoute", "-t", name), "the topic has a route")
    (row,) = world.tool.table("sendMessage", "-t", name, "-p", "from the line", "-k", "k", "-c", "t")
    assert (row["Broker Name"], row["Send Result"]) == ("broker-a", "SEND_OK")
    said = world.tool.mqadmin("consumeMessage", "-t", name, "-b", "broker-a", "-i", row["QID"], "-o", "0", "-c", "1")
    assert "from the line" in said, said


def test_check_msg_send_rt_sends(world: World) -> None:
    said = world.tool.mqadmin("checkMsgSendRT", "-t", world.topic + "-rt", "-a", "3", "-s", "16")
    assert said.count("broker-a") == 3 and "true" in said and "false" not in said, said


def test_allocate_mq_shares_the_queues(world: World) -> None:
    said = world.tool.mqadmin("allocateMQ", "-t", world.topic, "-i", "10.0.0.1,10.0.0.2")
    assert said.count(f'"topic":"{world.topic}"') == 4 or said.count(world.topic) >= 4, said


def test_stats_all_lists_the_topic_and_its_group(world: World) -> None:
    said = world.tool.mqadmin("statsAll", "-t", world.topic)
    assert any(line.split()[:2] == [world.topic, world.group] for line in said.splitlines()), said


def test_reset_offset_by_time_lets_the_group_consume_again(world: World) -> None:
    topic, group = f"{world.topic}-reset", f"{world.group}-reset"
    create_topic(world.broker, topic)
    create_topic(world.broker, f"%RETRY%{group}", queues=1)
    world.tool.ask(consume={"topic": topic, "group": group})
    for i in range(4):
        world.tool.ask(send={"topic": topic, "queue": i, "body": f"again-{i}", "key": "k", "tag": "t"})
    world.tool.ask(consumed={"topic": topic, "group": group, "count": 4})
    world.tool.until(
        lambda: "Diff Total: 0" in world.tool.mqadmin("consumerProgress", "-g", group), "the group has committed"
    )
    start = str(int(time.time() * 1000) - 3_600_000)
    said = world.tool.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", start)
    assert len(re.findall(r"broker-a\s+\d\s+0", said)) == 4, said
    bodies = world.tool.ask(consumed={"topic": topic, "group": group, "count": 8})["bodies"]
    assert sorted(bodies) == sorted([f"again-{i}" for i in range(4)] * 2)


def test_clone_group_offset_copies_the_offsets(world: World) -> None:
    other = f"{world.group}-clone"
    world.tool.mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", other)
    said = world.tool.mqadmin("cloneGroupOffset", "-s", world.group, "-d", other, "-t", world.topic, "-o", "true")
    assert "clone group offset success" in said, said


def test_query_cq_shows_the_entries_of_a_queue_and_the_groups_subscription(world: World) -> None:
    said = world.tool.mqadmin("queryCq", "-t", world.topic, "-q", "0", "-i", "0", "-b", world.broker, "-g", world.group)
    assert "max: 2, min: 0" in said and f'"{world.topic}"' in said, said
    assert len(re.findall(r"physicOffset=\d+, physicSize=[1-9]\d*, tagsCode=2598919,", said)) == 2, said
    said = world.tool.mqadmin("queryCq", "-t", world.topic, "-q", "0", "-i", "2", "-b", world.broker)
    assert "max: 2, min: 0" in said and "physicOffset" not in said, said


def test_broker_consume_stats_lists_what_each_group_consumed(world: World) -> None:
    def consumed() -> bool:
        rows = world.tool.table("consumerProgress", "-g", world.group)
        return [row["Consumer Offset"] for row in rows if row.get("Topic") == world.topic] == ["2"] * 4

    world.tool.until(consumed, "the group has committed")
    said = world.tool.mqadmin("brokerConsumeStats", "-b", world.broker)  # works once in a process
    rows = [line.split()[2:7] for line in said.splitlines() if line.split()[:2] == [world.topic, world.group]]
    assert rows == [["broker-a", str(queue), "2", "2", "0"] for queue in range(4)], said
    assert "Diff Total:" in said


def test_flow_control_of_cold_reads_is_off(world: World) -> None:
    if world.tool.release == "4.9":
        pytest.skip("RocketMQ 4.9 has no such command")
    said = world.tool.mqadmin("getColdDataFlowCtrInfo", "-b", world.broker)
    assert re.search(r'"runtimeTable":\s*\{\s*\}', said) and re.search(r'"globalAcc":\s*0', said), said


def test_files_and_topics_are_cleaned_when_it_is_asked_for(world: World) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in world.tool.mqadmin(command, "-b", world.broker)


def test_a_broker_is_taken_out_of_service_and_back(world: World) -> None:
    def permission() -> str:
        (found,) = re.findall(r'"perm":\s*(\d)', world.tool.mqadmin("topicRoute", "-t", world.topic))
        return str(found)

    world.tool.mqadmin("wipeWritePerm", "-b", "broker-a")
    world.tool.until(lambda: permission() == "4", "the route is read-only")
    world.tool.mqadmin("addWritePerm", "-b", "broker-a")
    world.tool.until(lambda: permission() == "6", "the route is as before")


def test_name_servers_show_their_settings_and_take_an_order(world: World) -> None:
    assert "orderMessageEnable" in world.tool.mqadmin("getNamesrvConfig")
    said = world.tool.mqadmin("updateOrderConf", "-m", "put", "-t", world.topic, "-v", "broker-a:4")
    assert "update orderConf success" in said, said
    assert "broker-a:4" in world.tool.mqadmin("updateOrderConf", "-m", "get", "-t", world.topic)


def test_ha_status_names_the_master_and_set_consume_mode_is_kept(world: World) -> None:
    if world.tool.release == "4.9":
        pytest.skip("RocketMQ 4.9 has no such commands")
    said = world.tool.mqadmin("haStatus", "-b", world.broker)
    assert re.search(rf"#MasterAddr\s+{world.broker}", said), said
    arguments = ("-b", world.broker, "-t", world.topic, "-g", f"{world.group}-pop", "-m", "POP", "-q", "2")
    assert "set consume mode to" in world.tool.mqadmin("setConsumeMode", *arguments)


def _facts(said: str) -> dict[str, str]:
    """Return the lines ``name: value`` that a query prints."""
    pairs = (line.split(":", 1) for line in said.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}
