# Convert a range of the commit log, or records at given offsets, to column buffers in Arrow's layout.
#
# There are two passes. The first checks every record, copies its body while it is still in the cache, numbers repeated
# texts, splits the properties and adds up the size of each buffer. The second fills buffers of exactly that size
# (columns_fill.pxi). Neither pass holds the interpreter lock. Another process may write to the file meanwhile, so the
# second pass uses only positions and sizes that the first pass found, whatever the bytes say by then.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize

from mqlake.kernel.types import COLUMN_NAMES

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void* address) nogil

cdef enum:                      # indexes into types.COLUMN_NAMES; column i has bit 1 << i of `columns`
    COL_TOPIC
    COL_QUEUE_ID
    COL_QUEUE_OFFSET
    COL_PHYSICAL_OFFSET
    COL_SIZE
    COL_FLAG
    COL_SYS_FLAG
    COL_BODY_CRC
    COL_BORN_TIMESTAMP
    COL_STORE_TIMESTAMP
    COL_BORN_HOST
    COL_STORE_HOST
    COL_RECONSUME_TIMES
    COL_PREPARED_OFFSET
    FIXED_COLUMNS               # columns from here on have more than one buffer
    COL_TAGS = FIXED_COLUMNS
    COL_KEYS
    COL_PROPERTIES
    COL_BODY
    ALL_COLUMNS
    LONG_COLUMNS = (1 << COL_QUEUE_OFFSET | 1 << COL_PHYSICAL_OFFSET | 1 << COL_BORN_TIMESTAMP
                    | 1 << COL_STORE_TIMESTAMP | 1 << COL_PREPARED_OFFSET)
    PROPERTY_COLUMNS = 1 << COL_TAGS | 1 << COL_KEYS | 1 << COL_PROPERTIES

cdef enum:
    MAX_SCAN = 1 << 30          # bytes in one call: Arrow's offsets into a buffer have 32 bits
    FEW_NAMES = 32              # with fewer properties, a name is compared with every other
    AHEAD = 16                  # records at given offsets that are prefetched
    AHEAD_BYTES = 1024          # bytes of each; the processor prefetches the rest by itself
    CACHE_LINE = 64

cdef struct Span:
    const uint8_t* at
    Py_ssize_t size

cdef struct Property:           # the value follows the name, after one separator
    const uint8_t* name
    int32_t name_size
    int32_t value_size

cdef struct ScanRow:            # one record; tags.at is NULL if it has no tags
    Py_ssize_t position
    int32_t size
    int32_t body_size
    int32_t topic
    int32_t born_host
    int32_t store_host
    int32_t key_count
    int32_t property_count
    Span tags

cdef struct Repaired:           # a repaired copy of properties that are not valid UTF-8; the text follows the struct
    Repaired* previous

cdef struct Scan:
    const uint8_t* log
    uint32_t columns
    bint check_crc
    bint some_topics            # take only the topics that were in the lexicon at the start
    bint out_of_memory
    ScanRow* rows
    Py_ssize_t row_count
    Py_ssize_t row_room
    uint8_t* body               # NULL if bodies are not wanted
    Py_ssize_t body_room
    Py_ssize_t body_bytes
    Span* keys
    Py_ssize_t key_count
    Py_ssize_t key_room
    Property* properties
    Py_ssize_t property_count
    Py_ssize_t property_room
    Lexicon topics
    Lexicon born_hosts
    Lexicon store_hosts
    Lexicon names               # of one record with many properties
    Repaired* repaired
    int64_t weight              # bytes of all rows' records, plus what repairs may add to them
    int64_t tags_bytes
    int64_t key_bytes
    int64_t name_bytes
    int64_t value_bytes


