# Group commit: one sync serves everyone who was waiting when it began. None of it holds the interpreter lock.

from libc.errno cimport EINTR, errno

cdef extern from "commit.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_cond_destroy(pthread_cond_t* bell)
    int pthread_cond_broadcast(pthread_cond_t* bell)
    int pthread_cond_signal(pthread_cond_t* bell)
    int pthread_cond_wait(pthread_cond_t* bell, pthread_mutex_t* mutex)
    int bell_init(pthread_cond_t* bell)
    int bell_wait_until(pthread_cond_t* bell, pthread_mutex_t* mutex, int64_t deadline_ns)
    int64_t monotonic_ns()
    int64_t load_word(const int64_t* word)
    void store_word(int64_t* word, int64_t value)
    int fdatasync(int descriptor)
    int eventfd_write(int descriptor, uint64_t value)

cdef enum:
    COVERED = 0     # what `wait` and `serve` answer: kernel/types.py
    FAILED = 1
    TIMED_OUT = 2
    LEAD = 3
    STOPPED = 4


cdef class GroupCommit:
    """Who syncs, who waits for it, and how far the log is durable.

    The first to wait does the sync itself, in its own thread. Those who come meanwhile wait for the next one; it is
    done by the thread in `serve` if that is quicker than the next who comes. A sync that needs more than one call
    (a new file, the transient pool) is the caller's: `wait` and `serve` answer LEAD, and the caller ends it by `finish`.

    `durable` moves only behind a sync that succeeded, and never again once one has failed.
    """

    cdef readonly int64_t durable
    """All of the log before this offset is on the disk."""
    cdef readonly int failure
    """The errno of the sync that failed; 0 as long as none did."""
    cdef readonly int64_t sync_count
    cdef Appender appender
    cdef Py_buffer words
    cdef int64_t* durable_word
    cdef pthread_mutex_t mutex
    cdef pthread_cond_t[2] bells       # for those who wait for the sync with an even, an odd number
    cdef pthread_cond_t called         # for the thread in `serve`
    cdef int[2] waiting
    cdef int64_t number                # of the sync that runs, or ran last
    cdef bint syncing
    cdef bint serving                  # the thread in `serve` waits
    cdef bint stopping
    cdef int64_t requested
    cdef int descriptor                # of the file that is written; -1: every sync is the caller's
    cdef int64_t file_start
    cdef int* watchers
    cdef int watcher_count

    def __cinit__(self):
        pthread_mutex_init(&self.mutex, NULL)
        bell_init(&self.bells[0])
        bell_init(&self.bells[1])
        bell_init(&self.called)
        self.descriptor = -1

    def __init__(self, Appender appender not None, word):
        """`word`: the 8-byte word that tells other processes how far the log is durable."""
        self.appender = appender
        PyObject_GetBuffer(word, &self.words, PyBUF_WRITABLE)
        self.durable_word = <int64_t*> self.words.buf
        if self.words.len < 8:
            raise ValueError("the durable end's word has 8 bytes")

    def __dealloc__(self):
        self.release()
        free(self.watchers)
        pthread_cond_destroy(&self.called)
        pthread_cond_destroy(&self.bells[1])
        pthread_cond_destroy(&self.bells[0])
        pthread_mutex_destroy(&self.mutex)

    def release(self):
        """Let go of the durable end's word; nobody waits any more."""
        if self.durable_word != NULL:
            self.durable_word = NULL
            PyBuffer_Release(&self.words)

    def begin(self, int64_t durable):
        """The log is durable up to here already."""
        self.durable = self.requested = durable

    def write_to(self, int descriptor, int64_t file_start):
        """From here on the log is written to this file; said before the first record goes there."""
        pthread_mutex_lock(&self.mutex)
        self.descriptor = descriptor
        self.file_start = file_start
        pthread_mutex_unlock(&self.mutex)

    def wait(self, int64_t end, int64_t timeout_ns):
        """Until the log is durable up to `end`: COVERED, FAILED, TIMED_OUT, or LEAD: the caller is to sync."""
        cdef int answer
        if load_word(&self.durable) >= end:
            return COVERED
        with nogil:
            pthread_mutex_lock(&self.mutex)
            answer = self.wait_locked(end, monotonic_ns() + timeout_ns)
            pthread_mutex_unlock(&self.mutex)
        return answer

    cdef int wait_locked(self, int64_t end, int64_t deadline) noexcept nogil:
        cdef int turn
        cdef int late = 0
        while self.durable < end:
            if self.failure:
                return FAILED
            if late:
                return TIMED_OUT
            if not self.syncing:
                if not self.take_lead():
                    return LEAD
                self.sync()
                continue
            turn = (self.number + 1) & 1   # the sync that runs began too early for this one
            self.waiting[turn] += 1
            late = bell_wait_until(&self.bells[turn], &self.mutex, deadline)
            self.waiting[turn] -= 1
        return COVERED

    cdef bint take_lead(self) noexcept nogil:
        """Whether the sync is one call: all that is not durable lies in the file that is written.

        Strictly behind its start, because the first sync of a new file has its name to bring along.
        """
        self.syncing = True
        return self.descriptor >= 0 and self.durable > self.file_start

    cdef void sync(self) noexcept nogil:
        cdef int64_t target = load_word(&self.appender.end)
        cdef int descriptor = self.descriptor
        cdef int failure = 0
        self.number += 1
        pthread_mutex_unlock(&self.mutex)
        while fdatasync(descriptor) != 0:
            if errno != EINTR:
                failure = errno
                break
        pthread_mutex_lock(&self.mutex)
        self.end_sync(target, failure)

    cdef void end_sync(self, int64_t target, int failure) noexcept nogil:
        self.syncing = False
        if failure and not self.failure:
            self.failure = failure
        if not self.failure:
            self.sync_count += 1
            store_word(&self.durable, target)
            if self.durable_word != NULL:
                store_word(self.durable_word, target)
        self.tell_watchers()
        pthread_cond_broadcast(&self.bells[self.number & 1])
        if self.failure:
            self.tell_of_failure()
        elif self.serving:
            if self.is_wanted():
                pthread_cond_signal(&self.called)
        else:  # whoever is woken first leads, unless this sync covered it: so wake all
            pthread_cond_broadcast(&self.bells[(self.number + 1) & 1])

    cdef void tell_watchers(self) noexcept nogil:
        cdef int i
        for i in range(self.watcher_count):
            eventfd_write(self.watchers[i], 1)

    cdef void tell_of_failure(self) noexcept nogil:
        pthread_cond_broadcast(&self.bells[0])
        pthread_cond_broadcast(&self.bells[1])
        pthread_cond_signal(&self.called)

    cdef bint is_wanted(self) noexcept nogil:
        return self.waiting[(self.number + 1) & 1] > 0 or self.requested > self.durable

    def finish(self, int64_t durable, int failure):
        """The caller who was to lead has synced up to `durable`, or failed with an errno."""
        pthread_mutex_lock(&self.mutex)
        self.end_sync(durable, failure)
        pthread_mutex_unlock(&self.mutex)

    def fail(self, int failure):
        """Something else than a sync failed, and nothing may be acknowledged any more."""
        pthread_mutex_lock(&self.mutex)
        if not self.failure:
            self.failure = failure
        self.tell_watchers()
        self.tell_of_failure()
        pthread_mutex_unlock(&self.mutex)

    def lead(self):
        """Called by one who was told to LEAD, before it looks how far the log goes: who comes later waits longer."""
        pthread_mutex_lock(&self.mutex)
        self.number += 1
        pthread_mutex_unlock(&self.mutex)

    # ---- for those who do not wait in a thread

    def request(self, int64_t end):
        """Let the thread in `serve` sync up to `end`."""
        pthread_mutex_lock(&self.mutex)
        self.requested = max(self.requested, end)
        if self.serving and not self.syncing and self.requested > self.durable:
            pthread_cond_signal(&self.called)
        pthread_mutex_unlock(&self.mutex)

    def watch(self, int descriptor):
        """Ring this eventfd after each sync."""
        cdef int* grown
        pthread_mutex_lock(&self.mutex)
        grown = <int*> realloc(self.watchers, (self.watcher_count + 1) * sizeof(int))
        if grown != NULL:
            self.watchers = grown
            self.watchers[self.watcher_count] = descriptor
            self.watcher_count += 1
        pthread_mutex_unlock(&self.mutex)
        if grown == NULL:
            raise MemoryError

    def unwatch(self, int descriptor):
        """Ring it no more."""
        cdef int i
        pthread_mutex_lock(&self.mutex)
        for i in range(self.watcher_count):
            if self.watchers[i] == descriptor:
                self.watcher_count -= 1
                self.watchers[i] = self.watchers[self.watcher_count]
                break
        pthread_mutex_unlock(&self.mutex)

    def serve(self, int64_t timeout_ns):
        """Sync for others, as long as they ask: TIMED_OUT when nobody did for so long, LEAD, FAILED or STOPPED."""
        cdef int answer
        with nogil:
            pthread_mutex_lock(&self.mutex)
            answer = self.serve_locked(monotonic_ns() + timeout_ns)
            pthread_mutex_unlock(&self.mutex)
        return answer

    cdef int serve_locked(self, int64_t deadline) noexcept nogil:
        cdef int late = 0
        while True:
            if self.stopping:
                return STOPPED
            if self.failure:
                return FAILED
            if self.is_wanted() and not self.syncing:
                if not self.take_lead():
                    return LEAD
                self.sync()
                continue
            if late:
                return TIMED_OUT
            self.serving = True
            late = bell_wait_until(&self.called, &self.mutex, deadline)
            self.serving = False

    def stop(self):
        """Send the thread in `serve` home."""
        pthread_mutex_lock(&self.mutex)
        self.stopping = True
        pthread_cond_signal(&self.called)
        pthread_mutex_unlock(&self.mutex)
