package org.mqlake.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What RocketMQ 5.5 does its own way. */
final class Release {
    static final String VERSION = "5.5.1";

    private Release() {
    }

    /** A store that is not loaded yet; the topics named get batch consume queues. */
    static DefaultMessageStore newStore(MessageStoreConfig config, BrokerConfig broker, Set<String> batchTopics)
            throws Exception {
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String topic : batchTopics) {
            TopicConfig topicConfig = new TopicConfig(topic);
            topicConfig.setAttributes(Map.of("queue.type", CQType.BatchCQ.toString()));
            topics.put(topic, topicConfig);
        }
        BrokerStatsManager stats = new BrokerStatsManager(broker.getBrokerClusterName(), false);
        return new DefaultMessageStore(
                config, stats, (topic, queueId, offset, tags, time, bitMap, properties) -> { }, broker, topics);
    }

    static List<QueueRange> queues(DefaultMessageStore store) {
        List<QueueRange> queues = new ArrayList<>();
        store.getConsumeQueueTable().values().forEach(table -> {
            for (ConsumeQueueInterface queue : table.values()) {
                queues.add(new QueueRange(queue.getTopic(), queue.getQueueId(),
                        queue.getMinOffsetInQueue(), queue.getMaxOffsetInQueue()));
            }
        });
        return queues;
    }

    /** The consume-queue unit at an offset, or null. */
    static QueueUnit unitAt(DefaultMessageStore store, String topic, int queueId, long offset) {
        CqUnit unit = store.findConsumeQueue(topic, queueId).get(offset);
        return unit == null ? null : new QueueUnit(unit.getQueueOffset(), unit.getBatchNum(), unit.getTagsCode());
    }

    static QueryMessageResult queryTag(DefaultMessageStore store, String topic, String tag, int limit) {
        return store.queryMessage(topic, tag, limit, 0, Long.MAX_VALUE, MessageConst.INDEX_TAG_TYPE, null);
    }
}
