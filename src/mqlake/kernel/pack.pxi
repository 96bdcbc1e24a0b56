# Convert Arrow columns to packed records, the reverse of columns.pxi: many workers encode, one process appends.
#
# A packed record is a record of the log in which only queue offset, physical offset and store time are still missing.
# Its queue id is -1 if the topic's queues take turns.
#
# There are two passes, both without the interpreter lock: the first checks every row and adds up the sizes, the second
# fills a buffer of exactly that size. This code only finds the first row that no record can hold. The caller puts that
# one message to learn what is wrong with it.

cdef enum:
    IN_TURN = -1
    COMPRESSED = 0x1
    COMPRESSION_TYPE = 0x700

cdef struct TextColumn:         # text i is values[offsets[i]:offsets[i + 1]]; offsets is NULL if the column is absent
    const int32_t* offsets
    const uint8_t* values
    Py_ssize_t count

cdef struct Packing:
    Py_ssize_t rows
    TextColumn topic
    TextColumn body
    TextColumn tags
    TextColumn keys             # all keys of a row as one text, or
    const int32_t* key_lists    # lists of
    TextColumn key              # single keys
    const int32_t* property_lists
    TextColumn name
    TextColumn value
    TextColumn host             # packed hosts; born_host holds indexes into them
    const int32_t* born_host
    const int32_t* queue_id
    const int32_t* flag
    const int32_t* sys_flag
    const int32_t* body_crc     # CRC of the body as it was stored before
    const int32_t* reconsume_times
    const int64_t* queue_offset
    const int64_t* born_timestamp
    const int64_t* store_timestamp
    const int64_t* prepared_offset
    const uint8_t* store_host
    Py_ssize_t store_host_size
    int64_t max_body
    int64_t max_size
    bint append_crc
    bint lights


cdef class View:
    """Hold a buffer for as long as this object lives."""

    cdef Py_buffer view

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


def pack_records(dict columns not None, Py_ssize_t rows, bytes store_host not None, int64_t max_body, int64_t max_size,
                 bint append_crc, bint lights):
    """Return the rows as packed records, one after the other, and the number of rows that were packed.

    Columns are buffers by name, as in `types.Scanned`, all without nulls. Only `topic` and `body` are required.
    `topic` is a text, `born_host` holds indexes into packed hosts, an empty text in `tags` means no tag, `keys` are
    lists (`keys.item`) or texts, and -1 in `queue_id` means the topic's queues in turn. If `sys_flag` says compressed
    and `body_crc` is not the body's CRC, the body was decompressed since, and the flag is cleared. `born_timestamp` is
    in milliseconds. A packed record gets `queue_offset` and `store_timestamp` as given. Packing stops before a row
    that cannot be stored, whose body exceeds `max_body` or whose record exceeds `max_size`, or that names light queues
    while `lights` is False.
    """
    cdef Packing pack
    cdef list views = []
    cdef Py_ssize_t taken = 0
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t size
    cdef bytearray packed
    cdef uint8_t* at
    open_packing(&pack, columns, rows, views)
    pack.store_host = <const uint8_t*> PyBytes_AS_STRING(store_host)
    pack.store_host_size = len(store_host)
    pack.max_body, pack.max_size, pack.append_crc, pack.lights = max_body, max_size, append_crc, lights
    with nogil:
        while taken < rows:
            size = packed_size(&pack, taken)
            if size < 0:
                break
            total += size
            taken += 1
    # The sizes apply only if no other thread writes to the columns meanwhile. `views` keeps their memory in place.
    packed = PyByteArray_FromStringAndSize(NULL, total)
    at = <uint8_t*> PyByteArray_AS_STRING(packed)
    with nogil:
        advise_huge_pages(at, total)
        for size in range(taken):  # now a row number
            at = fill_packed(&pack, size, at)
    return packed, taken


