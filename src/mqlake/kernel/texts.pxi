# Texts of a batch: repair of UTF-8, hosts as text, and sets of byte strings numbered in order of first appearance.

cdef extern from "arpa/inet.h" nogil:
    const char* inet_ntop(int family, const void* address, char* text, unsigned int size)
    enum: AF_INET
    enum: AF_INET6

cdef extern from "stdio.h" nogil:
    int snprintf(char* text, size_t size, const char* form, ...)

cdef extern from *:
    """
    /* Eight bytes per step. The product of 128 bits is folded, so that every byte of a word reaches the low bits:
       topics often differ in their last letter only. Good enough for a table that compares the bytes anyway. */
    static inline uint64_t mq_fold(uint64_t word) {
        unsigned __int128 product = (unsigned __int128)word * 0x9E3779B97F4A7C15u;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    static inline uint64_t mq_mix(const uint8_t *p, size_t n) {
        uint64_t h = n, word;
        for (; n >= 8; p += 8, n -= 8) { memcpy(&word, p, 8); h = mq_fold(h ^ word); }
        if (n) { word = 0; memcpy(&word, p, n); h = mq_fold(h ^ word); }
        return h;
    }
    static inline int mq_is_ascii(const uint8_t *p, size_t n) {
        uint64_t all = 0, word;
        for (; n >= 8; p += 8, n -= 8) { memcpy(&word, p, 8); all |= word; }
        for (; n; p++, n--) all |= *p;
        return !(all & 0x8080808080808080u);
    }
    """
    uint64_t mix "mq_mix"(const uint8_t* p, size_t n) nogil
    bint is_ascii "mq_is_ascii"(const uint8_t* p, size_t n) nogil

cdef enum:
    ABSENT = -1                 # result of `find_text` if the text is unknown and must not be added
    NO_MEMORY = -2
    HUGE_PAGE = 2 << 20
    MADV_HUGEPAGE = 14
    REPAIR_FACTOR = 3           # a malformed byte becomes at most the three bytes of U+FFFD
    HOST_TEXT = 64              # the longest is 59: a bracketed IPv6 address, a colon and a signed 32-bit port

cdef struct Lexicon:            # text i is the bytes [offsets[i], offsets[i + 1]) of data: Arrow's layout
    uint8_t* data
    Py_ssize_t data_room
    int32_t* offsets
    Py_ssize_t count
    Py_ssize_t room
    int32_t* table              # open addressing, -1 = free; at most half full, so every search ends
    Py_ssize_t table_size


cdef bint lexicon_open(Lexicon* words) noexcept nogil:
    """Prepare an empty lexicon. Return False if there is no memory; then lexicon_close still applies."""
    words.count = words.room = words.data_room = 0
    words.data = NULL
    words.offsets = NULL
    words.table_size = 64
    words.table = <int32_t*> malloc(words.table_size * sizeof(int32_t))
    if words.table == NULL or not (make_room(<void**> &words.offsets, &words.room, 2, sizeof(int32_t))
                                   and make_room(<void**> &words.data, &words.data_room, 1, 1)):
        return False
    lexicon_clear(words)
    return True


cdef void lexicon_clear(Lexicon* words) noexcept nogil:
    memset(words.table, 0xFF, words.table_size * sizeof(int32_t))
    words.count = 0
    words.offsets[0] = 0


cdef void lexicon_close(Lexicon* words) noexcept nogil:
    free(words.data)
    free(words.offsets)
    free(words.table)


cdef int32_t find_text(Lexicon* words, const uint8_t* text, Py_ssize_t size, bint add) noexcept nogil:
    """Return the number of a text. A new text gets the next number, or ABSENT if `add` is False."""
    cdef Py_ssize_t at = find_slot(words, text, size)
    cdef int32_t start
    if words.table[at] >= 0:
        return words.table[at]
    if not add:
        return ABSENT
    if 2 * words.count >= words.table_size:
        if not lexicon_grow(words):
            return NO_MEMORY
        at = find_slot(words, text, size)  # the table has moved
    start = words.offsets[words.count]
    if not (make_room(<void**> &words.data, &words.data_room, start + size, 1)
            and make_room(<void**> &words.offsets, &words.room, words.count + 2, sizeof(int32_t))):
        return NO_MEMORY
    memcpy(words.data + start, text, size)
    words.table[at] = <int32_t> words.count
    words.count += 1
    words.offsets[words.count] = <int32_t> (start + size)  # fits: all texts of a scan come from at most MAX_SCAN bytes
    return words.table[at]


