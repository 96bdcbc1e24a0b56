# Timed messages: when each is due, which are due now, and which were delivered.

from libc.stdlib cimport qsort

cdef enum:
    NO_TIME = -9                # a timed message has no delivery time
    PAIR_SIZE = 16

cdef int64_t MAX_DELAY_S = <int64_t> 1000000 * 1000000000
cdef int64_t END_OF_TIME = <int64_t> 1 << 60    # sums of times below it fit into 64 bits

cdef struct Pair:               # a time and a physical offset, or two physical offsets
    int64_t first
    int64_t second

cdef struct Pairs:
    Pair* items
    Py_ssize_t count
    Py_ssize_t room
    bint out_of_memory

cdef struct Timing:             # the properties that name a time; -1 if absent
    int64_t out_ms
    int64_t deliver_ms
    int64_t delay_ms
    int64_t delay_sec
    bint cancels


def read_timers(log, int64_t log_start, Py_ssize_t readable, entries, Py_ssize_t first, int64_t precision_ms):
    """Return when timed messages are due: those of `entries` from entry `first` on, as long as they are in this file.

    Returns pairs (due, place) of native int64, the entry where it stopped, and why: 0 (all were read, or the next is
    outside), a code of `check_record`, or NO_TIME (-9). A message is due at its requested time, if that is known and
    lies within one precision unit after TIMER_OUT_MS, else at the end of that unit. Its place is its physical offset.
    A cancellation is due at TIMER_OUT_MS, before all messages of that unit, and its place is inverted.
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
        raise ValueError(f"entry {first}: entries count from 0")
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
                    # A position outside is another file's; a size of 0 or less ends the queue.
                    if at < 0 or at >= readable or size <= 0:
                        break
                    p = <const uint8_t*> log_view.buf + at
                    result = parse(p, readable - at, log_start + at, False, &record)
                    if result == size:  # what an entry says is believed only if the record agrees
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
    """Add when a message is due. Return 0, or NO_TIME if it does not say."""
    cdef Timing t
    cdef int64_t exact
    read_timing(p + r.properties_at, r.properties_size, &t)
    if t.out_ms < 0:
        return NO_TIME
    if t.cancels:
        add_pair(found, t.out_ms, ~r.physical_offset)  # inverted marks a cancellation
        return 0
    # A delay wins over a delivery time, and seconds win over milliseconds, as in RocketMQ.
    exact = t.deliver_ms
    if t.delay_sec >= 0 or t.delay_ms >= 0:
        exact = t.delay_ms if t.delay_sec < 0 else (t.delay_sec * 1000 if t.delay_sec < MAX_DELAY_S else -1)
        # Both summands are below 2**60 or were just discarded, so the sum cannot overflow.
        exact = r.store_timestamp + exact if exact >= 0 and 0 <= r.store_timestamp < END_OF_TIME else -1
    # TIMER_OUT_MS decides: the exact time counts only if it falls into that unit.
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
    """Remove the pairs (due, place) that are due before a time from the first `count`, and close up the rest in order.

    Returns the removed pairs, sorted, how many are left, and when the earliest of those is due (2**63 - 1 if none is
    left).
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
            for i in range(count):  # first the part that may run out of memory: nothing has moved by then
                if items[i].first < before:
                    add_pair(&found, items[i].first, items[i].second)
            if not found.out_of_memory:
                for i in range(count):  # `left` never passes `i`, so no pair is overwritten before it is read
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
    """Find the records in [position, end) of a log file that deliver another record, named by `prepared_offset`.

    In a committed message, 0 names the log's first record; in all others, 0 means none and -1 names the first. Returns
    where it stopped, why (like `walk_records`), and pairs (own offset, the other's offset) of native int64.
    """
    cdef Py_buffer view
    cdef Record record
    cdef Pairs found
    cdef int64_t result = REACHED_END
    memset(&found, 0, sizeof(Pairs))
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end:
            raise ValueError(f"[{position}, {end}) is not inside {view.len} bytes")
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
    """Return the pairs as bytes. Raises MemoryError if one could not be added."""
    if pairs.out_of_memory:
        raise MemoryError
    return PyBytes_FromStringAndSize(<char*> pairs.items, pairs.count * PAIR_SIZE)


