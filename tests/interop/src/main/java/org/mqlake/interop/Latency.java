package org.mqlake.interop;

/** A histogram of durations whose buckets are at most 1/32 wide. */
final class Latency {
    private static final int SUB_BITS = 5;
    private static final int SUB_BUCKETS = 1 << SUB_BITS;

    private final long[] buckets = new long[64 * SUB_BUCKETS];
    private long total;
    private long max;

    void add(long nanos) {
        buckets[bucket(nanos)]++;
        total++;
        max = Math.max(max, nanos);
    }

    void addAll(Latency other) {
        for (int i = 0; i < buckets.length; i++) {
            buckets[i] += other.buckets[i];
        }
        total += other.total;
        max = Math.max(max, other.max);
    }

    /** The duration in microseconds that a share of all additions did not exceed. */
    double micros(double share) {
        long wanted = (long) Math.ceil(share * total);
        long seen = 0;
        for (int i = 0; i < buckets.length; i++) {
            seen += buckets[i];
            if (seen >= wanted && seen > 0) {
                return Math.min(upperBound(i), max) / 1000.0;
            }
        }
        return 0;
    }

    double maxMicros() {
        return max / 1000.0;
    }

    private static int bucket(long nanos) {
        if (nanos < SUB_BUCKETS) {
            return (int) Math.max(0, nanos);
        }
        int shift = 63 - Long.numberOfLeadingZeros(nanos) - SUB_BITS;
        return (shift + 1) * SUB_BUCKETS + (int) (nanos >>> shift) - SUB_BUCKETS;
    }

    private static long upperBound(int bucket) {
        if (bucket < SUB_BUCKETS) {
            return bucket;
        }
        int shift = bucket / SUB_BUCKETS - 1;
        return ((long) (bucket % SUB_BUCKETS + SUB_BUCKETS + 1) << shift) - 1;
    }
}
