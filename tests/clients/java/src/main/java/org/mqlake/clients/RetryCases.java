package org.mqlake.clients;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Messages that a consumer refuses come again, and after the last time go to the dead letters. */
final class RetryCases {
    private RetryCases() {
    }

    static void register(Map<String, Case> cases) {
        cases.put("retry-later", RetryCases::later);
        cases.put("retry-levels", RetryCases::levels);
        cases.put("retry-dlq", RetryCases::deadLetter);
    }

    private static void later(Run run) throws Exception {
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.subscribe(run.topic, "*");
        consumer.registerMessageListener(
            inbox.concurrently(m -> !Inbox.body(m).startsWith("bad") || m.getReconsumeTimes() >= 2, 0));
        consumer.start();
        DefaultMQProducer producer = run.producer();
        List<String> bodies = new ArrayList<>(run.send(producer, "good-", 4));
        bodies.addAll(run.send(producer, "bad-", 2));
        bodies.addAll(List.of("bad-0", "bad-0", "bad-1", "bad-1"));
        inbox.expect(run, bodies);
        List<Integer> times = new ArrayList<>();
        for (MessageExt message : inbox.all()) {
            if (Inbox.body(message).equals("bad-1")) {
                times.add(message.getReconsumeTimes());
                Run.equal(run.topic, message.getTopic(), "the topic of a retried message");
            }
        }
        Collections.sort(times);
        Run.equal(List.of(0, 1, 2), times, "the times of reconsumption");
        Run.equal(1L, inbox.all().stream().filter(m -> Inbox.body(m).equals("bad-0")).map(MessageExt::getMsgId)
            .distinct().count(), "the ids of a retried message");
    }

    private static void levels(Run run) throws Exception {
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.subscribe(run.topic, "*");
        consumer.registerMessageListener(inbox.concurrently(m -> m.getReconsumeTimes() >= 1, 5));
        consumer.start();
        run.send(run.producer(), "wait-", 1);
        inbox.expect(run, List.of("wait-0", "wait-0"));
        long waited = inbox.time(1) - inbox.time(0);
        Run.check(waited >= 1800, "retried after " + waited + " ms instead of 2000");
    }

    private static void deadLetter(Run run) throws Exception {
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.subscribe(run.topic, "*");
        consumer.setMaxReconsumeTimes(2);
        consumer.registerMessageListener(inbox.concurrently(m -> false, 0));
        consumer.start();
        List<String> sent = run.send(run.producer(), "dead-", 2);
        List<String> tried = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            tried.addAll(sent);
        }
        inbox.expect(run, tried);
        String dead = "%DLQ%" + run.group;
        DefaultMQAdminExt admin = run.admin();
        Release.makeReadable(admin, dead);
        Inbox letters = new Inbox();
        DefaultMQPushConsumer reader = run.push(run.group + "-reader");
        reader.subscribe(dead, "*");
        reader.registerMessageListener(letters.concurrently());
        reader.start();
        letters.expect(run, sent);
        for (MessageExt letter : letters.all()) {
            Run.equal(run.topic, letter.getProperty("RETRY_TOPIC"), "the topic it came from");
        }
        run.count("dead", letters.size());
        run.count("received", inbox.size());
    }
}
