package org.mqlake.clients;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What only the 5.5 client has, and what it calls differently. */
final class Release {
    private Release() {
    }

    static void register(Map<String, Case> cases) {
        cases.put("timer-recall", Release::recall);
        cases.put("push-pop", Release::pop);
        cases.put("push-server-rebalance", Release::serverRebalance);
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void deliverAt(Message message, long time) {
        message.setDeliverTimeMs(time);
    }

    static void delay(Message message, long milliseconds) {
        message.setDelayTimeMs(milliseconds);
    }

    static void createTopic(DefaultMQProducer producer, String name, int queues) throws Exception {
        producer.createTopic("TBW102", name, queues, new HashMap<>());
    }

    static String broker(DefaultMQAdminExt admin, String topic) throws Exception {
        return admin.examineTopicRouteInfo(topic).getBrokerDatas().get(0).selectBrokerAddr();
    }

    static void permit(DefaultMQAdminExt admin, String topic, int permission) throws Exception {
        admin.createAndUpdateTopicConfig(broker(admin, topic), new TopicConfig(topic, 4, 4, permission));
    }

    /** The dead letters of a group are written with no permission to read. */
    static void makeReadable(DefaultMQAdminExt admin, String topic) throws Exception {
        Run.until(() -> admin.fetchAllTopicList().getTopicList().contains(topic), "there are dead letters");
        admin.createAndUpdateTopicConfig(broker(admin, topic), new TopicConfig(topic, 1, 1, 6));
    }

    static void createOn(DefaultMQAdminExt admin, String broker, String topic) throws Exception {
        admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic));
    }

    private static void recall(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        Inbox inbox = run.inbox();
        Message stays = run.message("stays");
        stays.setDelayTimeMs(3000);
        Message goes = run.message("goes");
        goes.setDelayTimeMs(3000);
        Run.accepted(producer.send(stays));
        SendResult sent = Run.accepted(producer.send(goes));
        Run.check(sent.getRecallHandle() != null, "no recall handle");
        String id = producer.recallMessage(run.topic, sent.getRecallHandle());
        Run.equal(sent.getMsgId(), id, "the id of what was recalled");
        inbox.expect(run, List.of("stays"));
        Thread.sleep(2000);
        inbox.expect(run, List.of("stays"));
    }

    private static DefaultMQPushConsumer serverSide(Run run) {
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.setClientRebalance(false);
        return consumer;
    }

    private static void pop(Run run) throws Exception {
        DefaultMQAdminExt admin = run.admin();
        admin.setMessageRequestMode(broker(admin, run.topic), run.topic, run.group, MessageRequestMode.POP, 8, 5000);
        Inbox inbox = new Inbox();
        Map<String, Integer> refused = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = serverSide(run);
        consumer.setPopInvisibleTime(10_000);
        consumer.subscribe(run.topic, "*");
        consumer.registerMessageListener(inbox.concurrently(
            m -> !Inbox.body(m).equals("bad-0") || refused.merge("bad-0", 1, Integer::sum) > 1, 1));
        consumer.start();
        DefaultMQProducer producer = run.producer();
        List<String> bodies = new ArrayList<>(run.send(producer, "pop-", 20));
        bodies.addAll(run.send(producer, "bad-", 1));
        bodies.add("bad-0");
        inbox.expect(run, bodies);
    }

    private static void serverRebalance(Run run) throws Exception {
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = serverSide(run);
        consumer.subscribe(run.topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        inbox.expect(run, run.send(run.producer(), "m-", 20));
    }
}
