# The records of queue entries as one run of bytes, as a pull's answer holds them: no object for each.

cdef struct Gathering:
    const uint8_t* entries
    const int64_t* codes        # NULL if every entry is wanted
    Py_ssize_t code_count
    int64_t log_first
    int64_t readable
    Py_ssize_t limit
    int64_t max_bytes


def gather_records(entries, Py_ssize_t first, Py_ssize_t stop, int64_t start, bytes topic not None, int32_t queue_id,
                   int64_t log_first, int64_t readable, file_at, Py_ssize_t limit, int64_t max_bytes,
                   bytes codes=None):
    """Copy the records that the entries [first, stop) point at next to each other, at most `limit` of them.

    `entries` belong to a queue of `topic` and begin at queue offset `start`. With `codes` (native int64, ascending)
    only entries with one of these tags codes are taken. Fillers are skipped. Every record is checked, CRC included, and
    must have its entry's queue offset. `max_bytes` may be exceeded by the first record only.

    Return the bytes, the entry where it stopped, how many records they hold, and whether the entry where it stopped,
    if it is before `stop`, is one that cannot be taken: `read_records` tells why.
    """
    cdef Py_buffer view
    cdef LogWindow window
    cdef Gathering g
    cdef Py_ssize_t planned, count = 0
    cdef int64_t total = 0
    cdef int64_t written = 0
    cdef bint stuck = False
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    open_window(&window, file_at)
    try:
        require_entries(view.len // ENTRY_SIZE, first, stop, None)
        g.entries = <const uint8_t*> view.buf
        g.codes = NULL if codes is None else <const int64_t*> PyBytes_AS_STRING(codes)
        g.code_count = 0 if codes is None else len(codes) // 8
        g.log_first, g.readable, g.limit, g.max_bytes = log_first, readable, limit, max_bytes
        planned = plan_records(&g, first, stop, &total)
        result = PyBytes_FromStringAndSize(NULL, total)
        first = copy_records(&g, &window, first, planned, start, topic, queue_id,
                             <uint8_t*> PyBytes_AS_STRING(result), &written, &count)
        stuck = first < planned or (planned < stop and not is_full(&g, planned, count, written))
    finally:
        close_window(&window)
        PyBuffer_Release(&view)
    if written < total:
        result = result[:written]
    return result, first, count, stuck


cdef inline bint is_wanted(Gathering* g, const uint8_t* entry) noexcept nogil:
    return get32(entry + 8) != FILLER_SIZE and (g.codes == NULL or has_code(g.codes, g.code_count, get64(entry + 12)))


cdef inline bint is_takeable(Gathering* g, const uint8_t* entry) noexcept nogil:
    cdef int64_t offset = get64(entry)
    cdef int32_t size = get32(entry + 8)
    return size >= FIXED_SIZE and g.log_first <= offset and offset <= g.readable - size


cdef Py_ssize_t plan_records(Gathering* g, Py_ssize_t first, Py_ssize_t stop, int64_t* total) noexcept nogil:
    """Return the entry before which to stop, and in `total` the size of all records up to there, by their entries."""
    cdef Py_ssize_t count = 0
    cdef const uint8_t* entry
    while first < stop and count < g.limit:
        entry = g.entries + first * ENTRY_SIZE
        if is_wanted(g, entry):
            if not is_takeable(g, entry) or (count and total[0] + get32(entry + 8) > g.max_bytes):
                break
            total[0] += get32(entry + 8)
            count += 1
        first += 1
    return first


cdef bint is_full(Gathering* g, Py_ssize_t entry, Py_ssize_t count, int64_t written) noexcept nogil:
    """Return whether planning stopped at an entry because of a limit."""
    cdef const uint8_t* p = g.entries + entry * ENTRY_SIZE
    return count >= g.limit or (is_takeable(g, p) and count > 0 and written + get32(p + 8) > g.max_bytes)


cdef Py_ssize_t copy_records(Gathering* g, LogWindow* window, Py_ssize_t first, Py_ssize_t stop, int64_t start,
                             bytes topic, int32_t queue_id, uint8_t* out, int64_t* written,
                             Py_ssize_t* count) except -1:
    """Copy the records of the planned entries; return the first entry whose record is not what it must be."""
    cdef const uint8_t* entry
    cdef const uint8_t* p
    cdef int64_t offset, room
    cdef int32_t size
    cdef Record r
    while first < stop:
        entry = g.entries + first * ENTRY_SIZE
        if is_wanted(g, entry):
            offset, size = get64(entry), get32(entry + 8)
            p = window_at(window, offset, &room)
            if p == NULL or size > min(room, g.readable - offset) or get32(p) != size:
                break
            # The copy is checked, not the log: what is returned is what was checked.
            memcpy(out + written[0], p, size)
            p = out + written[0]
            if parse(p, size, offset, True, &r) != size or not is_numbered(p, &r, topic, queue_id, start + first):
                break
            written[0] += size
            count[0] += 1
        first += 1
    return first
