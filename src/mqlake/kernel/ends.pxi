# The ends of the log: how far it is appended, committed, durable, replicated and dispatched; and the threads that wait
# for one of them to move. No wait holds the interpreter lock.

cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()

cdef extern from "commit.h" nogil:
    int64_t exchange_word(int64_t* word, int64_t value)
    int load_count(const int* count)
    void add_count(int* count, int change)
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_trylock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_broadcast(pthread_cond_t* condition)
    int pthread_cond_signal(pthread_cond_t* condition)
    int recursive_mutex_init(pthread_mutex_t* mutex)
    int condition_init(pthread_cond_t* condition)
    int condition_wait_until(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t deadline_ns)
    int64_t monotonic_ns()
    int64_t load_word(const int64_t* word)
    void store_word(int64_t* word, int64_t value)
    int eventfd_write(int descriptor, uint64_t value)

from cpython.exc cimport PyErr_CheckSignals

cdef enum:
    APPENDED = 0                # which end: kernel/types.py
    COMMITTED = 1
    DURABLE = 2
    REPLICATED = 3
    DISPATCHED = 4
    VISIBLE = 5
    END_COUNT = 6

cdef enum:
    REACHED = 0                 # what `wait` returns: kernel/types.py
    LATE = 1
    NUDGED = 2

cdef int64_t NO_HOLD = 0x7FFFFFFFFFFFFFFF
cdef int64_t SIGNAL_SLICE_NS = 50000000
"""The main thread checks for signals this often while it waits: Python handles them in that thread only."""
import threading as _threading
cdef unsigned long main_thread = _threading.main_thread().ident


cdef struct Watcher:
    int descriptor
    int which


