package org.mqlake.clients;

import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What the 4.9 client calls differently. */
final class Release {
    private Release() {
    }

    static void register(Map<String, Case> cases) {
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void deliverAt(Message message, long time) {
        message.putUserProperty("TIMER_DELIVER_MS", Long.toString(time));
    }

    static void delay(Message message, long milliseconds) {
        message.putUserProperty("TIMER_DELAY_MS", Long.toString(milliseconds));
    }

    static void createTopic(DefaultMQProducer producer, String name, int queues) throws Exception {
        producer.createTopic("TBW102", name, queues);
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
}
