package org.mqlake.clients;

import java.io.FileReader;
import java.nio.file.Path;
import java.util.Properties;
import java.util.function.BiConsumer;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A real name server and broker on a store directory, as {@code mqlake serve} is both.
 *
 * <pre>Server STORE_DIR NAME_SERVER_PORT BROKER_PORT HA_PORT SETTINGS.properties</pre>
 *
 * It says {@code ready} when clients may connect, and stops in order when its input ends.
 */
public final class Server {
    private Server() {
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.remoting.version", Integer.toString(MQVersion.CURRENT_VERSION));
        try {
            Path directory = Path.of(args[0]).toAbsolutePath();
            int namePort = Integer.parseInt(args[1]);
            NamesrvController names = names(directory, namePort);
            BrokerController broker = broker(directory, args, (config, store) -> {
                config.setBrokerName("broker-a");
                config.setBrokerClusterName("DefaultCluster");
                config.setBrokerId(MixAll.MASTER_ID);
            });
            // A topic that is made before the first registration is done would never have a route.
            while (names.getRouteInfoManager().pickupTopicRouteData("TBW102") == null) {
                Thread.sleep(200);
                broker.registerBrokerAll(true, false, true);
            }
            System.out.printf("ready name-server=127.0.0.1:%d broker=127.0.0.1:%s%n", namePort, args[2]);
            System.out.flush();
            while (System.in.read() >= 0) {
                continue;
            }
            broker.shutdown();
            names.shutdown();
            System.out.println("stopped");
            System.out.flush();
            Runtime.getRuntime().halt(0);
        } catch (Throwable e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    static NamesrvController names(Path directory, int port) throws Exception {
        NamesrvConfig config = new NamesrvConfig();
        config.setKvConfigPath(directory.resolve("kvConfig.json").toString());
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port);
        Release.bindLoopback(server);
        NamesrvController controller = new NamesrvController(config, server);
        controller.initialize();
        controller.start();
        return controller;
    }

    /** Start a broker with the settings of a file, those that the tests need, and those that {@code role} makes. */
    static BrokerController broker(Path directory, String[] args, BiConsumer<BrokerConfig, MessageStoreConfig> role)
            throws Exception {
        BrokerConfig broker = new BrokerConfig();
        NettyServerConfig server = new NettyServerConfig();
        MessageStoreConfig store = new MessageStoreConfig();
        Properties settings = new Properties();
        try (FileReader reader = new FileReader(args[4])) {
            settings.load(reader);
        }
        for (Object part : new Object[] {broker, server, store}) {
            MixAll.properties2Object(settings, part);
        }
        broker.setNamesrvAddr("127.0.0.1:" + args[1]);
        broker.setBrokerIP1("127.0.0.1");
        broker.setBrokerIP2("127.0.0.1");
        server.setListenPort(Integer.parseInt(args[2]));
        Release.bindLoopback(server);
        store.setHaListenPort(Integer.parseInt(args[3]));
        store.setStorePathRootDir(directory.toString());
        store.setStorePathCommitLog(directory.resolve("commitlog").toString());
        role.accept(broker, store);
        BrokerController controller = new BrokerController(broker, server, new NettyClientConfig(), store);
        controller.getConfiguration().registerConfig(settings);
        if (!controller.initialize()) {
            throw new IllegalStateException("the broker does not start");
        }
        controller.start();
        return controller;
    }
}