cdef class Ends:
    """appended >= committed >= durable >= replicated; dispatched <= visible.

    Each end is moved by one thread at a time, and only forward. Any thread reads an end without a lock and waits for it
    with `wait`, or with an eventfd given to `watch`. Moving an end wakes the threads that wait for it, so no caller can
    forget to.

    `visible` decides in one place how far readers may read: to the committed, durable or replicated end, as chosen at
    creation, but not past a hold. A hold keeps records invisible until all that belong together are appended.
    """

    cdef int64_t[5] at
    cdef int64_t hold_at
    cdef bint pooled                    # appended records are in a buffer until they are committed
    cdef int visible_by
    cdef Py_buffer words
    cdef int64_t* published             # appended, durable and dispatched end, for other processes; or NULL
    cdef pthread_mutex_t mutex          # a leaf: no other lock is taken while it is held
    cdef pthread_cond_t[6] moved
    cdef int[6] waiting                 # threads and watchers, by end
    cdef readonly int64_t nudges
    """How often `nudge` was called."""
    cdef Watcher* watchers
    cdef int watcher_count

    def __cinit__(self):
        cdef int which
        pthread_mutex_init(&self.mutex, NULL)
        for which in range(END_COUNT):
            condition_init(&self.moved[which])
        self.hold_at = NO_HOLD

    def __init__(self, int64_t appended, int64_t durable, int visible_by, bint pooled=False, words=None):
        """`visible_by`: COMMITTED, DURABLE or REPLICATED. `words`: three 8-byte words that publish the committed,
        durable and dispatched end to other processes.
        """
        if visible_by not in (COMMITTED, DURABLE, REPLICATED):
            raise ValueError(f"{visible_by} is not an end that can make records visible")
        self.at[APPENDED] = self.at[COMMITTED] = appended
        self.at[DURABLE] = self.at[REPLICATED] = durable
        self.pooled = pooled
        self.visible_by = visible_by
        if words is not None:
            PyObject_GetBuffer(words, &self.words, PyBUF_WRITABLE)
            if self.words.len < 24:
                PyBuffer_Release(&self.words)
                raise ValueError("the ends are published in three words of 8 bytes")
            self.published = <int64_t*> self.words.buf

    def __dealloc__(self):
        cdef int which
        self.unpublish()
        free(self.watchers)
        for which in range(END_COUNT):
            pthread_cond_destroy(&self.moved[which])
        pthread_mutex_destroy(&self.mutex)

    # ---- reading

    @property
    def appended(self):
        """The end of what was put, in mapped pages or in a buffer of the pool."""
        return load_word(&self.at[APPENDED])

    @property
    def committed(self):
        """The end of what is in the page cache."""
        return self.value(COMMITTED)

    @property
    def durable(self):
        """The end of what a sync has put on disk."""
        return load_word(&self.at[DURABLE])

    @property
    def replicated(self):
        """The end of what enough replicas have."""
        return load_word(&self.at[REPLICATED])

    @property
    def dispatched(self):
        """The end of what is in queues and index."""
        return load_word(&self.at[DISPATCHED])

    @property
    def visible(self):
        """How far readers may read."""
        return self.value(VISIBLE)

    @property
    def promised(self):
        """The visible end without a hold: what a thread that reads its own puts waits for."""
        return self.value(self.visible_by)

    cdef int64_t value(self, int which) noexcept nogil:
        cdef int64_t end
        cdef int64_t held
        if which == VISIBLE:
            # The hold is set before the records after it are appended, and loaded here after the end (acquire): a
            # thread that sees the longer end sees the hold too.
            end = self.value(self.visible_by)
            held = load_word(&self.hold_at)
            return end if end < held else held
        if which == COMMITTED and not self.pooled:
            which = APPENDED
        return load_word(&self.at[which])

    # ---- moving

    def advance(self, int which, int64_t end):
        """Move an end forward and wake the threads that wait for it. Do nothing if it is already there."""
        if not APPENDED <= which <= DISPATCHED:
            raise ValueError(f"{which} is not an end that can be moved")
        # With the interpreter lock held: nobody holds the mutex for long or takes the interpreter lock under it.
        self.move(which, end)

    cdef void move(self, int which, int64_t end) noexcept nogil:
        cdef bint is_visible
        if end <= load_word(&self.at[which]):
            return
        # A full barrier, not only a release store: a waiting thread counts itself and then loads the end; this one
        # stores the end and then loads the count. Without the barrier both could miss each other. The check above
        # needs no lock, because only one thread at a time moves this end.
        exchange_word(&self.at[which], end)
        if self.published != NULL:
            self.publish(which, end)
        is_visible = which == self.visible_by \
            or (which == APPENDED and self.visible_by == COMMITTED and not self.pooled)
        if load_count(&self.waiting[which]) or (is_visible and load_count(&self.waiting[VISIBLE])):
            self.tell(which, is_visible)

    cdef inline void publish(self, int which, int64_t end) noexcept nogil:
        if which == COMMITTED or (which == APPENDED and not self.pooled):
            store_word(&self.published[0], end)
        elif which == DURABLE:
            store_word(&self.published[1], end)
        elif which == DISPATCHED:
            store_word(&self.published[2], end)

    cdef void tell(self, int which, bint is_visible) noexcept nogil:
        # Under the mutex: a thread between its check of the end and its wait holds it, so it cannot miss the broadcast.
        cdef int i
        pthread_mutex_lock(&self.mutex)
        pthread_cond_broadcast(&self.moved[which])
        if which == APPENDED and not self.pooled:
            pthread_cond_broadcast(&self.moved[COMMITTED])
        if is_visible:
            pthread_cond_broadcast(&self.moved[VISIBLE])
        for i in range(self.watcher_count):
            if self.watchers[i].which == which:
                eventfd_write(self.watchers[i].descriptor, 1)
        pthread_mutex_unlock(&self.mutex)

    def unpublish(self):
        """Stop publishing; the words may be unmapped from here on. No other thread may move an end any more."""
        if self.published != NULL:
            self.published = NULL
            PyBuffer_Release(&self.words)

    # ---- the hold

    cdef int hold(self) except -1:
        """Hold the visible end here. `Appender.hold_visible` keeps appends out meanwhile: else it could move back."""
        if load_word(&self.hold_at) != NO_HOLD:
            raise ValueError("the visible end is held already")
        exchange_word(&self.hold_at, self.at[APPENDED])
        return 0

    def release(self):
        """Make visible what was appended since `hold`."""
        exchange_word(&self.hold_at, NO_HOLD)
        with nogil:
            self.tell(VISIBLE, True)

    # ---- waiting

    def wait(self, int which, int64_t end, int64_t timeout_ns, nudges=None):
        """Wait until an end reaches `end`. Return REACHED, LATE, or NUDGED if `nudge` was called after the count
        `nudges` was read. A negative timeout means none. In the main thread, signals are handled meanwhile.
        """
        cdef int64_t seen = self.nudges if nudges is None else nudges
        cdef int64_t deadline = NO_HOLD if timeout_ns < 0 else monotonic_ns() + timeout_ns
        cdef int64_t stop = deadline
        cdef bint in_main = PyThread_get_thread_ident() == main_thread
        cdef int answer
        if not APPENDED <= which <= VISIBLE:
            raise ValueError(f"{which} is not an end")
        while True:
            if in_main:
                stop = min(deadline, monotonic_ns() + SIGNAL_SLICE_NS)
            with nogil:
                pthread_mutex_lock(&self.mutex)
                answer = self.wait_locked(which, end, stop, seen)
                pthread_mutex_unlock(&self.mutex)
            if answer != LATE or stop == deadline:
                return answer
            PyErr_CheckSignals()

    cdef int wait_locked(self, int which, int64_t end, int64_t deadline, int64_t seen) noexcept nogil:
        cdef int late = 0
        cdef int counted = APPENDED if which == COMMITTED and not self.pooled else which
        add_count(&self.waiting[counted], 1)
        if which == DISPATCHED:
            # The dispatcher may be resting: wake it, because a thread waits for it now.
            pthread_cond_broadcast(&self.moved[VISIBLE])
        while self.value(which) < end and self.nudges == seen and not late:
            late = condition_wait_until(&self.moved[which], &self.mutex, deadline)
        add_count(&self.waiting[counted], -1)
        if self.value(which) >= end:
            return REACHED
        return NUDGED if self.nudges != seen else LATE

    def rest(self, int64_t timeout_ns, nudges=None):
        """Leave the interpreter lock to others for a while, even if records come. For the dispatcher.

        Ends early when a thread begins to wait for the dispatched end, or on a nudge. While such a thread waits, it
        returns at once.
        """
        cdef int64_t deadline = monotonic_ns() + timeout_ns
        cdef int64_t seen = self.nudges if nudges is None else nudges
        with nogil:
            pthread_mutex_lock(&self.mutex)
            if not load_count(&self.waiting[DISPATCHED]) and self.nudges == seen:
                condition_wait_until(&self.moved[VISIBLE], &self.mutex, deadline)
            pthread_mutex_unlock(&self.mutex)

    @property
    def awaited(self):
        """Return whether a thread or an event loop waits for the dispatched end."""
        return load_count(&self.waiting[DISPATCHED]) > 0

    def nudge(self):
        """Make every `wait` return, so that its caller checks its condition again."""
        with nogil:
            self.alarm()

    cdef void alarm(self) noexcept nogil:
        cdef int which, i
        pthread_mutex_lock(&self.mutex)
        self.nudges += 1
        for which in range(END_COUNT):
            pthread_cond_broadcast(&self.moved[which])
        for i in range(self.watcher_count):
            eventfd_write(self.watchers[i].descriptor, 1)
        pthread_mutex_unlock(&self.mutex)

    def watch(self, int which, int descriptor):
        """Write to an eventfd whenever an end moves, and on every nudge.

        Each put pays for a watched appended end with a system call: watch it only while there is nothing else to do.
        """
        cdef Watcher* grown
        if not APPENDED <= which <= DISPATCHED:
            raise ValueError(f"{which} is not an end that can be watched")
        if which == COMMITTED and not self.pooled:
            which = APPENDED
        with nogil:
            pthread_mutex_lock(&self.mutex)
            grown = <Watcher*> realloc(self.watchers, (self.watcher_count + 1) * sizeof(Watcher))
            if grown != NULL:
                self.watchers = grown
                self.watchers[self.watcher_count].descriptor = descriptor
                self.watchers[self.watcher_count].which = which
                self.watcher_count += 1
                add_count(&self.waiting[which], 1)
                if which == DISPATCHED:
                    pthread_cond_broadcast(&self.moved[VISIBLE])
            pthread_mutex_unlock(&self.mutex)
        if grown == NULL:
            raise MemoryError

    def unwatch(self, int descriptor):
        """Stop writing to an eventfd. When this returns, no thread is about to write, and it may be closed."""
        cdef int i
        with nogil:
            pthread_mutex_lock(&self.mutex)
            for i in range(self.watcher_count):
                if self.watchers[i].descriptor == descriptor:
                    add_count(&self.waiting[self.watchers[i].which], -1)
                    self.watcher_count -= 1
                    self.watchers[i] = self.watchers[self.watcher_count]
                    break
            pthread_mutex_unlock(&self.mutex)
