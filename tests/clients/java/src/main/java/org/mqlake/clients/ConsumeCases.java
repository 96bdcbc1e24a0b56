package org.mqlake.clients;

import java.text.SimpleDateFormat;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Push consumers: order, groups, filters, where they begin. */
final class ConsumeCases {
    private ConsumeCases() {
    }

    static void register(Map<String, Case> cases) {
        cases.put("push-concurrent", ConsumeCases::concurrent);
        cases.put("push-orderly", ConsumeCases::orderly);
        cases.put("push-orderly-suspend", ConsumeCases::orderlySuspend);
        cases.put("push-broadcast", ConsumeCases::broadcast);
        cases.put("long-poll", ConsumeCases::longPoll);
        cases.put("lock-takeover", ConsumeCases::lockTakeover);
        cases.put("filter-tag", ConsumeCases::filterTag);
        cases.put("filter-sql", ConsumeCases::filterSql);
        cases.put("from-first", ConsumeCases::fromFirst);
        cases.put("from-last", ConsumeCases::fromLast);
        cases.put("from-timestamp", ConsumeCases::fromTimestamp);
        cases.put("offsets-restart", ConsumeCases::restart);
        cases.put("rebalance-two", ConsumeCases::rebalance);
        cases.put("two-groups", ConsumeCases::twoGroups);
        cases.put("offset-reset", ConsumeCases::reset);
    }

    private static void concurrent(Run run) throws Exception {
        Inbox inbox = run.inbox();
        DefaultMQProducer producer = run.producer();
        List<String> bodies = run.send(producer, "a-", 60);
        inbox.expect(run, bodies);
    }

    private static void sendInOrder(Run run, DefaultMQProducer producer, int from, int to, int queues)
        throws Exception {
        for (int i = from; i < to; i++) {
            for (int q = 0; q < queues; q++) {
                Run.accepted(producer.send(run.message(q + "/" + i), new MessageQueue(run.topic, "broker-a", q)));
            }
        }
    }

