package org.mqlake.interop;

import com.google.gson.JsonObject;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelOutboundHandlerAdapter;
import io.netty.channel.ChannelPromise;
import io.netty.channel.embedded.EmbeddedChannel;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.client.ClientChannelInfo;
import org.apache.rocketmq.broker.processor.EndTransactionProcessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.CheckTransactionStateRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.EndTransactionRequestHeader;

/** A producer of transactions, connected to the broker by a channel inside of this process. */
final class Producer {
    private static final int COMMIT = 8;
    private static final int ROLLBACK = 12;

    private final BrokerController controller;
    private final BlockingQueue<RemotingCommand> asked = new LinkedBlockingQueue<>();
    private final EmbeddedChannel channel = new EmbeddedChannel(new ChannelOutboundHandlerAdapter() {
        @Override
        public void write(ChannelHandlerContext context, Object message, ChannelPromise promise) {
            asked.add((RemotingCommand) message);
            promise.setSuccess();
        }
    });

    Producer(BrokerController controller) {
        this.controller = controller;
    }

    /** End a transaction by the place of its half message; the response's code. */
    int end(String group, long queueOffset, long physicalOffset, boolean commit, boolean asked) throws Exception {
        EndTransactionRequestHeader header = new EndTransactionRequestHeader();
        header.setProducerGroup(group);
        header.setTranStateTableOffset(queueOffset);
        header.setCommitLogOffset(physicalOffset);
        header.setCommitOrRollback(commit ? COMMIT : ROLLBACK);
        header.setFromTransactionCheck(asked);
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.END_TRANSACTION, header);
        request.makeCustomHeaderToNet();
        ChannelHandlerContext context =
            new EmbeddedChannel(new ChannelInboundHandlerAdapter()).pipeline().firstContext();
        return new EndTransactionProcessor(controller).processRequest(context, request).getCode();
    }

    /** Wait until the broker has asked about each of the bodies named in `decisions`, and answer with what is there. */
    Set<String> answerChecks(String group, JsonObject decisions, long timeoutMs) throws Exception {
        ClientChannelInfo client = new ClientChannelInfo(channel, "interop", LanguageCode.JAVA, 1);
        controller.getProducerManager().registerProducer(group, client);
        Set<String> answered = new HashSet<>();
        long deadline = System.currentTimeMillis() + timeoutMs;
        while (answered.size() < decisions.size()) {
            RemotingCommand question = asked.poll(deadline - System.currentTimeMillis(), TimeUnit.MILLISECONDS);
            if (question == null) {
                throw new IllegalStateException("asked about " + answered + " only, in " + timeoutMs + " ms");
            }
            if (question.getCode() != RequestCode.CHECK_TRANSACTION_STATE) {
                continue;
            }
            var header = (CheckTransactionStateRequestHeader) question.readCustomHeader();
            byte[] half = MessageDecoder.decode(ByteBuffer.wrap(question.getBody())).getBody();
            String body = new String(half, StandardCharsets.UTF_8);
            if (decisions.has(body) && answered.add(body)) {
                end(group, header.getTranStateTableOffset(), header.getCommitLogOffset(),
                    decisions.get(body).getAsBoolean(), true);
            }
        }
        return answered;
    }
}
