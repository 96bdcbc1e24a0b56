# Consume-queue entries: how many are valid, and the records they point at.

cdef enum:
    ENTRY_SIZE = 20
    FILLER_SIZE = 0x7FFFFFFF    # the size in a filler: an entry without a message


def count_valid_entries(entries, int64_t log_end):
    """Count the leading entries that are valid: size above 0, and the record ends at or before `log_end`."""
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
                # `log_end - size` instead of `offset + size`, which could overflow for a damaged entry.
                if offset < 0 or size <= 0 or (size != FILLER_SIZE and offset > log_end - size):
                    break
                p += ENTRY_SIZE
                count += 1
    finally:
        PyBuffer_Release(&view)
    return count


def select_entries(entries, Py_ssize_t first, bytes codes not None, Py_ssize_t limit):
    """Return the indexes of at most `limit` entries from `first` on with one of the tags codes, and where it stopped.

    `codes` are native int64, ascending. A filler never matches.
    """
    cdef Py_buffer view
    cdef const int64_t* wanted = <const int64_t*> PyBytes_AS_STRING(codes)
    cdef Py_ssize_t code_count = len(codes) // 8
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t total, index
    cdef const uint8_t* entry
    cdef Py_ssize_t* found
    if first < 0 or limit < 1:
        raise ValueError(f"{first} is not the index of an entry, or {limit} is not a limit")
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


cdef enum:
    SHARED_BYTES = 65536        # one message that is kept can keep this much of its neighbours in memory
    SHARED_RECORDS = 64
    COPIED_AHEAD = 4            # records that are prefetched ahead of the copy: they are scattered over the log
    NEXT_HEADERS = 32           # records after the last one whose headers are prefetched for the next read

cdef struct Reading:            # what to read, and the bytes taken so far
    const uint8_t* entries
    int64_t log_first
    int64_t readable
    int64_t max_bytes
    int64_t taken

cdef struct Source:             # a record in the log, before it is copied
    const uint8_t* p
    int64_t offset
    int32_t size
    Py_ssize_t number


