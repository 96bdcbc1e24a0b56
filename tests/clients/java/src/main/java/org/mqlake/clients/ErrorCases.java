package org.mqlake.clients;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Refusals: the client gets RocketMQ's code, and goes on working on the same connection. */
@SuppressWarnings("deprecation")
final class ErrorCases {
    private ErrorCases() {
    }

    static void register(Map<String, Case> cases) {
        cases.put("oversize", ErrorCases::oversize);
        cases.put("queue-id-invalid", ErrorCases::queueIdInvalid);
        cases.put("filter-sql-invalid", ErrorCases::sqlInvalid);
        cases.put("topic-no-route", ErrorCases::noRoute);
        cases.put("topic-no-inherit", ErrorCases::noInherit);
        cases.put("no-permission-write", ErrorCases::noWrite);
        cases.put("no-permission-read", ErrorCases::noRead);
        cases.put("properties-too-long", ErrorCases::longProperties);
        cases.put("topic-illegal", ErrorCases::illegalTopic);
    }

    /** The response code with which a call fails. */
    private static int code(Callable<?> call) throws Exception {
        try {
            Object result = call.call();
            throw new AssertionError("accepted: " + result);
        } catch (MQBrokerException e) {
            return e.getResponseCode();
        } catch (MQClientException e) {
            if (e.getCause() instanceof MQBrokerException) {
                return ((MQBrokerException) e.getCause()).getResponseCode();
            }
            return e.getResponseCode();
        }
    }

    private static void stillWorks(Run run, DefaultMQProducer producer) throws Exception {
        List<String> bodies = run.send(producer, "after-", 4);
        run.inbox().expect(run, bodies);
    }

    private static void oversize(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        producer.setMaxMessageSize(8 << 20);
        producer.setCompressMsgBodyOverHowmuch(16 << 20);
        run.count("code", code(() -> producer.send(new Message(run.topic, Run.noise((4 << 20) + 1)))));
        stillWorks(run, producer);
    }

    private static void queueIdInvalid(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        MessageQueue none = new MessageQueue(run.topic, "broker-a", 99);
        run.count("code", code(() -> producer.send(run.message("x"), none)));
        DefaultMQPullConsumer puller = run.configured(new DefaultMQPullConsumer(run.group + "-puller"));
        puller.start();
        run.atEnd(puller::shutdown);
        run.count("pull code", code(() -> puller.pull(none, "*", 0, 1)));
        stillWorks(run, producer);
    }

    private static void sqlInvalid(Run run) throws Exception {
        run.send(run.producer(), "m-", 2);
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.subscribe(run.topic, MessageSelector.bySql("number BETWEEN AND 3"));
        consumer.registerMessageListener(new Inbox().concurrently());
        try {
            consumer.start();
            throw new AssertionError("a consumer with bad SQL started");
        } catch (MQClientException e) {
            run.count("code", e.getResponseCode());
        }
    }

    private static void noRoute(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        try {
            producer.fetchPublishMessageQueues(run.topic + "-unknown");
            throw new AssertionError("an unknown topic has queues");
        } catch (MQClientException e) {
            run.count("error", e.getErrorMessage().startsWith("Can not find Message Queue for this topic"));
        }
    }

    /** The template of the new topic may not be inherited: it is not made. */
    private static void noInherit(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        Run.accepted(producer.send(run.message("the template exists")));
        producer.setCreateTopicKey(run.topic);
        producer.setRetryTimesWhenSendFailed(0);
        run.count("code", code(() -> producer.send(new Message(run.topic + "-unknown", SendCases.bytes("x")))));
    }

    private static void noWrite(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<String> bodies = run.send(producer, "before-", 4);
        DefaultMQAdminExt admin = run.admin();
        Release.permit(admin, run.topic, 4);
        DefaultMQProducer late = run.producer();
        run.count("code", code(() -> late.send(run.message("x"))));
        run.inbox().expect(run, bodies);
        Release.permit(admin, run.topic, 6);
        Run.accepted(run.producer().send(run.message("again")));
    }

    private static void noRead(Run run) throws Exception {
        List<String> bodies = new ArrayList<>(run.send(run.producer(), "before-", 4));
        DefaultMQPullConsumer puller = PullCases.puller(run);
        MessageQueue queue = new MessageQueue(run.topic, "broker-a", 0);
        puller.pull(queue, "*", 0, 1);
        DefaultMQAdminExt admin = run.admin();
        Release.permit(admin, run.topic, 2);
        run.count("code", code(() -> puller.pull(queue, "*", 0, 1)));
        Release.permit(admin, run.topic, 6);
        run.inbox(run.group + "-2", "*").expect(run, bodies);
    }

    private static void longProperties(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        Message message = run.message("x");
        message.putUserProperty("long", "y".repeat(33_000));
        run.count("code", code(() -> producer.send(message)));
        stillWorks(run, producer);
    }

    private static void illegalTopic(Run run) throws Exception {
        DefaultMQAdminExt admin = run.admin();
        run.count("code", code(() -> {
            Release.createOn(admin, "127.0.0.1:" + broker(run), "no blanks allowed");
            return null;
        }));
    }

    private static String broker(Run run) throws Exception {
        String address = run.admin().examineTopicRouteInfo(run.topic).getBrokerDatas().get(0).selectBrokerAddr();
        return address.substring(address.indexOf(':') + 1);
    }
}
