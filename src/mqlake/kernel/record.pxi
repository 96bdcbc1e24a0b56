# One record of the commit log: its parts, and whether it is valid.

from mqlake.kernel.types import Dispatched, MatchedKeys, Surveyed, Walked

cdef extern from *:
    """
    #define MQ_MAGIC_V1 ((int32_t)0xDAA320A7)
    #define MQ_MAGIC_V2 ((int32_t)0xDAA320AB)
    #define MQ_MAGIC_BLANK ((int32_t)0xCBD43194)
    """
    const int32_t MAGIC_V1 "MQ_MAGIC_V1"
    const int32_t MAGIC_V2 "MQ_MAGIC_V2"
    const int32_t MAGIC_BLANK "MQ_MAGIC_BLANK"

cdef extern from *:
    void prefetch_line "__builtin_prefetch"(const void* address) nogil

cdef enum:
    BODY_CRC_AT = 8
    QUEUE_ID_AT = 12
    FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    BORN_TIMESTAMP_AT = 40
    BORN_HOST_AT = 48
    FIXED_SIZE = 91             # V1 with IPv4 hosts, without body, topic and properties
    IPV6_EXTRA = 12
    BORN_IPV6 = 0x10
    STORE_IPV6 = 0x20
    TRANSACTION_MASK = 0xC
    MAX_PROPERTIES = 32767
    CRC_PROPERTY_SIZE = 20
    SECTOR = 512
    PREFETCH_DISTANCE = 4096
    MAX_ZEROES = 4              # the lengths of an empty topic and of empty properties are zeros

# What `check_record` returns if there is no record. reference/record.py has the same codes.
cdef enum:
    BLANK = 0                   # an end-of-file marker: continue with the next file
    NOTHING = -1                # zeros, or too few bytes for a header
    BAD_MAGIC = -2
    BAD_SIZE = -3               # smaller than any record, or more than the available bytes
    BAD_LENGTHS = -4            # body, topic and properties do not add up to the record's size
    BAD_OFFSET = -5             # the record's own physical offset is another one
    BAD_CRC = -6
    BAD_ENTRY = -7              # a queue entry names a record with another queue offset
    TORN = -8                   # a part of it was never written
    REACHED_END = 1             # a walk reached the end of its stretch
    OTHER_RECORD = 2            # a whole record, but not the expected one

cdef struct Record:
    int64_t size
    int32_t body_crc
    int32_t queue_id
    int32_t flag
    int64_t queue_offset
    int64_t physical_offset
    int32_t sys_flag
    int64_t born_timestamp
    int32_t born_host_at
    int64_t store_timestamp
    int32_t store_host_at
    int32_t reconsume_times
    int64_t prepared_offset
    int64_t body_at
    int64_t body_size
    int64_t topic_at
    int32_t topic_size
    int64_t properties_at
    int32_t properties_size


cdef int64_t parse(const uint8_t* p, int64_t room, int64_t expected_offset, bint check_crc, Record* r) noexcept nogil:
    """Parse the record at `p` into `r` and return its size; or return one of the codes above, and `r` is undefined.

    `room` bytes may be read at `p`. Every length is checked against the record's size, and the size against `room`,
    before anything is read there. Sums have 64 bits, so no int32 of a damaged header can make them wrap.
    """
    cdef int32_t magic
    cdef int64_t at
    if room < 8:
        return NOTHING
    r.size = get32(p)
    magic = get32(p + 4)
    if magic == MAGIC_BLANK:
        return BLANK if r.size >= 8 else BAD_SIZE
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return NOTHING if magic == 0 and r.size == 0 else BAD_MAGIC
    # After this check FIXED_SIZE bytes exist: enough for all fields up to the store time, with either host.
    if r.size < FIXED_SIZE or r.size > room:
        return BAD_SIZE
    r.body_crc = get32(p + BODY_CRC_AT)
    r.queue_id = get32(p + QUEUE_ID_AT)
    r.flag = get32(p + FLAG_AT)
    r.queue_offset = get64(p + QUEUE_OFFSET_AT)
    r.physical_offset = get64(p + PHYSICAL_OFFSET_AT)
    r.sys_flag = get32(p + SYS_FLAG_AT)
    r.born_timestamp = get64(p + BORN_TIMESTAMP_AT)
    r.born_host_at = BORN_HOST_AT
    at = BORN_HOST_AT + (20 if r.sys_flag & BORN_IPV6 else 8)
    r.store_timestamp = get64(p + at)
    r.store_host_at = <int32_t> (at + 8)
    at = r.store_host_at + (20 if r.sys_flag & STORE_IPV6 else 8)
    # A V1 record of 91 bytes with IPv6 hosts would end before the fields that follow.
    if at + 16 > r.size:
        return BAD_LENGTHS
    r.reconsume_times = get32(p + at)
    r.prepared_offset = get64(p + at + 4)
    r.body_size = get32(p + at + 12)
    r.body_at = at + 16
    at = r.body_at + r.body_size
    if r.body_size < 0 or at + (4 if magic == MAGIC_V2 else 3) > r.size:
        return BAD_LENGTHS
    if magic == MAGIC_V2:
        r.topic_size = get16(p + at)
        at += 2
    else:
        r.topic_size = <int8_t> p[at]
        at += 1
    r.topic_at = at
    at += r.topic_size
    if r.topic_size < 0 or at + 2 > r.size:
        return BAD_LENGTHS
    r.properties_size = get16(p + at)
    r.properties_at = at + 2
    if r.properties_size < 0 or r.properties_at + r.properties_size != r.size:
        return BAD_LENGTHS
    # The right physical offset excludes a record from another place or from an earlier use of the file.
    if expected_offset >= 0 and r.physical_offset != expected_offset:
        return BAD_OFFSET
    if check_crc and r.body_size > 0 \
            and <int32_t> (crc32_of(0, p + r.body_at, r.body_size) & 0x7FFFFFFF) != r.body_crc:
        return BAD_CRC
    return r.size


