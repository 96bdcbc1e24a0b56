package org.mqlake.clients;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Transactions: decided at once, or asked for by the broker. */
final class TransactionCases {
    private TransactionCases() {
    }

    static void register(Map<String, Case> cases) {
        cases.put("tx-commit", run -> decided(run, LocalTransactionState.COMMIT_MESSAGE));
        cases.put("tx-rollback", run -> decided(run, LocalTransactionState.ROLLBACK_MESSAGE));
        cases.put("tx-check-commit", run -> checked(run, LocalTransactionState.COMMIT_MESSAGE));
        cases.put("tx-check-rollback", run -> checked(run, LocalTransactionState.ROLLBACK_MESSAGE));
        cases.put("tx-mixed", TransactionCases::mixed);
    }

    /** Answers with the state that a message names, first and when asked. */
    private static final class Listener implements TransactionListener {
        final Map<String, Integer> asked = new ConcurrentHashMap<>();
        final AtomicInteger executed = new AtomicInteger();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            executed.incrementAndGet();
            return LocalTransactionState.valueOf(message.getUserProperty("first"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            int times = asked.merge(Inbox.body(message), 1, Integer::sum);
            if (times <= Integer.parseInt(message.getUserProperty("unknown"))) {
                return LocalTransactionState.UNKNOW;
            }
            return LocalTransactionState.valueOf(message.getUserProperty("then"));
        }
    }

    private static TransactionMQProducer producer(Run run, Listener listener) throws Exception {
        TransactionMQProducer producer = run.configured(new TransactionMQProducer(run.group + "-tx"));
        producer.setSendMsgTimeout(20_000);
        producer.setTransactionListener(listener);
        producer.start();
        run.atEnd(producer::shutdown);
        return producer;
    }

    private static void send(Run run, TransactionMQProducer producer, String body, LocalTransactionState first,
        LocalTransactionState then, int unknown) throws Exception {
        Message message = run.message(body);
        message.setKeys("key-" + body);
        message.putUserProperty("first", first.name());
        message.putUserProperty("then", then.name());
        message.putUserProperty("unknown", "" + unknown);
        TransactionSendResult result = producer.sendMessageInTransaction(message, null);
        Run.accepted(result);
        Run.equal(first, result.getLocalTransactionState(), "the state of a transaction");
    }

    private static void decided(Run run, LocalTransactionState state) throws Exception {
        Listener listener = new Listener();
        TransactionMQProducer producer = producer(run, listener);
        Inbox inbox = run.inbox();
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            send(run, producer, "tx-" + i, state, state, 0);
            bodies.add("tx-" + i);
        }
        Run.accepted(producer.send(run.message("plain")));
        if (state == LocalTransactionState.ROLLBACK_MESSAGE) {
            bodies.clear();
        }
        bodies.add("plain");
        inbox.expect(run, bodies);
        Thread.sleep(2500);
        inbox.expect(run, bodies);
        for (MessageExt message : inbox.all()) {
            if (!Inbox.body(message).equals("plain")) {
                Run.equal(run.topic, message.getTopic(), "the topic");
                Run.equal("key-" + Inbox.body(message), message.getKeys(), "the key");
            }
        }
        run.count("executed", listener.executed.get());
        run.count("asked", listener.asked.size());
    }

    private static void checked(Run run, LocalTransactionState then) throws Exception {
        Listener listener = new Listener();
        TransactionMQProducer producer = producer(run, listener);
        Inbox inbox = run.inbox();
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            send(run, producer, "tx-" + i, LocalTransactionState.UNKNOW, then, i % 2);
            bodies.add("tx-" + i);
        }
        Run.until(() -> listener.asked.size() == 3, "the broker asks about each");
        inbox.expect(run, then == LocalTransactionState.COMMIT_MESSAGE ? bodies : List.of());
        Run.until(() -> listener.asked.get("tx-1") >= 2, "the broker asks again");
        if (then == LocalTransactionState.ROLLBACK_MESSAGE) {
            Thread.sleep(2000);
            inbox.expect(run, List.of());
        }
        run.count("asked", listener.asked.size());
    }

    private static void mixed(Run run) throws Exception {
        Listener listener = new Listener();
        TransactionMQProducer producer = producer(run, listener);
        Inbox inbox = run.inbox();
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            LocalTransactionState first = LocalTransactionState.values()[i % 3];
            LocalTransactionState then = LocalTransactionState.values()[i / 3 % 2];
            send(run, producer, "tx-" + i, first, then, 0);
            LocalTransactionState last = first == LocalTransactionState.UNKNOW ? then : first;
            if (last == LocalTransactionState.COMMIT_MESSAGE) {
                bodies.add("tx-" + i);
            }
        }
        Run.until(() -> listener.asked.size() == 4, "the broker asks about the undecided");
        inbox.expect(run, bodies);
        run.count("asked", listener.asked.size());
    }
}
