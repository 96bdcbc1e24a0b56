# Messages that wait for their time: when each is due, which of them are, and which were delivered.

from libc.stdlib cimport qsort

cdef enum:
    NO_TIME = -9                # a timed message does not say when it is due
    PAIR_SIZE = 16

cdef int64_t MAX_DELAY_S = <int64_t> 1000000 * 1000000000
cdef int64_t END_OF_TIME = <int64_t> 1 << 60    # sums with times below it stay numbers

cdef struct Pair:               # a time and a place, or two places
    int64_t first
    int64_t second

cdef struct Pairs:
    Pair* items
    Py_ssize_t count
    Py_ssize_t room
    bint out_of_memory

cdef struct Timing:             # the properties that say when; -1 where absent
    int64_t out_ms
    int64_t deliver_ms
    int64_t delay_ms
    int64_t delay_sec
    bint cancels


def read_timers(log, int64_t log_start, Py_ssize_t readable, entries, Py_ssize_t first, int64_t precision_ms):
    """When the timed messages are due that entries point at, from entry `first` on, while they lie in this file.

    Returns (due, place) as pairs of native int64, the entry where it stopped, and why: 0 (all were read, or the next
    lies outside) or the code of `check_record`, or NO_TIME (-9). A message is due at the moment that was asked for,
    where it is known and lies in the unit of time behind TIMER_OUT_MS, else at the end of that unit. Its place is its
    physical offset. What cancels another is due at TIMER_OUT_MS, before all others of that unit; its place is inverted.
    """
    cdef Py_buffer log_view
    cdef Py_buffer entry_view
    cdef Record record
    cdef Pairs found
    cdef int64_t at, result = 0
    cdef int32_t size
    cdef Py_ssize_t total
    cdef const uint8_t* p
    cdef const uint8_t* entry
    if first < 0:
        raise ValueError(f"{first} is no number of an entry")
    memset(&found, 0, sizeof(Pairs))
    PyObject_GetBuffer(log, &log_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &entry_view, PyBUF_SIMPLE)
        try:
            total = entry_view.len // ENTRY_SIZE
            readable = min(readable, log_view.len)
            with nogil:
                while first < total and not found.out_of_memory:
                    entry = <const uint8_t*> entry_view.buf + first * ENTRY_SIZE
                    at = get64(entry) - log_start
                    size = get32(entry + 8)
                    if at < 0 or at >= readable or size <= 0:
                        break
                    p = <const uint8_t*> log_view.buf + at
                    result = parse(p, readable - at, log_start + at, False, &record)
                    if result == size:
                        result = add_timer(&found, p, &record, precision_ms)
                    elif result >= 0:
                        result = BAD_ENTRY
                    if result < 0:
                        break
                    first += 1
            return take_pairs(&found), first, min(result, 0)
        finally:
            PyBuffer_Release(&entry_view)
    finally:
        PyBuffer_Release(&log_view)
        free(found.items)


cdef int64_t add_timer(Pairs* found, const uint8_t* p, Record* r, int64_t precision_ms) noexcept nogil:
    cdef Timing t
    cdef int64_t exact
    read_timing(p + r.properties_at, r.properties_size, &t)
    if t.out_ms < 0:
        return NO_TIME
    if t.cancels:
        add_pair(found, t.out_ms, ~r.physical_offset)
        return 0
    exact = t.deliver_ms
    if t.delay_sec >= 0 or t.delay_ms >= 0:
        exact = t.delay_ms if t.delay_sec < 0 else (t.delay_sec * 1000 if t.delay_sec < MAX_DELAY_S else -1)
        exact = r.store_timestamp + exact if exact >= 0 and 0 <= r.store_timestamp < END_OF_TIME else -1
    if not t.out_ms < exact <= t.out_ms + precision_ms:
        exact = t.out_ms + precision_ms
    add_pair(found, exact, r.physical_offset)
    return 0