cdef int open_packing(Packing* pack, dict columns, Py_ssize_t rows, list views) except -1:
    """Point at the columns and check all offsets and indexes, so that the passes need no bounds checks."""
    cdef Py_ssize_t items
    memset(pack, 0, sizeof(Packing))
    pack.rows = rows
    take_texts(&pack.topic, columns, "topic", rows, views)
    take_texts(&pack.body, columns, "body", rows, views)
    if pack.topic.offsets == NULL or pack.body.offsets == NULL:
        raise ValueError("topic and body must be among the columns")
    take_texts(&pack.tags, columns, "tags", rows, views)
    if "keys.item.offsets" in columns:
        pack.key_lists = take_lists(columns, "keys.offsets", rows, views, &items)
        take_texts(&pack.key, columns, "keys.item", items, views)
    else:
        take_texts(&pack.keys, columns, "keys", rows, views)
    if "properties.offsets" in columns:
        pack.property_lists = take_lists(columns, "properties.offsets", rows, views, &items)
        take_texts(&pack.name, columns, "properties.name", items, views)
        take_texts(&pack.value, columns, "properties.value", items, views)
        if pack.name.offsets == NULL or pack.value.offsets == NULL:
            raise ValueError("properties must have both names and values")
    pack.queue_id = <const int32_t*> take_numbers(columns, "queue_id", rows, 4, views)
    pack.flag = <const int32_t*> take_numbers(columns, "flag", rows, 4, views)
    pack.sys_flag = <const int32_t*> take_numbers(columns, "sys_flag", rows, 4, views)
    pack.body_crc = <const int32_t*> take_numbers(columns, "body_crc", rows, 4, views)
    pack.reconsume_times = <const int32_t*> take_numbers(columns, "reconsume_times", rows, 4, views)
    pack.queue_offset = <const int64_t*> take_numbers(columns, "queue_offset", rows, 8, views)
    pack.born_timestamp = <const int64_t*> take_numbers(columns, "born_timestamp", rows, 8, views)
    pack.store_timestamp = <const int64_t*> take_numbers(columns, "store_timestamp", rows, 8, views)
    pack.prepared_offset = <const int64_t*> take_numbers(columns, "prepared_offset", rows, 8, views)
    pack.born_host = <const int32_t*> take_numbers(columns, "born_host", rows, 4, views)
    if pack.born_host != NULL:
        take_hosts(pack, columns, rows, views)
    return 0


cdef int take_texts(TextColumn* texts, dict columns, str name, Py_ssize_t count, list views) except -1:
    """Point at the texts of a column, which may be absent. Every text is inside the values."""
    cdef View values
    cdef Py_ssize_t last
    if f"{name}.offsets" not in columns:
        return 0
    texts.offsets = take_lists(columns, f"{name}.offsets", count, views, &last)
    values = View(columns[f"{name}.values"])
    views.append(values)
    texts.values = <const uint8_t*> values.view.buf
    texts.count = count
    # Offsets never fall, so a bound on the last one bounds every text.
    if last > values.view.len:
        raise ValueError(f"{name}: offsets up to {last}, values of {values.view.len} bytes")
    return 0


cdef const int32_t* take_lists(dict columns, str name, Py_ssize_t count, list views, Py_ssize_t* last) except NULL:
    """Return the offsets of `count` lists, which never fall. `last` gets the end of the last list."""
    cdef const int32_t* offsets = <const int32_t*> take_numbers(columns, name, count + 1, 4, views)
    cdef Py_ssize_t i
    if offsets == NULL or offsets[0] < 0:
        raise ValueError(f"{name}: offsets must start at 0 or above")
    for i in range(count):
        if offsets[i + 1] < offsets[i]:
            raise ValueError(f"{name}: offset {i + 1} is smaller than the one before it")
    last[0] = offsets[count]
    return offsets


cdef const void* take_numbers(dict columns, str name, Py_ssize_t count, Py_ssize_t width, list views) except? NULL:
    """Return a column of numbers, or NULL if it is absent."""
    cdef View numbers
    if name not in columns:
        return NULL
    numbers = View(columns[name])
    views.append(numbers)
    if numbers.view.len < count * width:
        raise ValueError(f"{name}: {numbers.view.len} bytes for {count} numbers of {width}")
    return numbers.view.buf


