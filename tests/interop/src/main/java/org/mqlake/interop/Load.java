package org.mqlake.interop;

import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;

/** Repeats a step on some threads until a count or a time is reached, and measures it. */
final class Load {
    /** One call of what is measured. */
    interface Step {
        /** Do numbers first to first + weight - 1; return how many of them succeeded. */
        int run(long first) throws Exception;
    }

    /** What a phase came to. */
    record Result(long done, long attempted, long nanos, Latency latency) {
        /** The figures as JSON fields; unit is what was counted, such as messages. */
        void describe(JsonObject line, String unit) {
            line.addProperty(unit, done);
            line.addProperty("failures", attempted - done);
            line.addProperty("seconds", round(nanos / 1e9));
            line.addProperty(unit + "PerSecond", Math.round(done / (nanos / 1e9)));
            line.addProperty("p50Micros", round(latency.micros(0.50)));
            line.addProperty("p99Micros", round(latency.micros(0.99)));
            line.addProperty("maxMicros", round(latency.maxMicros()));
        }
    }

    private final int threads;
    private final int weight;
    private final AtomicLong next = new AtomicLong();

    /** weight: how many numbers one step takes. Numbers go on from phase to phase. */
    Load(int threads, int weight) {
        this.threads = threads;
        this.weight = weight;
    }

    static double round(double value) {
        return Math.round(value * 1000) / 1000.0;
    }

    Result run(long count, double seconds, Step step) throws Exception {
        long from = next.get();
        long end = count > Long.MAX_VALUE - from ? Long.MAX_VALUE : from + count;
        long start = System.nanoTime();
        long deadline = start + (long) (seconds * 1e9);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<Result>> parts = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Callable<Result> part = () -> worker(end, deadline, step);
            parts.add(pool.submit(part));
        }
        long done = 0;
        long attempted = 0;
        Latency latency = new Latency();
        for (Future<Result> part : parts) {
            done += part.get().done();
            attempted += part.get().attempted();
            latency.addAll(part.get().latency());
        }
        long nanos = System.nanoTime() - start;
        pool.shutdown();
        next.set(from + attempted);
        return new Result(done, attempted, nanos, latency);
    }

    private Result worker(long end, long deadline, Step step) throws Exception {
        Latency latency = new Latency();
        long done = 0;
        long attempted = 0;
        long before = System.nanoTime();
        while (before - deadline < 0) {
            long first = next.getAndAdd(weight);
            if (first >= end) {
                break;
            }
            before = System.nanoTime();
            done += step.run(first);
            attempted += weight;
            latency.add(System.nanoTime() - before);
        }
        return new Result(done, attempted, 0, latency);
    }
}
