package org.mqlake.interop;

/** One consume-queue unit; only in batch consume queues does it stand for more than one offset. */
record QueueUnit(long offset, int count, long tagsCode) {
}