def check_record(data, Py_ssize_t position, Py_ssize_t end, int64_t physical_offset, bint check_crc):
    """Return the size of the record at `position`, 0 for an end-of-file marker, or a negative code for an error."""
    cdef Py_buffer view
    cdef Record record
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end:
            raise ValueError(f"[{position}, {end}) is not inside {view.len} bytes")
        return parse(<const uint8_t*> view.buf + position, end - position, physical_offset, check_crc, &record)
    finally:
        PyBuffer_Release(&view)


cdef bint is_torn(const uint8_t* p, int64_t offset, Record* r) noexcept nogil:
    """Return whether there are zeros where a writer leaves none: in the store time, at the end of topic or properties,
    or in all of a sector's part of these.

    Topic and properties have no CRC, and disks write sectors of 512 bytes in any order: a power cut can leave a valid
    body with zeros after it. The body needs no check here; it has a CRC.
    """
    cdef int64_t at = r.topic_at
    cdef int64_t stop
    if r.store_timestamp == 0 or (r.topic_size and p[r.topic_at + r.topic_size - 1] == 0) \
            or (r.properties_size and p[r.size - 1] == 0):
        return True
    while at < r.size:
        # Up to the next sector boundary of the file, not of the record. Files begin at a multiple of a sector, so the
        # physical offset shows it.
        stop = min(r.size, ((offset + at) // SECTOR + 1) * SECTOR - offset)
        if stop - at > MAX_ZEROES and all_zero(p + at, stop - at):
            return True
        at = stop
    return False


cdef inline void prefetch_ahead(const uint8_t* p, int64_t position, int64_t size, int64_t end) noexcept nogil:
    """Prefetch bytes a few pages ahead, as many as the last step advanced.

    The CPU's own prefetcher stops at the end of a page. A prefetch changes nothing and never faults.
    """
    cdef int64_t line = position + PREFETCH_DISTANCE
    cdef int64_t stop = min(line + size, end)
    while line < stop:
        prefetch_line(p + line)
        line += 64


cdef inline bint all_zero(const uint8_t* p, int64_t size) noexcept nogil:
    # The first byte is 0, and each equals the one before it. `memcmp` reads bytes [0, size) only.
    return p[0] == 0 and memcmp(p, p + 1, size - 1) == 0


def walk_records(log, Py_ssize_t position, Py_ssize_t end, int64_t log_start, bint check_crc, int64_t most=INT64_MAX):
    """Walk the valid records in [position, end) of a log file; with `check_crc` none may be torn either.

    The walk stops at `end`, after `most` records, at an end-of-file marker or at bytes that are not a record: see
    `Walked`.
    """
    cdef Py_buffer view
    cdef Record record
    cdef int64_t result = REACHED_END
    cdef int64_t count = 0
    cdef int64_t last = -1
    cdef int64_t timestamp = 0
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end:
            raise ValueError(f"[{position}, {end}) is not inside {view.len} bytes")
        with nogil:
            while position < end and count < most:
                if check_crc and count > 0:
                    prefetch_ahead(<const uint8_t*> view.buf, position, record.size, end)
                result = parse(<const uint8_t*> view.buf + position, end - position, log_start + position, check_crc,
                               &record)
                if result > 0 and check_crc \
                        and is_torn(<const uint8_t*> view.buf + position, log_start + position, &record):
                    result = TORN
                if result <= 0:
                    break
                last, timestamp = log_start + position, record.store_timestamp
                position += result
                count += 1
                result = REACHED_END
    finally:
        PyBuffer_Release(&view)
    return Walked(position, result, count, last, timestamp)


def decode_properties(data):
    """Decode RocketMQ's property text to a dict. Malformed parts are omitted; the last of equal names counts."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return properties_of(<const uint8_t*> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef dict properties_of(const uint8_t* at, Py_ssize_t size):
    cdef const uint8_t* end = at + size
    cdef const uint8_t* stop
    cdef const uint8_t* middle
    cdef dict found = {}
    while at < end:
        stop = next_property(at, end, &middle)
        if middle != NULL:
            name = at[:middle - at].decode("utf-8", "replace")
            found[name] = (middle + 1)[:stop - middle - 1].decode("utf-8", "replace")
        at = stop + 1
    return found


cdef inline const uint8_t* next_property(const uint8_t* at, const uint8_t* end, const uint8_t** middle) noexcept nogil:
    """Return where the property at `at` stops; `middle` is the byte between name and value, NULL if it is malformed.

    The result is at most `end`. A caller that continues at the result + 1 may be one past `end`, and must compare it
    with `end` before it reads.
    """
    cdef const uint8_t* stop = <const uint8_t*> memchr(at, 2, end - at)
    if stop == NULL:
        stop = end
    middle[0] = <const uint8_t*> memchr(at, 1, stop - at)
    if middle[0] == at or middle[0] == stop - 1:
        middle[0] = NULL
    return stop
