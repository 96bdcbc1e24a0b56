# Consume-queue entries: how many of them hold, and the records they point at.

cdef enum:
    ENTRY_SIZE = 20
    FILLER_SIZE = 0x7FFFFFFF    # the size in an entry that stands for no message (the queue began later)


def count_valid_entries(entries, int64_t log_end):
    """How many entries from the first on are whole: size above 0, and the record ends at or before `log_end`."""
    cdef Py_buffer view
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t total
    cdef int64_t offset
    cdef int32_t size
    cdef const uint8_t* p
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        total = view.len // ENTRY_SIZE
        p = <const uint8_t*> view.buf
        with nogil:
            while count < total:
                offset = get64(p)
                size = get32(p + 8)
                if offset < 0 or size <= 0 or (size != FILLER_SIZE and offset > log_end - size):
                    break
                p += ENTRY_SIZE
                count += 1
    finally:
        PyBuffer_Release(&view)
    return count


def read_records(log, int64_t log_start, Py_ssize_t readable, entries, Py_ssize_t first, int64_t max_bytes, kind):
    """Copy out the records that entries point at, from entry `first` on, while they lie in this stretch of the log.

    `log` holds the log from offset `log_start` on, `readable` bytes of it. Every record is checked, CRC included.
    `kind` is the class, a StoredRecord, that they are made into.
    Returns the records, the entry where reading stopped, and why: 0 (all read, the next lies outside, or `max_bytes`
    are full; one record always fits) or the code of `check_record` for the record that is damaged.
    """
    cdef Py_buffer log_view
    cdef Py_buffer entry_view
    cdef Record record
    cdef int64_t at, result
    cdef int64_t taken = 0
    cdef int32_t size
    cdef Py_ssize_t total
    cdef const uint8_t* entry
    cdef list found = []
    if not issubclass(kind, StoredRecord):
        raise TypeError(f"{kind!r} is no StoredRecord")
    if first < 0:
        raise ValueError(f"{first} is no number of an entry")
    PyObject_GetBuffer(log, &log_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &entry_view, PyBUF_SIMPLE)
        try:
            total = entry_view.len // ENTRY_SIZE
            readable = min(readable, log_view.len)
            while first < total:
                entry = <const uint8_t*> entry_view.buf + first * ENTRY_SIZE
                at = get64(entry) - log_start
                size = get32(entry + 8)
                if at < 0 or at >= readable or size <= 0 or (taken and taken + size > max_bytes):
                    break
                result = parse(<const uint8_t*> log_view.buf + at, readable - at, log_start + at, True, &record)
                if result != size:
                    return found, first, result if result < 0 else BAD_SIZE
                found.append(stored_record(kind, <const uint8_t*> log_view.buf + at, &record))
                taken += size
                first += 1
        finally:
            PyBuffer_Release(&entry_view)
    finally:
        PyBuffer_Release(&log_view)
    return found, first, 0
