package org.mqlake.interop;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.embedded.EmbeddedChannel;
import java.io.FileReader;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.processor.EndTransactionProcessor;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.EndTransactionRequestHeader;
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
 *   {"wait": MILLISECONDS}
 *   {"halt": true}                                           end as a crash does
 * </pre>
 *
 * Each command answers with a line: status, queue offset and physical offset of what was stored.
 */
public final class BrokerRun {
    private final BrokerController controller;

    private BrokerRun(BrokerController controller) {
        this.controller = controller;
    }

    public static void main(String[] args) {
        int status = 1;
        try {
            BrokerRun run = new BrokerRun(open(Path.of(args[0]).toAbsolutePath(), Path.of(args[1])));
            for (String line : Files.readAllLines(Path.of(args[2]), StandardCharsets.UTF_8)) {
                run.command(JsonParser.parseString(line).getAsJsonObject());
            }
            run.controller.shutdown();
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

    private void command(JsonObject command) throws Exception {
        if (command.has("put")) {
            answer(controller.getMessageStore().putMessage(message(command.getAsJsonObject("put"))));
        } else if (command.has("prepare")) {
            MessageExtBrokerInner half = message(command.getAsJsonObject("prepare"));
            answer(controller.getTransactionalMessageService().prepareMessage(half));
        } else if (command.has("end")) {
            end(command.getAsJsonObject("end"));
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

    private void end(JsonObject given) throws Exception {
        EndTransactionRequestHeader header = new EndTransactionRequestHeader();
        header.setProducerGroup(given.get("group").getAsString());
        header.setTranStateTableOffset(given.get("queueOffset").getAsLong());
        header.setCommitLogOffset(given.get("physicalOffset").getAsLong());
        header.setCommitOrRollback(given.get("commit").getAsBoolean() ? 8 : 12);
        header.setFromTransactionCheck(false);
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.END_TRANSACTION, header);
        request.makeCustomHeaderToNet();
        ChannelHandlerContext context =
            new EmbeddedChannel(new ChannelInboundHandlerAdapter()).pipeline().firstContext();
        RemotingCommand response = new EndTransactionProcessor(controller).processRequest(context, request);
        System.out.printf("{\"status\": \"%d\"}%n", response.getCode());
    }
}
