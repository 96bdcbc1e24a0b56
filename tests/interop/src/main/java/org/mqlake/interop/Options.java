package org.mqlake.interop;

import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/** Arguments of the form key=value; set.NAME=value passes a setting to the store. */
final class Options {
    private static final String SETTING_PREFIX = "set.";

    private final Map<String, String> values = new HashMap<>();

    static Options parse(String[] args, int from) {
        Options options = new Options();
        for (int i = from; i < args.length; i++) {
            int equals = args[i].indexOf('=');
            if (equals < 1) {
                throw new IllegalArgumentException("not key=value: " + args[i]);
            }
            options.values.put(args[i].substring(0, equals), args[i].substring(equals + 1));
        }
        return options;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int integer(String name, int otherwise) {
        return values.containsKey(name) ? Integer.parseInt(values.get(name)) : otherwise;
    }

    double decimal(String name, double otherwise) {
        return values.containsKey(name) ? Double.parseDouble(values.get(name)) : otherwise;
    }

    /** How many messages or queries the timed phase may make. */
    long count() {
        return values.containsKey("count") ? Long.parseLong(values.get("count")) : Long.MAX_VALUE;
    }

    /** How long the timed phase may take: 10 s unless told, or long enough for a given count. */
    double seconds() {
        return decimal("seconds", values.containsKey("count") ? 600 : 10);
    }

    double warmupSeconds() {
        return decimal("warmup", 3);
    }

    /** The settings of the store, its flush mode among them. */
    Properties settings(String flush) {
        Properties settings = new Properties();
        settings.setProperty("flushDiskType", text("flush", flush).equals("SYNC") ? "SYNC_FLUSH" : "ASYNC_FLUSH");
        values.forEach((name, value) -> {
            if (name.startsWith(SETTING_PREFIX)) {
                settings.setProperty(name.substring(SETTING_PREFIX.length()), value);
            }
        });
        return settings;
    }
}
