package org.mqlake.clients;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that ask: the pull consumer, the lite pull consumer, and offsets. */
@SuppressWarnings("deprecation")
final class PullCases {
    private PullCases() {
    }

    static void register(Map<String, Case> cases) {
        cases.put("pull", PullCases::pull);
        cases.put("pull-tag", PullCases::pullTag);
        cases.put("offsets-query", PullCases::offsets);
        cases.put("lite-pull-subscribe", PullCases::liteSubscribe);
        cases.put("lite-pull-seek", PullCases::liteSeek);
        cases.put("lite-pull-restart", PullCases::liteRestart);
    }

    static DefaultMQPullConsumer puller(Run run) throws Exception {
        DefaultMQPullConsumer consumer = run.configured(new DefaultMQPullConsumer(run.group));
        consumer.start();
        run.atEnd(consumer::shutdown);
        return consumer;
    }

    private static void pull(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        for (int i = 0; i < 20; i++) {
            Run.accepted(producer.send(run.message("m" + i), new MessageQueue(run.topic, "broker-a", i % 4)));
        }
        DefaultMQPullConsumer consumer = puller(run);
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(run.topic);
        run.count("queues", queues.size());
        int received = 0;
        for (MessageQueue queue : queues) {
            List<String> bodies = new ArrayList<>();
            long offset = 0;
            for (PullResult result = consumer.pull(queue, "*", offset, 2); result.getPullStatus() == PullStatus.FOUND;
                result = consumer.pull(queue, "*", offset, 2)) {
                result.getMsgFoundList().forEach(message -> bodies.add(Inbox.body(message)));
                Run.check(result.getMsgFoundList().size() <= 2, "more than was asked for");
                Run.equal(5L, result.getMaxOffset(), "the end of the queue");
                Run.equal(0L, result.getMinOffset(), "the beginning of the queue");
                offset = result.getNextBeginOffset();
                consumer.updateConsumeOffset(queue, offset);
            }
            Run.equal(PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", 5, 2).getPullStatus(), "the status at the end");
            PullResult beyond = consumer.pull(queue, "*", 50, 2);
            Run.equal(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus(), "the status beyond the end");
            Run.equal(5L, beyond.getNextBeginOffset(), "where to go on");
            List<String> expected = new ArrayList<>();
            for (int i = queue.getQueueId(); i < 20; i += 4) {
                expected.add("m" + i);
            }
            Run.equal(expected, bodies, "queue " + queue.getQueueId());
            received += bodies.size();
            Run.equal(5L, offset, "the last offset");
        }
        for (MessageQueue queue : queues) {
            Run.until(() -> {
                consumer.updateConsumeOffset(queue, 5); // reading it back too early has overwritten it
                consumer.getOffsetStore().persist(queue);
                return consumer.fetchConsumeOffset(queue, true) == 5;
            }, "the committed offset is read back");
        }
        run.count("received", received);
    }

    private static void pullTag(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        MessageQueue queue = new MessageQueue(run.topic, "broker-a", 0);
        for (int i = 0; i < 10; i++) {
            producer.send(new org.apache.rocketmq.common.message.Message(run.topic, "t" + i % 5,
                SendCases.bytes("m" + i)), queue);
        }
        DefaultMQPullConsumer consumer = puller(run);
        PullResult found = consumer.pull(queue, "t1 || t3", 0, 32);
        Run.equal(List.of("m1", "m3", "m6", "m8"), bodies(found.getMsgFoundList()), "what the tags let through");
        Run.equal(10L, found.getNextBeginOffset(), "where to go on");
        PullResult none = consumer.pull(queue, "other", 0, 32);
        Run.equal(PullStatus.NO_MATCHED_MSG, none.getPullStatus(), "the status when nothing matches");
        Run.equal(10L, none.getNextBeginOffset(), "where to go on");
        run.count("received", found.getMsgFoundList().size());
    }

    private static List<String> bodies(List<MessageExt> messages) {
        List<String> bodies = new ArrayList<>();
        messages.forEach(message -> bodies.add(Inbox.body(message)));
        return bodies;
    }

    private static void offsets(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        MessageQueue queue = new MessageQueue(run.topic, "broker-a", 1);
        Run.equal(0L, producer.maxOffset(queue), "the end of an empty queue");
        long before = System.currentTimeMillis();
        Thread.sleep(20);
        for (int i = 0; i < 5; i++) {
            producer.send(run.message("a" + i), queue);
        }
        Thread.sleep(300);
        long middle = System.currentTimeMillis();
        Thread.sleep(20);
        for (int i = 0; i < 5; i++) {
            producer.send(run.message("b" + i), queue);
        }
        Run.until(() -> producer.maxOffset(queue) == 10, "the queue has ten messages");
        Run.equal(0L, producer.minOffset(queue), "the beginning");
        Run.equal(0L, producer.searchOffset(queue, before), "the offset of a time before all");
        Run.equal(5L, producer.searchOffset(queue, middle), "the offset of a time between");
        long after = producer.searchOffset(queue, System.currentTimeMillis() + 100_000);
        run.count("after the end", after);
        long earliest = producer.earliestMsgStoreTime(queue);
        Run.check(earliest >= before && earliest < middle, "the earliest store time " + earliest);
        run.count("sent", 10);
    }

    private static DefaultLitePullConsumer lite(Run run) {
        DefaultLitePullConsumer consumer = run.configured(new DefaultLitePullConsumer(run.group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollTimeoutMillis(500);
        consumer.setPullThreadNums(4);
        run.atEnd(consumer::shutdown);
        return consumer;
    }

    private static void poll(DefaultLitePullConsumer consumer, Inbox inbox, int count) throws Exception {
        Run.until(() -> {
            inbox.add(consumer.poll());
            return inbox.size() >= count;
        }, "polled " + count);
    }

    private static void liteSubscribe(Run run) throws Exception {
        List<String> bodies = run.send(run.producer(), "lite-", 30);
        DefaultLitePullConsumer consumer = lite(run);
        consumer.subscribe(run.topic, "*");
        consumer.start();
        Inbox inbox = new Inbox();
        poll(consumer, inbox, 30);
        inbox.add(consumer.poll(300));
        inbox.expect(run, bodies);
    }

    private static void liteSeek(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        MessageQueue target = new MessageQueue(run.topic, "broker-a", 3);
        for (int i = 0; i < 10; i++) {
            producer.send(run.message("s" + i), target);
        }
        DefaultLitePullConsumer consumer = lite(run);
        consumer.setAutoCommit(false);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(run.topic));
        queues.sort(Comparator.comparing(MessageQueue::getQueueId));
        run.count("queues", queues.size());
        consumer.assign(List.of(target));
        consumer.seek(target, 6);
        Inbox inbox = new Inbox();
        poll(consumer, inbox, 4);
        Run.equal(List.of("s6", "s7", "s8", "s9"), inbox.bodies(), "what follows offset 6");
        consumer.seekToBegin(target);
        Inbox again = new Inbox();
        poll(consumer, again, 10);
        Run.equal(10, again.size(), "what follows the beginning");
        consumer.seekToEnd(target);
        producer.send(run.message("last"), target);
        Inbox end = new Inbox();
        poll(consumer, end, 1);
        Run.equal(List.of("last"), end.bodies(), "what follows the end");
        consumer.commitSync();
        Run.until(() -> consumer.committed(target) == 11, "the committed offset is read back");
        run.count("received", inbox.size() + again.size() + end.size());
    }

    private static void liteRestart(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<String> bodies = run.send(producer, "first-", 12);
        Inbox inbox = new Inbox();
        DefaultLitePullConsumer consumer = lite(run);
        consumer.subscribe(run.topic, "*");
        consumer.setAutoCommit(false);
        consumer.start();
        poll(consumer, inbox, 12);
        consumer.commitSync();
        consumer.shutdown();
        bodies.addAll(run.send(producer, "second-", 12));
        DefaultLitePullConsumer next = lite(run);
        next.subscribe(run.topic, "*");
        next.start();
        poll(next, inbox, 24);
        inbox.add(next.poll(300));
        inbox.expect(run, bodies);
    }
}
