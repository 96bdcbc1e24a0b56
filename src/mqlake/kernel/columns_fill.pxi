# The second pass of `scan_columns`: fill exactly sized buffers from the rows that the first pass gathered.

cdef struct Texts:              # text i is the bytes [offsets[i], offsets[i + 1]) of data
    int32_t* offsets
    uint8_t* data
    Py_ssize_t count
    Py_ssize_t size

cdef struct Filled:             # where the second pass writes; NULL if a column is not wanted
    void* fixed[FIXED_COLUMNS]
    uint8_t* tags_validity
    Texts tags
    int32_t* key_counts         # offsets of the lists: running totals
    Texts keys
    int32_t* property_counts
    Texts names
    Texts values
    int32_t* body_offsets


cdef int allocate_columns(Scan* s, Filled* out, dict buffers) except -1:
    """Allocate exactly sized buffers for all wanted columns, and add the dictionaries, which are complete."""
    cdef int column
    for column in range(FIXED_COLUMNS):  # dictionary columns included: their fixed buffer holds the indexes
        if s.columns & 1 << column:
            out.fixed[column] = new_buffer(buffers, COLUMN_NAMES[column],
                                           s.row_count * (8 if LONG_COLUMNS & 1 << column else 4))
    if s.columns & 1 << COL_TOPIC:
        add_dictionary(buffers, "topic", &s.topics)
    if s.columns & 1 << COL_BORN_HOST:
        hosts_to_text(&s.born_hosts)
        add_dictionary(buffers, "born_host", &s.born_hosts)
    if s.columns & 1 << COL_STORE_HOST:
        hosts_to_text(&s.store_hosts)
        add_dictionary(buffers, "store_host", &s.store_hosts)
    if s.columns & 1 << COL_TAGS:
        out.tags_validity = <uint8_t*> new_buffer(buffers, "tags.validity", (s.row_count + 7) // 8)
        memset(out.tags_validity, 0, (s.row_count + 7) // 8)
        new_texts(buffers, "tags", &out.tags, s.row_count, s.tags_bytes)
    if s.columns & 1 << COL_KEYS:
        out.key_counts = <int32_t*> new_buffer(buffers, "keys.offsets", 4 * (s.row_count + 1))
        out.key_counts[0] = 0
        new_texts(buffers, "keys.item", &out.keys, s.key_count, s.key_bytes)
    if s.columns & 1 << COL_PROPERTIES:
        out.property_counts = <int32_t*> new_buffer(buffers, "properties.offsets", 4 * (s.row_count + 1))
        out.property_counts[0] = 0
        new_texts(buffers, "properties.name", &out.names, s.property_count, s.name_bytes)
        new_texts(buffers, "properties.value", &out.values, s.property_count, s.value_bytes)
    if s.columns & 1 << COL_BODY:
        out.body_offsets = <int32_t*> new_buffer(buffers, "body.offsets", 4 * (s.row_count + 1))
        out.body_offsets[0] = 0
    return 0


cdef void* new_buffer(dict buffers, str name, Py_ssize_t size) except NULL:
    cdef bytes buffer = PyBytes_FromStringAndSize(NULL, size)
    buffers[name] = buffer
    return PyBytes_AS_STRING(buffer)


cdef int new_texts(dict buffers, str name, Texts* texts, Py_ssize_t count, Py_ssize_t size) except -1:
    texts.offsets = <int32_t*> new_buffer(buffers, name + ".offsets", 4 * (count + 1))
    texts.data = <uint8_t*> new_buffer(buffers, name + ".values", size)
    texts.offsets[0] = 0
    return 0


cdef int add_dictionary(dict buffers, str name, Lexicon* words) except -1:
    # Copied, because the lexicon is freed with the scan.
    buffers[name + ".offsets"] = PyBytes_FromStringAndSize(<char*> words.offsets, 4 * (words.count + 1))
    buffers[name + ".values"] = PyBytes_FromStringAndSize(<char*> words.data, words.offsets[words.count])
    return 0


cdef int hosts_to_text(Lexicon* hosts) except -1:
    """Replace packed hosts by their texts. From then on the lexicon can be read, but no longer searched."""
    cdef Py_ssize_t i, start, size
    cdef uint8_t* texts = <uint8_t*> malloc(hosts.count * HOST_TEXT + 1)
    cdef int32_t at = 0  # cannot overflow: the text of a host is shorter than any record, and MAX_SCAN bounds those
    if texts == NULL:
        raise MemoryError
    with nogil:
        start = 0
        for i in range(hosts.count):
            size = hosts.offsets[i + 1] - start
            at += host_text(hosts.data + start, size, <char*> texts + at)
            start += size
            hosts.offsets[i + 1] = at
    free(hosts.data)
    hosts.data = texts
    return 0


cdef void fill_columns(Scan* s, Filled* out) noexcept nogil:
    """Fill the buffers. Rows appear in the order of the first pass, so keys and properties are read in sequence."""
    cdef Py_ssize_t i, j
    cdef Record r
    cdef ScanRow* row
    cdef Span* key = s.keys
    cdef Property* own = s.properties
    memset(&r, 0, sizeof(r))  # if a record has become invalid since, its row gets other values, but stays in bounds
    for i in range(s.row_count):
        if i + AHEAD < s.row_count:
            fetch_again(s, &s.rows[i + AHEAD])
        row = &s.rows[i]
        # Only numbers are taken from this second look; what is copied has the positions and sizes of the first.
        parse(s.log + row.position, row.size, -1, False, &r)
        fill_fixed(out, i, row, &r)
        if s.columns & 1 << COL_TAGS:
            out.tags_validity[i >> 3] |= (row.tags.at != NULL) << (i & 7)
            put_text(&out.tags, row.tags.at, row.tags.size)
        if s.columns & 1 << COL_KEYS:
            for j in range(row.key_count):
                put_text(&out.keys, key[j].at, key[j].size)
            key += row.key_count
            out.key_counts[i + 1] = <int32_t> out.keys.count
        if s.columns & 1 << COL_PROPERTIES:
            for j in range(row.property_count):
                put_text(&out.names, own[j].name, own[j].name_size)
                put_text(&out.values, own[j].name + own[j].name_size + 1, own[j].value_size)
            own += row.property_count
            out.property_counts[i + 1] = <int32_t> out.names.count
        if s.columns & 1 << COL_BODY:
            out.body_offsets[i + 1] = out.body_offsets[i] + row.body_size


cdef inline void fetch_again(Scan* s, ScanRow* row) noexcept nogil:
    """Prefetch what is read of a record, all but its body: records may be scattered over the log."""
    cdef const uint8_t* p = s.log + row.position
    prefetch(p)
    prefetch(p + CACHE_LINE)
    p += row.size
    prefetch(p - 1)
    prefetch(p - 1 - CACHE_LINE)
    prefetch(p - 1 - 2 * CACHE_LINE)


cdef void fill_fixed(Filled* out, Py_ssize_t i, ScanRow* row, Record* r) noexcept nogil:
    put32(out.fixed[COL_TOPIC], i, row.topic)
    put32(out.fixed[COL_QUEUE_ID], i, r.queue_id)
    put64(out.fixed[COL_QUEUE_OFFSET], i, r.queue_offset)
    put64(out.fixed[COL_PHYSICAL_OFFSET], i, r.physical_offset)
    put32(out.fixed[COL_SIZE], i, row.size)
    put32(out.fixed[COL_FLAG], i, r.flag)
    put32(out.fixed[COL_SYS_FLAG], i, r.sys_flag)
    put32(out.fixed[COL_BODY_CRC], i, r.body_crc)
    put64(out.fixed[COL_BORN_TIMESTAMP], i, r.born_timestamp)
    put64(out.fixed[COL_STORE_TIMESTAMP], i, r.store_timestamp)
    put32(out.fixed[COL_BORN_HOST], i, row.born_host)
    put32(out.fixed[COL_STORE_HOST], i, row.store_host)
    put32(out.fixed[COL_RECONSUME_TIMES], i, r.reconsume_times)
    put64(out.fixed[COL_PREPARED_OFFSET], i, r.prepared_offset)


cdef inline void put32(void* column, Py_ssize_t i, int32_t value) noexcept nogil:
    if column != NULL:
        (<int32_t*> column)[i] = value


cdef inline void put64(void* column, Py_ssize_t i, int64_t value) noexcept nogil:
    if column != NULL:
        (<int64_t*> column)[i] = value


cdef inline void put_text(Texts* texts, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    """Append a text. The first pass added up the sizes, so the room is enough."""
    if size:  # the text of a row without tags is NULL
        memcpy(texts.data + texts.size, text, size)
    texts.size += size
    texts.count += 1
    texts.offsets[texts.count] = <int32_t> texts.size
