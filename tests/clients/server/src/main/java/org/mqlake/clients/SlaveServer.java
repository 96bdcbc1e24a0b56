package org.mqlake.clients;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.store.config.BrokerRole;

/**
 * A real name server, and a real slave of a master that registers there; or, with the argument {@code outside}, the
 * slave alone: its name server is then the one of its master.
 *
 * <pre>SlaveServer STORE_DIR NAME_SERVER_PORT BROKER_PORT HA_PORT SETTINGS.properties [outside]</pre>
 *
 * It says {@code ready} once it follows. The line {@code sync} on its input copies topics, groups and progress from the
 * master, as it does every minute by itself, and is answered {@code synced}. It stops in order when its input ends.
 */
public final class SlaveServer {
    private SlaveServer() {
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.remoting.version", Integer.toString(MQVersion.CURRENT_VERSION));
        try {
            Path directory = Path.of(args[0]).toAbsolutePath();
            boolean isOutside = args.length > 5;
            NamesrvController names = isOutside ? null : Server.names(directory, Integer.parseInt(args[1]));
            while (!isOutside && names.getRouteInfoManager().pickupTopicRouteData("TBW102") == null) {
                Thread.sleep(100);
            }
            BrokerController slave = slave(directory, args);
            slave.registerBrokerAll(true, false, true);
            say("ready");
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                if (line.equals("sync")) {
                    slave.getSlaveSynchronize().syncAll();
                    say("synced from " + slave.getSlaveSynchronize().getMasterAddr());
                }
            }
            slave.shutdown();
            if (names != null) {
                names.shutdown();
            }
            Runtime.getRuntime().halt(0);
        } catch (Throwable e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static BrokerController slave(Path directory, String[] args) throws Exception {
        BrokerController controller = Server.broker(directory, args, (config, store) -> {
            config.setBrokerId(1);
            store.setBrokerRole(BrokerRole.SLAVE);
        });
        String master = controller.getMessageStoreConfig().getHaMasterAddress();
        if (master != null) {
            // RocketMQ 5 forgets it: the setting is handed over before there is a client to take it.
            controller.getMessageStore().updateHaMasterAddress(master);
        }
        return controller;
    }
}
