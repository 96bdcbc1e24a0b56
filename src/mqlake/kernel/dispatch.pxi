# A stretch of the commit log -> consume-queue entries by queue, and index keys.

cdef enum:
    MAX_DELAY_LEVELS = 64
    GUESSED_AHEAD = 6           # records

cdef struct Wanted:             # the properties that dispatch needs; size 0 if absent
    const uint8_t* tags
    Py_ssize_t tags_size
    const uint8_t* keys
    Py_ssize_t keys_size
    const uint8_t* unique_key
    Py_ssize_t unique_key_size
    const uint8_t* delay
    Py_ssize_t delay_size
    const uint8_t* light_names
    Py_ssize_t light_names_size
    const uint8_t* light_offsets
    Py_ssize_t light_offsets_size

cdef struct Row:                # one consume-queue entry before it is encoded
    int32_t run
    int64_t offset
    int32_t size
    int64_t tags_code

cdef struct Run:                # entries of one queue with consecutive queue offsets
    const uint8_t* topic
    Py_ssize_t topic_size
    int32_t queue_id
    int64_t first
    int64_t count

cdef struct Harvest:            # filled without the interpreter lock; made into Python objects at the end
    Row* rows
    Py_ssize_t row_count
    Py_ssize_t row_room
    Run* runs
    Py_ssize_t run_count
    Py_ssize_t run_room
    int32_t* table              # (topic, queue) -> its latest run, open addressing, -1 = free; size a power of 2
    Py_ssize_t table_size
    uint8_t* keys
    Py_ssize_t key_count
    Py_ssize_t key_room
    int64_t records
    int64_t last_offset
    int64_t last_timestamp
    bint index_keys
    bint index_tags
    int64_t delays[MAX_DELAY_LEVELS]
    int delay_count
    bint out_of_memory


def dispatch_records(log, Py_ssize_t position, Py_ssize_t end, int64_t log_start, Py_ssize_t max_bytes, tuple delays_ms,
                     bint index_keys, bint index_tags):
    """Walk the records in [position, end) of a log file. Return their consume-queue entries and index keys.

    The walk stops at `end`, after `max_bytes`, at an end-of-file marker or at bytes that are not a record. CRCs are not
    checked: a record was checked when it was put or walked, before it is dispatched.
    """
    cdef Py_buffer view
    cdef Harvest h
    cdef int64_t result = REACHED_END
    cdef Record record
    cdef Py_ssize_t stop
    cdef const uint8_t* p
    if len(delays_ms) > MAX_DELAY_LEVELS:
        raise ValueError(f"{len(delays_ms)} delay levels, at most {MAX_DELAY_LEVELS}")
    harvest_open(&h, index_keys, index_tags, delays_ms)
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end:
            raise ValueError(f"[{position}, {end}) is not inside {view.len} bytes")
        p = <const uint8_t*> view.buf
        stop = position + min(end - position, max_bytes)
        with nogil:
            # A record may begin before `stop` and end after it, so a stretch of any size makes progress.
            while position < stop and not h.out_of_memory:
                result = parse(p + position, end - position, log_start + position, False, &record)
                if result <= 0:
                    break
                harvest_record(&h, p + position, &record)
                prefetch_guessed(p, position, result, stop)
                position += result
                result = REACHED_END
        if h.out_of_memory:
            raise MemoryError
        keys = PyBytes_FromStringAndSize(<char*> h.keys, h.key_count * KEY_SIZE)
        return Dispatched(position, result, harvest_runs(&h), keys, h.records, h.last_offset, h.last_timestamp)
    finally:
        PyBuffer_Release(&view)
        harvest_close(&h)


cdef inline void prefetch_guessed(const uint8_t* p, int64_t position, int64_t size, int64_t stop) noexcept nogil:
    """Prefetch head and tail of a later record, at the place it has if record sizes repeat.

    Dispatch reads only these two parts; the body lies between them. A wrong guess costs a few cache lines.
    """
    cdef int64_t head = position + GUESSED_AHEAD * size
    if head + size <= stop:
        prefetch_line(p + head)
        prefetch_line(p + head + 64)
        prefetch_line(p + head + size - 64)
        prefetch_line(p + head + size - 128)


