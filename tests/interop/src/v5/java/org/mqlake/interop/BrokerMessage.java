package org.mqlake.interop;

import org.apache.rocketmq.common.message.MessageExtBrokerInner;

/** The message type that a broker hands to its store; its package differs between the releases. */
final class BrokerMessage extends MessageExtBrokerInner {
    private static final long serialVersionUID = 1L;
}
