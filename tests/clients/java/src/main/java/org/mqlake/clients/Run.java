package org.mqlake.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The surroundings of one case: names, clients that are stopped at its end, and the counts that it reports. */
final class Run {
    static final long PATIENCE_MS = 60_000;
    private static final AtomicInteger INSTANCES = new AtomicInteger();

    final String nameServer;
    final String topic;
    final String group;
    final Map<String, Object> counts = new TreeMap<>();
    private final List<Runnable> closing = new ArrayList<>();

    Run(String nameServer, String prefix, String name) {
        this.nameServer = nameServer;
        this.topic = prefix + "-" + name;
        this.group = prefix + "-" + name;
    }

    <T extends ClientConfig> T configured(T client) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName("i" + INSTANCES.incrementAndGet());
        client.setPollNameServerInterval(1000);
        client.setPersistConsumerOffsetInterval(500);
        client.setHeartbeatBrokerInterval(5000);
        return client;
    }

    DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = configured(new DefaultMQProducer(group + "-producer"));
        producer.setSendMsgTimeout(20_000);
        producer.start();
        atEnd(producer::shutdown);
        return producer;
    }

    /** A push consumer from the first offset, not yet subscribed or started. */
    DefaultMQPushConsumer push(String consumerGroup) {
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(consumerGroup));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000); // what the listener has taken is committed
        atEnd(consumer::shutdown);
        return consumer;
    }

    /** Start a push consumer of the case's topic that keeps what it gets. */
    Inbox inbox(String consumerGroup, String expression) throws Exception {
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = push(consumerGroup);
        consumer.subscribe(topic, expression);
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        return inbox;
    }

    Inbox inbox() throws Exception {
        return inbox(group, "*");
    }

    DefaultMQAdminExt admin() throws Exception {
        DefaultMQAdminExt admin = configured(new DefaultMQAdminExt());
        admin.start();
        atEnd(admin::shutdown);
        return admin;
    }

    Message message(String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    /** Send {@code count} messages with bodies PREFIX0, PREFIX1 and so on, each accepted. */
    List<String> send(DefaultMQProducer producer, String prefix, int count) throws Exception {
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            accepted(producer.send(message(prefix + i)));
            bodies.add(prefix + i);
        }
        return bodies;
    }

    static SendResult accepted(SendResult result) {
        equal(SendStatus.SEND_OK, result.getSendStatus(), "the status of a send");
        return result;
    }

    void count(String name, Object value) {
        counts.put(name, value);
    }

    void atEnd(Runnable close) {
        closing.add(close);
    }

    void close() {
        for (int i = closing.size() - 1; i >= 0; i--) {
            try {
                closing.get(i).run();
            } catch (RuntimeException e) {
                System.err.println(group + ": " + e);
            }
        }
        closing.clear();
    }

    static void until(Callable<Boolean> condition, String what) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.call()) {
            check(System.currentTimeMillis() < end, "not within " + PATIENCE_MS + " ms: " + what);
            Thread.sleep(10);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void equal(Object expected, Object found, String what) {
        check(expected.equals(found), what + ": expected " + cut(expected) + ", found " + cut(found));
    }

    private static String cut(Object value) {
        String text = String.valueOf(value);
        return text.length() > 600 ? text.substring(0, 600) + "…" : text;
    }

    static byte[] noise(int size) {
        byte[] bytes = new byte[size];
        new Random(size).nextBytes(bytes);
        return bytes;
    }

    static byte[] text(int size) {
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; i++) {
            bytes[i] = (byte) ('a' + i % 23);
        }
        return bytes;
    }
}
