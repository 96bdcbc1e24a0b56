/* Waits on the monotonic clock, pages that are written ahead, and words that threads share without a lock. */
#ifndef MQLAKE_COMMIT_H
#define MQLAKE_COMMIT_H

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline int condition_init(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
    return failed;
}

/* Recursive: the garbage collector can run a finalizer in the middle of a put, and the finalizer can put. */
static inline int recursive_mutex_init(pthread_mutex_t *mutex) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    int failed = pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return failed;
}

/* Wait, and return whether the deadline has passed. INT64_MAX is no deadline. */
static inline int condition_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t deadline_ns) {
    if (deadline_ns == INT64_MAX) {
        pthread_cond_wait(condition, mutex);
        return 0;
    }
    struct timespec deadline = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    return pthread_cond_timedwait(condition, mutex, &deadline) == ETIMEDOUT;
}

/* Sleep until woken with one of these bits; return at once if `word` is no longer `seen`. Return whether the deadline
   has passed. A condition variable would make all woken threads queue for its mutex, which they do not need. */
static inline int sleep_on(const uint32_t *word, uint32_t seen, uint32_t bits, int64_t deadline_ns) {
    struct timespec deadline = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    return syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, &deadline, NULL, bits) != 0 && errno == ETIMEDOUT;
}

static inline void wake_sleepers(uint32_t *word, int most, uint32_t bits) {
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, most, NULL, NULL, bits);
}

static inline int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Make the pages of [start, stop) dirty without changing a byte, so that the next sync writes their blocks. Concurrent
   stores into them are safe. A failure only costs time later.

   MADV_RANDOM keeps the pages single: read-ahead would create large folios, and one byte stored into such a folio
   through a mapping makes the sync write all of it. */
static inline void dirty_pages(int descriptor, int64_t start, int64_t stop) {
    size_t size = (size_t)(stop - start);
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, start);
    if (pages == MAP_FAILED) return;
    madvise(pages, size, MADV_RANDOM);
    madvise(pages, size, MADV_POPULATE_WRITE);
    munmap(pages, size);
}

/* Acquire and release: a thread that loads an end also sees the bytes that were stored before it. */
static inline int64_t load_word(const int64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void store_word(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

/* Store with a full barrier: no later load of this thread may move before it. */
static inline int64_t exchange_word(int64_t *word, int64_t value) {
    return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);
}

/* Sequentially consistent, to pair with `exchange_word`: a waiter counts itself, then loads the end; a mover stores the
   end, then loads the count. One of the two sees the other. */
static inline int load_count(const int *count) { return __atomic_load_n(count, __ATOMIC_SEQ_CST); }
static inline void add_count(int *count, int change) { __atomic_add_fetch(count, change, __ATOMIC_SEQ_CST); }

#endif
