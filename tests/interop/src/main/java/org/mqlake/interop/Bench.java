package org.mqlake.interop;

import com.google.gson.JsonObject;
import java.nio.file.Path;

/**
 * Measures the real store in this process: WORKLOAD STORE_DIR [key=value ...]; prints one JSON line.
 *
 * <pre>
 * put       new store, single messages         body=1024 threads=1 flush=ASYNC
 * putsync   the same with flush=SYNC
 * putbatch  new store, client batches          batch=32
 * read      all queues of a store from put, 32 messages a call
 * query     by random key of a store from put  threads=1
 * time      offset by random time of a store from put
 * open      load() and start() of a store
 * </pre>
 *
 * All take count=, seconds= (10), warmup= seconds (3), limit= seconds until the process gives up (900) and
 * set.NAME=value for settings of the store.
 */
public final class Bench {
    private Bench() {
    }

    public static void main(String[] args) {
        int status = 1;
        try {
            run(args);
            status = 0;
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.exit(status);
    }

    private static void run(String[] args) throws Exception {
        if (args.length < 2) {
            throw new IllegalArgumentException("usage: WORKLOAD STORE_DIR [key=value ...]");
        }
        Path directory = Path.of(args[1]).toAbsolutePath();
        Options options = Options.parse(args, 2);
        giveUpAfter(options.decimal("limit", 900));
        JsonObject line = new JsonObject();
        line.addProperty("workload", args[0]);
        line.addProperty("version", Release.VERSION);
        switch (args[0]) {
            case "put" -> PutBench.run(directory, options, "ASYNC", 0, line);
            case "putsync" -> PutBench.run(directory, options, "SYNC", 0, line);
            case "putbatch" -> PutBench.run(directory, options, "ASYNC", options.integer("batch", 32), line);
            case "read", "readDecoded", "query", "queryDecoded", "time" -> ReadBench.run(args[0], directory, options, line);
            case "open" -> OpenBench.run(directory, options, line);
            default -> throw new IllegalArgumentException("unknown workload " + args[0]);
        }
        System.out.println(line);
    }

    /** However a store may hang, the process ends. */
    private static void giveUpAfter(double seconds) {
        Thread watchdog = new Thread(() -> {
            try {
                Thread.sleep((long) (seconds * 1000));
            } catch (InterruptedException e) {
                return;
            }
            System.err.println("not finished after " + seconds + " s");
            Runtime.getRuntime().halt(3);
        }, "watchdog");
        watchdog.setDaemon(true);
        watchdog.start();
    }
}
