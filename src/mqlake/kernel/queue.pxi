# Consume-queue entries: how many of them hold, and the records they point at.

cdef extern from *:
    void prefetch_line "__builtin_prefetch"(const void* address) nogil

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


def select_entries(entries, Py_ssize_t first, bytes codes not None, Py_ssize_t limit):
    """The numbers of at most `limit` entries from `first` on that have one of the tags codes, and where it stopped.

    `codes` are native int64, rising. An entry that stands for no message has none.
    """
    cdef Py_buffer view
    cdef const int64_t* wanted = <const int64_t*> PyBytes_AS_STRING(codes)
    cdef Py_ssize_t code_count = len(codes) // 8
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t total, index
    cdef const uint8_t* entry
    cdef Py_ssize_t* found
    if first < 0 or limit < 1:
        raise ValueError(f"{first} is no number of an entry, or {limit} no limit")
    found = <Py_ssize_t*> malloc(limit * sizeof(Py_ssize_t))
    if found == NULL:
        raise MemoryError
    try:
        PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
        try:
            total = view.len // ENTRY_SIZE
            with nogil:
                while first < total and count < limit:
                    entry = <const uint8_t*> view.buf + first * ENTRY_SIZE
                    if has_code(wanted, code_count, get64(entry + 12)) and get32(entry + 8) != FILLER_SIZE:
                        found[count] = first
                        count += 1
                    first += 1
        finally:
            PyBuffer_Release(&view)
        return [found[index] for index in range(count)], first
    finally:
        free(found)


cdef inline bint has_code(const int64_t* codes, Py_ssize_t count, int64_t code) noexcept nogil:
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t middle
    while low < count:
        middle = (low + count) >> 1
        if codes[middle] == code:
            return True
        if codes[middle] < code:
            low = middle + 1
        else:
            count = middle
    return False


def read_records(log, int64_t log_start, Py_ssize_t readable, entries, Py_ssize_t first, int64_t max_bytes, kind,
                 bytes topic not None, int32_t queue_id, int64_t start, list numbers=None):
    """Copy out the records that entries point at, from entry `first` on, while they lie in this stretch of the log.

    `log` holds the log from offset `log_start` on, `readable` bytes of it. Every record is checked, CRC included, and
    must be the one of its number: the entries are those of a queue of `topic` from number `start` on.
    `kind` is the class, a StoredRecord, that they are made into. With `numbers`, rising, only those entries count, and
    `first` is a place in that list.
    Returns the records, the entry where reading stopped, and why: 0 (all read, the next lies outside, or `max_bytes`
    are full; one record always fits) or the code of `check_record` for the record that is damaged, or BAD_ENTRY (-7)
    where another record is there than the entry must name.
    """
    cdef Py_buffer log_view
    cdef Py_buffer entry_view
    cdef Record record
    cdef int64_t at, result
    cdef int64_t taken = 0
    cdef int32_t size
    cdef Py_ssize_t total, number
    cdef const uint8_t* entry
    cdef const uint8_t* behind
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
            if numbers is not None:
                for number in numbers:
                    if not 0 <= number < total:
                        raise ValueError(f"{number} is not inside of {total} entries")
                total = len(numbers)
            readable = min(readable, log_view.len)
            while first < total:
                number = first if numbers is None else numbers[first]
                entry = <const uint8_t*> entry_view.buf + number * ENTRY_SIZE
                at = get64(entry) - log_start
                size = get32(entry + 8)
                if at < 0 or at >= readable or size <= 0 or (taken and taken + size > max_bytes):
                    break
                if first + 1 < total:
                    behind = entry + ENTRY_SIZE
                    if numbers is not None:
                        behind = <const uint8_t*> entry_view.buf + <Py_ssize_t> numbers[first + 1] * ENTRY_SIZE
                    prefetch_record(<const uint8_t*> log_view.buf, readable, get64(behind) - log_start, get32(behind + 8))
                result = parse(<const uint8_t*> log_view.buf + at, readable - at, log_start + at, True, &record)
                if result != size:
                    return found, first, result if result < 0 else BAD_ENTRY
                if not is_numbered(<const uint8_t*> log_view.buf + at, &record, topic, queue_id, start + number):
                    return found, first, BAD_ENTRY
                found.append(stored_record(kind, <const uint8_t*> log_view.buf + at, &record))
                taken += size
                first += 1
        finally:
            PyBuffer_Release(&entry_view)
    finally:
        PyBuffer_Release(&log_view)
    return found, first, 0