def lowest_place(pairs):
    """Return the lowest physical offset in pairs (due, place), inverted ones included; 2**63 - 1 if there is none."""
    cdef Py_buffer view
    cdef const Pair* items
    cdef Py_ssize_t i
    cdef int64_t lowest = INT64_MAX
    PyObject_GetBuffer(pairs, &view, PyBUF_SIMPLE)
    try:
        items = <const Pair*> view.buf
        with nogil:
            for i in range(view.len // PAIR_SIZE):
                lowest = min(lowest, place_of(items[i].second))
    finally:
        PyBuffer_Release(&view)
    return lowest


cdef inline int64_t place_of(int64_t place) noexcept nogil:
    return place if place >= 0 else ~place


cdef enum:
    UNIT_SIZE = 52              # bytes of a unit in RocketMQ's timer log
    UNIT_NORMAL = 1
    UNIT_ROLLED = 2
    UNIT_CANCELS = 4

cdef struct Unit:               # a unit to write: its number, when RocketMQ reads it, and where its message is
    int64_t due_ms
    int64_t number
    int64_t offset
    int32_t magic


def pack_timer_units(pairs, int64_t now_ms, int64_t precision_ms, int64_t window_ms, Py_ssize_t per_file,
                     int64_t file_size, file_at, target):
    """Write units of RocketMQ's timer log for pairs (due, place), in the order of their places.

    The units of one precision unit form a chain: each holds the position of the one before it, the first holds -1. A
    message that is due in `window_ms` or later is parked at an earlier time, when RocketMQ looks at it again. A file
    holds `per_file` units and has `file_size` bytes; `target` gets the units without the gaps between files.
    `file_at(offset)` returns the log file that covers an offset; if there is none, the message gets size 0.
    """
    cdef Py_buffer view
    cdef Py_buffer out
    cdef Py_ssize_t i, count
    cdef Unit* units = NULL
    cdef Pair* order = NULL
    cdef int64_t size
    cdef uint8_t* p
    cdef const uint8_t* record
    cdef LogWindow window
    if precision_ms < 1 or per_file < 1:
        raise ValueError(f"precision_ms = {precision_ms}, per_file = {per_file}: at least 1")
    PyObject_GetBuffer(pairs, &view, PyBUF_SIMPLE)
    open_window(&window, file_at)
    try:
        PyObject_GetBuffer(target, &out, PyBUF_WRITABLE)
        try:
            count = view.len // PAIR_SIZE
            if out.len < count * UNIT_SIZE:
                raise ValueError(f"{count} units are not inside of {out.len} bytes")
            units = <Unit*> malloc(max(count, 1) * sizeof(Unit))
            order = <Pair*> malloc(max(count, 1) * sizeof(Pair))
            if units == NULL or order == NULL:
                raise MemoryError
            with nogil:
                # Units are written by place and chained by time, so `order` is sorted twice.
                order_by_place(<const Pair*> view.buf, order, count)
                for i in range(count):
                    plan_unit(&units[i], &order[i], i, now_ms, precision_ms, window_ms)
                    order[i].first = units[i].due_ms
                    order[i].second = i
                qsort(order, count, sizeof(Pair), compare_pairs)
                fill_units(<uint8_t*> out.buf, units, order, count, now_ms, per_file, file_size)
            for i in range(count):  # with the interpreter lock: `file_at` is Python
                record = window_at(&window, units[i].offset, &size)
                p = <uint8_t*> out.buf + i * UNIT_SIZE
                set32(p + 36, get32(record) if record != NULL and size >= 4 else 0)
        finally:
            PyBuffer_Release(&out)
    finally:
        close_window(&window)
        PyBuffer_Release(&view)
        free(units)
        free(order)


cdef void order_by_place(const Pair* pairs, Pair* order, Py_ssize_t count) noexcept nogil:
    """Sort the messages by place: pairs (place, twice the due time plus 1 for a cancellation).

    `read_timers` accepts at most 18 digits, so due times are below 2**60 and doubling them cannot overflow.
    """
    cdef Py_ssize_t i
    for i in range(count):
        order[i].first = place_of(pairs[i].second)
        order[i].second = pairs[i].first * 2 + (pairs[i].second < 0)
    qsort(order, count, sizeof(Pair), compare_pairs)


cdef void plan_unit(Unit* unit, const Pair* placed, int64_t number, int64_t now_ms, int64_t precision_ms,
                    int64_t window_ms) noexcept nogil:
    """Choose when RocketMQ reads a unit: when its message is due or, beyond the window, at a time within it."""
    cdef int64_t due_ms = placed.second >> 1
    cdef bint cancels = placed.second & 1
    cdef int64_t beyond_ms
    unit.number, unit.offset = number, placed.first
    unit.magic = UNIT_NORMAL | (UNIT_CANCELS if cancels else 0)
    unit.due_ms = due_ms if cancels else floor_to(due_ms - 1, precision_ms)
    beyond_ms = unit.due_ms - now_ms - window_ms
    if beyond_ms >= 0:
        unit.magic |= UNIT_ROLLED
        unit.due_ms = floor_to(now_ms + (window_ms // 2 if beyond_ms < window_ms // 3 else window_ms), precision_ms)


cdef inline int64_t floor_to(int64_t value, int64_t unit) noexcept nogil:
    cdef int64_t rest = value % unit    # C's remainder has the sign of the value
    return value - rest - (unit if rest < 0 else 0)


cdef void fill_units(uint8_t* out, const Unit* units, const Pair* by_time, Py_ssize_t count, int64_t now_ms,
                     Py_ssize_t per_file, int64_t file_size) noexcept nogil:
    """Write the units and chain those of one time: `by_time` is sorted by time, then by number."""
    cdef Py_ssize_t i
    cdef int64_t number, before
    cdef uint8_t* p
    for i in range(count):
        number = by_time[i].second
        before = -1
        if i and by_time[i - 1].first == by_time[i].first:
            before = by_time[i - 1].second
            # The position in the files, which have a gap after their last unit; `number` is the position in `out`.
            before = before // per_file * file_size + before % per_file * UNIT_SIZE
        p = out + number * UNIT_SIZE
        memset(p, 0, UNIT_SIZE)
        set32(p, UNIT_SIZE)
        set64(p + 4, before)
        set32(p + 12, units[number].magic)
        set64(p + 16, now_ms)
        set32(p + 24, <int32_t> (units[number].due_ms - now_ms))
        set64(p + 28, units[number].offset)