def scan_columns(log, Py_ssize_t position, Py_ssize_t end, int64_t log_start, Py_ssize_t max_bytes,
                 Py_ssize_t max_rows, uint32_t columns, bint check_crc, topics=None):
    """Lay out the records in [position, end) of a log file as columns, one row per record.

    Stops before it exceeds `max_bytes` (one record always fits) or `max_rows`, at an end-of-file marker, or at bytes
    that are no record. With `topics`, records of other topics are skipped and their bodies are not checked. Returns
    the position reached, why it stopped (1 = end or a limit, 0 = marker, negative = a code of `check_record`), the
    row count, and the buffers by name: see `types.Scanned`.
    """
    cdef Py_buffer view
    cdef Scan s
    cdef int64_t result = REACHED_END
    cdef Record first
    cdef Py_ssize_t stop
    if not 0 < max_bytes <= MAX_SCAN or max_rows <= 0:
        raise ValueError(f"max_bytes = {max_bytes}, max_rows = {max_rows}: 1 to {MAX_SCAN}, and at least 1")
    require_columns(columns)
    memset(&s, 0, sizeof(s))
    s.columns = columns
    s.check_crc = check_crc
    s.some_topics = topics is not None
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end:
            raise ValueError(f"[{position}, {end}) is not inside {view.len} bytes")
        scan_open(&s, topics or ())
        s.log = <const uint8_t*> view.buf
        # One record always fits: `stop` is after the first one, however large. If there is none, `parse` returns at
        # most 0 and the maximum decides.
        stop = position + parse(s.log + position, end - position, -1, False, &first)
        stop = max(stop, min(end, position + max_bytes))
        body = body_buffer(&s, stop - position)  # enough: only records that end before `stop` are taken
        with nogil:
            result = gather(&s, &position, end, stop, log_start, max_rows)
        return position, result, s.row_count, filled(&s, body)
    finally:
        PyBuffer_Release(&view)
        scan_close(&s)


def pick_columns(log, offsets, Py_ssize_t first, Py_ssize_t end, int64_t log_start, Py_ssize_t max_bytes,
                 uint32_t columns, bint check_crc, topics=None):
    """Lay out the records at the given physical offsets as columns, one row per record, starting at offsets[first].

    `offsets` are int64 in the machine's byte order, and `log` holds [log_start, log_start + end). Stops at an offset
    outside of it, before it exceeds `max_bytes` (one record always fits), or where no whole record starts. Returns the
    same as `scan_columns`, with the index of the offset reached instead of a position.
    """
    cdef Py_buffer view
    cdef Py_buffer numbers
    cdef Scan s
    cdef int64_t result = REACHED_END
    cdef Py_ssize_t stop
    cdef int64_t room = 0
    if not 0 < max_bytes <= MAX_SCAN:
        raise ValueError(f"max_bytes = {max_bytes}: 1 to {MAX_SCAN}")
    require_columns(columns)
    memset(&s, 0, sizeof(s))
    s.columns = columns
    s.check_crc = check_crc
    s.some_topics = topics is not None
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(offsets, &numbers, PyBUF_SIMPLE)
        try:
            stop = numbers.len // 8
            if not 0 <= first <= stop:
                raise ValueError(f"{first} is not inside {stop} offsets")
            if not 0 <= end <= view.len:
                raise ValueError(f"[0, {end}) is not inside {view.len} bytes")
            scan_open(&s, topics or ())
            s.log = <const uint8_t*> view.buf
            with nogil:
                stop = reach(&s, <const int64_t*> numbers.buf, first, stop, end, log_start, max_bytes, &room)
            body = body_buffer(&s, room)
            with nogil:
                result = pick(&s, <const int64_t*> numbers.buf, &first, stop, end, log_start)
            return first, result, s.row_count, filled(&s, body)
        finally:
            PyBuffer_Release(&numbers)
    finally:
        PyBuffer_Release(&view)
        scan_close(&s)


cdef int require_columns(uint32_t columns) except -1:
    if columns >> ALL_COLUMNS:
        raise ValueError(f"columns = {columns:#x}: there are only {ALL_COLUMNS}")
    return 0


cdef bytearray body_buffer(Scan* s, Py_ssize_t room):
    """Make the buffer into which the first pass copies bodies. Return None if they are not wanted."""
    cdef bytearray body
    if not s.columns & 1 << COL_BODY:
        return None
    body = PyByteArray_FromStringAndSize(NULL, room)
    s.body = <uint8_t*> PyByteArray_AS_STRING(body)
    s.body_room = room
    advise_huge_pages(s.body, room)
    return body