cdef inline bint is_text(const uint8_t* p, Py_ssize_t size, bytes text) noexcept:
    return is_equal(p, size, <const uint8_t*> PyBytes_AS_STRING(text), len(text))


cdef inline bint is_numbered(const uint8_t* p, Record* r, bytes topic, int32_t queue_id, int64_t number) noexcept:
    """The record has this number in this queue: as its own, or as one of the light queues that it names."""
    if r.queue_offset == number and r.queue_id == queue_id and is_text(p + r.topic_at, r.topic_size, topic):
        return True
    return is_in_light_queue(p, r, topic, queue_id, number)


cdef bint is_in_light_queue(const uint8_t* p, Record* r, bytes topic, int32_t queue_id, int64_t number) noexcept:
    cdef Wanted w
    cdef const uint8_t* name
    cdef const uint8_t* names_end
    cdef const uint8_t* name_stop
    cdef const uint8_t* offset
    cdef const uint8_t* offsets_end
    cdef const uint8_t* offset_stop
    wanted_properties(p + r.properties_at, r.properties_size, &w)
    name, names_end = w.light_names, w.light_names + w.light_names_size
    offset, offsets_end = w.light_offsets, w.light_offsets + w.light_offsets_size
    while name < names_end and offset < offsets_end:
        name_stop = <const uint8_t*> memchr(name, 44, names_end - name)
        name_stop = names_end if name_stop == NULL else name_stop
        offset_stop = <const uint8_t*> memchr(offset, 44, offsets_end - offset)
        offset_stop = offsets_end if offset_stop == NULL else offset_stop
        if is_text(name, name_stop - name, topic) and decimal(offset, offset_stop - offset) == number:
            return queue_id == (0 if name_stop - name >= 5 and memcmp(name, b"%LMQ%", 5) == 0 else r.queue_id)
        name, offset = name_stop + 1, offset_stop + 1
    return False


cdef inline void prefetch_record(const uint8_t* log, int64_t readable, int64_t at, int64_t size) noexcept nogil:
    """Have the next record on its way while this one is copied: messages of a queue lie apart in the log."""
    cdef int64_t line = at
    cdef int64_t stop = min(at + min(size, 4096), readable)
    if at >= 0:
        while line < stop:
            prefetch_line(log + line)
            line += 64


def seek_timestamp(entries, Py_ssize_t low, Py_ssize_t high, int64_t timestamp, file_at):
    """The first of the entries [low, high) whose record was stored at or after a time; `high` where none was.

    `file_at(offset)` gives the log file that covers an offset (its `start` and `pages`), or None: then the record is
    gone, and older than any time.
    """
    cdef Py_buffer entry_view
    cdef Py_buffer log_view
    cdef bint has_log = False
    cdef int64_t log_start = 0
    cdef int64_t offset, at, found
    cdef Py_ssize_t middle
    PyObject_GetBuffer(entries, &entry_view, PyBUF_SIMPLE)
    try:
        if low < 0 or high > entry_view.len // ENTRY_SIZE:
            raise ValueError(f"[{low}, {high}) is not inside of {entry_view.len // ENTRY_SIZE} entries")
        while low < high:
            middle = (low + high) // 2
            offset = get64(<const uint8_t*> entry_view.buf + middle * ENTRY_SIZE)
            if not has_log or not log_start <= offset < log_start + log_view.len:
                if has_log:
                    has_log = False
                    PyBuffer_Release(&log_view)
                file = file_at(offset)
                if file is not None:
                    PyObject_GetBuffer(file.pages, &log_view, PyBUF_SIMPLE)
                    has_log = True
                    log_start = file.start
            found = -1
            at = offset - log_start
            if has_log and 0 <= at <= log_view.len - FIXED_SIZE:
                found = get64(<const uint8_t*> log_view.buf + at + BORN_HOST_AT
                              + (20 if (<const uint8_t*> log_view.buf)[at + SYS_FLAG_AT + 3] & BORN_IPV6 else 8))
            if found < timestamp:
                low = middle + 1
            else:
                high = middle
    finally:
        if has_log:
            PyBuffer_Release(&log_view)
        PyBuffer_Release(&entry_view)
    return low
