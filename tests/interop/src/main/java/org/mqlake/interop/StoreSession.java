package org.mqlake.interop;

import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.Set;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** A real RocketMQ store, opened in a directory with given settings. */
final class StoreSession {
    /** Setting of this program, not of RocketMQ: comma-separated topics with batch consume queues. */
    private static final String BATCH_TOPICS = "oracle.batchTopics";
    private static final long DISPATCH_TIMEOUT_NANOS = 120_000_000_000L;

    private final DefaultMessageStore store;

    private StoreSession(DefaultMessageStore store) {
        this.store = store;
    }

    /** Construct the store; {@link #load} and {@link #start} follow. */
    static StoreSession in(Path directory, Properties settings) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        keepEverything(config);
        config.setHaListenPort(0);
        MixAll.properties2Object(settings, config);
        config.setStorePathRootDir(directory.toString());
        config.setStorePathCommitLog(directory.resolve("commitlog").toString());
        String batchTopics = settings.getProperty(BATCH_TOPICS, "");
        Set<String> topics = batchTopics.isEmpty() ? Set.of() : Set.of(batchTopics.split(","));
        return new StoreSession(Release.newStore(config, new BrokerConfig(), topics));
    }

    /** Old files and full disks must not make the store delete what is looked at. */
    private static void keepEverything(MessageStoreConfig config) {
        config.setFileReservedTime(24 * 365 * 100);
        config.setCleanFileForciblyEnable(false);
        config.setDiskMaxUsedSpaceRatio(95);
    }

    static Properties readSettings(Path file) throws IOException {
        Properties settings = new Properties();
        try (Reader reader = Files.newBufferedReader(file, StandardCharsets.UTF_8)) {
            settings.load(reader);
        }
        return settings;
    }

    boolean load() {
        return store.load();
    }

    void start() throws Exception {
        store.start();
        awaitDispatch();
    }

    /** Open in one go, or fail. */
    StoreSession open() throws Exception {
        if (!load()) {
            throw new IllegalStateException("load() returned false");
        }
        start();
        return this;
    }

    /** Wait until queues and index have caught up with the log. */
    void awaitDispatch() throws InterruptedException {
        long deadline = System.nanoTime() + DISPATCH_TIMEOUT_NANOS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() - deadline > 0) {
                throw new IllegalStateException("dispatch is still " + store.dispatchBehindBytes() + " bytes behind");
            }
            Thread.sleep(1);
        }
    }

    DefaultMessageStore store() {
        return store;
    }

    void shutdown() {
        store.shutdown();
    }
}
