package org.mqlake.interop;

import java.lang.reflect.Method;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Prints the settings a broker's configuration file may hold, as MixAll.properties2Object finds them: every
 * setter with one parameter of a simple type. A line is name, type, default; only settings of the store have a default.
 */
public final class ConfigProperties {
    private static final Set<Class<?>> SIMPLE_TYPES = Set.of(
            int.class, long.class, double.class, float.class, boolean.class, String.class,
            Integer.class, Long.class, Double.class, Float.class, Boolean.class);

    private ConfigProperties() {
    }

    public static void main(String[] args) throws Exception {
        TreeMap<String, String> rows = new TreeMap<>();
        Object[] configs = {new NettyClientConfig(), new NettyServerConfig(), new BrokerConfig(), new MessageStoreConfig()};
        for (Object config : configs) {
            for (Method method : config.getClass().getMethods()) {
                if (isSetter(method)) {
                    String name = method.getName().substring(3, 4).toLowerCase() + method.getName().substring(4);
                    String standard = config instanceof MessageStoreConfig ? standard(config, method) : "";
                    rows.put(name, name + "\t" + method.getParameterTypes()[0].getSimpleName() + "\t" + standard);
                }
            }
        }
        rows.values().forEach(System.out::println);
        System.exit(0);
    }

    private static boolean isSetter(Method method) {
        return method.getName().startsWith("set") && method.getName().length() > 3
                && method.getParameterCount() == 1 && SIMPLE_TYPES.contains(method.getParameterTypes()[0]);
    }

    /** The value of a new configuration, paths below the home directory named as such. */
    private static String standard(Object config, Method setter) throws ReflectiveOperationException {
        String suffix = setter.getName().substring(3);
        for (String prefix : new String[] {"get", "is"}) {
            try {
                Object value = config.getClass().getMethod(prefix + suffix).invoke(config);
                return value == null ? "" : value.toString().replace(System.getProperty("user.home"), "${user.home}");
            } catch (NoSuchMethodException e) {
                continue;
            }
        }
        return "";
    }
}
