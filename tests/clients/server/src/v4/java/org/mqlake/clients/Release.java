package org.mqlake.clients;

import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/** What differs between the releases: 4.9 always listens on all addresses. */
final class Release {
    private Release() {
    }

    static void bindLoopback(NettyServerConfig config) {
    }
}
