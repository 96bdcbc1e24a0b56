package org.mqlake.interop;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;

/** The numbered messages of the benchmarks: message n has its own key and goes to queue n modulo 4. */
final class BenchMessages {
    static final String TOPIC = "bench";
    static final int QUEUES = 4;

    private static final long FIRST_KEY = 1_000_000_000_000L;
    private static final String TAG = "TagA";
    private static final int BODIES = 64;
    private static final InetSocketAddress BORN_HOST = new InetSocketAddress("127.0.0.1", 40000);
    private static final InetSocketAddress STORE_HOST = new InetSocketAddress("127.0.0.1", 10911);

    private final byte[][] bodies;
    private final byte[] batch;
    private final int[] keyPositions;

    BenchMessages(int bodySize, int batchSize) {
        Random random = new Random(1);
        bodies = new byte[BODIES][bodySize];
        for (byte[] body : bodies) {
            random.nextBytes(body);
        }
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < batchSize; i++) {
            messages.add(new Message(TOPIC, TAG, key(i), bodies[i % BODIES]));
        }
        batch = MessageDecoder.encodeMessages(messages);
        keyPositions = new int[batchSize];
        for (int i = 0; i < batchSize; i++) {
            keyPositions[i] = indexOf(batch, key(i).getBytes(StandardCharsets.US_ASCII), i == 0 ? 0 : keyPositions[i - 1]);
        }
    }

    /** The key of a message; all keys have the same length. */
    static String key(long number) {
        return "k" + (FIRST_KEY + number);
    }

    /** A message as a broker builds it from a request. */
    BrokerMessage single(long number) {
        Map<String, String> properties = new HashMap<>();
        properties.put(MessageConst.PROPERTY_TAGS, TAG);
        properties.put(MessageConst.PROPERTY_KEYS, key(number));
        BrokerMessage message = new BrokerMessage();
        message.setTopic(TOPIC);
        message.setQueueId((int) (number % QUEUES));
        message.setBody(bodies[(int) (number % BODIES)]);
        MessageAccessor.setProperties(message, properties);
        message.setPropertiesString(MessageDecoder.messageProperties2String(properties));
        message.setTagsCode(BrokerMessage.tagsString2tagsCode(TAG));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(BORN_HOST);
        message.setStoreHost(STORE_HOST);
        return message;
    }

    /** A client's batch of the messages from a number on; all go to one queue. */
    MessageExtBatch batch(long first) {
        byte[] body = batch.clone();
        for (int i = 0; i < keyPositions.length; i++) {
            byte[] key = key(first + i).getBytes(StandardCharsets.US_ASCII);
            System.arraycopy(key, 0, body, keyPositions[i], key.length);
        }
        MessageExtBatch message = new MessageExtBatch();
        message.setTopic(TOPIC);
        message.setQueueId((int) (first / keyPositions.length % QUEUES));
        message.setBody(body);
        MessageAccessor.setProperties(message, new HashMap<>());
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(BORN_HOST);
        message.setStoreHost(STORE_HOST);
        return message;
    }

    private static int indexOf(byte[] bytes, byte[] wanted, int from) {
        for (int at = from; at <= bytes.length - wanted.length; at++) {
            int same = 0;
            while (same < wanted.length && bytes[at + same] == wanted[same]) {
                same++;
            }
            if (same == wanted.length) {
                return at;
            }
        }
        throw new IllegalStateException("key not found in the encoded batch");
    }
}
