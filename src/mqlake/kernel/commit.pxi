# Group commit: one sync serves every thread that was waiting when it began. No sync or wait holds the interpreter lock.

from libc.errno cimport EINTR, errno

cdef extern from "commit.h" nogil:
    int sleep_on(const uint32_t* word, uint32_t seen, uint32_t bits, int64_t deadline_ns)
    void wake_sleepers(uint32_t* word, int most, uint32_t bits)
    void dirty_pages(int descriptor, int64_t start, int64_t stop)
    int fdatasync(int descriptor)
    int fsync(int descriptor)

cdef enum:
    COVERED = 0     # what `wait` and `serve` return: kernel/types.py
    FAILED = 1
    TIMED_OUT = 2
    LEAD = 3
    STOPPED = 4
    ASLEEP = 5      # from `join` only: sleep until the sync has ended

cdef enum:
    FILE_PAGE = 4096
    LARGE_SYNC = 48 << 10       # a sync of more bytes writes nothing ahead
    WRITE_AHEAD = 1 << 20       # bytes after the log's end whose blocks one sync writes for the next syncs
    MOST_PATIENCE_NS = 1_000_000  # how long a leader waits at most for the threads that the last sync served
    STEP_NS = 25_000            # what a chain of wake-ups takes for each thread
    MOST_SKIPPED = 31           # how many leaders in a row do not wait, after waiting was in vain several times
    FEW = 3                     # so many threads are all woken at once
    CHAIN_NS = 200_000          # after so long, those that the chain has not reached are all woken
    ALL = 0x7fffffff
    EVERY_SYNC = 0xffffffff


cdef inline uint32_t bit_of(int64_t number) noexcept nogil:
    """Return the futex bit of a sync. Threads that an earlier sync served may still sleep: 32 syncs do not share one."""
    return <uint32_t> 1 << (number & 31)