cdef dict filled(Scan* s, bytearray body):
    """Return the buffers, filled with what the first pass gathered."""
    cdef Filled out
    cdef dict buffers = {}
    if s.out_of_memory:
        raise MemoryError
    memset(&out, 0, sizeof(out))
    allocate_columns(s, &out, buffers)
    if body is not None:
        PyByteArray_Resize(body, s.body_bytes)
        buffers["body.values"] = body
    with nogil:
        fill_columns(s, &out)
    return buffers


cdef int scan_open(Scan* s, object topics) except -1:
    cdef bytes name
    if not (lexicon_open(&s.topics) and lexicon_open(&s.born_hosts) and lexicon_open(&s.store_hosts)
            and lexicon_open(&s.names)):
        raise MemoryError
    for topic in topics:
        name = topic.encode()
        if find_text(&s.topics, <const uint8_t*> PyBytes_AS_STRING(name), len(name), True) < 0:
            raise MemoryError
    return 0


cdef void scan_close(Scan* s) noexcept nogil:
    cdef Repaired* previous
    free(s.rows)
    free(s.keys)
    free(s.properties)
    lexicon_close(&s.topics)
    lexicon_close(&s.born_hosts)
    lexicon_close(&s.store_hosts)
    lexicon_close(&s.names)
    while s.repaired != NULL:
        previous = s.repaired.previous
        free(s.repaired)
        s.repaired = previous


cdef int64_t gather(Scan* s, Py_ssize_t* position, Py_ssize_t end, Py_ssize_t stop, int64_t log_start,
                    Py_ssize_t max_rows) noexcept nogil:
    """Run the first pass: rows, texts and sizes. `position` moves to the end of the last record that was taken."""
    cdef int64_t result
    while position[0] < stop and s.row_count < max_rows:
        result = gather_record(s, position[0], end, stop, log_start)
        if result <= REACHED_END:
            return result
        position[0] += result
    return REACHED_END


cdef Py_ssize_t reach(Scan* s, const int64_t* offsets, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t end,
                      int64_t log_start, Py_ssize_t max_bytes, int64_t* room) noexcept nogil:
    """Return the index of the first offset that exceeds `max_bytes`, and prefetch the records before it.

    `room` gets the bytes that these records claim; the claim may change, so `gather_row` checks against the room.
    """
    cdef Py_ssize_t number = first
    cdef int64_t at, size
    while number < stop:
        at = offsets[number] - log_start
        if offsets[number] < log_start or at >= end:
            break
        fetch(s, offsets, number + 2 * AHEAD, stop, end, log_start, 1)
        size = min(max(0, get32(s.log + at)), end - at) if end - at >= 4 else 0
        if number > first and room[0] + size > max_bytes:
            break
        room[0] += size
        number += 1
    return number


cdef int64_t pick(Scan* s, const int64_t* offsets, Py_ssize_t* number, Py_ssize_t stop, Py_ssize_t end,
                  int64_t log_start) noexcept nogil:
    """Run the first pass over given offsets. `number` moves past the last record that was taken."""
    cdef int64_t result
    while number[0] < stop:
        fetch(s, offsets, number[0] + AHEAD, stop, end, log_start, AHEAD_BYTES)
        result = gather_record(s, offsets[number[0]] - log_start, end, end, log_start)
        if result <= REACHED_END:
            return result
        number[0] += 1
    return REACHED_END


cdef inline void fetch(Scan* s, const int64_t* offsets, Py_ssize_t number, Py_ssize_t stop, Py_ssize_t end,
                       int64_t log_start, Py_ssize_t size) noexcept nogil:
    """Prefetch a record that comes later: the processor cannot predict scattered records."""
    cdef Py_ssize_t at, last
    if number < stop and log_start <= offsets[number] < log_start + end:
        at = offsets[number] - log_start
        last = at + size
        if size > 1 and end - at >= 4:
            last = at + min(size, get32(s.log + at))
        while at < last:  # a prefetch never faults, so passing the end is harmless
            prefetch(s.log + at)
            at += CACHE_LINE


