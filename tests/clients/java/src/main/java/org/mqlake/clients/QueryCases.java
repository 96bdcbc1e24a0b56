package org.mqlake.clients;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages found again by key, by unique id, by offset id and by time. */
final class QueryCases {
    private QueryCases() {
    }

    static void register(Map<String, Case> cases) {
        cases.put("query-key", QueryCases::key);
        cases.put("query-unique-id", QueryCases::uniqueId);
        cases.put("view-offset-id", QueryCases::offsetId);
    }

    private static List<String> found(DefaultMQProducer producer, Run run, String key, int limit, long from, long to)
        throws Exception {
        try {
            QueryResult result = producer.queryMessage(run.topic, key, limit, from, to);
            List<String> bodies = new ArrayList<>();
            result.getMessageList().forEach(message -> bodies.add(Inbox.body(message)));
            Collections.sort(bodies);
            return bodies;
        } catch (MQClientException e) {
            Run.check(e.getErrorMessage().contains("query message by key finished, but no message"),
                "another error: " + e);
            return List.of();
        }
    }

    private static void key(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        long before = System.currentTimeMillis();
        for (int i = 0; i < 6; i++) {
            Message message = run.message("m" + i);
            message.setKeys(List.of("all", "third" + i % 3));
            Run.accepted(producer.send(message));
        }
        long after = System.currentTimeMillis() + 60_000;
        Run.until(() -> found(producer, run, "all", 32, before - 1000, after).size() == 6, "all are indexed");
        Run.equal(List.of("m1", "m4"), found(producer, run, "third1", 32, before - 1000, after), "by one key");
        Run.equal(2, found(producer, run, "all", 2, before - 1000, after).size(), "no more than asked for");
        Run.equal(List.of(), found(producer, run, "nobody", 32, before - 1000, after), "by an unknown key");
        Run.equal(List.of(), found(producer, run, "all", 32, before - 100_000, before - 50_000), "in another time");
        run.count("found", 6);
    }

    private static void uniqueId(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<SendResult> sent = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            sent.add(Run.accepted(producer.send(run.message("m" + i))));
        }
        Run.until(() -> {
            try {
                return producer.viewMessage(run.topic, sent.get(2).getMsgId()) != null;
            } catch (MQClientException e) {
                return false;
            }
        }, "the last is indexed");
        for (int i = 0; i < 3; i++) {
            MessageExt got = producer.viewMessage(run.topic, sent.get(i).getMsgId());
            Run.equal("m" + i, Inbox.body(got), "the body of " + sent.get(i).getMsgId());
            Run.equal(sent.get(i).getQueueOffset(), got.getQueueOffset(), "the queue offset");
            Run.equal(run.topic, got.getTopic(), "the topic");
        }
        run.count("found", sent.size());
    }

    private static void offsetId(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        SendResult sent = Run.accepted(producer.send(run.message("by offset id")));
        MessageExt got = producer.viewMessage(run.topic, sent.getOffsetMsgId());
        Run.equal("by offset id", Inbox.body(got), "the body");
        Run.equal(sent.getMsgId(), got.getMsgId(), "the id");
        Run.equal(sent.getMessageQueue().getQueueId(), got.getQueueId(), "the queue");
        String broken = sent.getOffsetMsgId().substring(0, 16) + "00000000FFFFFFF0";
        try {
            MessageExt none = producer.viewMessage(run.topic, broken);
            throw new AssertionError("found " + none);
        } catch (MQClientException | org.apache.rocketmq.client.exception.MQBrokerException e) {
            run.count("found", 1);
        }
    }
}
