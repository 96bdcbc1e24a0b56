package org.mqlake.interop;

/** The offsets a consume queue holds: min is the first one, max the next to be written. */
record QueueRange(String topic, int queueId, long min, long max) {
}
