package org.mqlake.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.FileReader;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A real broker on a store directory, without a name server or clients: what they would have it do comes from a file.
 *
 * <pre>
 * BrokerRun STORE_DIR SETTINGS.properties COMMANDS.jsonl
 *   {"put": {"topic": ..., "queueId": ..., "body": ..., "properties": {...}}}
 *   {"prepare": {... as put, with PGROUP}}                   a half message
 *   {"end": {"group", "queueOffset", "physicalOffset", "commit"}}
 *   {"answer": {"group", "decisions": {BODY: true or false}}}
 *                                   wait until the broker asked about these, and decide; the bodies that it asked about
 *   {"consume": {"group", "topic", "queueId", "count"}}
 *                                   as a client of the group: from where it is, committed; where that was, and bodies
 *   {"group": NAME}, {"topic": NAME}                         how the broker knows them
 *   {"until": {"topic", "count"}}                            wait until queue 0 of the topic has so many messages
 *   {"wait": MILLISECONDS}
 *   {"halt": true}                                           end as a crash does
 * </pre>
 *
 * What stores or asks something answers with a line; of what was stored, its status, queue offset and physical offset.
 */
public final class BrokerRun {
    private static final long TIMEOUT_MS = 60_000;

    private final BrokerController controller;
    private final Producer producer;

    private BrokerRun(BrokerController controller) {
        this.controller = controller;
        this.producer = new Producer(controller);
    }

