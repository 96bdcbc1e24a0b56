package org.mqlake.clients;

import com.google.gson.Gson;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Clients that keep working while their broker is replaced: {@code Load NAME_SERVER PREFIX}.
 *
 * Lines on the input: {@code counts} says how much was accepted and received so far; {@code end} stops the senders,
 * waits for what is under way, and says what is missing, repeated or out of order.
 * Topics: PREFIX-plain, PREFIX-ordered (one sender a queue, orderly consumer), PREFIX-delayed, PREFIX-tx.
 */
public final class Load {
    private static final int QUEUES = 4;
    private final Run run;
    private final String prefix;
    private volatile boolean sending = true;
    private final Map<String, Set<String>> accepted = new ConcurrentHashMap<>();
    private final Map<String, Set<String>> unsure = new ConcurrentHashMap<>();
    private final Map<String, Inbox> inboxes = new TreeMap<>();
    private final AtomicLong failures = new AtomicLong();
    private final Set<String> rolledBack = ConcurrentHashMap.newKeySet();
    private final List<Thread> senders = new ArrayList<>();

    private Load(Run run, String prefix) {
        this.run = run;
        this.prefix = prefix;
    }

    public static void main(String[] args) throws Exception {
        Load load = new Load(new Run(args[0], args[1], "load"), args[1]);
        load.start();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(new Gson().toJson(line.equals("end") ? load.end() : load.counts()));
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private String topic(String kind) {
        return prefix + "-" + kind;
    }

    private void start() throws Exception {
        for (String kind : List.of("plain", "ordered", "delayed", "tx")) {
            accepted.put(kind, ConcurrentHashMap.newKeySet());
            unsure.put(kind, ConcurrentHashMap.newKeySet());
            Inbox inbox = new Inbox();
            inboxes.put(kind, inbox);
            DefaultMQPushConsumer consumer = run.push(topic(kind) + "-group");
            consumer.subscribe(topic(kind), "*");
            if (kind.equals("ordered")) {
                consumer.registerMessageListener(inbox.orderly());
            } else {
                consumer.registerMessageListener(inbox.concurrently());
            }
            consumer.start();
        }
        DefaultMQProducer producer = run.producer();
        producer.setSendMsgTimeout(3000);
        producer.setRetryTimesWhenSendFailed(0);
        AtomicInteger plain = new AtomicInteger();
        sender("plain", () -> {
            String body = "plain-" + plain.getAndIncrement();
            return new Attempt(body, () -> producer.send(message("plain", body)).getSendStatus());
        }, 5);
        for (int queue = 0; queue < QUEUES; queue++) {
            MessageQueue target = new MessageQueue(topic("ordered"), "broker-a", queue);
            AtomicInteger next = new AtomicInteger();
            sender("ordered", () -> {
                String body = target.getQueueId() + "/" + String.format("%08d", next.getAndIncrement());
                return new Attempt(body, () -> producer.send(message("ordered", body), target).getSendStatus());
            }, 20);
        }
        AtomicInteger delayed = new AtomicInteger();
        sender("delayed", () -> {
            String body = "delayed-" + delayed.getAndIncrement();
            Message message = message("delayed", body);
            message.setDelayTimeLevel(6);
            return new Attempt(body, () -> producer.send(message).getSendStatus());
        }, 50);
        transactions();
    }

    private void transactions() throws Exception {
        TransactionMQProducer producer = run.configured(new TransactionMQProducer(prefix + "-tx-producer"));
        producer.setSendMsgTimeout(3000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                int number = Integer.parseInt(message.getUserProperty("number"));
                return number % 3 == 2 ? LocalTransactionState.UNKNOW : decision(number);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return decision(Integer.parseInt(message.getUserProperty("number")));
            }
        });
        producer.start();
        AtomicInteger next = new AtomicInteger();
        sender("tx", () -> {
            int number = next.getAndIncrement();
            String body = "tx-" + number;
            Message message = message("tx", body);
            message.putUserProperty("number", "" + number);
            if (decision(number) == LocalTransactionState.ROLLBACK_MESSAGE) {
                rolledBack.add(body);
            }
            return new Attempt(body, () -> producer.sendMessageInTransaction(message, null).getSendStatus());
        }, 50);
    }

    private static LocalTransactionState decision(int number) {
        return number % 4 == 1 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
    }

    private Message message(String kind, String body) {
        return new Message(topic(kind), body.getBytes(StandardCharsets.UTF_8));
    }

    private interface Send {
        SendStatus call() throws Exception;
    }

    private record Attempt(String body, Send send) {
    }

    private void sender(String kind, java.util.function.Supplier<Attempt> next, long pause) {
        Thread thread = new Thread(() -> {
            while (sending) {
                Attempt attempt = next.get();
                try {
                    SendStatus status = attempt.send().call();
                    (status == SendStatus.SEND_OK ? accepted : unsure).get(kind).add(attempt.body());
                    Thread.sleep(pause);
                } catch (Exception e) {
                    unsure.get(kind).add(attempt.body());
                    failures.incrementAndGet();
                    try {
                        Thread.sleep(100);
                    } catch (InterruptedException stopped) {
                        return;
                    }
                }
            }
        });
        thread.start();
        senders.add(thread);
    }

    private Map<String, Object> counts() {
        Map<String, Object> counts = new LinkedHashMap<>();
        counts.put("failures", failures.get());
        inboxes.forEach((kind, inbox) -> {
            counts.put("accepted " + kind, accepted.get(kind).size());
            counts.put("received " + kind, inbox.size());
        });
        return counts;
    }

    private Set<String> missing(String kind) {
        Set<String> missing = new HashSet<>(accepted.get(kind));
        missing.removeAll(rolledBack);
        missing.removeAll(new HashSet<>(inboxes.get(kind).bodies()));
        return missing;
    }

    private Map<String, Object> end() throws Exception {
        sending = false;
        for (Thread thread : senders) {
            thread.join();
        }
        long end = System.currentTimeMillis() + Run.PATIENCE_MS;
        while (System.currentTimeMillis() < end
            && inboxes.keySet().stream().anyMatch(kind -> !missing(kind).isEmpty())) {
            Thread.sleep(100);
        }
        Map<String, Object> report = counts();
        for (String kind : inboxes.keySet()) {
            List<String> bodies = inboxes.get(kind).bodies();
            Set<String> distinct = new HashSet<>(bodies);
            report.put("missing " + kind, new ArrayList<>(missing(kind)).subList(0, Math.min(10, missing(kind).size())));
            report.put("repeated " + kind, bodies.size() - distinct.size());
            Set<String> never = new HashSet<>(distinct);
            never.removeAll(accepted.get(kind));
            never.removeAll(unsure.get(kind));
            report.put("unknown " + kind, never.size());
            report.put("unsure " + kind, unsure.get(kind).size());
        }
        Set<String> wrong = new HashSet<>(inboxes.get("tx").bodies());
        wrong.retainAll(rolledBack);
        report.put("rolled back but delivered", wrong.size());
        report.put("misordered", misordered());
        return report;
    }

    /** Messages of a queue that came after a later one for the first time. */
    private int misordered() {
        int count = 0;
        for (List<String> bodies : inboxes.get("ordered").byQueue().values()) {
            Set<String> seen = new HashSet<>();
            String last = "";
            for (String body : bodies) {
                if (seen.add(body)) {
                    count += body.compareTo(last) < 0 ? 1 : 0;
                    last = body;
                }
            }
        }
        return count;
    }
}