def read_records(entries, Py_ssize_t first, Py_ssize_t stop, int64_t start, bytes topic not None, int32_t queue_id,
                 int64_t log_first, int64_t readable, file_at, int64_t max_bytes, kind, list numbers=None):
    """Copy the records that the entries [first, stop) point at, while they lie in [log_first, readable) of the log.

    `entries` belong to a queue of `topic` and begin at queue offset `start`. Every record is checked, CRC included, and
    must have its entry's queue offset. `file_at(offset)` returns the log file that covers an offset (with `start` and
    `pages`), or None. `kind`, a StoredRecord class, is the class of the results. With `numbers`, ascending, only those
    entries are read, and `first` and `stop` are positions in that list.

    Return the records, the position where reading stopped, and why: 0 (all were read; or the next entry is a filler or
    points outside the log; or `max_bytes` are full, but one record always fits), or the code of `check_record` for a
    damaged record, or BAD_ENTRY (-7) if another record is there than the entry must name.
    """
    cdef Py_buffer view
    cdef LogWindow window
    cdef Reading reading
    cdef Source sources[SHARED_RECORDS]
    cdef Py_ssize_t count, read
    cdef int64_t why = 0
    cdef list found = []
    require_kind(kind)
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    open_window(&window, file_at)
    try:
        require_entries(view.len // ENTRY_SIZE, first, stop, numbers)
        reading.entries = <const uint8_t*> view.buf
        reading.log_first, reading.readable = log_first, readable
        reading.max_bytes, reading.taken = max_bytes, 0
        while first < stop:
            count = next_sources(&reading, &window, sources, first, stop, numbers, &why)
            if count == 0:
                break
            read = take_records(sources, count, kind, topic, queue_id, start, found, &why)
            first += read
            if read < count:
                break
        if first == stop and numbers is None:
            prefetch_next(&reading, &window, stop, view.len // ENTRY_SIZE)
    finally:
        close_window(&window)
        PyBuffer_Release(&view)
    return found, first, why


cdef int require_entries(Py_ssize_t total, Py_ssize_t first, Py_ssize_t stop, list numbers) except -1:
    if numbers is not None:
        for number in numbers:
            if not 0 <= number < total:
                raise ValueError(f"{number} is not inside {total} entries")
        total = len(numbers)
    if first < 0 or stop > total:
        raise ValueError(f"[{first}, {stop}) is not inside {total} entries")
    return 0


cdef Py_ssize_t next_sources(Reading* reading, LogWindow* window, Source* sources, Py_ssize_t first, Py_ssize_t stop,
                             list numbers, int64_t* why) except -1:
    """Collect the next records of one log file, which will share their memory. Sets `why` if the first is damaged.

    The sizes in the entry and in the record's header must be equal and inside the available bytes. So the copy is
    bounded, and a damaged size cannot cause a large allocation. The messages of a queue are scattered over the log:
    reading all headers first lets the CPU load them at the same time.
    """
    cdef Py_ssize_t count = 0
    cdef int64_t room, size, offset
    cdef int64_t shared = 0
    cdef Py_ssize_t number
    cdef const uint8_t* entry
    cdef const uint8_t* p
    cdef Record r
    while count < SHARED_RECORDS and first + count < stop:
        number = first + count if numbers is None else numbers[first + count]
        entry = reading.entries + number * ENTRY_SIZE
        offset = get64(entry)
        size = get32(entry + 8)
        if size <= 0 or size == FILLER_SIZE or not reading.log_first <= offset < reading.readable:
            break
        if count and not window_covers(window, offset):
            break  # moving the window would release the pages that `sources` point into
        p = window_at(window, offset, &room)
        if p == NULL:
            break
        room = min(room, reading.readable - offset)
        if size > room or size < FIXED_SIZE or get32(p) != size:
            if count == 0:
                why[0] = parse(p, room, offset, True, &r)
                why[0] = why[0] if why[0] < 0 else BAD_ENTRY
            break
        # Only after that check: a damaged size must be reported, not look like a full read.
        if (reading.taken and reading.taken + size > reading.max_bytes) or (count and shared + size > SHARED_BYTES):
            break
        if count < COPIED_AHEAD:
            prefetch_record(p, size, 0, size)
        sources[count].p, sources[count].offset = p, offset
        sources[count].size, sources[count].number = <int32_t> size, number
        reading.taken += size
        shared += size
        count += 1
    return count


cdef void prefetch_next(Reading* reading, LogWindow* window, Py_ssize_t first, Py_ssize_t total) noexcept:
    """Prefetch the first records of the read that probably follows. A wrong guess costs a few cache lines."""
    cdef Py_ssize_t number
    cdef int64_t room, offset
    cdef const uint8_t* entry
    cdef const uint8_t* p
    for number in range(first, min(first + NEXT_HEADERS, total)):
        entry = reading.entries + number * ENTRY_SIZE
        offset = get64(entry)
        if get32(entry + 8) <= 0 or offset >= reading.readable or not window_covers(window, offset):
            break
        p = window_at(window, offset, &room)
        prefetch_record(p, room, 0, get32(entry + 8) if number < first + COPIED_AHEAD else 64)


cdef Py_ssize_t take_records(Source* sources, Py_ssize_t count, kind, bytes topic, int32_t queue_id, int64_t start,
                             list found, int64_t* why) except -1:
    """Copy records into one bytes object and append the valid ones to `found`. Return how many; set why not the next.

    A queue's records are scattered over the log, so each is prefetched while those before it are copied and checked.
    The checked bytes are the copied ones, which are returned, whatever happens to the log.
    """
    cdef Record r
    cdef Py_ssize_t i, ahead
    cdef int64_t result
    cdef int64_t total = 0
    cdef uint8_t* at
    cdef bytes shared
    for i in range(count):
        total += sources[i].size
    shared = PyBytes_FromStringAndSize(NULL, total)
    at = <uint8_t*> PyBytes_AS_STRING(shared)
    for i in range(count):
        ahead = i + COPIED_AHEAD
        if ahead < count:
            prefetch_record(sources[ahead].p, sources[ahead].size, 0, sources[ahead].size)
        memcpy(at, sources[i].p, sources[i].size)
        result = parse(at, sources[i].size, sources[i].offset, True, &r)
        if result != sources[i].size or not is_numbered(at, &r, topic, queue_id, start + sources[i].number):
            why[0] = result if result < 0 else BAD_ENTRY
            return i
        found.append(stored_record(kind, shared, at, &r))
        at += sources[i].size
    return count


cdef inline bint is_text(const uint8_t* p, Py_ssize_t size, bytes text) noexcept:
    return is_equal(p, size, <const uint8_t*> PyBytes_AS_STRING(text), len(text))


cdef inline bint is_numbered(const uint8_t* p, Record* r, bytes topic, int32_t queue_id, int64_t number) noexcept:
    """Return whether the record has this queue offset in this queue: as its own, or in a light queue that it names.

    A CRC proves that a record is whole, not that it is the requested one: a damaged entry, or one that is older than
    the log, can name a whole record of another queue.
    """
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
    """Prefetch the first cache lines of a record."""
    cdef int64_t line = at
    cdef int64_t stop = min(at + min(size, 4096), readable)
    if at >= 0:
        while line < stop:
            prefetch_line(log + line)
            line += 64


def seek_timestamp(entries, Py_ssize_t low, Py_ssize_t high, int64_t timestamp, file_at):
    """Return the first of the entries [low, high) whose record was stored at or after a time; `high` if none was.

    `file_at(offset)` returns the log file that covers an offset (with `start` and `pages`), or None: then the record
    was deleted and counts as older than any time.
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
            raise ValueError(f"[{low}, {high}) is not inside {entry_view.len // ENTRY_SIZE} entries")
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
            # Only the header is read, and the record is not checked: a search reads many, and a damaged time can only
            # change where a reader begins, never what it gets. FIXED_SIZE bytes hold the store time with either host.
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