cdef int harvest_open(Harvest* h, bint index_keys, bint index_tags, tuple delays_ms) except -1:
    cdef Py_ssize_t i
    h.rows, h.runs, h.keys = NULL, NULL, NULL
    h.row_count = h.row_room = h.run_count = h.run_room = h.key_count = h.key_room = 0
    h.records = h.last_timestamp = 0
    h.last_offset = -1
    h.index_keys = index_keys
    h.index_tags = index_tags
    h.out_of_memory = False
    h.delay_count = <int> len(delays_ms)
    for i in range(h.delay_count):
        h.delays[i] = delays_ms[i]
    h.table_size = 256
    h.table = <int32_t*> malloc(h.table_size * sizeof(int32_t))
    if h.table == NULL:
        raise MemoryError
    for i in range(h.table_size):
        h.table[i] = -1
    return 0


cdef void harvest_close(Harvest* h) noexcept nogil:
    free(h.rows)
    free(h.runs)
    free(h.table)
    free(h.keys)


cdef void harvest_record(Harvest* h, const uint8_t* p, Record* r) noexcept nogil:
    cdef Wanted w
    cdef int kind = r.sys_flag & TRANSACTION_MASK
    cdef int64_t tags_code = 0
    cdef const uint8_t* topic = p + r.topic_at
    h.records += 1
    h.last_offset = r.physical_offset
    h.last_timestamp = r.store_timestamp
    wanted_properties(p + r.properties_at, r.properties_size, &w)
    if kind == 0 or kind == 8:  # an ordinary or a committed message: only these are delivered
        if w.tags_size:
            tags_code = hash_utf8(w.tags, w.tags_size, 0)
        if r.topic_size == 19 and w.delay_size and memcmp(topic, b"SCHEDULE_TOPIC_XXXX", 19) == 0:
            tags_code = due_time(h, &w, r.store_timestamp, tags_code)
        add_row(h, topic, r.topic_size, r.queue_id, r.queue_offset, r.physical_offset, <int32_t> r.size, tags_code)
        if w.light_names_size and w.light_offsets_size and takes_light_queues(topic, r.topic_size):
            add_light_rows(h, &w, r, tags_code)
    if kind != 0xC and h.index_keys:
        add_keys(h, topic, r.topic_size, &w, r.physical_offset, r.store_timestamp)


cdef void wanted_properties(const uint8_t* at, Py_ssize_t size, Wanted* w) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef const uint8_t* stop
    cdef const uint8_t* middle
    cdef const uint8_t* value
    cdef Py_ssize_t name_size, value_size
    memset(w, 0, sizeof(Wanted))
    while at < end:
        stop = next_property(at, end, &middle)
        if middle != NULL:
            name_size = middle - at
            value = middle + 1
            value_size = stop - value
            if name_size == 4:
                if memcmp(at, b"TAGS", 4) == 0:
                    w.tags, w.tags_size = value, value_size
                elif memcmp(at, b"KEYS", 4) == 0:
                    w.keys, w.keys_size = value, value_size
            elif name_size == 8 and memcmp(at, b"UNIQ_KEY", 8) == 0:
                w.unique_key, w.unique_key_size = value, value_size
            elif name_size == 5 and memcmp(at, b"DELAY", 5) == 0:
                w.delay, w.delay_size = value, value_size
            elif name_size == 20 and memcmp(at, b"INNER_MULTI_DISPATCH", 20) == 0:
                w.light_names, w.light_names_size = value, value_size
            elif name_size == 24 and memcmp(at, b"INNER_MULTI_QUEUE_OFFSET", 24) == 0:
                w.light_offsets, w.light_offsets_size = value, value_size
        at = stop + 1


cdef int64_t due_time(Harvest* h, Wanted* w, int64_t store_timestamp, int64_t otherwise) noexcept nogil:
    """Return when a delayed message is due: its entry carries this time instead of the tag's hash."""
    cdef int64_t level = decimal(w.delay, w.delay_size)
    if level <= 0:
        return otherwise
    if level > h.delay_count:
        level = h.delay_count
    return store_timestamp + (h.delays[level - 1] if level > 0 else 1000)