cdef inline Py_ssize_t find_slot(Lexicon* words, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    """Return the slot of the table that holds a text, or the free slot where it belongs."""
    # The size of the table is a power of two, so the mask is the modulo.
    cdef Py_ssize_t at = <Py_ssize_t> (mix(text, size) & <uint64_t> (words.table_size - 1))
    cdef int32_t number
    while words.table[at] >= 0:  # ends: at least half of the slots are free
        number = words.table[at]
        if words.offsets[number + 1] - words.offsets[number] == size \
                and memcmp(words.data + words.offsets[number], text, size) == 0:
            break
        at = (at + 1) & (words.table_size - 1)
    return at


cdef bint lexicon_grow(Lexicon* words) noexcept nogil:
    cdef Py_ssize_t i, start
    cdef int32_t* table = <int32_t*> malloc(2 * words.table_size * sizeof(int32_t))
    if table == NULL:
        # The old table stays in use: the caller reports the lack of memory.
        return False
    free(words.table)
    words.table = table
    words.table_size *= 2
    memset(table, 0xFF, words.table_size * sizeof(int32_t))
    for i in range(words.count):
        start = words.offsets[i]
        table[find_slot(words, words.data + start, words.offsets[i + 1] - start)] = <int32_t> i
    return True


cdef bint make_room(void** items, Py_ssize_t* room, Py_ssize_t wanted, size_t item_size) noexcept nogil:
    """Make room for `wanted` items, at least doubling it. Return False if there is no memory; then nothing changes."""
    cdef Py_ssize_t larger = max(wanted, 2 * room[0], 256)
    cdef void* grown
    if wanted <= room[0]:
        return True
    grown = realloc(items[0], larger * item_size)
    if grown == NULL:
        return False
    items[0] = grown
    room[0] = larger
    return True


cdef bint is_utf8(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t step
    cdef uint32_t code
    if is_ascii(p, size):
        return True
    while at < size:
        step = 1
        if p[at] >= 0x80:
            step = decode_utf8(p + at, size - at, &code)
            if code == 0xFFFD and not (step == 3 and p[at] == 0xEF):  # EF BF BD is U+FFFD itself, and is valid
                return False
        at += step
    return True


cdef void advise_huge_pages(void* memory, Py_ssize_t size) noexcept nogil:
    """Ask for huge pages inside a new buffer: the first touch of small pages costs more than the copy."""
    cdef size_t start = (<size_t> memory + HUGE_PAGE - 1) & ~<size_t> (HUGE_PAGE - 1)
    cdef size_t stop = (<size_t> memory + size) & ~<size_t> (HUGE_PAGE - 1)
    if stop > start:
        c_madvise(<void*> start, stop - start, MADV_HUGEPAGE)  # only a hint: nothing depends on its success


cdef Py_ssize_t repair(const uint8_t* p, Py_ssize_t size, uint8_t* out) noexcept nogil:
    """Copy a text with U+FFFD for each malformed part, like `bytes.decode('utf-8', 'replace')`. Return its new size.

    `out` must have REPAIR_FACTOR * size bytes.
    """
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t written = 0
    cdef Py_ssize_t step
    cdef uint32_t code
    while at < size:
        step = 1
        code = p[at]
        if code >= 0x80:
            step = decode_utf8(p + at, size - at, &code)
        if code == 0xFFFD:
            memcpy(out + written, b"\xef\xbf\xbd", 3)
            written += 3
        else:
            memcpy(out + written, p + at, step)
            written += step
        at += step
    return written


cdef int host_text(const uint8_t* packed, Py_ssize_t size, char* text) noexcept nogil:
    """Write `ip:port` or `[ip]:port` of a packed host of 8 or 20 bytes to `text`; return its length.

    `text` must have HOST_TEXT bytes.
    """
    cdef char address[HOST_TEXT]
    inet_ntop(AF_INET if size == 8 else AF_INET6, packed, address, HOST_TEXT)
    if size == 8:
        return snprintf(text, HOST_TEXT, b"%s:%d", address, <int> get32(packed + 4))
    return snprintf(text, HOST_TEXT, b"[%s]:%d", address, <int> get32(packed + 16))
