package org.mqlake.clients;

import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/** What differs between the releases. */
final class Release {
    private Release() {
    }

    static void bindLoopback(NettyServerConfig config) {
        config.setBindAddress("127.0.0.1");
    }
}