cdef int take_hosts(Packing* pack, dict columns, Py_ssize_t rows, list views) except -1:
    cdef Py_ssize_t i
    take_texts(&pack.host, columns, "born_host", len(columns["born_host.offsets"]) // 4 - 1, views)
    for i in range(pack.host.count):
        if pack.host.offsets[i + 1] - pack.host.offsets[i] not in (8, 20):
            raise ValueError(f"born_host: packed host {i} has neither 8 nor 20 bytes")
    for i in range(rows):
        if not 0 <= pack.born_host[i] < pack.host.count:
            raise ValueError(f"born_host: row {i} names host {pack.born_host[i]} of {pack.host.count}")
    return 0


cdef inline Span text_at(TextColumn* texts, Py_ssize_t i) noexcept nogil:
    cdef Span span
    span.at, span.size = NULL, 0
    if texts.offsets != NULL:
        span.at = texts.values + texts.offsets[i]
        span.size = texts.offsets[i + 1] - texts.offsets[i]
    return span


cdef inline Span born_host_at(Packing* pack, Py_ssize_t row) noexcept nogil:
    cdef Span host
    if pack.born_host != NULL:
        return text_at(&pack.host, pack.born_host[row])
    host.at, host.size = pack.store_host, pack.store_host_size
    return host


cdef Py_ssize_t packed_size(Packing* pack, Py_ssize_t row) noexcept nogil:
    """Return the size of a row's record, or -1 if no record can hold it."""
    cdef Span topic = text_at(&pack.topic, row)
    cdef Py_ssize_t body_size = text_at(&pack.body, row).size
    cdef Py_ssize_t properties_size = packed_properties(pack, row, NULL)
    cdef Py_ssize_t size
    if properties_size < 0 or properties_size > MAX_PROPERTIES or body_size > pack.max_body or not is_topic(topic):
        return -1
    if pack.queue_id != NULL and pack.queue_id[row] < IN_TURN:
        return -1
    size = record_size(born_host_at(pack, row).size, pack.store_host_size, topic.size, body_size, properties_size)
    return size if size <= pack.max_size else -1


cdef bint is_topic(Span topic) noexcept nogil:
    """Return whether RocketMQ accepts a topic's name: see `logs/topic_table.py`."""
    cdef Py_ssize_t i
    cdef uint8_t c
    cdef Py_ssize_t most = 127
    if topic.size >= 7 and memcmp(topic.at, b"%RETRY%", 7) == 0:
        most = 255
    if not 0 < topic.size <= most:
        return False
    for i in range(topic.size):
        c = topic.at[i]
        # a-z, A-Z, 0-9 and _ - % |
        if not (97 <= c <= 122 or 65 <= c <= 90 or 48 <= c <= 57 or c == 95 or c == 45 or c == 37 or c == 124):
            return False
    return True


cdef inline bint is_property_text(Span text) noexcept nogil:
    return (text.size > 0 and memchr(text.at, 1, text.size) == NULL and memchr(text.at, 2, text.size) == NULL
            and is_utf8(text.at, text.size))


cdef Py_ssize_t packed_properties(Packing* pack, Py_ssize_t row, uint8_t* out) noexcept nogil:
    """Check the properties of a row or, if `out` is not NULL, write them. Return their size, or -1.

    Both passes run this code, so they cannot disagree about the size. The row's own keys and tags replace those among
    the properties; if there are none to replace, they come last.
    """
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t i
    cdef Span name, value
    cdef Span tags = text_at(&pack.tags, row)
    cdef Py_ssize_t keys_size = packed_keys(pack, row, NULL)
    cdef bint has_keys = False
    cdef bint has_tags = False
    if keys_size < 0 or (tags.size and out == NULL and not is_property_text(tags)):
        return -1
    if pack.property_lists != NULL:
        for i in range(pack.property_lists[row], pack.property_lists[row + 1]):
            name = text_at(&pack.name, i)
            value = text_at(&pack.value, i)
            if keys_size and name.size == 4 and memcmp(name.at, b"KEYS", 4) == 0:
                has_keys = True
                total += put_keys(pack, row, out, total, keys_size)
                continue
            if tags.size and name.size == 4 and memcmp(name.at, b"TAGS", 4) == 0:
                has_tags = True
                value = tags
            if name.size == 8 and memcmp(name.at, b"__CRC32#", 8) == 0:
                continue  # the CRC of another record: the log writes its own
            if out == NULL:  # only the first pass checks: the second writes what passed
                if not (is_property_text(name) and is_property_text(value)):
                    return -1
                if name.size == 20 and memcmp(name.at, b"INNER_MULTI_DISPATCH", 20) == 0 and not pack.lights:
                    return -1
            total += put_property(out, total, name, value)
    if keys_size and not has_keys:
        total += put_keys(pack, row, out, total, keys_size)
    if tags.size and not has_tags:
        name.at, name.size = <const uint8_t*> b"TAGS", 4
        total += put_property(out, total, name, tags)
    if pack.append_crc:
        if out != NULL:
            memcpy(out + total, b"__CRC32#\x010000000000\x02", CRC_PROPERTY_SIZE)
        total += CRC_PROPERTY_SIZE
    return total


cdef inline Py_ssize_t put_property(uint8_t* out, Py_ssize_t at, Span name, Span value) noexcept nogil:
    if out != NULL:
        memcpy(out + at, name.at, name.size)
        out[at + name.size] = 1
        memcpy(out + at + name.size + 1, value.at, value.size)
        out[at + name.size + 1 + value.size] = 2
    return name.size + value.size + 2


cdef inline Py_ssize_t put_keys(Packing* pack, Py_ssize_t row, uint8_t* out, Py_ssize_t at,
                                Py_ssize_t size) noexcept nogil:
    if out != NULL:
        memcpy(out + at, b"KEYS\x01", 5)
        packed_keys(pack, row, out + at + 5)
        out[at + 5 + size] = 2
    return size + 6


cdef Py_ssize_t packed_keys(Packing* pack, Py_ssize_t row, uint8_t* out) noexcept nogil:
    """Return the size of a row's keys as one text: 0 for none, -1 if they are invalid. With `out`, write them."""
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t i
    cdef Span key = text_at(&pack.keys, row)
    if pack.key_lists == NULL:
        if key.size and out != NULL:
            memcpy(out, key.at, key.size)
        return key.size if not key.size or out != NULL or is_property_text(key) else -1
    for i in range(pack.key_lists[row], pack.key_lists[row + 1]):
        key = text_at(&pack.key, i)
        if out == NULL and (not is_property_text(key) or memchr(key.at, 32, key.size) != NULL):
            return -1
        if total:
            if out != NULL:
                out[total] = 32
            total += 1
        if out != NULL:
            memcpy(out + total, key.at, key.size)
        total += key.size
    return total


cdef uint8_t* fill_packed(Packing* pack, Py_ssize_t row, uint8_t* p) noexcept nogil:
    """Write one row and return where the next one starts."""
    cdef Span topic = text_at(&pack.topic, row)
    cdef Span body = text_at(&pack.body, row)
    cdef Span host = born_host_at(pack, row)
    cdef bint v2 = topic.size > 127
    cdef int32_t sys_flag = pack.sys_flag[row] if pack.sys_flag != NULL else 0
    cdef uint8_t* at = p + BORN_HOST_AT + host.size
    cdef Py_ssize_t properties_size
    cdef int32_t crc = <int32_t> (crc32_of(0, body.at, body.size) & 0x7FFFFFFF)
    # A scan decompresses bodies and keeps the flags, so a changed CRC means that this body is no longer compressed.
    if pack.body_crc != NULL and sys_flag & COMPRESSED and crc != pack.body_crc[row]:
        sys_flag &= ~(COMPRESSED | COMPRESSION_TYPE)
    set32(p + 4, MAGIC_V2 if v2 else MAGIC_V1)
    set32(p + 8, crc)
    set32(p + 12, pack.queue_id[row] if pack.queue_id != NULL else IN_TURN)
    set32(p + 16, pack.flag[row] if pack.flag != NULL else 0)
    set64(p + QUEUE_OFFSET_AT, pack.queue_offset[row] if pack.queue_offset != NULL else 0)
    set64(p + PHYSICAL_OFFSET_AT, 0)
    set32(p + SYS_FLAG_AT, (sys_flag & ~(BORN_IPV6 | STORE_IPV6)) | (BORN_IPV6 if host.size == 20 else 0)
          | (STORE_IPV6 if pack.store_host_size == 20 else 0))
    set64(p + 40, pack.born_timestamp[row] if pack.born_timestamp != NULL else 0)
    memcpy(p + BORN_HOST_AT, host.at, host.size)
    set64(at, pack.store_timestamp[row] if pack.store_timestamp != NULL else 0)
    memcpy(at + 8, pack.store_host, pack.store_host_size)
    at += 8 + pack.store_host_size
    set32(at, pack.reconsume_times[row] if pack.reconsume_times != NULL else 0)
    set64(at + 4, pack.prepared_offset[row] if pack.prepared_offset != NULL else 0)
    set32(at + 12, <int32_t> body.size)
    memcpy(at + 16, body.at, body.size)
    at += 16 + body.size
    if v2:
        set16(at, <int16_t> topic.size)
        at += 2
    else:
        at[0] = <uint8_t> topic.size
        at += 1
    memcpy(at, topic.at, topic.size)
    at += topic.size
    properties_size = packed_properties(pack, row, at + 2)
    set16(at, <int16_t> properties_size)
    at += 2 + properties_size
    set32(p, <int32_t> (at - p))  # the size that `packed_size` computed, at most max_size
    return at


def survey_packed(packed, Py_ssize_t position, Py_ssize_t max_bytes):
    """Find the destinations of packed records, from `position` on: up to `max_bytes` of them, and at least one.

    Returns where it stopped, the index of each record's destination as int32, and the destinations: topic and queue
    id, which is -1 if the topic's queues take turns.
    """
    cdef Py_buffer view
    cdef Lexicon destinations
    cdef Record record
    cdef int32_t* numbers = NULL
    cdef Py_ssize_t room = 0
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t start = position
    cdef int64_t size = REACHED_END
    cdef const uint8_t* p
    cdef uint8_t name[32772]  # a queue id of 4 bytes and a topic, whose length is a positive int16: below 32768
    cdef int32_t last = -1
    cdef Py_ssize_t i
    cdef list found
    PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
    if not lexicon_open(&destinations):
        PyBuffer_Release(&view)
        raise MemoryError
    try:
        if not 0 <= position <= view.len:
            raise ValueError(f"{position} is not inside {view.len} bytes")
        p = <const uint8_t*> view.buf
        with nogil:
            while position < view.len:
                size = parse(p + position, view.len - position, -1, False, &record)
                if size <= 0 or (position > start and position + size - start > max_bytes):
                    break
                # The lexicon's key of a destination: 4 bytes of queue id, then the topic.
                memcpy(name, p + position + 12, 4)
                memcpy(name + 4, p + position + record.topic_at, record.topic_size)
                if not make_room(<void**> &numbers, &room, count + 1, sizeof(int32_t)):
                    last = NO_MEMORY
                    break
                last = find_text(&destinations, name, record.topic_size + 4, True)
                if last == NO_MEMORY:
                    break
                numbers[count] = last
                count += 1
                position += size
        if last == NO_MEMORY:
            raise MemoryError
        if size <= 0:
            raise ValueError(f"no packed record at {position}: {size}")
        found = []
        for i in range(destinations.count):
            p = destinations.data + destinations.offsets[i]
            topic = (p + 4)[:destinations.offsets[i + 1] - destinations.offsets[i] - 4].decode("utf-8", "replace")
            found.append((topic, get32(p)))
        return position, PyBytes_FromStringAndSize(<char*> numbers, count * sizeof(int32_t)), found
    finally:
        free(numbers)
        lexicon_close(&destinations)
        PyBuffer_Release(&view)


def match_packed(log, Py_ssize_t position, Py_ssize_t end, int64_t log_start, int64_t store_timestamp, packed,
                 Py_ssize_t at):
    """Walk over records in [position, end) of a log file for as long as they are the packed ones from `at` on.

    A record matches if it has everything that was packed, and this store time. Returns the position in the log, the
    position in the packed records, and why it stopped: 1 = the end of the log or of the packed records, 2 = another
    record, 0 = end-of-file marker, negative = a code of `check_record`.
    """
    cdef Py_buffer view
    cdef Py_buffer wanted
    cdef Record record
    cdef int64_t size = REACHED_END
    cdef const uint8_t* p
    cdef const uint8_t* q
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(packed, &wanted, PyBUF_SIMPLE)
        try:
            if position < 0 or end > view.len or position > end or not 0 <= at <= wanted.len:
                raise ValueError(f"[{position}, {end}) is not inside {view.len} bytes, or {at} of {wanted.len}")
            p = <const uint8_t*> view.buf
            q = <const uint8_t*> wanted.buf
            with nogil:
                while position < end and at < wanted.len:
                    size = parse(p + position, end - position, log_start + position, True, &record)
                    if size <= 0:
                        break
                    # `is_packed` reads `size` bytes of both, so the room is checked before the call.
                    if record.store_timestamp != store_timestamp or wanted.len - at < size \
                            or not is_packed(p + position, q + at, &record):
                        size = OTHER_RECORD
                        break
                    position += size
                    at += size
                    size = REACHED_END
            return position, at, size
        finally:
            PyBuffer_Release(&wanted)
    finally:
        PyBuffer_Release(&view)


cdef bint is_packed(const uint8_t* p, const uint8_t* q, Record* r) noexcept nogil:
    """Return whether the record at `p` is the one packed at `q`: equal except for what the log filled in."""
    # The log fills in: the queue id if the queues take turns, queue offset and physical offset (20 to SYS_FLAG_AT),
    # the store time, and the digits of the record's CRC.
    cdef int32_t time_at = r.store_host_at - 8
    cdef int64_t stop = r.size - 11 if ends_with_crc(p, r) else r.size
    return (memcmp(p, q, 12) == 0 and (get32(q + 12) == IN_TURN or memcmp(p + 12, q + 12, 4) == 0)
            and memcmp(p + 16, q + 16, 4) == 0 and memcmp(p + SYS_FLAG_AT, q + SYS_FLAG_AT, time_at - SYS_FLAG_AT) == 0
            and memcmp(p + r.store_host_at, q + r.store_host_at, stop - r.store_host_at) == 0)
