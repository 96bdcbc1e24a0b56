package org.mqlake.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Predicate;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;

/** What consumers got, in the order of arrival. */
final class Inbox {
    private final List<MessageExt> messages = new ArrayList<>();
    private final List<Long> times = new ArrayList<>();

    synchronized void add(Collection<MessageExt> some) {
        for (MessageExt message : some) {
            messages.add(message);
            times.add(System.currentTimeMillis());
        }
    }

    synchronized int size() {
        return messages.size();
    }

    synchronized List<MessageExt> all() {
        return new ArrayList<>(messages);
    }

    synchronized long time(int index) {
        return times.get(index);
    }

    static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    List<String> bodies() {
        List<String> bodies = new ArrayList<>();
        all().forEach(message -> bodies.add(body(message)));
        return bodies;
    }

    /** Bodies by queue, in the order of arrival. */
    Map<Integer, List<String>> byQueue() {
        Map<Integer, List<String>> queues = new TreeMap<>();
        all().forEach(m -> queues.computeIfAbsent(m.getQueueId(), q -> new ArrayList<>()).add(body(m)));
        return queues;
    }

    MessageListenerConcurrently concurrently() {
        return (some, context) -> {
            add(some);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    /** Consume what is accepted; let the rest be consumed later. */
    MessageListenerConcurrently concurrently(Predicate<MessageExt> accepts, int retryLevel) {
        return (some, context) -> {
            add(some);
            context.setDelayLevelWhenNextConsume(retryLevel);
            return some.stream().allMatch(accepts) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        };
    }

    MessageListenerOrderly orderly() {
        return (some, context) -> {
            add(some);
            return ConsumeOrderlyStatus.SUCCESS;
        };
    }

    /** Wait until there are as many messages as bodies, a moment more, and compare them without order. */
    void expect(Run run, Collection<String> bodies) throws Exception {
        Run.until(() -> size() >= bodies.size(), "got " + size() + " of " + bodies.size() + " messages");
        settle();
        String[] expected = bodies.toArray(new String[0]);
        String[] found = bodies().toArray(new String[0]);
        Arrays.sort(expected);
        Arrays.sort(found);
        Run.equal(Arrays.asList(expected), Arrays.asList(found), "the bodies received");
        run.count("received", found.length);
    }

    /** Wait until nothing has come for a while: what is too much would come now. */
    void settle() throws InterruptedException {
        int before;
        do {
            before = size();
            Thread.sleep(300);
        } while (size() != before);
    }
}
