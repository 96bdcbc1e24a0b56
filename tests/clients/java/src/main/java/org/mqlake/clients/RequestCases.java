package org.mqlake.clients;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests that a consumer replies to. */
final class RequestCases {
    private RequestCases() {
    }

    static void register(Map<String, Case> cases) {
        cases.put("request-reply", RequestCases::reply);
        cases.put("request-async", RequestCases::async);
        cases.put("request-timeout", RequestCases::timeout);
    }

    private static void replier(Run run, DefaultMQProducer producer) throws Exception {
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.subscribe(run.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (some, context) -> {
            for (MessageExt message : some) {
                try {
                    Message reply = MessageUtil.createReplyMessage(message,
                        SendCases.bytes("re: " + Inbox.body(message)));
                    producer.send(reply, 10_000);
                } catch (Exception e) {
                    System.err.println("reply: " + e);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Run.until(() -> !consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().isEmpty(),
            "the replier has queues");
    }

    private static void reply(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        replier(run, run.producer());
        for (int i = 0; i < 5; i++) {
            Message reply = producer.request(run.message("question " + i), 20_000);
            Run.equal("re: question " + i, new String(reply.getBody(), "UTF-8"), "the reply");
        }
        run.count("replies", 5);
    }

    private static void async(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        replier(run, run.producer());
        for (int i = 0; i < 5; i++) {
            CompletableFuture<String> answer = new CompletableFuture<>();
            producer.request(run.message("question " + i), new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    answer.complete(new String(reply.getBody(), java.nio.charset.StandardCharsets.UTF_8));
                }

                @Override
                public void onException(Throwable e) {
                    answer.completeExceptionally(e);
                }
            }, 20_000);
            Run.equal("re: question " + i, answer.get(30, TimeUnit.SECONDS), "the reply");
        }
        run.count("replies", 5);
    }

    private static void timeout(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        Inbox inbox = run.inbox();
        try {
            producer.request(run.message("nobody answers"), 1500);
            throw new AssertionError("a request without a reply was answered");
        } catch (RequestTimeoutException e) {
            run.count("timeouts", 1);
        }
        inbox.expect(run, java.util.List.of("nobody answers"));
    }
}
