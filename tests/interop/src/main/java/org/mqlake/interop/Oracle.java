package org.mqlake.interop;

import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;

/**
 * Opens a store directory in place with the real RocketMQ store.
 *
 * <pre>
 * dump  STORE_DIR SETTINGS.properties OUT.jsonl          everything it serves
 * write STORE_DIR SETTINGS.properties IN.jsonl [--halt]  append messages; --halt ends as a crash does
 * </pre>
 */
public final class Oracle {
    private Oracle() {
    }

    public static void main(String[] args) {
        int status = 1;
        try {
            status = run(args);
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.exit(status);
    }

    private static int run(String[] args) throws Exception {
        boolean halt = args.length == 5 && args[4].equals("--halt");
        if (args.length != 4 && !halt) {
            System.err.println("usage: dump STORE_DIR SETTINGS OUT | write STORE_DIR SETTINGS IN [--halt]");
            return 2;
        }
        Path directory = Path.of(args[1]).toAbsolutePath();
        Properties settings = StoreSession.readSettings(Path.of(args[2]));
        switch (args[0]) {
            case "dump" -> dump(directory, settings, Path.of(args[3]));
            case "write" -> write(directory, settings, Path.of(args[3]), halt);
            default -> throw new IllegalArgumentException("unknown command " + args[0]);
        }
        return 0;
    }

    private static void dump(Path directory, Properties settings, Path output) throws Exception {
        StoreSession session = StoreSession.in(directory, settings);
        try (Writer out = Files.newBufferedWriter(output, StandardCharsets.UTF_8)) {
            StoreDump dump = new StoreDump(session.store(), out);
            if (!session.load()) {
                dump.refused();
                return;
            }
            session.start();
            dump.all(settings);
        }
        session.shutdown();
    }

    private static void write(Path directory, Properties settings, Path input, boolean halt) throws Exception {
        StoreSession session = StoreSession.in(directory, settings).open();
        new StoreWriter(session.store()).putAll(input, System.out);
        session.awaitDispatch();
        System.out.flush();
        if (halt) {
            Runtime.getRuntime().halt(0);
        }
        session.shutdown();
    }
}