cdef int64_t decimal(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Parse a non-negative decimal number; -1 if it is not one. At most 18 digits, which cannot overflow 64 bits."""
    cdef int64_t value = 0
    cdef Py_ssize_t i
    if size < 1 or size > 18:
        return -1
    for i in range(size):
        if not 48 <= p[i] <= 57:
            return -1
        value = value * 10 + (p[i] - 48)
    return value


cdef bint takes_light_queues(const uint8_t* topic, Py_ssize_t size) noexcept nogil:
    return not ((size >= 7 and memcmp(topic, b"%RETRY%", 7) == 0) or (size >= 8 and memcmp(topic, b"rmq_sys_", 8) == 0)
                or (size == 19 and memcmp(topic, b"SCHEDULE_TOPIC_XXXX", 19) == 0))


cdef void add_light_rows(Harvest* h, Wanted* w, Record* r, int64_t tags_code) noexcept nogil:
    """Add an entry for every light queue that the record names; none if the counts of names and offsets differ."""
    cdef const uint8_t* name = w.light_names
    cdef const uint8_t* names_end = name + w.light_names_size
    cdef const uint8_t* number = w.light_offsets
    cdef const uint8_t* numbers_end = number + w.light_offsets_size
    cdef const uint8_t* name_stop
    cdef const uint8_t* number_stop
    cdef int64_t queue_offset
    if commas(name, w.light_names_size) != commas(number, w.light_offsets_size):
        return
    while name < names_end:
        name_stop = <const uint8_t*> memchr(name, 44, names_end - name)
        name_stop = names_end if name_stop == NULL else name_stop
        number_stop = <const uint8_t*> memchr(number, 44, numbers_end - number)
        number_stop = numbers_end if number_stop == NULL else number_stop
        queue_offset = decimal(number, number_stop - number)
        # The name becomes a folder's name: one with a slash could lead out of the store.
        if queue_offset >= 0 and name_stop > name and memchr(name, 47, name_stop - name) == NULL:
            add_row(h, name, name_stop - name,
                    0 if name_stop - name >= 5 and memcmp(name, b"%LMQ%", 5) == 0 else r.queue_id,
                    queue_offset, r.physical_offset, <int32_t> r.size, tags_code)
        name = name_stop + 1
        number = number_stop + 1


cdef Py_ssize_t commas(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    cdef Py_ssize_t count = 0
    for i in range(size):
        count += p[i] == 44
    return count


cdef void add_row(Harvest* h, const uint8_t* topic, Py_ssize_t topic_size, int32_t queue_id, int64_t queue_offset,
                  int64_t offset, int32_t size, int64_t tags_code) noexcept nogil:
    cdef int32_t run = find_run(h, topic, topic_size, queue_id, queue_offset)
    cdef Row* row
    if run < 0:
        return
    if h.row_count == h.row_room:
        h.rows = <Row*> grow(h, h.rows, &h.row_room, sizeof(Row))
        if h.out_of_memory:
            return
    row = &h.rows[h.row_count]
    row.run, row.offset, row.size, row.tags_code = run, offset, size, tags_code
    h.row_count += 1
    h.runs[run].count += 1


cdef int32_t find_run(Harvest* h, const uint8_t* topic, Py_ssize_t size, int32_t queue_id,
                      int64_t queue_offset) noexcept nogil:
    """Return the run that this entry continues, or a new one; -1 without memory."""
    cdef Py_ssize_t at = find_place(h, topic, size, queue_id)
    cdef int32_t number = h.table[at]
    cdef Run* run
    if number >= 0 and h.runs[number].first + h.runs[number].count == queue_offset:
        return number
    if h.run_count == h.run_room:
        h.runs = <Run*> grow(h, h.runs, &h.run_room, sizeof(Run))
    if 2 * h.run_count >= h.table_size:  # at least half of the table stays free, so every search ends
        grow_table(h)
        at = find_place(h, topic, size, queue_id)
    if h.out_of_memory:
        return -1
    run = &h.runs[h.run_count]
    # The topic is not copied: the caller holds the log's buffer until the runs are made into objects.
    run.topic, run.topic_size, run.queue_id, run.first, run.count = topic, size, queue_id, queue_offset, 0
    h.table[at] = <int32_t> h.run_count
    h.run_count += 1
    return h.table[at]


cdef Py_ssize_t find_place(Harvest* h, const uint8_t* topic, Py_ssize_t size, int32_t queue_id) noexcept nogil:
    cdef uint32_t mixed = crc32_of(<uint32_t> queue_id, topic, size)
    cdef Py_ssize_t at = mixed & (h.table_size - 1)
    cdef Run* run
    while h.table[at] >= 0:
        run = &h.runs[h.table[at]]
        if run.queue_id == queue_id and run.topic_size == size and memcmp(run.topic, topic, size) == 0:
            break
        at = (at + 1) & (h.table_size - 1)
    return at


cdef void grow_table(Harvest* h) noexcept nogil:
    cdef Py_ssize_t i
    cdef int32_t* table = <int32_t*> malloc(2 * h.table_size * sizeof(int32_t))
    if table == NULL:
        h.out_of_memory = True
        return
    free(h.table)
    h.table = table
    h.table_size *= 2
    for i in range(h.table_size):
        table[i] = -1
    for i in range(h.run_count):  # later runs of a queue replace earlier ones
        table[find_place(h, h.runs[i].topic, h.runs[i].topic_size, h.runs[i].queue_id)] = <int32_t> i


cdef void* grow(Harvest* h, void* items, Py_ssize_t* room, size_t item_size) noexcept nogil:
    cdef Py_ssize_t wanted = 2 * room[0] if room[0] else 1024
    cdef void* grown = realloc(items, wanted * item_size)
    if grown == NULL:
        # Raising needs the interpreter lock, so the loop checks this flag and stops. `items` stay valid, to be freed.
        h.out_of_memory = True
        return items
    room[0] = wanted
    return grown


cdef void add_keys(Harvest* h, const uint8_t* topic, Py_ssize_t topic_size, Wanted* w, int64_t offset,
                   int64_t timestamp) noexcept nogil:
    """Add the client's id, then each key between single spaces, then the tag: RocketMQ's order."""
    cdef int32_t seed = hash_utf8(b"#", 1, hash_utf8(topic, topic_size, 0))
    cdef const uint8_t* at = w.keys
    cdef const uint8_t* end = at + w.keys_size
    cdef const uint8_t* stop
    if w.unique_key_size:
        add_key(h, hash_utf8(w.unique_key, w.unique_key_size, seed), offset, timestamp)
    if w.keys_size:
        while at < end:
            stop = <const uint8_t*> memchr(at, 32, end - at)
            stop = end if stop == NULL else stop
            if stop > at:
                add_key(h, hash_utf8(at, stop - at, seed), offset, timestamp)
            at = stop + 1
    if h.index_tags and w.tags_size:
        add_key(h, hash_utf8(w.tags, w.tags_size, hash_utf8(b"T#", 2, seed)), offset, timestamp)


cdef void add_key(Harvest* h, int32_t key_hash, int64_t offset, int64_t timestamp) noexcept nogil:
    cdef uint8_t* key
    if h.key_count == h.key_room:
        h.keys = <uint8_t*> grow(h, h.keys, &h.key_room, KEY_SIZE)
        if h.out_of_memory:
            return
    key = h.keys + h.key_count * KEY_SIZE
    # Java's Math.abs; RocketMQ replaces the one int32 without an absolute value by 0.
    set_le32(key, key_hash if key_hash >= 0 else (0 if key_hash == -INT32_MAX - 1 else -key_hash))
    set_le64(key + 4, offset)
    set_le64(key + 12, timestamp)
    h.key_count += 1


cdef list harvest_runs(Harvest* h):
    """Return the runs in the order in which they began, each with its entries in their format on disk."""
    cdef list result = []
    cdef Py_ssize_t i
    cdef Run* run
    cdef uint8_t** cursors = <uint8_t**> malloc(max(h.run_count, 1) * sizeof(uint8_t*))
    cdef bytes entries
    if cursors == NULL:
        raise MemoryError
    try:
        for i in range(h.run_count):
            run = &h.runs[i]
            entries = PyBytes_FromStringAndSize(NULL, run.count * ENTRY_SIZE)
            cursors[i] = <uint8_t*> PyBytes_AS_STRING(entries)
            result.append((PyUnicode_DecodeUTF8(<const char*> run.topic, run.topic_size, "replace"), run.queue_id,
                           run.first, entries))
        # No other code has seen these bytes objects yet, so they may still be written. `result` keeps them alive.
        with nogil:
            for i in range(h.row_count):
                fill_entry(&cursors[h.rows[i].run], &h.rows[i])
    finally:
        free(cursors)
    return result


cdef void fill_entry(uint8_t** cursor, Row* row) noexcept nogil:
    set64(cursor[0], row.offset)
    set32(cursor[0] + 8, row.size)
    set64(cursor[0] + 12, row.tags_code)
    cursor[0] += ENTRY_SIZE