cdef void read_timing(const uint8_t* at, Py_ssize_t size, Timing* t) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef const uint8_t* stop
    cdef const uint8_t* middle
    cdef Py_ssize_t name_size
    t.out_ms = t.deliver_ms = t.delay_ms = t.delay_sec = -1
    t.cancels = False
    while at < end:
        stop = next_property(at, end, &middle)
        if middle != NULL and middle - at >= 12 and memcmp(at, b"TIMER_", 6) == 0:
            name_size = middle - at
            if name_size == 12 and memcmp(at, b"TIMER_OUT_MS", 12) == 0:
                t.out_ms = decimal(middle + 1, stop - middle - 1)
            elif name_size == 16 and memcmp(at, b"TIMER_DELIVER_MS", 16) == 0:
                t.deliver_ms = decimal(middle + 1, stop - middle - 1)
            elif name_size == 15 and memcmp(at, b"TIMER_DELAY_SEC", 15) == 0:
                t.delay_sec = decimal(middle + 1, stop - middle - 1)
            elif name_size == 14 and memcmp(at, b"TIMER_DELAY_MS", 14) == 0:
                t.delay_ms = decimal(middle + 1, stop - middle - 1)
            elif name_size == 17 and memcmp(at, b"TIMER_DEL_UNIQKEY", 17) == 0:
                t.cancels = True
        at = stop + 1


def take_due(pairs, Py_ssize_t count, int64_t before):
    """Take those that are due before a time out of the first `count` pairs (due, place); the others close up, in order.

    Returns the pairs taken, sorted, how many are left, and when the first of them is due (2**63 - 1 where none is).
    """
    cdef Py_buffer view
    cdef Pairs found
    cdef Pair* items
    cdef Py_ssize_t i
    cdef Py_ssize_t left = 0
    cdef int64_t earliest = INT64_MAX
    memset(&found, 0, sizeof(Pairs))
    PyObject_GetBuffer(pairs, &view, PyBUF_WRITABLE)
    try:
        if count < 0 or count > view.len // PAIR_SIZE:
            raise ValueError(f"{count} pairs are not inside of {view.len} bytes")
        items = <Pair*> view.buf
        with nogil:
            for i in range(count):  # first what may fail: nothing has moved then
                if items[i].first < before:
                    add_pair(&found, items[i].first, items[i].second)
            if not found.out_of_memory:
                for i in range(count):
                    if items[i].first >= before:
                        items[left] = items[i]
                        earliest = min(earliest, items[i].first)
                        left += 1
                if found.count:
                    qsort(found.items, found.count, sizeof(Pair), compare_pairs)
        return take_pairs(&found), left, earliest
    finally:
        PyBuffer_Release(&view)
        free(found.items)


cdef int compare_pairs(const void* one, const void* other) noexcept nogil:
    cdef const Pair* a = <const Pair*> one
    cdef const Pair* b = <const Pair*> other
    if a.first != b.first:
        return -1 if a.first < b.first else 1
    return 0 if a.second == b.second else (-1 if a.second < b.second else 1)


def find_deliveries(log, Py_ssize_t position, Py_ssize_t end, int64_t log_start):
    """Records in [position, end) of a log file that name another one as what they deliver, in `prepared_offset`.

    There 0 is the log's first record if this is a committed message, else nothing; so is -1 the first, for all others.
    Returns where it stopped, why (as `walk_records`), and (own offset, offset of the other) as pairs of native int64.
    """
    cdef Py_buffer view
    cdef Record record
    cdef Pairs found
    cdef int64_t result = REACHED_END
    memset(&found, 0, sizeof(Pairs))
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end:
            raise ValueError(f"[{position}, {end}) is not inside of {view.len} bytes")
        with nogil:
            while position < end and not found.out_of_memory:
                result = parse(<const uint8_t*> view.buf + position, end - position, log_start + position, False, &record)
                if result <= 0:
                    break
                if record.prepared_offset != 0 or record.sys_flag & TRANSACTION_MASK == 8:
                    add_pair(&found, log_start + position, max(record.prepared_offset, 0))
                position += result
                result = REACHED_END
        return position, result, take_pairs(&found)
    finally:
        PyBuffer_Release(&view)
        free(found.items)


cdef inline void add_pair(Pairs* pairs, int64_t first, int64_t second) noexcept nogil:
    cdef Py_ssize_t room
    cdef Pair* grown
    if pairs.count == pairs.room:
        room = 2 * pairs.room if pairs.room else 256
        grown = <Pair*> realloc(pairs.items, room * sizeof(Pair))
        if grown == NULL:
            pairs.out_of_memory = True
            return
        pairs.items, pairs.room = grown, room
    pairs.items[pairs.count].first = first
    pairs.items[pairs.count].second = second
    pairs.count += 1


cdef bytes take_pairs(Pairs* pairs):
    if pairs.out_of_memory:
        raise MemoryError
    return PyBytes_FromStringAndSize(<char*> pairs.items, pairs.count * PAIR_SIZE)
