# The hash index over message keys: put many, look one up.

cdef enum:
    INDEX_HEADER_SIZE = 40
    INDEX_ENTRY_SIZE = 20
    KEY_SIZE = 20               # hash int32, physical offset int64, store time int64, little-endian: see dispatch

cdef extern from *:
    """
    static inline int32_t mq_le32(const uint8_t *p) { int32_t v; memcpy(&v, p, 4); return v; }
    static inline int64_t mq_le64(const uint8_t *p) { int64_t v; memcpy(&v, p, 8); return v; }
    static inline void mq_set_le32(uint8_t *p, int32_t v) { memcpy(p, &v, 4); }
    static inline void mq_set_le64(uint8_t *p, int64_t v) { memcpy(p, &v, 8); }
    """
    int32_t le32 "mq_le32"(const uint8_t* p) nogil
    int64_t le64 "mq_le64"(const uint8_t* p) nogil
    void set_le32 "mq_set_le32"(uint8_t* p, int32_t value) nogil
    void set_le64 "mq_set_le64"(uint8_t* p, int64_t value) nogil

cdef extern from *:
    """
    static inline void mq_stores_before(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }
    static inline void mq_loads_before(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
    """
    # Other threads and processes look keys up without a lock while one thread adds them. On x86 the two fences only
    # keep the compiler from reordering stores or loads across them; on other CPUs they also order the CPU's.
    void stores_before "mq_stores_before"() nogil
    void loads_before "mq_loads_before"() nogil


def put_index_keys(index, int32_t slot_count, int32_t entry_count, keys, Py_ssize_t first):
    """Add keys from index `first` on. Return the index of the first that did not fit into the file, or their count."""
    cdef Py_buffer index_view
    cdef Py_buffer key_view
    cdef Py_ssize_t total
    if first < 0:
        raise ValueError(f"{first} is not the index of a key")
    PyObject_GetBuffer(index, &index_view, PyBUF_WRITABLE)
    try:
        require_index_geometry(index_view.len, slot_count, entry_count)
        PyObject_GetBuffer(keys, &key_view, PyBUF_SIMPLE)
        try:
            total = key_view.len // KEY_SIZE
            with nogil:
                while first < total:
                    if not put_index_key(<uint8_t*> index_view.buf, slot_count, entry_count,
                                         <const uint8_t*> key_view.buf + first * KEY_SIZE):
                        break
                    first += 1
        finally:
            PyBuffer_Release(&key_view)
    finally:
        PyBuffer_Release(&index_view)
    return first


cdef int require_index_geometry(Py_ssize_t size, int32_t slot_count, int32_t entry_count) except -1:
    if slot_count < 1 or entry_count < 1 or size < INDEX_HEADER_SIZE + 4 * <int64_t> slot_count \
            + INDEX_ENTRY_SIZE * <int64_t> entry_count:
        raise ValueError(f"{size} bytes cannot hold {slot_count} slots and {entry_count} entries")
    return 0


