package org.mqlake.clients;

import com.google.gson.Gson;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Measures a broker with this client: {@code Bench NAME_SERVER TOPIC WORKLOAD COUNT [THREADS]}, one JSON line.
 *
 * Workloads: {@code sync} (COUNT sends by THREADS), {@code async} (a window of 256), {@code batch} (of 32),
 * {@code drain} (COUNT messages are sent, then consumed), {@code latency} (COUNT messages, one at a time, to an idle
 * long-polling consumer). Each begins with a warm-up that is not measured.
 */
public final class Bench {
    private static final byte[] BODY = Run.text(1024);
    private final Run run;
    private final String topic;
    private final int threads;

    private Bench(Run run, String topic, int threads) {
        this.run = run;
        this.topic = topic;
        this.threads = threads;
    }

    public static void main(String[] args) {
        int status = 1;
        try {
            System.out.println(new Gson().toJson(measured(args)));
            System.out.flush();
            status = 0;
        } catch (Throwable e) {
            e.printStackTrace();
        }
        Runtime.getRuntime().halt(status); // the clients' threads would keep the process
    }

    private static Map<String, Object> measured(String[] args) throws Exception {
        int count = Integer.parseInt(args[3]);
        int threads = args.length > 4 ? Integer.parseInt(args[4]) : 1;
        Bench bench = new Bench(new Run(args[0], "bench", args[1]), args[1], threads);
        return switch (args[2]) {
            case "sync" -> bench.sync(count);
            case "async" -> bench.async(count);
            case "batch" -> bench.batch(count);
            case "drain" -> bench.drain(count);
            case "latency" -> bench.latency(count);
            default -> throw new IllegalArgumentException(args[2]);
        };
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = run.producer();
        producer.setCompressMsgBodyOverHowmuch(1 << 20);
        return producer;
    }

    private Message message() {
        return new Message(topic, BODY);
    }

    private static Map<String, Object> rate(int count, long nanos) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("count", count);
        result.put("perSecond", count * 1e9 / nanos);
        return result;
    }

    private static void percentiles(Map<String, Object> result, long[] nanos, int count) {
        long[] sorted = Arrays.copyOf(nanos, count);
        Arrays.sort(sorted);
        result.put("p50Ms", sorted[count / 2] / 1e6);
        result.put("p99Ms", sorted[Math.min(count - 1, count * 99 / 100)] / 1e6);
    }

    private Map<String, Object> sync(int count) throws Exception {
        DefaultMQProducer producer = producer();
        syncRound(producer, Math.max(threads, count / 4), new long[count]);
        long[] latencies = new long[count];
        long nanos = syncRound(producer, count, latencies);
        Map<String, Object> result = rate(count, nanos);
        percentiles(result, latencies, count);
        return result;
    }

    private long syncRound(DefaultMQProducer producer, int count, long[] latencies) throws Exception {
        AtomicInteger next = new AtomicInteger();
        AtomicLong failed = new AtomicLong();
        List<Thread> running = new ArrayList<>();
        long start = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                for (int number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                    long before = System.nanoTime();
                    try {
                        Run.accepted(producer.send(message()));
                    } catch (Exception | AssertionError e) {
                        failed.incrementAndGet();
                    }
                    latencies[number] = System.nanoTime() - before;
                }
            });
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        long nanos = System.nanoTime() - start;
        Run.equal(0L, failed.get(), "sends that failed");
        return nanos;
    }

    private Map<String, Object> async(int count) throws Exception {
        DefaultMQProducer producer = producer();
        asyncRound(producer, count / 4);
        return rate(count, asyncRound(producer, count));
    }

    private long asyncRound(DefaultMQProducer producer, int count) throws Exception {
        Semaphore window = new Semaphore(256);
        AtomicLong failed = new AtomicLong();
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            window.acquire();
            producer.send(message(), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    window.release();
                }

                @Override
                public void onException(Throwable e) {
                    failed.incrementAndGet();
                    window.release();
                }
            });
        }
        window.acquire(256);
        long nanos = System.nanoTime() - start;
        Run.equal(0L, failed.get(), "sends that failed");
        return nanos;
    }

    private Map<String, Object> batch(int count) throws Exception {
        DefaultMQProducer producer = producer();
        batchRound(producer, count / 4);
        return rate(count, batchRound(producer, count));
    }

    private long batchRound(DefaultMQProducer producer, int count) throws Exception {
        long start = System.nanoTime();
        for (int sent = 0; sent < count; sent += 32) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < Math.min(32, count - sent); i++) {
                batch.add(message());
            }
            Run.accepted(producer.send(batch));
        }
        return System.nanoTime() - start;
    }

    private Map<String, Object> drain(int count) throws Exception {
        batchRound(producer(), count);
        AtomicInteger got = new AtomicInteger();
        AtomicLong first = new AtomicLong();
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.setConsumeThreadMax(8);
        consumer.setConsumeThreadMin(8);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (some, context) -> {
            first.compareAndSet(0, System.nanoTime());
            got.addAndGet(some.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (got.get() < count) {
            Thread.sleep(1);
        }
        long nanos = System.nanoTime() - first.get();
        consumer.shutdown(); // commits, so that a second run finds its own messages only
        return rate(count, nanos);
    }

    /** From the send to the listener's call. Nothing spins: the client shares the processors with the server. */
    private Map<String, Object> latency(int count) throws Exception {
        int warmUp = 1000; // the JVMs compile what they need
        long[] latencies = new long[count];
        ArrayBlockingQueue<Long> arrived = new ArrayBlockingQueue<>(64);
        DefaultMQPushConsumer consumer = run.push(run.group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (some, context) -> {
            long now = System.nanoTime();
            for (int i = 0; i < some.size(); i++) {
                arrived.add(now);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = producer();
        for (int i = -warmUp; i < count; i++) {
            Thread.sleep(5);
            long start = System.nanoTime();
            producer.send(message());
            long nanos = arrived.take() - start;
            if (i >= 0) {
                latencies[i] = nanos;
            }
        }
        Map<String, Object> result = new LinkedHashMap<>();
        percentiles(result, latencies, count);
        return result;
    }
}