    public static void main(String[] args) {
        int status = 1;
        try {
            BrokerRun run = new BrokerRun(open(Path.of(args[0]).toAbsolutePath(), Path.of(args[1])));
            for (String line : Files.readAllLines(Path.of(args[2]), StandardCharsets.UTF_8)) {
                run.command(JsonParser.parseString(line).getAsJsonObject());
            }
            run.stop();
            status = 0;
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.out.flush();
        Runtime.getRuntime().halt(status);
    }

    private static BrokerController open(Path directory, Path settings) throws Exception {
        Properties properties = new Properties();
        try (FileReader reader = new FileReader(settings.toFile())) {
            properties.load(reader);
        }
        BrokerConfig broker = new BrokerConfig();
        NettyServerConfig server = new NettyServerConfig();
        MessageStoreConfig store = new MessageStoreConfig();
        for (Object part : new Object[] {broker, server, store}) {
            MixAll.properties2Object(properties, part);
        }
        broker.setBrokerIP1("127.0.0.1");
        broker.setBrokerName("interop");
        broker.setBrokerId(MixAll.MASTER_ID);
        server.setBindAddress("127.0.0.1");
        store.setStorePathRootDir(directory.toString());
        store.setStorePathCommitLog(directory.resolve("commitlog").toString());
        BrokerController controller = new BrokerController(broker, server, new NettyClientConfig(), store);
        if (!controller.initialize()) {
            throw new IllegalStateException("the broker does not start");
        }
        controller.start();
        return controller;
    }

    /** As the broker stops, but that its services for clients wait for their threads all at once before. */
    private void stop() throws InterruptedException {
        List<Thread> stopping = new ArrayList<>();
        for (Runnable service : new Runnable[] {
            controller.getRemotingServer()::shutdown,
            controller.getBrokerOuterAPI()::shutdown,
            controller.getAckMessageProcessor()::shutdownPopReviveService,
            controller.getPopMessageProcessor().getPopBufferMergeService()::shutdown,
            controller.getPopMessageProcessor().getPopLongPollingService()::shutdown,
        }) {
            stopping.add(new Thread(service));
        }
        stopping.forEach(Thread::start);
        for (Thread thread : stopping) {
            thread.join();
        }
        controller.shutdown();
    }

    private void command(JsonObject command) throws Exception {
        if (command.has("put")) {
            answer(controller.getMessageStore().putMessage(message(command.getAsJsonObject("put"))));
        } else if (command.has("prepare")) {
            MessageExtBrokerInner half = message(command.getAsJsonObject("prepare"));
            answer(controller.getTransactionalMessageService().prepareMessage(half));
        } else if (command.has("end")) {
            JsonObject given = command.getAsJsonObject("end");
            int code = producer.end(given.get("group").getAsString(), given.get("queueOffset").getAsLong(),
                given.get("physicalOffset").getAsLong(), given.get("commit").getAsBoolean(), false);
            System.out.printf("{\"status\": \"%d\"}%n", code);
        } else if (command.has("answer")) {
            JsonObject given = command.getAsJsonObject("answer");
            JsonArray asked = new JsonArray();
            new TreeSet<>(producer.answerChecks(given.get("group").getAsString(), given.getAsJsonObject("decisions"),
                TIMEOUT_MS)).forEach(asked::add);
            JsonObject answer = new JsonObject();
            answer.add("asked", asked);
            System.out.println(answer);
        } else if (command.has("consume")) {
            consume(command.getAsJsonObject("consume"));
        } else if (command.has("group")) {
            SubscriptionGroupConfig group =
                controller.getSubscriptionGroupManager().findSubscriptionGroupConfig(command.get("group").getAsString());
            System.out.printf("{\"retryMaxTimes\": %d}%n", group.getRetryMaxTimes());
        } else if (command.has("topic")) {
            TopicConfig topic = controller.getTopicConfigManager().selectTopicConfig(command.get("topic").getAsString());
            System.out.printf("{\"readQueues\": %d, \"writeQueues\": %d, \"permission\": %d}%n",
                topic.getReadQueueNums(), topic.getWriteQueueNums(), topic.getPerm());
        } else if (command.has("until")) {
            until(command.getAsJsonObject("until"));
        } else if (command.has("wait")) {
            Thread.sleep(command.get("wait").getAsLong());
        } else if (command.has("halt")) {
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
    }

    private static MessageExtBrokerInner message(JsonObject given) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(given.get("topic").getAsString());
        message.setQueueId(given.get("queueId").getAsInt());
        message.setBody(given.get("body").getAsString().getBytes(StandardCharsets.UTF_8));
        JsonObject properties = given.getAsJsonObject("properties");
        for (String name : properties.keySet()) {
            MessageAccessor.putProperty(message, name, properties.get(name).getAsString());
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("127.0.0.1", 50000));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        return message;
    }

    private static void answer(PutMessageResult result) {
        System.out.printf("{\"status\": \"%s\", \"queueOffset\": %d, \"physicalOffset\": %d}%n",
            result.getPutMessageStatus(), result.getAppendMessageResult().getLogicsOffset(),
            result.getAppendMessageResult().getWroteOffset());
    }

    private void consume(JsonObject given) {
        String group = given.get("group").getAsString();
        String topic = given.get("topic").getAsString();
        int queueId = given.get("queueId").getAsInt();
        long from = controller.getConsumerOffsetManager().queryOffset(group, topic, queueId);
        JsonArray bodies = new JsonArray();
        GetMessageResult found = controller.getMessageStore()
            .getMessage(group, topic, queueId, from, given.get("count").getAsInt(), null);
        for (ByteBuffer record : found.getMessageBufferList()) {
            bodies.add(new String(MessageDecoder.decode(record).getBody(), StandardCharsets.UTF_8));
        }
        found.release();
        controller.getConsumerOffsetManager()
            .commitOffset("127.0.0.1", group, topic, queueId, found.getNextBeginOffset());
        JsonObject answer = new JsonObject();
        answer.addProperty("from", from);
        answer.add("bodies", bodies);
        System.out.println(answer);
    }

    private void until(JsonObject given) throws Exception {
        String topic = given.get("topic").getAsString();
        MessageStore store = controller.getMessageStore();
        long deadline = System.currentTimeMillis() + TIMEOUT_MS;
        long count = 0;
        while (System.currentTimeMillis() < deadline) {
            count = store.getMaxOffsetInQueue(topic, 0);
            if (count >= given.get("count").getAsLong()) {
                return;
            }
            Thread.sleep(50);
        }
        throw new IllegalStateException(topic + ": " + count + " messages after " + TIMEOUT_MS + " ms");
    }
}