cdef inline int64_t gather_record(Scan* s, Py_ssize_t position, Py_ssize_t end, Py_ssize_t stop,
                                  int64_t log_start) noexcept nogil:
    """Check the record at `position` and take it if its topic is wanted. Return its size.

    Returns REACHED_END if the record passes `stop` or the batch is full, or the code of what is wrong with it.
    """
    cdef Record r
    cdef int64_t result, size
    cdef int32_t topic = 0
    cdef const uint8_t* p = s.log + position
    result = parse(p, end - position, log_start + position, s.check_crc and not s.some_topics, &r)
    if result <= 0:
        return result
    if position + r.size > stop:
        return REACHED_END
    prefetch(p + r.size)  # the next record, and its topic if it is much like this one
    prefetch(p + r.size + r.topic_at)
    if s.some_topics or s.columns & 1 << COL_TOPIC:
        topic = find_topic(s, p + r.topic_at, r.topic_size)
        if topic == ABSENT:
            return r.size
        if s.some_topics and s.check_crc:
            size = r.size
            result = parse(p, end - position, log_start + position, True, &r)
            if result != size:  # another process changed it, and only the old size was checked against `stop`
                return result if result < 0 else BAD_SIZE
    if gather_row(s, p, position, topic, &r):
        return r.size
    return REACHED_END if s.row_count else BAD_SIZE  # one record always fits, unless it changed during the scan


cdef bint gather_row(Scan* s, const uint8_t* p, Py_ssize_t position, int32_t topic, Record* r) noexcept nogil:
    """Take one record. Return False if a buffer would exceed 32-bit offsets, or if memory is out."""
    cdef const uint8_t* text = p + r.properties_at
    cdef Py_ssize_t size = r.properties_size
    cdef ScanRow* row
    if not make_room(<void**> &s.rows, &s.row_room, s.row_count + 1, sizeof(ScanRow)):
        s.out_of_memory = True
        return False
    # Tags, keys, names and values all come from the properties, which a repair makes at most three times as long.
    # So `weight` bounds the size of every buffer, and no 32-bit offset can overflow.
    s.weight += r.size + (REPAIR_FACTOR - 1) * r.properties_size
    if s.row_count and s.weight > INT32_MAX or s.body != NULL and s.body_bytes + r.body_size > s.body_room:
        return False
    row = &s.rows[s.row_count]
    memset(row, 0, sizeof(ScanRow))
    row.position = position
    row.size = <int32_t> r.size
    row.body_size = <int32_t> r.body_size
    row.topic = topic
    if s.columns & 1 << COL_BORN_HOST:
        row.born_host = find_text(&s.born_hosts, p + r.born_host_at, 20 if r.sys_flag & BORN_IPV6 else 8, True)
    if s.columns & 1 << COL_STORE_HOST:
        row.store_host = find_text(&s.store_hosts, p + r.store_host_at, 20 if r.sys_flag & STORE_IPV6 else 8, True)
    if row.topic < 0 or row.born_host < 0 or row.store_host < 0:
        s.out_of_memory = True
    if s.columns & PROPERTY_COLUMNS:
        text = valid_text(s, text, &size)
        gather_properties(s, text, size, row)
    if s.body != NULL:
        memcpy(s.body + s.body_bytes, p + r.body_at, r.body_size)
    s.body_bytes += r.body_size
    s.row_count += 1
    return not s.out_of_memory


