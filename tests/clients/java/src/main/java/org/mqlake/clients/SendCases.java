package org.mqlake.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Ways of sending, each checked by consuming what was sent. */
final class SendCases {
    private SendCases() {
    }

    static void register(Map<String, Case> cases) {
        cases.put("send-sync", SendCases::sync);
        cases.put("send-async", SendCases::async);
        cases.put("send-oneway", SendCases::oneway);
        cases.put("send-batch", SendCases::batch);
        cases.put("send-properties", SendCases::properties);
        cases.put("send-unicode", SendCases::unicode);
        cases.put("send-selector", SendCases::selector);
        cases.put("send-to-queue", SendCases::toQueue);
        cases.put("body-1-byte", run -> body(run, new byte[] {7}, 1));
        cases.put("body-3-mib-noise", run -> body(run, Run.noise(3 << 20), 1));
        cases.put("body-3-mib-text", run -> body(run, Run.text(3 << 20), 1));
        cases.put("body-compressed", run -> body(run, Run.text(100_000), 5));
        cases.put("delay-level", SendCases::delayLevel);
        cases.put("timer-deliver", SendCases::timer);
        cases.put("topic-create", SendCases::createTopic);
        cases.put("topic-auto-create", SendCases::autoCreate);
    }

    private static void sync(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        Set<String> ids = new HashSet<>();
        Set<String> offsetIds = new HashSet<>();
        int[] next = new int[4];
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            SendResult result = Run.accepted(producer.send(run.message("sync-" + i)));
            ids.add(result.getMsgId());
            offsetIds.add(result.getOffsetMsgId());
            Run.equal("broker-a", result.getMessageQueue().getBrokerName(), "the broker of a send");
            int queue = result.getMessageQueue().getQueueId();
            Run.equal((long) next[queue]++, result.getQueueOffset(), "the queue offset of a send");
            Run.equal(true, result.isTraceOn(), "tracing as the broker allows it");
            Run.equal("DefaultRegion", result.getRegionId(), "the region");
            bodies.add("sync-" + i);
        }
        run.count("ids", ids.size());
        run.count("offset ids", offsetIds.size());
        Inbox inbox = run.inbox();
        inbox.expect(run, bodies);
        for (MessageExt message : inbox.all()) {
            Run.check(ids.contains(message.getMsgId()), "an unknown id " + message.getMsgId());
        }
    }

    private static void async(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        int count = 100;
        CountDownLatch left = new CountDownLatch(count);
        AtomicInteger ok = new AtomicInteger();
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            bodies.add("async-" + i);
            producer.send(run.message("async-" + i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    if (result.getSendStatus() == SendStatus.SEND_OK) {
                        ok.incrementAndGet();
                    }
                    left.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    System.err.println("send-async: " + e);
                    left.countDown();
                }
            });
        }
        Run.check(left.await(Run.PATIENCE_MS, TimeUnit.MILLISECONDS), "some async sends were not answered");
        run.count("accepted", ok.get());
        run.inbox().expect(run, bodies);
    }

    private static void oneway(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            bodies.add("oneway-" + i);
            producer.sendOneway(run.message("oneway-" + i));
        }
        run.inbox().expect(run, bodies);
    }

    private static void batch(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<Message> messages = new ArrayList<>();
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            Message message = new Message(run.topic, "tag" + i % 2, "key" + i, bytes("batch-" + i));
            message.putUserProperty("number", "" + i);
            messages.add(message);
            bodies.add("batch-" + i);
        }
        SendResult result = Run.accepted(producer.send(messages));
        run.count("ids", result.getMsgId().split(",").length);
        run.count("offset ids", result.getOffsetMsgId().split(",").length);
        Inbox inbox = run.inbox();
        inbox.expect(run, bodies);
        for (MessageExt message : inbox.all()) {
            int i = Integer.parseInt(Inbox.body(message).substring(6));
            Run.equal("tag" + i % 2, message.getTags(), "a tag");
            Run.equal("key" + i, message.getKeys(), "a key");
            Run.equal("" + i, message.getUserProperty("number"), "a property");
            Run.equal(result.getQueueOffset() + i, message.getQueueOffset(), "a queue offset");
            Run.equal(result.getMessageQueue().getQueueId(), message.getQueueId(), "the queue");
        }
    }

    private static void properties(Run run) throws Exception {
        Message message = run.message("with properties");
        message.setTags("TagA");
        message.setKeys(Arrays.asList("k1", "k2"));
        message.setFlag(77);
        message.putUserProperty("colour", "red");
        message.putUserProperty("price", "12.5");
        SendResult sent = Run.accepted(run.producer().send(message));
        Inbox inbox = run.inbox();
        inbox.expect(run, List.of("with properties"));
        MessageExt got = inbox.all().get(0);
        Run.equal("TagA", got.getTags(), "the tag");
        Run.equal("k1 k2", got.getKeys(), "the keys");
        Run.equal(77, got.getFlag(), "the flag");
        Run.equal("red", got.getUserProperty("colour"), "a property");
        Run.equal("12.5", got.getUserProperty("price"), "a property");
        Run.equal("DefaultCluster", got.getProperty("CLUSTER"), "the cluster");
        Run.equal(sent.getMsgId(), got.getMsgId(), "the id");
        Run.equal(run.topic, got.getTopic(), "the topic");
        Run.equal(sent.getQueueOffset(), got.getQueueOffset(), "the queue offset");
        Run.equal(0, got.getReconsumeTimes(), "the times of reconsumption");
        Run.check(got.getStoreTimestamp() >= got.getBornTimestamp() - 1000, "stored before it was born");
        Run.check(got.getBornHostString().startsWith("127."), "born at " + got.getBornHostString());
    }

    private static void unicode(Run run) throws Exception {
        String text = "žluťoučký 消息 🚀 \u00e9";
        Message message = run.message(text);
        message.setKeys("ключ");
        message.setTags("日本");
        message.putUserProperty("名前", "zoë 🚀");
        DefaultMQProducer producer = run.producer();
        Run.accepted(producer.send(message));
        Run.accepted(producer.send(new Message(run.topic, "other", "x", bytes("other"))));
        Inbox inbox = run.inbox(run.group, "日本");
        inbox.expect(run, List.of(text));
        MessageExt got = inbox.all().get(0);
        Run.equal("ключ", got.getKeys(), "the key");
        Run.equal("zoë 🚀", got.getUserProperty("名前"), "a property");
        Run.until(() -> producer.queryMessage(run.topic, "ключ", 8, 0, Long.MAX_VALUE).getMessageList().size() == 1,
            "the message is found by its key");
    }

    private static void selector(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < 24; i++) {
            String body = "order-" + i % 6 + "-" + i / 6;
            SendResult result = Run.accepted(producer.send(run.message(body),
                (queues, message, id) -> queues.get((Integer) id % queues.size()), i % 6));
            Run.equal(i % 6 % 4, result.getMessageQueue().getQueueId(), "the chosen queue");
            bodies.add(body);
        }
        Inbox inbox = run.inbox();
        inbox.expect(run, bodies);
        for (MessageExt message : inbox.all()) {
            int id = Integer.parseInt(Inbox.body(message).split("-")[1]);
            Run.equal(id % 4, message.getQueueId(), "the queue of " + Inbox.body(message));
        }
    }

    private static void toQueue(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(run.topic);
        run.count("queues", queues.size());
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            MessageQueue queue = new MessageQueue(run.topic, "broker-a", 2);
            SendResult result = Run.accepted(producer.send(run.message("to-2-" + i), queue));
            Run.equal(queue, result.getMessageQueue(), "the queue");
            Run.equal((long) i, result.getQueueOffset(), "the offset");
            bodies.add("to-2-" + i);
        }
        Inbox inbox = run.inbox();
        inbox.expect(run, bodies);
        Run.equal(Set.of(2), inbox.byQueue().keySet(), "the queues of the messages");
    }

    private static void body(Run run, byte[] body, int count) throws Exception {
        DefaultMQProducer producer = run.producer();
        for (int i = 0; i < count; i++) {
            Run.accepted(producer.send(new Message(run.topic, body)));
        }
        Inbox inbox = run.inbox();
        Run.until(() -> inbox.size() >= count, "the message arrives");
        inbox.settle();
        for (MessageExt message : inbox.all()) {
            Run.check(Arrays.equals(body, message.getBody()), "another body of " + message.getBody().length);
        }
        run.count("received", inbox.size());
    }

    private static void delayLevel(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        Inbox inbox = run.inbox();
        producer.send(run.message("now"));
        Run.until(() -> inbox.size() == 1, "the consumer works");
        Message delayed = run.message("later");
        delayed.setDelayTimeLevel(5);
        long sent = System.currentTimeMillis();
        Run.accepted(producer.send(delayed));
        inbox.expect(run, List.of("now", "later"));
        long waited = inbox.time(1) - sent;
        Run.check(waited >= 1900, "delivered after " + waited + " ms instead of 2000");
        MessageExt got = inbox.all().get(1);
        Run.equal(run.topic, got.getTopic(), "the topic");
        Run.equal(5, got.getDelayTimeLevel(), "the level");
    }

    private static void timer(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        Inbox inbox = run.inbox();
        producer.send(run.message("now"));
        Run.until(() -> inbox.size() == 1, "the consumer works");
        long due = System.currentTimeMillis() + 2500;
        Message timed = run.message("timed");
        Release.deliverAt(timed, due);
        Run.accepted(producer.send(timed));
        Message soon = run.message("soon");
        Release.delay(soon, 1500);
        Run.accepted(producer.send(soon));
        inbox.expect(run, List.of("now", "soon", "timed"));
        Run.equal(List.of("now", "soon", "timed"), inbox.bodies(), "the order of delivery");
        long early = due - inbox.time(2);
        Run.check(early <= 1000, "delivered " + early + " ms too early");
        Run.equal(run.topic, inbox.all().get(2).getTopic(), "the topic");
    }

    private static void createTopic(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        String name = run.topic + "-made";
        Release.createTopic(producer, name, 3);
        Run.until(() -> queuesOf(producer, name) == 3, "the topic has its queues");
        Set<Integer> queues = new HashSet<>();
        for (int i = 0; i < 9; i++) {
            queues.add(Run.accepted(producer.send(new Message(name, bytes("x")))).getMessageQueue().getQueueId());
        }
        run.count("queues", queues.size());
    }

    private static int queuesOf(DefaultMQProducer producer, String topic) {
        try {
            return producer.fetchPublishMessageQueues(topic).size();
        } catch (MQClientException e) {
            return 0;
        }
    }

    private static void autoCreate(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        String name = run.topic + "-" + System.nanoTime();
        Set<Integer> queues = new HashSet<>();
        for (int i = 0; i < 8; i++) {
            SendResult result = Run.accepted(producer.send(new Message(name, bytes("first"))));
            queues.add(result.getMessageQueue().getQueueId());
        }
        run.count("queues", queues.size());
        Run.until(() -> queuesOf(producer, name) == 4, "the topic has a route");
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