cdef bint put_index_key(uint8_t* index, int32_t slots, int32_t entries, const uint8_t* key) noexcept nogil:
    cdef int32_t key_hash = le32(key)
    cdef int64_t offset = le64(key + 4)
    cdef int64_t timestamp = le64(key + 12)
    cdef int64_t begin = get64(index)
    cdef int32_t number = max(get32(index + 36), 1)
    cdef int64_t seconds = 0
    cdef uint8_t* slot = index + INDEX_HEADER_SIZE + 4 * <int64_t> ((key_hash if key_hash >= 0 else 0) % slots)
    cdef uint8_t* entry
    cdef int32_t previous = get32(slot)
    if offset < get64(index + 24):
        return True  # added before: the file already ends after this message
    if number >= entries:
        return False
    # A power cut can keep a slot but lose the header that counts its entry. A slot that names `number` itself may stay,
    # as in RocketMQ: `next_in_chain` ends a chain at an entry that does not name an earlier one.
    if previous < 0 or previous > number:
        previous = 0
    if begin > 0 and timestamp > begin:
        seconds = min((timestamp - begin) // 1000, <int64_t> INT32_MAX)
    entry = index + INDEX_HEADER_SIZE + 4 * <int64_t> slots + INDEX_ENTRY_SIZE * <int64_t> number
    set32(entry, key_hash)
    set64(entry + 4, offset)
    set32(entry + 12, <int32_t> seconds)
    set32(entry + 16, previous)
    stores_before()  # a reader that finds the number in the slot must find the whole entry
    set32(slot, number)
    if number <= 1:
        set64(index, timestamp)
        set64(index + 16, offset)
    if previous == 0 and get32(index + 32) < INT32_MAX:
        set32(index + 32, get32(index + 32) + 1)
    stores_before()  # the count after the slot: see `begin_chain`
    set32(index + 36, number + 1)
    # The end offset last: keys before it are not added again, so this one must be complete. Other keys of the same
    # message may follow, which is why a key with an equal offset is added.
    stores_before()
    set64(index + 8, timestamp)
    set64(index + 24, offset)
    return True


def link_index_entries(index, int32_t slot_count, int32_t entry_count):
    """Relink the entries that the header counts into their chains: the slots, and each entry's previous one.

    A crash in between leaves incomplete chains. The header is unchanged, so the next recovery repeats this.
    """
    cdef Py_buffer view
    cdef uint8_t* p
    cdef uint8_t* slot
    cdef uint8_t* entry
    cdef int32_t number, count, key_hash
    PyObject_GetBuffer(index, &view, PyBUF_WRITABLE)
    try:
        require_index_geometry(view.len, slot_count, entry_count)
        p = <uint8_t*> view.buf
        with nogil:
            count = min(get32(p + 36), entry_count)
            memset(p + INDEX_HEADER_SIZE, 0, 4 * <size_t> slot_count)
            entry = p + INDEX_HEADER_SIZE + 4 * <int64_t> slot_count
            for number in range(1, count):
                entry += INDEX_ENTRY_SIZE
                key_hash = get32(entry)
                slot = p + INDEX_HEADER_SIZE + 4 * <int64_t> ((key_hash if key_hash >= 0 else 0) % slot_count)
                if get32(entry + 16) != get32(slot):  # most are right, and a page without a store stays clean
                    set32(entry + 16, get32(slot))
                set32(slot, number)
    finally:
        PyBuffer_Release(&view)


def index_entries_hold(index, int32_t slot_count, int32_t entry_count, header):
    """Return whether the entries that a header counts exist: their offsets rise from its begin to its end offset."""
    cdef Py_buffer view
    cdef Py_buffer header_view
    cdef const uint8_t* entry
    cdef int32_t number, count
    cdef int64_t offset, begin, end
    cdef bint holds = True
    PyObject_GetBuffer(header, &header_view, PyBUF_SIMPLE)
    try:
        if header_view.len != INDEX_HEADER_SIZE:
            raise ValueError(f"a header has {INDEX_HEADER_SIZE} bytes, not {header_view.len}")
        begin = get64(<const uint8_t*> header_view.buf + 16)
        end = get64(<const uint8_t*> header_view.buf + 24)
        count = get32(<const uint8_t*> header_view.buf + 36)
    finally:
        PyBuffer_Release(&header_view)
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    try:
        require_index_geometry(view.len, slot_count, entry_count)
        if count > entry_count:
            return False
        with nogil:
            entry = <const uint8_t*> view.buf + INDEX_HEADER_SIZE + 4 * <int64_t> slot_count
            offset = begin
            for number in range(1, count):
                entry += INDEX_ENTRY_SIZE
                if get64(entry + 4) < offset or (number == 1 and get64(entry + 4) != begin) or get32(entry + 12) < 0:
                    holds = False
                    break
                offset = get64(entry + 4)
            holds = holds and (count <= 1 or offset == end)
    finally:
        PyBuffer_Release(&view)
    return holds


def find_index_key(index, int32_t slot_count, int32_t entry_count, int32_t key_hash, int64_t begin_timestamp,
                   int64_t end_timestamp, Py_ssize_t limit):
    """Return at most `limit` physical offsets that were added under a hash within a time range, newest first."""
    cdef Py_buffer view
    cdef Chain chain
    cdef int64_t offset
    cdef list found = []
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    try:
        require_index_geometry(view.len, slot_count, entry_count)
        begin_chain(&chain, <const uint8_t*> view.buf, slot_count, entry_count, key_hash, begin_timestamp,
                    end_timestamp)
        while len(found) < limit and next_in_chain(&chain, &offset):
            found.append(offset)
    finally:
        PyBuffer_Release(&view)
    return found


cdef struct Chain:              # the entries of one slot, from the newest on
    const uint8_t* entries
    int32_t number
    int32_t key_hash
    int64_t begin               # of the file
    int64_t begin_timestamp
    int64_t end_timestamp


cdef void begin_chain(Chain* chain, const uint8_t* index, int32_t slot_count, int32_t entry_count, int32_t key_hash,
                      int64_t begin_timestamp, int64_t end_timestamp) noexcept nogil:
    cdef int32_t count
    chain.entries = index + INDEX_HEADER_SIZE + 4 * <int64_t> slot_count
    chain.number = get32(index + INDEX_HEADER_SIZE + 4 * <int64_t> ((key_hash if key_hash >= 0 else 0) % slot_count))
    chain.key_hash = key_hash
    chain.begin = get64(index)
    chain.begin_timestamp, chain.end_timestamp = begin_timestamp, end_timestamp
    # The count is loaded after the slot, because a put stores entry, slot and count in this order. Otherwise the slot
    # could name an entry that came after the count was loaded, and the whole chain would look damaged.
    loads_before()
    count = get32(index + 36)
    # This bound is enough for the whole chain: from here on entry numbers only fall (`next_in_chain`).
    if chain.number > count or chain.number >= entry_count:
        chain.number = 0


cdef bint next_in_chain(Chain* chain, int64_t* offset) noexcept nogil:
    """Set the next offset of the chain that was added under the hash. Return False if there is none."""
    cdef const uint8_t* entry
    cdef int32_t number, seconds, previous
    cdef int64_t timestamp
    while chain.number > 0:
        number = chain.number
        entry = chain.entries + INDEX_ENTRY_SIZE * <int64_t> number
        seconds = get32(entry + 12)
        if seconds < 0:
            chain.number = 0
            return False
        timestamp = chain.begin + <int64_t> seconds * 1000
        previous = get32(entry + 16)
        if timestamp <= chain.begin_timestamp - 1000 or previous >= number:  # numbers must fall: no cycle, no overrun
            previous = 0
        chain.number = previous
        # An entry's time is in seconds, rounded down, and the first entry of a file may count from the file before.
        # So this check is loose and misses nothing; the caller checks the record's own time.
        if get32(entry) == chain.key_hash and \
                (number == 1 or chain.begin_timestamp - 1000 < timestamp <= chain.end_timestamp):
            offset[0] = get64(entry + 4)
            return True
    return False
