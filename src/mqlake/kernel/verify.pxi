# Verify the log, the chains of an index file, and its entries against the keys of the log.

cdef enum:
    MAX_TOLD = 64               # this many faults are reported by place, the rest only counted
    LOOK_AHEAD = 64             # how far both sides are searched for a place where they agree again


def survey_records(log, Py_ssize_t position, Py_ssize_t end, int64_t log_start, Py_ssize_t max_bytes):
    """Walk the valid records in [position, end) of a log file, CRC included, for at most `max_bytes`."""
    cdef Py_buffer view
    cdef Record record
    cdef const uint8_t* p
    cdef int64_t result = REACHED_END
    cdef int64_t count = 0, first = 0, oldest = 0, newest = 0, last = 0
    cdef bint rises = True
    cdef int bad
    cdef Py_ssize_t stop
    cdef list ports = []
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end:
            raise ValueError(f"[{position}, {end}) is not inside {view.len} bytes")
        stop = position + min(end - position, max_bytes)
        with nogil:
            while position < stop:
                p = <const uint8_t*> view.buf + position
                result = parse(p, end - position, log_start + position, True, &record)
                if result <= 0:
                    break
                if count == 0:
                    first = oldest = newest = record.store_timestamp
                elif record.store_timestamp < last:
                    rises = False
                last = record.store_timestamp
                oldest, newest = min(oldest, last), max(newest, last)
                bad = bad_ports(p, &record)
                if bad:  # rare, so the interpreter lock is taken only here
                    with gil:
                        ports += [(position, host) for host in range(2) if bad & (1 << host)]
                position += result
                count += 1
                result = REACHED_END
    finally:
        PyBuffer_Release(&view)
    return Surveyed(position, result, count, first, oldest, newest, rises, ports)


cdef inline int bad_ports(const uint8_t* p, Record* r) noexcept nogil:
    """Return which hosts have an invalid port, in their last 4 bytes: bit 1 the born host, bit 2 the store host."""
    cdef int32_t born = get32(p + r.store_host_at - 12)
    cdef int32_t stored = get32(p + r.body_at - 20)
    return (1 if born < 0 or born > 0xFFFF else 0) | (2 if stored < 0 or stored > 0xFFFF else 0)


