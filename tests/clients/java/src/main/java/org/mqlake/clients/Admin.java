package org.mqlake.clients;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin, started once for many commands: JSON lines in, one answer each.
 *
 * <pre>
 * Admin NAME_SERVER
 *   {"mqadmin": [NAME, ARGUMENT...]}                       what the command prints
 *   {"send": {"topic", "queue", "body", "key", "tag"}}     id, offsetId, queueOffset
 *   {"consume": {"topic", "group"}}                        start a push consumer that stays
 *   {"consumed": {"topic", "group", "count"}}              wait until it has so many; their bodies
 * </pre>
 */
public final class Admin {
    private final Run run;
    private final PrintStream out = System.out;
    private final Map<String, Inbox> inboxes = new LinkedHashMap<>();
    private DefaultMQProducer producer;

    private Admin(Run run) {
        this.run = run;
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.namesrv.addr", args[0]);
        Admin admin = new Admin(new Run(args[0], "mqadmin", "tool"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Object answer;
            try {
                answer = admin.answer(JsonParser.parseString(line).getAsJsonObject());
            } catch (Throwable e) {
                answer = Map.of("error", e.toString());
            }
            admin.out.println(new Gson().toJson(answer));
            admin.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private Object answer(JsonObject command) throws Exception {
        if (command.has("mqadmin")) {
            return Map.of("said", mqadmin(command.getAsJsonArray("mqadmin")));
        }
        if (command.has("send")) {
            return send(command.getAsJsonObject("send"));
        }
        if (command.has("consume")) {
            JsonObject given = command.getAsJsonObject("consume");
            String group = given.get("group").getAsString();
            Inbox inbox = new Inbox();
            org.apache.rocketmq.client.consumer.DefaultMQPushConsumer consumer = run.push(group);
            consumer.subscribe(given.get("topic").getAsString(), "*");
            consumer.registerMessageListener(inbox.concurrently());
            consumer.start();
            inboxes.put(group, inbox);
            return Map.of("group", group);
        }
        JsonObject given = command.getAsJsonObject("consumed");
        Inbox inbox = inboxes.get(given.get("group").getAsString());
        int count = given.get("count").getAsInt();
        Run.until(() -> inbox.size() >= count, "consumed " + inbox.size() + " of " + count);
        inbox.settle();
        return Map.of("bodies", inbox.bodies());
    }

    private String mqadmin(JsonArray given) {
        List<String> arguments = new ArrayList<>();
        given.forEach(one -> arguments.add(one.getAsString()));
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream error = System.err;
        PrintStream printer = new PrintStream(said, true, StandardCharsets.UTF_8);
        System.setOut(printer);
        System.setErr(printer);
        try {
            MQAdminStartup.main0(arguments.toArray(new String[0]), null);
        } finally {
            System.setOut(out);
            System.setErr(error);
        }
        return said.toString(StandardCharsets.UTF_8);
    }

    private Object send(JsonObject given) throws Exception {
        if (producer == null) {
            producer = run.configured(new DefaultMQProducer("mqadmin-producer"));
            producer.setSendMsgTimeout(20_000);
            producer.start();
        }
        String topic = given.get("topic").getAsString();
        Message message = new Message(topic, given.get("body").getAsString().getBytes(StandardCharsets.UTF_8));
        message.setKeys(given.get("key").getAsString());
        message.setTags(given.get("tag").getAsString());
        MessageQueue queue = new MessageQueue(topic, "broker-a", given.get("queue").getAsInt());
        SendResult sent = Run.accepted(producer.send(message, queue));
        return Map.of("id", sent.getMsgId(), "offsetId", sent.getOffsetMsgId(), "queueOffset", sent.getQueueOffset());
    }
}