cdef int32_t find_topic(Scan* s, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    """Return the number of a topic, or ABSENT if it is not wanted. The lexicon holds valid UTF-8 only."""
    cdef int32_t number = find_text(&s.topics, text, size, False)
    cdef uint8_t* valid
    if number >= 0:
        return number
    if is_utf8(text, size):
        return find_text(&s.topics, text, size, not s.some_topics)
    valid = <uint8_t*> malloc(REPAIR_FACTOR * size)
    if valid == NULL:
        return NO_MEMORY
    number = find_text(&s.topics, valid, repair(text, size, valid), not s.some_topics)
    free(valid)
    return number


cdef const uint8_t* valid_text(Scan* s, const uint8_t* text, Py_ssize_t* size) noexcept nogil:
    """Return the text itself if it is valid UTF-8, else a repaired copy that lives as long as the scan.

    A malformed part never extends over a separator, so the properties of a record can be repaired as one text.
    """
    cdef Repaired* copy
    if is_utf8(text, size[0]):
        return text
    copy = <Repaired*> malloc(sizeof(Repaired) + REPAIR_FACTOR * size[0])
    if copy == NULL:
        s.out_of_memory = True
        return text
    copy.previous = s.repaired
    s.repaired = copy
    size[0] = repair(text, size[0], <uint8_t*> (copy + 1))
    return <const uint8_t*> (copy + 1)


cdef void gather_properties(Scan* s, const uint8_t* at, Py_ssize_t size, ScanRow* row) noexcept nogil:
    """Split the properties of one record. If a name occurs twice, the last value counts, at the first's position."""
    cdef const uint8_t* end = at + size
    cdef const uint8_t* stop
    cdef const uint8_t* middle
    cdef Span keys = Span(NULL, 0)
    cdef Py_ssize_t first = s.property_count
    cdef Py_ssize_t i
    cdef bint hashed = False
    while at < end:
        stop = next_property(at, end, &middle)
        if middle != NULL:
            if middle - at == 4:
                if memcmp(at, b"TAGS", 4) == 0:
                    row.tags = Span(middle + 1, stop - middle - 1)
                elif memcmp(at, b"KEYS", 4) == 0:
                    keys = Span(middle + 1, stop - middle - 1)
            if s.columns & 1 << COL_PROPERTIES:
                add_property(s, first, Property(at, <int32_t> (middle - at), <int32_t> (stop - middle - 1)), &hashed)
        at = stop + 1
    row.property_count = <int32_t> (s.property_count - first)
    for i in range(first, s.property_count):
        s.name_bytes += s.properties[i].name_size
        s.value_bytes += s.properties[i].value_size
    s.tags_bytes += row.tags.size
    if s.columns & 1 << COL_KEYS:
        gather_keys(s, keys, row)


cdef void gather_keys(Scan* s, Span keys, ScanRow* row) noexcept nogil:
    """Split the keys at spaces. Empty parts are no keys."""
    cdef const uint8_t* at = keys.at
    cdef const uint8_t* end = at + keys.size
    cdef const uint8_t* stop
    while at < end:
        stop = <const uint8_t*> memchr(at, 32, end - at)
        if stop == NULL:
            stop = end
        if stop > at:
            if not make_room(<void**> &s.keys, &s.key_room, s.key_count + 1, sizeof(Span)):
                s.out_of_memory = True
                return
            s.keys[s.key_count] = Span(at, stop - at)
            s.key_count += 1
            s.key_bytes += stop - at
            row.key_count += 1
        at = stop + 1


cdef void add_property(Scan* s, Py_ssize_t first, Property new, bint* hashed) noexcept nogil:
    """Add a property to those of the record, which start at `first`, or replace the one of the same name.

    Names are compared one by one; from FEW_NAMES properties on they are found in a hash table, so that a record with
    many properties does not cost the square of their number.
    """
    cdef Py_ssize_t i = first
    if s.property_count - first >= FEW_NAMES and not hashed[0]:
        hashed[0] = True
        lexicon_clear(&s.names)
        for i in range(first, s.property_count):
            if find_text(&s.names, s.properties[i].name, s.properties[i].name_size, True) < 0:
                s.out_of_memory = True
    if hashed[0]:
        # Names were added in order, so the number of a name is the index of its property.
        i = first + find_text(&s.names, new.name, new.name_size, True)
    else:
        while i < s.property_count and not same_name(&s.properties[i], &new):
            i += 1
    if i < first or not make_room(<void**> &s.properties, &s.property_room, i + 1, sizeof(Property)):
        s.out_of_memory = True
    if s.out_of_memory:
        return
    s.properties[i] = new
    s.property_count = max(s.property_count, i + 1)


cdef inline bint same_name(Property* a, Property* b) noexcept nogil:
    """Compare two names. No name is empty, so the first bytes can be compared before the call."""
    return a.name_size == b.name_size and a.name[0] == b.name[0] and memcmp(a.name, b.name, a.name_size) == 0
