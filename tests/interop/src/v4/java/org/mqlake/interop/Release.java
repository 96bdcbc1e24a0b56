package org.mqlake.interop;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.schedule.ScheduleMessageService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What RocketMQ 4.9 does its own way. */
final class Release {
    static final String VERSION = "4.9.8";

    private Release() {
    }

    /** A store that is not loaded yet. There are no batch consume queues in 4.9. */
    static DefaultMessageStore newStore(MessageStoreConfig config, BrokerConfig broker, Set<String> batchTopics)
            throws Exception {
        BrokerStatsManager stats = new BrokerStatsManager(broker.getBrokerClusterName(), false);
        DefaultMessageStore store = new DefaultMessageStore(
                config, stats, (topic, queueId, offset, tags, time, bitMap, properties) -> { }, broker);
        disableDelivery(store.getScheduleMessageService());
        return store;
    }

    /** Delayed messages stay where they are: a service that believes to be running is not started. */
    private static void disableDelivery(ScheduleMessageService service) throws ReflectiveOperationException {
        Field started = ScheduleMessageService.class.getDeclaredField("started");
        started.setAccessible(true);
        ((AtomicBoolean) started.get(service)).set(true);
    }

    static List<QueueRange> queues(DefaultMessageStore store) {
        List<QueueRange> queues = new ArrayList<>();
        store.getConsumeQueueTable().values().forEach(table -> {
            for (ConsumeQueue queue : table.values()) {
                queues.add(new QueueRange(queue.getTopic(), queue.getQueueId(),
                        queue.getMinOffsetInQueue(), queue.getMaxOffsetInQueue()));
            }
        });
        return queues;
    }

    /** The consume-queue unit at an offset, or null. */
    static QueueUnit unitAt(DefaultMessageStore store, String topic, int queueId, long offset) {
        SelectMappedBufferResult units = store.findConsumeQueue(topic, queueId).getIndexBuffer(offset);
        if (units == null) {
            return null;
        }
        try {
            return new QueueUnit(offset, 1, units.getByteBuffer().getLong(12));
        } finally {
            units.release();
        }
    }

    /** Null: 4.9 does not index tags. */
    static QueryMessageResult queryTag(DefaultMessageStore store, String topic, String tag, int limit) {
        return null;
    }
}
