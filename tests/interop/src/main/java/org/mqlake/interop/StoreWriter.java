package org.mqlake.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/** Appends messages given as JSON lines; answers each with a JSON line. */
final class StoreWriter {
    private static final InetSocketAddress BORN_HOST = new InetSocketAddress("127.0.0.1", 40000);
    private static final InetSocketAddress STORE_HOST = new InetSocketAddress("127.0.0.1", 10911);

    private final DefaultMessageStore store;

    StoreWriter(DefaultMessageStore store) {
        this.store = store;
    }

    void putAll(Path input, PrintStream answers) throws IOException {
        try (BufferedReader lines = Files.newBufferedReader(input, StandardCharsets.UTF_8)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (!line.isBlank()) {
                    PutMessageResult result = store.putMessage(message(JsonParser.parseString(line).getAsJsonObject()));
                    answers.println(answer(result));
                }
            }
        }
    }

    private static BrokerMessage message(JsonObject given) {
        BrokerMessage message = new BrokerMessage();
        message.setTopic(given.get("topic").getAsString());
        message.setQueueId(number(given, "queueId", 0).intValue());
        message.setBody(Base64.getDecoder().decode(text(given, "body", "")));
        message.setFlag(number(given, "flag", 0).intValue());
        message.setSysFlag(number(given, "sysFlag", 0).intValue());
        message.setBornTimestamp(number(given, "bornTimestamp", System.currentTimeMillis()).longValue());
        message.setBornHost(BORN_HOST);
        message.setStoreHost(STORE_HOST);
        Map<String, String> properties = properties(given);
        MessageAccessor.setProperties(message, properties);
        message.setTagsCode(BrokerMessage.tagsString2tagsCode(properties.get(MessageConst.PROPERTY_TAGS)));
        message.setPropertiesString(MessageDecoder.messageProperties2String(properties));
        return message;
    }

    private static Map<String, String> properties(JsonObject given) {
        Map<String, String> properties = new LinkedHashMap<>();
        if (has(given, "properties")) {
            given.getAsJsonObject("properties").asMap()
                    .forEach((name, value) -> properties.put(name, value.getAsString()));
        }
        if (has(given, "tags")) {
            properties.put(MessageConst.PROPERTY_TAGS, given.get("tags").getAsString());
        }
        if (has(given, "keys")) {
            properties.put(MessageConst.PROPERTY_KEYS, given.get("keys").getAsString());
        }
        return properties;
    }

    private static JsonObject answer(PutMessageResult result) {
        JsonObject line = new JsonObject();
        line.addProperty("status", result.getPutMessageStatus().toString());
        if (result.getAppendMessageResult() != null) {
            line.addProperty("physicalOffset", result.getAppendMessageResult().getWroteOffset());
            line.addProperty("storeSize", result.getAppendMessageResult().getWroteBytes());
            line.addProperty("queueOffset", result.getAppendMessageResult().getLogicsOffset());
            line.addProperty("msgId", result.getAppendMessageResult().getMsgId());
        }
        return line;
    }

    private static boolean has(JsonObject given, String name) {
        JsonElement value = given.get(name);
        return value != null && !value.isJsonNull();
    }

    private static String text(JsonObject given, String name, String otherwise) {
        return has(given, name) ? given.get(name).getAsString() : otherwise;
    }

    private static Number number(JsonObject given, String name, long otherwise) {
        return has(given, name) ? given.get(name).getAsNumber() : otherwise;
    }
}
