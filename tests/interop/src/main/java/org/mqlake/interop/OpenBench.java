package org.mqlake.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.nio.file.Path;

/** How long an existing store takes to open; the first time includes loading the classes. */
final class OpenBench {
    private OpenBench() {
    }

    static void run(Path directory, Options options, JsonObject line) throws Exception {
        JsonArray load = new JsonArray();
        JsonArray start = new JsonArray();
        JsonArray ready = new JsonArray();
        long deadline = System.nanoTime() + (long) (options.seconds() * 1e9);
        long count = Math.min(options.count(), 100);
        for (int i = 0; i < count && (i == 0 || System.nanoTime() - deadline < 0); i++) {
            long begin = System.nanoTime();
            StoreSession session = StoreSession.in(directory, options.settings("ASYNC"));
            if (!session.load()) {
                throw new IllegalStateException("load() returned false");
            }
            load.add(millisSince(begin));
            session.store().start();
            start.add(millisSince(begin));
            session.awaitDispatch();
            ready.add(millisSince(begin));
            session.shutdown();
        }
        line.add("loadedMillis", load);
        line.add("startedMillis", start);
        line.add("dispatchedMillis", ready);
        line.addProperty("residentMb", Sampler.residentMb());
    }

    private static double millisSince(long begin) {
        return Load.round((System.nanoTime() - begin) / 1e6);
    }
}
