package org.mqlake.interop;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.store.DefaultMessageStore;

/** Watches a store while it works: the largest dispatch lag and the largest resident memory. */
final class Sampler implements AutoCloseable {
    private static final int ROUNDS_BETWEEN_MEMORY = 100;

    private final DefaultMessageStore store;
    private final Thread thread = new Thread(this::sample, "sampler");
    private volatile boolean stopped;
    private volatile long maxLagBytes;
    private volatile double maxResidentMb;

    Sampler(DefaultMessageStore store) {
        this.store = store;
        thread.setDaemon(true);
        thread.start();
    }

    long maxLagBytes() {
        return maxLagBytes;
    }

    double maxResidentMb() {
        return maxResidentMb;
    }

    /** Memory of this process in MB without the mapped files: VmRSS minus RssFile. */
    static double residentMb() {
        long kilobytes = 0;
        try {
            for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
                if (line.startsWith("VmRSS:")) {
                    kilobytes += kilobytes(line);
                } else if (line.startsWith("RssFile:")) {
                    kilobytes -= kilobytes(line);
                }
            }
        } catch (IOException e) {
            return -1;
        }
        return Load.round(kilobytes / 1024.0);
    }

    private static long kilobytes(String line) {
        return Long.parseLong(line.replaceAll("\\D", ""));
    }

    private void sample() {
        for (int round = 0; !stopped; round++) {
            maxLagBytes = Math.max(maxLagBytes, store.dispatchBehindBytes());
            if (round % ROUNDS_BETWEEN_MEMORY == 0) {
                maxResidentMb = Math.max(maxResidentMb, residentMb());
            }
            try {
                Thread.sleep(1);
            } catch (InterruptedException e) {
                return;
            }
        }
    }

    @Override
    public void close() throws InterruptedException {
        stopped = true;
        thread.join();
    }
}
