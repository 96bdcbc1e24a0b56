# A key -> its messages: the index names candidates, their records decide.

cdef enum:
    PREFETCHED = 1536           # bytes of a record that are fetched while its first are waited for


cdef struct Lookup:             # what is looked for, and where the log may be read
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


cdef class LogWindow:
    """The file of the log that was touched last, kept while records are looked at."""

    cdef object file_at
    cdef Py_buffer view
    cdef bint held
    cdef int64_t start

    def __cinit__(self, file_at):
        self.file_at = file_at

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    cdef const uint8_t* at(self, int64_t offset, int64_t* size) except? NULL:
        """The bytes from an offset on, to the end of their file; NULL where the file is gone."""
        if not self.held or not self.start <= offset < self.start + self.view.len:
            if self.held:
                self.held = False
                PyBuffer_Release(&self.view)
            file = self.file_at(offset)
            if file is None:
                return NULL
            PyObject_GetBuffer(file.pages, &self.view, PyBUF_SIMPLE)
            self.held = True
            self.start = file.start
        if not self.start <= offset < self.start + self.view.len:
            return NULL
        size[0] = self.start + self.view.len - offset
        return <const uint8_t*> self.view.buf + (offset - self.start)


def find_messages(tuple indexes not None, int32_t slot_count, int32_t entry_count, str topic not None, str key not None,
                  bint tag, int64_t begin_timestamp, int64_t end_timestamp, Py_ssize_t limit, int64_t first,
                  int64_t readable, file_at, kind):
    """The newest `limit` messages with a key (or tag), newest first, among the records in [first, readable).

    `indexes` are index files, oldest first; `file_at(offset)` gives the log file that covers an offset (its `start` and
    `pages`), or None. A message is one whose record is whole and really has the key; the index only names candidates.
    """
    cdef Lookup lookup
    cdef list found = []
    cdef int64_t lowest = INT64_MAX
    cdef LogWindow window = LogWindow(file_at)
    if not issubclass(kind, StoredRecord):
        raise TypeError(f"{kind!r} is no StoredRecord")
    lookup.topic = <const uint8_t*> PyUnicode_AsUTF8AndSize(topic, &lookup.topic_size)
    lookup.key = <const uint8_t*> PyUnicode_AsUTF8AndSize(key, &lookup.key_size)
    lookup.tag = tag
    lookup.key_hash = hash_of_key(&lookup)
    lookup.begin_timestamp, lookup.end_timestamp = begin_timestamp, end_timestamp
    lookup.first, lookup.readable = first, readable
    for index in reversed(indexes):
        if len(found) >= limit:
            break
        lowest = find_in_index(index, slot_count, entry_count, &lookup, limit, lowest, window, found, kind)
    return found


cdef int32_t hash_of_key(Lookup* lookup) noexcept:
    """Java's Math.abs of the hash of `topic#key`, or `topic#T#tag`; the one number without an absolute value is 0."""
    cdef int32_t h = hash_utf8(lookup.topic, lookup.topic_size, 0)
    h = hash_utf8(<const uint8_t*> b"#T#", 3 if lookup.tag else 1, h)
    h = hash_utf8(lookup.key, lookup.key_size, h)
    return 0 if h == -INT32_MAX - 1 else (h if h >= 0 else -h)


cdef int64_t find_in_index(index, int32_t slot_count, int32_t entry_count, Lookup* lookup, Py_ssize_t limit,
                           int64_t lowest, LogWindow window, list found, kind) except? -1:
    """Follow the chain of one file; the offset of the oldest message found so far.

    Offsets fall along a chain. One that does not was entered twice.
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


cdef object matching_record(int64_t offset, Lookup* lookup, LogWindow window, kind):
    """The record at an offset if it is whole, of the time, and has the topic and the key; else None."""
    cdef Record r
    cdef Wanted w
    cdef int64_t size
    cdef const uint8_t* p = window.at(offset, &size)
    if p != NULL:
        prefetch_record(p, min(size, lookup.readable - offset), 0, PREFETCHED)
    if p == NULL or parse(p, min(size, lookup.readable - offset), offset, True, &r) <= 0:
        return None
    if not is_equal(p + r.topic_at, r.topic_size, lookup.topic, lookup.topic_size):
        return None
    if not lookup.begin_timestamp <= r.store_timestamp <= lookup.end_timestamp:
        return None
    wanted_properties(p + r.properties_at, r.properties_size, &w)
    if lookup.tag:
        if not is_equal(w.tags, w.tags_size, lookup.key, lookup.key_size):
            return None
    elif not has_key(&w, lookup.key, lookup.key_size):
        return None
    return stored_record(kind, p, &r)


cdef bint has_key(Wanted* w, const uint8_t* key, Py_ssize_t key_size) noexcept:
    """The key is the client's id, or one of those between single spaces."""
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
