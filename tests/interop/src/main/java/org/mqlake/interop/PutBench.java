package org.mqlake.interop;

import com.google.gson.JsonObject;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;

/** Puts into a new store, one message a call or a client batch a call. */
final class PutBench {
    private final DefaultMessageStore store;
    private final BenchMessages messages;
    private final int batch;

    private PutBench(DefaultMessageStore store, BenchMessages messages, int batch) {
        this.store = store;
        this.messages = messages;
        this.batch = batch;
    }

    /** batch 0: single messages. */
    static void run(Path directory, Options options, String flush, int batch, JsonObject line) throws Exception {
        if (Files.exists(directory.resolve("commitlog"))) {
            throw new IllegalArgumentException("there is a store already");
        }
        Files.createDirectories(directory);
        int threads = options.integer("threads", 1);
        int body = options.integer("body", 1024);
        line.addProperty("threads", threads);
        line.addProperty("body", body);
        line.addProperty("batch", Math.max(1, batch));
        line.addProperty("flush", options.text("flush", flush));
        StoreSession session = StoreSession.in(directory, options.settings(flush)).open();
        PutBench bench = new PutBench(session.store(), new BenchMessages(body, batch), batch);
        bench.measure(session, options, threads, line);
        session.shutdown();
    }

    private void measure(StoreSession session, Options options, int threads, JsonObject line) throws Exception {
        Load load = new Load(threads, Math.max(1, batch));
        Load.Step step = batch == 0 ? this::putSingle : this::putBatch;
        Load.Result warmup = load.run(Long.MAX_VALUE, options.warmupSeconds(), step);
        session.awaitDispatch();
        long start = System.nanoTime();
        try (Sampler sampler = new Sampler(store)) {
            Load.Result result = load.run(options.count(), options.seconds(), step);
            session.awaitDispatch();
            double dispatched = (System.nanoTime() - start) / 1e9;
            result.describe(line, "messages");
            line.addProperty("dispatchedMessagesPerSecond", Math.round(result.done() / dispatched));
            line.addProperty("maxDispatchLagBytes", sampler.maxLagBytes());
            line.addProperty("residentMb", Sampler.residentMb());
            line.addProperty("maxResidentMb", sampler.maxResidentMb());
        }
        line.addProperty("warmupMessages", warmup.done());
    }

    private int putSingle(long number) throws InterruptedException {
        return stored(store.putMessage(messages.single(number)), 1);
    }

    private int putBatch(long first) throws InterruptedException {
        return stored(store.putMessages(messages.batch(first)), batch);
    }

    /** A busy store gets a moment of rest, as from a client that backs off. */
    private static int stored(PutMessageResult result, int count) throws InterruptedException {
        if (result.getPutMessageStatus() == PutMessageStatus.PUT_OK) {
            return count;
        }
        Thread.sleep(1);
        return 0;
    }
}
