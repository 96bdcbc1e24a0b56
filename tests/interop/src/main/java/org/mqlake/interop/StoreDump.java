package org.mqlake.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.io.Writer;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** Everything a started store serves, as JSON lines: queues, log, keys, tags, in this order. */
final class StoreDump {
    private static final int QUERY_LIMIT = 64;
    private static final int MAGIC_V1 = 0xDAA320A7;
    private static final int MAGIC_V2 = 0xDAA320AB;
    private static final int MAGIC_BLANK = 0xCBD43194;
    private static final int PHYSICAL_OFFSET_POSITION = 28;

    private final Gson gson = new GsonBuilder().disableHtmlEscaping().create();
    private final DefaultMessageStore store;
    private final Writer out;
    private final TreeMap<String, TreeSet<String>> keys = new TreeMap<>();
    private final TreeMap<String, TreeSet<String>> tags = new TreeMap<>();

    StoreDump(DefaultMessageStore store, Writer out) {
        this.store = store;
        this.out = out;
    }

    /** The only line of a store that refused to load. */
    void refused() throws IOException {
        JsonObject line = line("store");
        line.addProperty("version", Release.VERSION);
        line.addProperty("load", false);
        write(line);
    }

    void all(Properties settings) throws IOException {
        List<QueueRange> queues = new ArrayList<>(Release.queues(store));
        queues.removeIf(queue -> queue.max() <= queue.min());
        queues.sort(Comparator.comparing(QueueRange::topic).thenComparing(QueueRange::queueId));
        header(settings, queues);
        for (QueueRange queue : queues) {
            messages(queue);
        }
        log();
        keys();
        tags();
    }

    private void header(Properties settings, List<QueueRange> queues) throws IOException {
        JsonObject line = line("store");
        line.addProperty("version", Release.VERSION);
        line.addProperty("load", true);
        line.addProperty("minPhyOffset", store.getMinPhyOffset());
        line.addProperty("maxPhyOffset", store.getMaxPhyOffset());
        JsonObject given = new JsonObject();
        new TreeSet<>(settings.stringPropertyNames()).forEach(name -> given.addProperty(name, settings.getProperty(name)));
        line.add("settings", given);
        JsonArray ranges = new JsonArray();
        for (QueueRange queue : queues) {
            JsonObject range = new JsonObject();
            range.addProperty("topic", queue.topic());
            range.addProperty("queueId", queue.queueId());
            range.addProperty("min", queue.min());
            range.addProperty("max", queue.max());
            ranges.add(range);
        }
        line.add("queues", ranges);
        write(line);
    }

    /** One line for each unit of a queue. */
    private void messages(QueueRange queue) throws IOException {
        long offset = queue.min();
        while (offset < queue.max()) {
            QueueUnit unit = Release.unitAt(store, queue.topic(), queue.queueId(), offset);
            message(queue, unit == null ? offset : unit.offset(), unit);
            offset = unit == null ? offset + 1 : Math.max(offset + 1, unit.offset() + unit.count());
        }
    }

    private void message(QueueRange queue, long offset, QueueUnit unit) throws IOException {
        GetMessageResult result = store.getMessage("oracle", queue.topic(), queue.queueId(), offset, 1, null);
        try {
            boolean found = unit != null && result != null && result.getStatus() == GetMessageStatus.FOUND;
            byte[] record = found ? bytes(result.getMessageBufferList().get(0)) : null;
            MessageExt message = found ? RecordJson.decode(record) : null;
            JsonObject line = line(message == null ? "unreadable" : "message");
            line.addProperty("cqTopic", queue.topic());
            line.addProperty("cqQueueId", queue.queueId());
            line.addProperty("cqOffset", offset);
            if (message == null) {
                line.addProperty("status", result == null ? "null" : result.getStatus().toString());
            } else {
                line.addProperty("tagsCode", unit.tagsCode());
                RecordJson.describe(line, message, record);
            }
            write(line);
        } finally {
            if (result != null) {
                result.release();
            }
        }
    }

    /** Walk the log from its first to its last byte; where a record is not valid, the walk ends. */
    private void log() throws IOException {
        long offset = store.getMinPhyOffset();
        long end = store.getMaxPhyOffset();
        while (offset < end) {
            int size = record(offset);
            if (size <= 0) {
                break;
            }
            offset += size;
        }
        JsonObject line = line("end");
        line.addProperty("physicalOffset", offset);
        write(line);
    }

    /** Write the line of what starts at an offset; return its size, 0 if nothing valid is there. */
    private int record(long offset) throws IOException {
        SelectMappedBufferResult data = store.getCommitLogData(offset);
        if (data == null) {
            return 0;
        }
        try {
            ByteBuffer buffer = data.getByteBuffer().slice();
            if (buffer.remaining() < 8) {
                return 0;
            }
            int size = buffer.getInt(0);
            int magic = buffer.getInt(4);
            if (magic == MAGIC_BLANK) {
                JsonObject line = line("blank");
                line.addProperty("physicalOffset", offset);
                line.addProperty("storeSize", size);
                write(line);
                return size;
            }
            boolean known = magic == MAGIC_V1 || magic == MAGIC_V2;
            if (!known || size <= 8 || size > buffer.remaining()) {
                return 0;
            }
            return record(bytes(buffer.slice(0, size))) ? size : 0;
        } finally {
            data.release();
        }
    }

    private boolean record(byte[] record) throws IOException {
        MessageExt message = RecordJson.decode(record);
        if (message == null) {
            return false;
        }
        JsonObject line = line("record");
        RecordJson.describe(line, message, record);
        write(line);
        rememberKeys(message);
        return true;
    }

    private void rememberKeys(MessageExt message) {
        String topic = message.getTopic();
        String unique = message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
        String listed = message.getKeys();
        String tag = message.getTags();
        add(keys, topic, unique);
        if (listed != null) {
            for (String key : listed.split(MessageConst.KEY_SEPARATOR)) {
                add(keys, topic, key);
            }
        }
        add(tags, topic, tag);
    }

    private static void add(TreeMap<String, TreeSet<String>> words, String topic, String word) {
        if (word != null && !word.isEmpty()) {
            words.computeIfAbsent(topic, unused -> new TreeSet<>()).add(word);
        }
    }

    private void keys() throws IOException {
        for (String topic : keys.keySet()) {
            for (String key : keys.get(topic)) {
                answer("key", topic, key, store.queryMessage(topic, key, QUERY_LIMIT, 0, Long.MAX_VALUE));
            }
        }
    }

    private void tags() throws IOException {
        for (String topic : tags.keySet()) {
            for (String tag : tags.get(topic)) {
                QueryMessageResult result = Release.queryTag(store, topic, tag, QUERY_LIMIT);
                if (result != null) {
                    answer("tag", topic, tag, result);
                }
            }
        }
    }

    private void answer(String kind, String topic, String key, QueryMessageResult result) throws IOException {
        JsonArray offsets = new JsonArray();
        result.getMessageBufferList().stream()
                .map(buffer -> buffer.getLong(PHYSICAL_OFFSET_POSITION)).sorted().forEach(offsets::add);
        result.release();
        JsonObject line = line(kind);
        line.addProperty("topic", topic);
        line.addProperty("key", key);
        line.add("offsets", offsets);
        write(line);
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }

    private static JsonObject line(String kind) {
        JsonObject line = new JsonObject();
        line.addProperty("kind", kind);
        return line;
    }

    private void write(JsonObject line) throws IOException {
        gson.toJson(line, out);
        out.write('\n');
    }
}
