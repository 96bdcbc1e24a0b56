package org.mqlake.interop;

import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.ToIntFunction;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;

/** Reads and look-ups in a store that {@link PutBench} has written. */
final class ReadBench {
    private static final String TOPIC = BenchMessages.TOPIC;
    private static final int LIMIT = 32;

    private final DefaultMessageStore store;
    private final List<QueueRange> queues;
    private final long messages;
    private final long[] firstTimes;
    private final long[] lastTimes;
    private int queue;
    private long offset;
    private long bytes;
    private byte[] lastCopy;

    private ReadBench(DefaultMessageStore store) {
        this.store = store;
        this.queues = Release.queues(store).stream()
                .filter(range -> range.topic().equals(TOPIC) && range.max() > range.min()).toList();
        this.messages = queues.stream().mapToLong(range -> range.max() - range.min()).sum();
        if (messages == 0) {
            throw new IllegalArgumentException("there is no store written by put");
        }
        this.firstTimes = queues.stream().mapToLong(range -> storeTime(range, range.min())).toArray();
        this.lastTimes = queues.stream().mapToLong(range -> storeTime(range, range.max() - 1)).toArray();
    }

    static void run(String workload, Path directory, Options options, JsonObject line) throws Exception {
        StoreSession session = StoreSession.in(directory, options.settings("ASYNC")).open();
        ReadBench bench = new ReadBench(session.store());
        line.addProperty("storedMessages", bench.messages);
        switch (workload) {
            case "read" -> bench.read(options, line, bench::copy);
            case "readDecoded" -> bench.read(options, line, bench::decode);
            case "query" -> bench.lookUp(options, line, "queries", bench::query);
            case "queryDecoded" -> bench.lookUp(options, line, "queries", bench::queryDecoded);
            case "time" -> bench.lookUp(options, line, "lookups", bench::offsetByTime);
            default -> throw new IllegalArgumentException(workload);
        }
        line.addProperty("residentMb", Sampler.residentMb());
        session.shutdown();
    }

    /** One reader over all queues from the start, again and again until the bound is reached. */
    private void read(Options options, JsonObject line, ToIntFunction<ByteBuffer> take) throws Exception {
        Load load = new Load(1, LIMIT);
        rewind();
        load.run(Long.MAX_VALUE, options.warmupSeconds(), unused -> readBatch(take));
        rewind();
        bytes = 0;
        Load.Result result = load.run(options.count(), options.seconds(), unused -> readBatch(take));
        new Load.Result(result.done(), result.done(), result.nanos(), result.latency()).describe(line, "messages");
        line.addProperty("bytes", bytes);
        line.addProperty("lastBytes", lastCopy.length);
    }

    private void rewind() {
        queue = 0;
        offset = queues.get(0).min();
    }

    /** Copy a record out of the mapped file. */
    private int copy(ByteBuffer record) {
        lastCopy = new byte[record.remaining()];
        record.get(lastCopy);
        return lastCopy.length;
    }

    /** As RocketMQ's client does it, and with the body's CRC checked. */
    private int decode(ByteBuffer record) {
        int size = record.remaining();
        MessageExt message = MessageDecoder.decode(record, true, false);
        lastCopy = message.getBody();
        if (UtilAll.crc32(lastCopy) != message.getBodyCRC()) {
            throw new IllegalStateException("a damaged body at " + message.getCommitLogOffset());
        }
        return size;
    }

    private int readBatch(ToIntFunction<ByteBuffer> take) {
        QueueRange range = queues.get(queue);
        GetMessageResult result = store.getMessage("bench", TOPIC, range.queueId(), offset, LIMIT, null);
        int count = result.getMessageCount();
        for (ByteBuffer record : result.getMessageBufferList()) {
            bytes += take.applyAsInt(record);
        }
        offset = result.getNextBeginOffset();
        result.release();
        if (count == 0 || offset >= range.max()) {
            queue = (queue + 1) % queues.size();
            offset = queues.get(queue).min();
        }
        return count;
    }

    private long storeTime(QueueRange range, long position) {
        return store.getMessageStoreTimeStamp(TOPIC, range.queueId(), position);
    }

    private void lookUp(Options options, JsonObject line, String unit, Load.Step step) throws Exception {
        Load load = new Load(options.integer("threads", 1), 1);
        load.run(Long.MAX_VALUE, options.warmupSeconds(), step);
        load.run(options.count(), options.seconds(), step).describe(line, unit);
    }

    private int query(long unused) {
        String key = BenchMessages.key(ThreadLocalRandom.current().nextLong(messages));
        QueryMessageResult result = store.queryMessage(TOPIC, key, LIMIT, 0, Long.MAX_VALUE);
        boolean found = !result.getMessageBufferList().isEmpty();
        result.release();
        return found ? 1 : 0;
    }

    /** As RocketMQ's client does it: decode what the store found and keep what really has the key. */
    private int queryDecoded(long unused) {
        String key = BenchMessages.key(ThreadLocalRandom.current().nextLong(messages));
        QueryMessageResult result = store.queryMessage(TOPIC, key, LIMIT, 0, Long.MAX_VALUE);
        int found = 0;
        for (ByteBuffer record : result.getMessageBufferList()) {
            MessageExt message = MessageDecoder.decode(record, true, false);
            if (message != null && List.of(message.getKeys().split(" ")).contains(key)) {
                found++;
            }
        }
        result.release();
        return found > 0 ? 1 : 0;
    }

    private int offsetByTime(long number) {
        int chosen = (int) (number % queues.size());
        QueueRange range = queues.get(chosen);
        long time = ThreadLocalRandom.current().nextLong(firstTimes[chosen], lastTimes[chosen] + 1);
        long found = store.getOffsetInQueueByTime(TOPIC, range.queueId(), time);
        return found >= range.min() && found <= range.max() ? 1 : 0;
    }
}