cdef class GroupCommit:
    """Decides which thread leads the sync; the others wait. Moves the durable end of `ends`.

    The first thread to wait leads the sync. Threads that come while it runs wait for the next one, unless the running
    one is known to cover them. The next one is led by the thread in `serve`. A sync that needs more than one call (a
    new file, the transient pool) is left to the caller: `wait` and `serve` return LEAD, and the caller calls `lead`,
    then `sync_files` or `abandon`.

    Threads that a sync served mostly come back with the next record at once. So the next leader waits for them, about
    as long as the last sync took: one sync for all is better than two syncs for half of them. A lone producer never
    waits.

    The end of a sync wakes the threads that it served, and no others while a thread is in `serve`. If they are many, it
    wakes one, and each wakes the next when it waits again: all need the interpreter lock to return, and a thread that
    wakes while another has it would go to sleep a second time. If the chain does not get on, because a thread does
    something else first, the next sync or the thread in `serve` wakes the rest.

    The durable end moves only after a sync that succeeded, and never again after one that failed.
    """

    cdef readonly int failure
    """The errno of the sync that failed; 0 as long as none did."""
    cdef readonly int64_t sync_count
    cdef readonly Ends ends
    cdef pthread_mutex_t mutex
    cdef pthread_cond_t called         # wakes the thread in `serve`
    cdef pthread_cond_t gathered       # wakes the leader that waits for others
    cdef uint32_t ended                # changes when a sync ends: waiting threads sleep on it, with their sync's bit
    cdef int64_t number                # of the sync that runs, or ran last
    cdef int64_t done                  # of the sync that ended last; equal to `number` while none runs
    cdef int64_t target                # the durable end after the running sync, if known
    cdef int[2] waiting                # threads that wait for the sync with an even and with an odd number
    cdef int64_t chain                 # the sync whose threads wake each other
    cdef int asleep                    # so many of them are not woken yet
    cdef bint syncing                  # a thread leads
    cdef unsigned long leader          # that thread, to tell it from others in `abandon`
    cdef bint serving                  # a thread is in `serve`
    cdef int active                    # threads that the last sync served, and those that waited when it ended
    cdef int wanted                    # wake the leader when this many wait
    cdef int64_t ended_ns
    cdef int64_t patience_ns
    cdef int in_vain                   # doubles each time that a leader waited and not all came
    cdef int skipped                   # this many of the next leaders do not wait
    cdef bint stopping
    cdef int64_t requested
    cdef int descriptor                # of the file that is written; -1: every sync is the caller's
    cdef int64_t file_start
    cdef int64_t reserved_end          # the file's blocks are reserved up to here: nothing is written ahead past it
    cdef int64_t written_end           # syncs have written the file's blocks up to here, some of them ahead

    def __cinit__(self):
        pthread_mutex_init(&self.mutex, NULL)
        condition_init(&self.called)
        condition_init(&self.gathered)
        self.descriptor = -1

    def __init__(self, Ends ends not None):
        self.ends = ends
        self.requested = ends.durable

    def __dealloc__(self):
        pthread_cond_destroy(&self.gathered)
        pthread_cond_destroy(&self.called)
        pthread_mutex_destroy(&self.mutex)

    def write_to(self, int descriptor, int64_t file_start, int64_t reserved_end=0):
        """Name the file that the log is written to from now on, before the first record goes there.

        Its blocks are reserved up to the physical offset `reserved_end`. Without a descriptor (-1), every sync is left
        to the caller.
        """
        pthread_mutex_lock(&self.mutex)
        self.descriptor = descriptor
        self.file_start = self.written_end = file_start
        self.reserved_end = reserved_end
        pthread_mutex_unlock(&self.mutex)

    def reserved(self, int64_t end):
        """Raise the physical offset up to which blocks of the file being written are reserved."""
        pthread_mutex_lock(&self.mutex)
        self.reserved_end = max(self.reserved_end, end)
        pthread_mutex_unlock(&self.mutex)

    def wait(self, int64_t end, int64_t timeout_ns):
        """Wait until the log is durable up to `end`: COVERED, FAILED, TIMED_OUT, or LEAD: the caller must sync. The main
        thread handles signals meanwhile, except during a sync that it leads itself.
        """
        cdef int64_t deadline = monotonic_ns() + timeout_ns
        cdef int64_t stop = deadline
        cdef bint in_main = PyThread_get_thread_ident() == main_thread
        cdef int answer
        if load_word(&self.ends.at[DURABLE]) >= end:
            return COVERED
        while True:
            if in_main:
                stop = min(deadline, monotonic_ns() + SIGNAL_SLICE_NS)
            with nogil:
                answer = self.wait_for(end, stop)
            if answer != TIMED_OUT or stop == deadline:
                return answer
            PyErr_CheckSignals()

    cdef int wait_for(self, int64_t end, int64_t deadline) noexcept nogil:
        cdef int answer
        cdef int64_t mine = 0
        cdef int late = 0
        cdef uint32_t seen, next_bit
        while True:
            pthread_mutex_lock(&self.mutex)
            answer = self.join(end, late, &mine)
            next_bit = self.next_in_chain() if answer == ASLEEP else 0
            # Read under the mutex, and `end_sync` changes it under the mutex: if a sync ends from here on, the futex
            # finds another value and does not sleep. So no wake-up is lost.
            seen = self.ended
            pthread_mutex_unlock(&self.mutex)
            if next_bit:
                wake_sleepers(&self.ended, 1, next_bit)
            if answer != ASLEEP:
                return answer
            late = sleep_on(&self.ended, seen, bit_of(mine), deadline)
            if load_word(&self.ends.at[DURABLE]) >= end:
                return COVERED

    cdef int join(self, int64_t end, int late, int64_t* mine) noexcept nogil:
        """Lead if nobody does; else count this thread as waiting for the sync `mine`. Called under the mutex."""
        while self.ends.at[DURABLE] < end:
            if self.failure:
                return FAILED
            if late or not self.syncing:
                if mine[0] > self.done:
                    self.waiting[mine[0] & 1] -= 1
                    mine[0] = self.done
            if late:
                return TIMED_OUT
            if self.syncing:
                if mine[0] <= self.done:
                    self.wait_for_sync(end, mine)
                return ASLEEP
            if not self.take_lead(1):
                return LEAD
            self.sync(1)
            self.active += 1
        return COVERED

    cdef uint32_t next_in_chain(self) noexcept nogil:
        """Count one thread as woken and return its futex bit; 0 if the chain is at its end. Called under the mutex.

        Threads that did not sleep yet are counted too. They find that `ended` has changed and do not sleep at all: so
        the count is never too small, and a wake-up that finds nobody does no harm.
        """
        if not self.asleep:
            return 0
        self.asleep -= 1
        return bit_of(self.chain)

    cdef void end_chain(self) noexcept nogil:
        """Wake all that the chain has not reached. Called under the mutex."""
        if self.asleep:
            self.asleep = 0
            wake_sleepers(&self.ended, ALL, bit_of(self.chain))

    cdef void wait_for_sync(self, int64_t end, int64_t* mine) noexcept nogil:
        """Wait for the first sync that surely covers `end`: the running one may have begun too early."""
        mine[0] = self.number
        if self.number == self.done or self.target < end:
            mine[0] += 1
        self.waiting[mine[0] & 1] += 1
        if self.waiting[mine[0] & 1] == self.wanted:
            pthread_cond_signal(&self.gathered)

    cdef bint take_lead(self, int own) noexcept nogil:
        """Become the leader. Return whether the sync is one call: all that is not durable is in the file being written.

        The durable end must be strictly after the file's start: the first sync of a new file must also sync its name.
        `own`: 1 if the leader has a record of its own to sync.
        """
        self.syncing = True
        self.leader = PyThread_get_thread_ident()
        self.gather(own)  # it releases the mutex, and the log may roll meanwhile: so look at the file afterwards
        return self.descriptor >= 0 and self.ends.at[DURABLE] > self.file_start

    cdef void gather(self, int own) noexcept nogil:
        """Wait for the threads that the last sync served, unless such waits were in vain lately."""
        cdef int turn = (self.number + 1) & 1
        cdef int late = 0
        cdef int64_t deadline = self.ended_ns + min(max(self.patience_ns, self.active * STEP_NS), MOST_PATIENCE_NS)
        cdef uint32_t next_bit
        if self.waiting[turn] + own >= self.active or monotonic_ns() >= deadline:
            return
        if self.skipped:
            self.skipped -= 1
            return
        self.wanted = self.active - own
        next_bit = self.next_in_chain()
        if next_bit:  # without the mutex: the woken thread comes back for it
            pthread_mutex_unlock(&self.mutex)
            wake_sleepers(&self.ended, 1, next_bit)
            pthread_mutex_lock(&self.mutex)
        while self.waiting[turn] < self.wanted and not late and not self.failure:
            late = condition_wait_until(&self.gathered, &self.mutex, deadline)
        self.wanted = 0
        self.skipped = min(self.in_vain, MOST_SKIPPED) if late else 0
        self.in_vain = min(2 * self.in_vain + 1, MOST_SKIPPED) if late else 0

    cdef void sync(self, int own) noexcept nogil:
        cdef int64_t start = 0
        cdef int64_t stop, began_ns
        cdef int descriptor = self.descriptor
        cdef int failure = 0
        self.end_chain()  # they can get on during this sync
        self.number += 1
        # Read before the sync begins: it covers every byte stored before this, and the release in `Ends.move` and the
        # acquire here order those stores. What is appended during the sync waits for the next one.
        self.target = load_word(&self.ends.at[APPENDED])
        stop = self.plan_write_ahead(self.target, &start)
        # `syncing` keeps other leaders out from here on; the mutex is free, so that others can join the next sync.
        pthread_mutex_unlock(&self.mutex)
        began_ns = monotonic_ns()
        if start < stop:
            dirty_pages(descriptor, start, stop)
        while fdatasync(descriptor) != 0:
            if errno != EINTR:
                failure = errno
                break
        pthread_mutex_lock(&self.mutex)
        self.patience_ns = monotonic_ns() - began_ns
        self.end_sync(self.target, failure, own)

    cdef int64_t plan_write_ahead(self, int64_t target, int64_t* start) noexcept nogil:
        """Return where the pages end that this sync writes ahead, and set where they start, as positions in the file.

        The first write to a reserved block changes the file's extents, so the sync must also commit the file system's
        journal. So one sync in a few hundred writes blocks for all of them. Large syncs gain nothing from it.
        """
        cdef int64_t stop
        if (target >= self.reserved_end or target - self.ends.at[DURABLE] > LARGE_SYNC
                or target + WRITE_AHEAD / 4 <= self.written_end):
            return 0
        start[0] = max(self.written_end, self.ends.at[DURABLE]) - self.file_start & ~(FILE_PAGE - 1)
        stop = min(target + WRITE_AHEAD, self.reserved_end)
        self.written_end = stop
        return stop - self.file_start & ~(FILE_PAGE - 1)

    cdef void end_sync(self, int64_t target, int failure, int own) noexcept nogil:
        """End a sync. `own`: 1 if the leader is itself a thread that waits: then it is the first of the chain."""
        cdef int served
        self.syncing = False
        self.leader = 0
        if failure and not self.failure:
            self.failure = failure
        # After a failed sync the kernel may have dropped the dirty pages, and a later sync would succeed without them.
        # So the first failure stays, and the durable end never moves again.
        if not self.failure:
            self.sync_count += 1
            self.ends.move(DURABLE, target)
        self.done = self.number
        self.ended += 1
        self.ended_ns = monotonic_ns()
        self.active = self.waiting[0] + self.waiting[1]
        served = self.waiting[self.number & 1]
        self.waiting[self.number & 1] = 0
        if self.failure:
            self.wake_all()
            self.ends.alarm()
        elif self.serving:
            if served > FEW:
                self.chain, self.asleep = self.number, served - 1 + own
                if not own:
                    wake_sleepers(&self.ended, 1, bit_of(self.number))
            elif served:
                wake_sleepers(&self.ended, ALL, bit_of(self.number))
            if self.asleep or self.is_wanted():
                pthread_cond_signal(&self.called)
        else:  # the first thread to wake leads, unless this sync covered it
            self.wake_all()

    cdef void wake_all(self) noexcept nogil:
        self.asleep = 0
        self.ended += 1
        wake_sleepers(&self.ended, ALL, EVERY_SYNC)
        pthread_cond_signal(&self.called)
        pthread_cond_signal(&self.gathered)

    cdef bint is_wanted(self) noexcept nogil:
        return self.waiting[(self.number + 1) & 1] > 0 or self.requested > self.ends.at[DURABLE]

    def lead(self):
        """Begin the sync that LEAD asked for, before reading the log's end: later threads wait for the next sync."""
        pthread_mutex_lock(&self.mutex)
        self.end_chain()
        self.number += 1
        self.target = 0  # not known yet
        pthread_mutex_unlock(&self.mutex)

    def sync_files(self, int64_t target, list descriptors not None, list folders not None):
        """Sync these files and the names in these folders: then the log is durable up to `target`. Return whether it
        is. Ends what `lead` began. A failure latches before any Python code can run, so no signal handler can hide it.
        """
        cdef int count = len(descriptors)
        cdef int total = count + len(folders)
        cdef int i
        cdef int failure = 0
        cdef int* all_of_them = <int*> malloc((total + 1) * sizeof(int))
        if all_of_them == NULL:
            raise MemoryError
        try:
            for i in range(total):
                all_of_them[i] = descriptors[i] if i < count else folders[i - count]
            with nogil:
                for i in range(total):
                    while (fdatasync(all_of_them[i]) if i < count else fsync(all_of_them[i])) != 0:
                        if errno != EINTR:
                            failure = errno
                            break
                    if failure:
                        break
                pthread_mutex_lock(&self.mutex)
                self.end_sync(target, failure, 0)
                pthread_mutex_unlock(&self.mutex)
        finally:
            free(all_of_them)
        return failure == 0

    def sync_folder(self, int descriptor):
        """Sync the names in a folder, outside of a group commit. A failure latches before any Python code can run."""
        cdef int failure = 0
        with nogil:
            while fsync(descriptor) != 0:
                if errno != EINTR:
                    failure = errno
                    break
            if failure:
                self.latch(failure)
        return failure == 0

    def abandon(self):
        """Give up the lead if this thread still has it, because it was interrupted before its sync. Another takes it.

        The next sync covers what the interrupted thread waited for. Nothing is lost: no sync was reported.
        """
        pthread_mutex_lock(&self.mutex)
        if self.syncing and self.leader == PyThread_get_thread_ident():
            self.syncing = False
            self.leader = 0
            if self.number != self.done:  # `lead` gave it a number: threads that wait for it must wait for the next
                self.done = self.number
                self.waiting[self.number & 1] = 0
            self.wake_all()
        pthread_mutex_unlock(&self.mutex)

    def fail(self, int failure):
        """Latch for a reason other than a sync: nothing may be acknowledged from now on."""
        with nogil:
            self.latch(failure)

    cdef void latch(self, int failure) noexcept nogil:
        pthread_mutex_lock(&self.mutex)
        if not self.failure:
            self.failure = failure
        self.wake_all()
        self.ends.alarm()
        pthread_mutex_unlock(&self.mutex)

    # ---- for callers that do not wait in a thread

    def request(self, int64_t end):
        """Let the thread in `serve` sync up to `end`."""
        pthread_mutex_lock(&self.mutex)
        self.requested = max(self.requested, end)
        if self.serving and not self.syncing and self.requested > self.ends.at[DURABLE]:
            pthread_cond_signal(&self.called)
        pthread_mutex_unlock(&self.mutex)

    def serve(self, int64_t timeout_ns):
        """Sync for others while they ask. Return TIMED_OUT if nobody asked for that long, LEAD, FAILED or STOPPED."""
        cdef int answer
        with nogil:
            pthread_mutex_lock(&self.mutex)
            self.serving = True
            answer = self.serve_until(monotonic_ns() + timeout_ns)
            self.serving = False
            if not self.syncing:
                self.wake_all()  # waiting threads relied on this one to lead: one of them must lead now
            pthread_mutex_unlock(&self.mutex)
        return answer

    cdef int serve_until(self, int64_t deadline) noexcept nogil:
        cdef int late = 0
        while True:
            if self.stopping:
                return STOPPED
            if self.failure:
                return FAILED
            if self.is_wanted() and not self.syncing:
                if not self.take_lead(0):
                    return LEAD
                self.sync(0)
                continue
            if late:
                return TIMED_OUT
            if not self.asleep:
                late = condition_wait_until(&self.called, &self.mutex, deadline)
            elif condition_wait_until(&self.called, &self.mutex, self.ended_ns + CHAIN_NS):
                self.end_chain()

    def stop(self):
        """Make `serve` return STOPPED."""
        pthread_mutex_lock(&self.mutex)
        self.stopping = True
        pthread_cond_signal(&self.called)
        pthread_mutex_unlock(&self.mutex)