def check_index(index, int32_t slot_count, int32_t entry_count, int32_t next_entry, bint live):
    """Return the faults of the chains of an index file, as (entry, slot, found, expected), and how many slots are used.

    An entry's fault is a wrong link to the entry before it in its chain; entry 0 stands for a fault of the slot itself.
    With `live`, a slot may name an entry from `next_entry` on: it was added since.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* entry
    cdef int32_t* heads = NULL
    cdef int32_t number, slot, used = 0
    cdef list faults = []
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    try:
        require_index_geometry(view.len, slot_count, entry_count)
        if next_entry < 0 or next_entry > entry_count:
            raise ValueError(f"{next_entry} is not the index of an entry")
        heads = <int32_t*> calloc(slot_count, sizeof(int32_t))
        if heads == NULL:
            raise MemoryError()
        p = <const uint8_t*> view.buf
        # Rebuild the chains in memory, as puts built them: each entry names the one that its slot named before. `slot`
        # is less than `slot_count` for any hash, and entries are before `entry_count`, which the file's size covers.
        for number in range(1, next_entry):
            entry = p + INDEX_HEADER_SIZE + 4 * <int64_t> slot_count + INDEX_ENTRY_SIZE * <int64_t> number
            slot = max(get32(entry), 0) % slot_count
            if get32(entry + 16) != heads[slot] and len(faults) < MAX_TOLD:
                faults.append((number, slot, get32(entry + 16), heads[slot]))
            heads[slot] = number
        for slot in range(slot_count):
            used += heads[slot] != 0
            number = get32(p + INDEX_HEADER_SIZE + 4 * <int64_t> slot)
            if number != heads[slot] and not (live and number >= next_entry) and len(faults) < MAX_TOLD:
                faults.append((0, slot, number, heads[slot]))
    finally:
        free(heads)
        PyBuffer_Release(&view)
    return faults, used


def first_index_entry(index, int32_t slot_count, int32_t entry_count, int32_t next_entry, int64_t offset):
    """Return the first entry before `next_entry` that names this offset or a later one; `next_entry` if none does."""
    cdef Py_buffer view
    cdef const uint8_t* entry
    cdef int32_t number = 1
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    try:
        require_index_geometry(view.len, slot_count, entry_count)
        if next_entry < 1 or next_entry > entry_count:
            raise ValueError(f"{next_entry} is not the index of an entry")
        entry = <const uint8_t*> view.buf + INDEX_HEADER_SIZE + 4 * <int64_t> slot_count + INDEX_ENTRY_SIZE
        with nogil:
            while number < next_entry and get64(entry + 4) < offset:
                number += 1
                entry += INDEX_ENTRY_SIZE
    finally:
        PyBuffer_Release(&view)
    return number


def match_index_keys(index, int32_t slot_count, int32_t entry_count, int32_t entry, int32_t next_entry, keys,
                     Py_ssize_t first):
    """Compare entries with keys, both in the order of the log.

    It stops when one of the two sides ends. Where they differ, it searches a few items ahead for a place where they
    agree again.
    """
    cdef Py_buffer index_view
    cdef Py_buffer key_view
    cdef const uint8_t* e
    cdef const uint8_t* k
    cdef int32_t ahead
    cdef Py_ssize_t total
    cdef int64_t missing = 0, surplus = 0, begin, seconds
    cdef list first_missing = [], first_surplus = [], first_late = []
    PyObject_GetBuffer(index, &index_view, PyBUF_SIMPLE)
    try:
        require_index_geometry(index_view.len, slot_count, entry_count)
        if entry < 0 or first < 0 or next_entry > entry_count:
            raise ValueError(f"entry {entry} of {next_entry}, key {first}")
        PyObject_GetBuffer(keys, &key_view, PyBUF_SIMPLE)
        try:
            total = key_view.len // KEY_SIZE
            e = <const uint8_t*> index_view.buf + INDEX_HEADER_SIZE + 4 * <int64_t> slot_count \
                + INDEX_ENTRY_SIZE * <int64_t> entry
            k = <const uint8_t*> key_view.buf + first * KEY_SIZE
            begin = get64(<const uint8_t*> index_view.buf)
            while entry < next_entry and first < total:
                if same_key(e, k):
                    seconds = 0
                    if 0 < begin < le64(k + 12):
                        seconds = min((le64(k + 12) - begin) // 1000, <int64_t> INT32_MAX)
                    # The time of a file's first entry may count from the file before, so it proves nothing.
                    if entry > 1 and get32(e + 12) != seconds and len(first_late) < MAX_TOLD:
                        first_late.append(entry)
                    entry, first, e, k = entry + 1, first + 1, e + INDEX_ENTRY_SIZE, k + KEY_SIZE
                    continue
                ahead = resume_after(e, next_entry - entry, k, total - first)
                if ahead != -1:  # this entry does not belong here
                    surplus += 1
                    if len(first_surplus) < MAX_TOLD:
                        first_surplus.append(entry)
                    entry, e = entry + 1, e + INDEX_ENTRY_SIZE
                if ahead != 1:   # this key has no entry
                    missing += 1
                    if len(first_missing) < MAX_TOLD:
                        first_missing.append(first)
                    first, k = first + 1, k + KEY_SIZE
        finally:
            PyBuffer_Release(&key_view)
    finally:
        PyBuffer_Release(&index_view)
    return MatchedKeys(entry, first, missing, first_missing, surplus, first_surplus, first_late)


cdef inline bint same_key(const uint8_t* entry, const uint8_t* key) noexcept nogil:
    return get32(entry) == le32(key) and get64(entry + 4) == le64(key + 4)


cdef int32_t resume_after(const uint8_t* e, int64_t entries, const uint8_t* k, int64_t keys) noexcept nogil:
    """Return what to skip where the two sides differ: 1 an entry, -1 a key, 0 one of each.

    The nearest place where they agree again wins. If none is within reach, the smaller offset is skipped, because both
    sides rise: so a long gap on one side ends where the other side continues.
    """
    cdef int64_t by
    for by in range(1, LOOK_AHEAD):
        if by < entries and by < keys and same_key(e + by * INDEX_ENTRY_SIZE, k + by * KEY_SIZE):
            return 0
        if by < keys and same_key(e, k + by * KEY_SIZE):
            return -1
        if by < entries and same_key(e + by * INDEX_ENTRY_SIZE, k):
            return 1
    return 1 if get64(e + 4) < le64(k + 4) else -1 if get64(e + 4) > le64(k + 4) else 0
