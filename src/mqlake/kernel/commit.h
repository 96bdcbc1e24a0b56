/* Bells on the monotonic clock, and words that threads without a lock in common read and write whole. */
#ifndef MQLAKE_COMMIT_H
#define MQLAKE_COMMIT_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static inline int bell_init(pthread_cond_t *bell) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(bell, &attributes);
    pthread_condattr_destroy(&attributes);
    return failed;
}

/* Whether the deadline has passed. */
static inline int bell_wait_until(pthread_cond_t *bell, pthread_mutex_t *mutex, int64_t deadline_ns) {
    struct timespec deadline = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    return pthread_cond_timedwait(bell, mutex, &deadline) == ETIMEDOUT;
}

static inline int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t load_word(const int64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void store_word(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

#endif
