package org.mqlake.interop;

import com.google.gson.JsonObject;
import java.net.Inet6Address;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Base64;
import java.util.HexFormat;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** Stored records as JSON, decoded by RocketMQ's own decoder. */
final class RecordJson {
    private static final Base64.Encoder BASE64 = Base64.getEncoder();

    private RecordJson() {
    }

    /** The message in a stored record, its body as stored (not decompressed); null if it cannot be decoded. */
    static MessageExt decode(byte[] record) {
        return MessageDecoder.decode(ByteBuffer.wrap(record), true, false);
    }

    /** Append the fields of a record to a JSON line. */
    static void describe(JsonObject line, MessageExt message, byte[] record) {
        line.addProperty("topic", message.getTopic());
        line.addProperty("queueId", message.getQueueId());
        line.addProperty("queueOffset", message.getQueueOffset());
        line.addProperty("physicalOffset", message.getCommitLogOffset());
        line.addProperty("storeSize", message.getStoreSize());
        line.addProperty("bornTimestamp", message.getBornTimestamp());
        line.addProperty("storeTimestamp", message.getStoreTimestamp());
        line.addProperty("bornHost", host(message.getBornHost()));
        line.addProperty("storeHost", host(message.getStoreHost()));
        line.addProperty("sysFlag", message.getSysFlag());
        line.addProperty("flag", message.getFlag());
        line.addProperty("bodyCRC", message.getBodyCRC());
        line.addProperty("reconsumeTimes", message.getReconsumeTimes());
        line.addProperty("preparedTransactionOffset", message.getPreparedTransactionOffset());
        line.addProperty("body", message.getBody() == null ? "" : BASE64.encodeToString(message.getBody()));
        JsonObject properties = new JsonObject();
        if (message.getProperties() != null) {
            new TreeMap<>(message.getProperties()).forEach(properties::addProperty);
        }
        line.add("properties", properties);
        line.addProperty("msgId", message.getMsgId());
        line.addProperty("recordSha1", sha1(record));
    }

    private static String host(SocketAddress address) {
        InetSocketAddress socket = (InetSocketAddress) address;
        String ip = socket.getAddress().getHostAddress();
        return (socket.getAddress() instanceof Inet6Address ? "[" + ip + "]" : ip) + ":" + socket.getPort();
    }

    private static String sha1(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-1").digest(bytes));
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}
