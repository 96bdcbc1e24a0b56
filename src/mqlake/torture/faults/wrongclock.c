/* wrongclock: an LD_PRELOAD shim that shifts the wall clock of a program, while it runs.
 *
 *   WRONGCLOCK_FILE   8 bytes, a signed number of milliseconds in the machine's byte order: what is added to the wall
 *                     clock. The file is mapped: a change counts from the next call on, in every process that has it.
 *
 * Shifted: clock_gettime(CLOCK_REALTIME and CLOCK_REALTIME_COARSE), gettimeofday, time, timespec_get. The clocks that
 * nobody can set (CLOCK_MONOTONIC, CLOCK_BOOTTIME and the rest) stay right, and so do the times that the kernel gives
 * to files.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_ms;

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("WRONGCLOCK_FILE");
    if (!path || !*path) return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) { fprintf(stderr, "wrongclock: cannot map %s\n", path); _exit(97); }
    close(file);
    offset_ms = page;
}

static int shifted(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real ? real(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && offset_ms && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ms = *offset_ms, nanoseconds = now->tv_nsec + ms % 1000 * 1000000;
        now->tv_sec += ms / 1000 + (nanoseconds >= 1000000000) - (nanoseconds < 0);
        now->tv_nsec = (nanoseconds + 1000000000) % 1000000000;
    }
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *now) { return shifted(clock, now); }

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (shifted(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec exact;
    if (shifted(CLOCK_REALTIME, &exact)) return -1;
    if (result) *result = exact.tv_sec;
    return exact.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return base == TIME_UTC && shifted(CLOCK_REALTIME, now) == 0 ? base : 0;
}