    private static Map<Integer, List<String>> inOrder(int count, int queues) {
        Map<Integer, List<String>> expected = new TreeMap<>();
        for (int q = 0; q < queues; q++) {
            List<String> bodies = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                bodies.add(q + "/" + i);
            }
            expected.put(q, bodies);
        }
        return expected;
    }

    private static DefaultMQPushConsumer orderlyConsumer(Run run, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.subscribe(run.topic, "*");
        consumer.registerMessageListener(inbox.orderly());
        consumer.start();
        return consumer;
    }

    private static void orderly(Run run) throws Exception {
        Inbox inbox = new Inbox();
        orderlyConsumer(run, inbox);
        sendInOrder(run, run.producer(), 0, 15, 4);
        Run.until(() -> inbox.size() >= 60, "all messages arrive");
        inbox.settle();
        Run.equal(inOrder(15, 4), inbox.byQueue(), "each queue's order");
        run.count("received", inbox.size());
    }

    private static void orderlySuspend(Run run) throws Exception {
        Inbox tried = new Inbox();
        Inbox done = new Inbox();
        AtomicInteger refusals = new AtomicInteger();
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.subscribe(run.topic, "*");
        consumer.registerMessageListener((List<MessageExt> some,
            org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext context) -> {
            tried.add(some);
            if (Inbox.body(some.get(0)).equals("0/3") && refusals.getAndIncrement() < 2) {
                context.setSuspendCurrentQueueTimeMillis(200);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            done.add(some);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        sendInOrder(run, run.producer(), 0, 8, 2);
        Run.until(() -> done.size() >= 16, "all messages are consumed");
        done.settle();
        Run.equal(inOrder(8, 2), done.byQueue(), "each queue's order");
        run.count("received", done.size());
        run.count("tried", tried.size());
    }

    private static void broadcast(Run run) throws Exception {
        List<Inbox> inboxes = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = run.push(run.group);
            Release.broadcast(consumer);
            consumer.subscribe(run.topic, "*");
            consumer.registerMessageListener(inbox.concurrently());
            consumer.start();
            inboxes.add(inbox);
        }
        List<String> bodies = run.send(run.producer(), "to-all-", 20);
        for (Inbox inbox : inboxes) {
            inbox.expect(run, bodies);
        }
    }

    private static void longPoll(Run run) throws Exception {
        Inbox inbox = run.inbox();
        DefaultMQProducer producer = run.producer();
        run.send(producer, "warm-", 8);
        Run.until(() -> inbox.size() == 8, "the consumer works");
        Thread.sleep(500);
        long worst = 0;
        for (int i = 0; i < 10; i++) {
            long sent = System.currentTimeMillis();
            Run.accepted(producer.send(run.message("m" + i)));
            int expected = 9 + i;
            Run.until(() -> inbox.size() == expected, "message " + i + " arrives");
            worst = Math.max(worst, inbox.time(expected - 1) - sent);
        }
        Run.check(worst < 4000, "a message waited " + worst + " ms: a held pull was not woken");
        run.count("received", inbox.size());
    }

    private static void lockTakeover(Run run) throws Exception {
        Inbox first = new Inbox();
        Inbox second = new Inbox();
        DefaultMQPushConsumer one = orderlyConsumer(run, first);
        DefaultMQProducer producer = run.producer();
        sendInOrder(run, producer, 0, 5, 4);
        Run.until(() -> first.size() == 20, "the first consumer has all queues");
        orderlyConsumer(run, second);
        Thread.sleep(1500);
        one.shutdown();
        sendInOrder(run, producer, 5, 10, 4);
        Run.until(() -> first.size() + second.size() >= 40, "the second takes the queues over");
        second.settle();
        Map<Integer, List<String>> together = new TreeMap<>(first.byQueue());
        second.byQueue().forEach((queue, bodies) -> {
            List<String> all = new ArrayList<>(together.getOrDefault(queue, List.of()));
            all.addAll(bodies);
            together.put(queue, all);
        });
        Run.equal(inOrder(10, 4), together, "each queue's order over both consumers");
        run.count("received", first.size() + second.size());
    }

    private static void filterTag(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        for (int i = 0; i < 12; i++) {
            String tag = List.of("A", "B", "C").get(i % 3);
            Run.accepted(producer.send(new Message(run.topic, tag, SendCases.bytes(tag + i))));
        }
        Run.accepted(producer.send(run.message("no tag")));
        run.inbox(run.group, "A || C").expect(run, List.of("A0", "C2", "A3", "C5", "A6", "C8", "A9", "C11"));
        run.inbox(run.group + "-b", "B").expect(run, List.of("B1", "B4", "B7", "B10"));
        run.inbox(run.group + "-all", "*").expect(run, List.of("A0", "B1", "C2", "A3", "B4", "C5", "A6", "B7", "C8",
            "A9", "B10", "C11", "no tag"));
        Inbox none = run.inbox(run.group + "-none", "Z");
        none.expect(run, List.of());
        run.count("received", 8 + 4 + 13);
    }

    private static void filterSql(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        for (int i = 0; i < 12; i++) {
            Message message = run.message("m" + i);
            message.setTags(i % 2 == 0 ? "even" : "odd");
            message.putUserProperty("number", "" + i);
            message.putUserProperty("name", "n" + i % 3);
            Run.accepted(producer.send(message));
        }
        Run.accepted(producer.send(run.message("bare")));
        sql(run, "-1", "number BETWEEN 3 AND 6", List.of("m3", "m4", "m5", "m6"));
        sql(run, "-2", "name IN ('n0', 'n1') AND number > 5 AND TAGS = 'even'", List.of("m6", "m10"));
        sql(run, "-3", "number IS NULL", List.of("bare"));
        sql(run, "-4", "NOT (number < 10) OR name = 'none'", List.of("m10", "m11"));
        run.count("received", 9);
    }

    private static void sql(Run run, String suffix, String expression, List<String> bodies) throws Exception {
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = run.push(run.group + suffix);
        consumer.subscribe(run.topic, MessageSelector.bySql(expression));
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        inbox.expect(run, bodies);
        consumer.shutdown();
    }

    private static void fromFirst(Run run) throws Exception {
        List<String> bodies = run.send(run.producer(), "before-", 10);
        run.inbox().expect(run, bodies);
    }

    /** A fresh group begins at the end only if the queue's beginning is no longer in memory; else at the beginning. */
    private static void fromLast(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<String> bodies = run.send(producer, "before-", 8);
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe(run.topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        Run.until(() -> inbox.size() == 8, "the young queue is consumed from its beginning");
        bodies.addAll(run.send(producer, "after-", 8));
        inbox.expect(run, bodies);
    }

    /** As with the last: while the queue's beginning is in memory, the broker says to begin there. */
    private static void fromTimestamp(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<String> bodies = run.send(producer, "old-", 8);
        Thread.sleep(2100);
        long middle = System.currentTimeMillis() - 1000;
        bodies.addAll(run.send(producer, "new-", 8));
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        consumer.setConsumeTimestamp(new SimpleDateFormat("yyyyMMddHHmmss").format(new Date(middle)));
        consumer.subscribe(run.topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        Run.until(() -> inbox.size() >= 8, "the consumer gets messages");
        inbox.settle();
        inbox.expect(run, bodies);
    }

    private static void restart(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<String> bodies = run.send(producer, "a-", 20);
        Inbox inbox = new Inbox();
        for (int part = 0; part < 3; part++) {
            DefaultMQPushConsumer consumer = run.push(run.group);
            consumer.subscribe(run.topic, "*");
            consumer.registerMessageListener(inbox.concurrently());
            consumer.start();
            int expected = bodies.size();
            Run.until(() -> inbox.size() >= expected, "part " + part + " arrives");
            consumer.shutdown();
            bodies.addAll(run.send(producer, "between-" + part + "-", 10));
        }
        DefaultMQPushConsumer last = run.push(run.group);
        last.subscribe(run.topic, "*");
        last.registerMessageListener(inbox.concurrently());
        last.start();
        inbox.expect(run, bodies);
    }

    private static void rebalance(Run run) throws Exception {
        Inbox[] inboxes = {new Inbox(), new Inbox()};
        DefaultMQPushConsumer[] consumers = new DefaultMQPushConsumer[2];
        for (int i = 0; i < 2; i++) {
            consumers[i] = run.push(run.group);
            consumers[i].subscribe(run.topic, "*");
            consumers[i].registerMessageListener(inboxes[i].concurrently());
            consumers[i].start();
        }
        Run.until(() -> queuesOf(consumers[0], run) == 2 && queuesOf(consumers[1], run) == 2,
            "each consumer has two queues");
        Thread.sleep(1000);
        List<String> bodies = run.send(run.producer(), "shared-", 40);
        Run.until(() -> inboxes[0].size() + inboxes[1].size() >= 40, "all messages arrive");
        inboxes[0].settle();
        Inbox both = new Inbox();
        both.add(inboxes[0].all());
        both.add(inboxes[1].all());
        both.expect(run, bodies);
        run.count("first", inboxes[0].size());
        run.count("second", inboxes[1].size());
    }

    private static int queuesOf(DefaultMQPushConsumer consumer, Run run) {
        return (int) consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()
            .stream().filter(queue -> queue.getTopic().equals(run.topic)).count();
    }

    private static void twoGroups(Run run) throws Exception {
        Inbox first = run.inbox(run.group + "-1", "*");
        Inbox second = run.inbox(run.group + "-2", "*");
        List<String> bodies = run.send(run.producer(), "m-", 20);
        first.expect(run, bodies);
        second.expect(run, bodies);
        run.count("received", first.size() + second.size());
    }

    private static void reset(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<String> first = run.send(producer, "old-", 8);
        Thread.sleep(1000); // 4.9 takes the nearest message, before or after
        long middle = System.currentTimeMillis();
        Thread.sleep(20);
        List<String> second = run.send(producer, "new-", 8);
        Inbox inbox = run.inbox();
        Run.until(() -> inbox.size() == 16, "all messages are consumed");
        DefaultMQAdminExt admin = run.admin();
        Run.until(() -> admin.examineConsumeStats(run.group, run.topic).computeTotalDiff() == 0, "it is committed");
        Map<MessageQueue, Long> offsets = admin.resetOffsetByTimestamp(run.topic, run.group, middle, true);
        run.count("queues", offsets.size());
        List<String> all = new ArrayList<>(first);
        all.addAll(second);
        all.addAll(second);
        inbox.expect(run, all);
    }
}
