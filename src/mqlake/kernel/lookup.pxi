# A key -> its messages: the index names candidates, their records decide.

cdef enum:
    PREFETCHED = 1536           # bytes of a record that are prefetched before its size is known


cdef struct Lookup:             # what to find, and which part of the log may be read
    const uint8_t* topic
    Py_ssize_t topic_size
    const uint8_t* key
    Py_ssize_t key_size
    bint tag
    int32_t key_hash
    int64_t begin_timestamp
    int64_t end_timestamp
    int64_t first
    int64_t readable


def find_messages(tuple indexes not None, int32_t slot_count, int32_t entry_count, str topic not None, str key not None,
                  bint tag, int64_t begin_timestamp, int64_t end_timestamp, Py_ssize_t limit, int64_t first,
                  int64_t readable, file_at, kind):
    """Return the newest `limit` messages with a key (or tag), newest first, of the records in [first, readable).

    `indexes` are index files, oldest first. `file_at(offset)` returns the log file that covers an offset (with `start`
    and `pages`), or None. The index only names candidates: a message counts if its record is whole and has the key.
    """
    cdef Lookup lookup
    cdef list found = []
    cdef int64_t lowest = INT64_MAX
    cdef Py_ssize_t number
    cdef LogWindow window
    require_kind(kind)
    lookup.topic = <const uint8_t*> PyUnicode_AsUTF8AndSize(topic, &lookup.topic_size)
    lookup.key = <const uint8_t*> PyUnicode_AsUTF8AndSize(key, &lookup.key_size)
    lookup.tag = tag
    lookup.key_hash = hash_of_key(&lookup)
    lookup.begin_timestamp, lookup.end_timestamp = begin_timestamp, end_timestamp
    lookup.first, lookup.readable = first, readable
    open_window(&window, file_at)
    try:
        for number in range(len(indexes) - 1, -1, -1):
            if len(found) >= limit:
                break
            lowest = find_in_index(indexes[number], slot_count, entry_count, &lookup, limit, lowest, &window, found,
                                   kind)
    finally:
        close_window(&window)
    return found


cdef int32_t hash_of_key(Lookup* lookup) noexcept:
    """Return Java's Math.abs of the hash of `topic#key` or `topic#T#tag`; 0 for the int32 without an absolute value."""
    cdef int32_t h = hash_utf8(lookup.topic, lookup.topic_size, 0)
    h = hash_utf8(<const uint8_t*> b"#T#", 3 if lookup.tag else 1, h)
    h = hash_utf8(lookup.key, lookup.key_size, h)
    return 0 if h == -INT32_MAX - 1 else (h if h >= 0 else -h)


cdef int64_t find_in_index(index, int32_t slot_count, int32_t entry_count, Lookup* lookup, Py_ssize_t limit,
                           int64_t lowest, LogWindow* window, list found, kind) except? -1:
    """Follow the chain of one file. Return the offset of the oldest message found so far.

    Offsets fall along a chain. An entry whose offset does not was added twice: after a crash, dispatch repeats the
    interrupted step and adds again what had already reached the disk.
    """
    cdef Py_buffer view
    cdef Chain chain
    cdef int64_t offset
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    try:
        require_index_geometry(view.len, slot_count, entry_count)
        begin_chain(&chain, <const uint8_t*> view.buf, slot_count, entry_count, lookup.key_hash,
                    lookup.begin_timestamp, lookup.end_timestamp)
        while len(found) < limit and next_in_chain(&chain, &offset):
            if lookup.first <= offset < min(lowest, lookup.readable):
                message = matching_record(offset, lookup, window, kind)
                if message is not None:
                    found.append(message)
                    lowest = offset
    finally:
        PyBuffer_Release(&view)
    return lowest


cdef object matching_record(int64_t offset, Lookup* lookup, LogWindow* window, kind):
    """Return the record at an offset if it is whole, in the time range, and has topic and key; else None."""
    cdef Record r
    cdef Wanted w
    cdef int64_t size
    cdef const uint8_t* p = window_at(window, offset, &size)
    if p != NULL:
        # The index does not have the record's size. Prefetching as much as most records have costs one wait for
        # memory; reading the size first would cost two.
        prefetch_record(p, min(size, lookup.readable - offset), 0, PREFETCHED)
    if p == NULL or parse(p, min(size, lookup.readable - offset), offset, True, &r) <= 0:
        return None
    if not is_equal(p + r.topic_at, r.topic_size, lookup.topic, lookup.topic_size):
        return None
    if not lookup.begin_timestamp <= r.store_timestamp <= lookup.end_timestamp:
        return None
    # 31-bit hashes collide, and entries outlive their messages: only the record's own properties decide.
    wanted_properties(p + r.properties_at, r.properties_size, &w)
    if lookup.tag:
        if not is_equal(w.tags, w.tags_size, lookup.key, lookup.key_size):
            return None
    elif not has_key(&w, lookup.key, lookup.key_size):
        return None
    record = PyBytes_FromStringAndSize(<const char*> p, r.size)
    return stored_record(kind, record, <const uint8_t*> PyBytes_AS_STRING(record), &r)


cdef bint has_key(Wanted* w, const uint8_t* key, Py_ssize_t key_size) noexcept:
    """Return whether the key is the client's id, or one of the keys between single spaces."""
    cdef const uint8_t* at = w.keys
    cdef const uint8_t* end = at + w.keys_size
    cdef const uint8_t* stop
    if is_equal(w.unique_key, w.unique_key_size, key, key_size):
        return True
    while at < end:
        stop = <const uint8_t*> memchr(at, 32, end - at)
        stop = end if stop == NULL else stop
        if is_equal(at, stop - at, key, key_size):
            return True
        at = stop + 1
    return False
