# One record of the commit log: encode a message, place the bytes, check them, decode them.

from cpython.dict cimport PyDict_Next
from cpython.ref cimport PyObject

from mqlake.errors import InvalidMessage

cdef extern from *:
    """
    #define MQ_MAGIC_V1 ((int32_t)0xDAA320A7)
    #define MQ_MAGIC_V2 ((int32_t)0xDAA320AB)
    #define MQ_MAGIC_BLANK ((int32_t)0xCBD43194)
    """
    const int32_t MAGIC_V1 "MQ_MAGIC_V1"
    const int32_t MAGIC_V2 "MQ_MAGIC_V2"
    const int32_t MAGIC_BLANK "MQ_MAGIC_BLANK"

cdef enum:
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    BORN_HOST_AT = 48
    FIXED_SIZE = 91             # V1 with IPv4 hosts, without body, topic and properties
    IPV6_EXTRA = 12
    BORN_IPV6 = 0x10
    STORE_IPV6 = 0x20
    TRANSACTION_MASK = 0xC
    MAX_PROPERTIES = 32767
    CRC_PROPERTY_SIZE = 20

# What `check_record` answers where there is no record. The same numbers stand in reference/record.py.
cdef enum:
    BLANK = 0                   # an end-of-file marker: go on with the next file
    NOTHING = -1                # zeroes, or too few bytes for a header
    BAD_MAGIC = -2
    BAD_SIZE = -3               # smaller than any record, or more than the bytes at hand
    BAD_LENGTHS = -4            # body, topic and properties do not add up to the record's size
    BAD_OFFSET = -5             # the record says that it lies elsewhere
    BAD_CRC = -6
    REACHED_END = 1             # a walk came to the end of its stretch

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


def encode_record(message, int32_t queue_id, bytes store_host not None, int64_t max_body, bint append_crc):
    """The record of a message, complete but for queue offset, physical offset and store time: see `place_record`."""
    cdef object topic = message.topic
    cdef object body = message.body
    cdef dict properties = message.properties
    cdef bytes born_host = message.born_address or store_host
    cdef Py_ssize_t topic_size, properties_size
    cdef const char* topic_utf8 = PyUnicode_AsUTF8AndSize(topic, &topic_size)
    cdef Py_buffer view
    cdef int topic_width = 2 if topic_size > 127 else 1
    cdef int32_t sys_flag = message.sys_flag
    cdef bytes record
    properties_size = measure_properties(properties, append_crc)
    sys_flag = (sys_flag & ~(BORN_IPV6 | STORE_IPV6)) | (BORN_IPV6 if len(born_host) == 20 else 0) \
        | (STORE_IPV6 if len(store_host) == 20 else 0)
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if view.len > max_body:
            raise InvalidMessage("body", f"{view.len} bytes", f"at most {max_body} bytes (maxMessageSize)")
        record = PyBytes_FromStringAndSize(NULL, FIXED_SIZE - 17 + len(born_host) + len(store_host) + topic_width
                                           + view.len + topic_size + properties_size)
        fill_record(<uint8_t*> PyBytes_AS_STRING(record), len(record), queue_id, message.flag, sys_flag,
                    message.born_timestamp, born_host, store_host, message.reconsume_times, message.prepared_offset,
                    &view, topic_utf8, topic_size, properties, properties_size, append_crc)
    finally:
        PyBuffer_Release(&view)
    return record


cdef int fill_record(uint8_t* p, Py_ssize_t size, int32_t queue_id, int32_t flag, int32_t sys_flag,
                     int64_t born_timestamp, bytes born_host, bytes store_host, int32_t reconsume_times,
                     int64_t prepared_offset, Py_buffer* body, const char* topic, Py_ssize_t topic_size,
                     dict properties, Py_ssize_t properties_size, bint append_crc) except -1:
    cdef bint v2 = topic_size > 127
    cdef uint32_t crc
    set32(p, size)
    set32(p + 4, MAGIC_V2 if v2 else MAGIC_V1)
    set32(p + 12, queue_id)
    set32(p + 16, flag)
    set64(p + QUEUE_OFFSET_AT, 0)
    set64(p + PHYSICAL_OFFSET_AT, 0)
    set32(p + SYS_FLAG_AT, sys_flag)
    set64(p + 40, born_timestamp)
    memcpy(p + BORN_HOST_AT, PyBytes_AS_STRING(born_host), len(born_host))
    cdef uint8_t* at = p + BORN_HOST_AT + len(born_host)
    set64(at, 0)
    memcpy(at + 8, PyBytes_AS_STRING(store_host), len(store_host))
    at += 8 + len(store_host)
    set32(at, reconsume_times)
    set64(at + 4, prepared_offset)
    set32(at + 12, body.len)
    at += 16
    if body.len >= RELEASE_FROM:
        with nogil:
            crc = crc32_of(0, <const uint8_t*> body.buf, body.len)
            memcpy(at, body.buf, body.len)
    else:
        crc = crc32_of(0, <const uint8_t*> body.buf, body.len)
        memcpy(at, body.buf, body.len)
    set32(p + 8, <int32_t> (crc & 0x7FFFFFFF) if body.len else 0)
    at += body.len
    if v2:
        set16(at, <int16_t> topic_size)
        at += 2
    else:
        at[0] = <uint8_t> topic_size
        at += 1
    memcpy(at, topic, topic_size)
    at += topic_size
    set16(at, <int16_t> properties_size)
    fill_properties(at + 2, properties, append_crc)
    return 0


cdef Py_ssize_t measure_properties(dict properties, bint append_crc) except -1:
    """The encoded size of the properties; InvalidMessage for what RocketMQ's text form cannot carry."""
    cdef PyObject* name
    cdef PyObject* value
    cdef Py_ssize_t cursor = 0
    cdef Py_ssize_t name_size, value_size
    cdef Py_ssize_t total = CRC_PROPERTY_SIZE if append_crc else 0
    cdef const char* text
    while PyDict_Next(properties, &cursor, &name, &value):
        text = property_text(<object> name, <object> name, &name_size)
        if append_crc and name_size == 8 and memcmp(text, b"__CRC32#", 8) == 0:
            continue
        if memchr(text, 1, name_size) != NULL or memchr(text, 2, name_size) != NULL:
            refuse_separator(<object> name, <object> name)
        text = property_text(<object> name, <object> value, &value_size)
        if memchr(text, 1, value_size) != NULL or memchr(text, 2, value_size) != NULL:
            refuse_separator(<object> name, <object> value)
        total += name_size + value_size + 2
    if total > MAX_PROPERTIES:
        raise InvalidMessage("properties", f"{total} bytes encoded", f"at most {MAX_PROPERTIES} bytes")
    return total


cdef const char* property_text(object name, object text, Py_ssize_t* size) except NULL:
    cdef const char* utf8
    if not isinstance(text, str):
        raise InvalidMessage("properties", f"{name!r}: {text!r}", "names and values are str")
    try:
        utf8 = PyUnicode_AsUTF8AndSize(text, size)
    except UnicodeEncodeError:
        raise InvalidMessage("properties", f"{name!r}: {text!r}", "text that UTF-8 can carry") from None
    if size[0] == 0:
        raise InvalidMessage("properties", f"{name!r}: {text!r}", "no empty name or value: readers drop such a property")
    return utf8


cdef int refuse_separator(object name, object text) except -1:
    raise InvalidMessage("properties", f"{name!r}: {text!r}",
                         "no \\x01 or \\x02 inside a name or a value: they separate properties on disk")


cdef int fill_properties(uint8_t* at, dict properties, bint append_crc) except -1:
    cdef PyObject* name
    cdef PyObject* value
    cdef Py_ssize_t cursor = 0
    cdef Py_ssize_t size
    cdef const char* text
    while PyDict_Next(properties, &cursor, &name, &value):
        text = PyUnicode_AsUTF8AndSize(<object> name, &size)
        if append_crc and size == 8 and memcmp(text, b"__CRC32#", 8) == 0:
            continue
        memcpy(at, text, size)
        at[size] = 1
        at += size + 1
        text = PyUnicode_AsUTF8AndSize(<object> value, &size)
        memcpy(at, text, size)
        at[size] = 2
        at += size + 1
    if append_crc:
        memcpy(at, b"__CRC32#\x010000000000\x02", CRC_PROPERTY_SIZE)
    return 0


def place_record(target, Py_ssize_t position, bytes record not None, int64_t queue_offset, int64_t physical_offset,
                 int64_t store_timestamp, bint append_crc):
    """Copy an encoded record into the log and patch what only the log knows: its place, its number, its time."""
    cdef Py_buffer view
    cdef Py_ssize_t size = len(record)
    PyObject_GetBuffer(target, &view, PyBUF_WRITABLE)
    try:
        if position < 0 or size < FIXED_SIZE or position + size > view.len:
            raise ValueError(f"a record of {size} bytes does not fit at {position} of {view.len}")
        place(<uint8_t*> view.buf + position, <const uint8_t*> PyBytes_AS_STRING(record), size, queue_offset,
              physical_offset, store_timestamp, append_crc)
    finally:
        PyBuffer_Release(&view)


def place_records(target, Py_ssize_t position, list records not None, list queue_offsets not None,
                  int64_t physical_offset, int64_t store_timestamp, bint append_crc):
    """`place_record` for a batch whose records lie one behind the other."""
    cdef Py_buffer view
    cdef Py_ssize_t size, index
    cdef bytes record
    PyObject_GetBuffer(target, &view, PyBUF_WRITABLE)
    try:
        for index in range(len(records)):
            record = records[index]
            size = len(record)
            if position < 0 or size < FIXED_SIZE or position + size > view.len:
                raise ValueError(f"a record of {size} bytes does not fit at {position} of {view.len}")
            place(<uint8_t*> view.buf + position, <const uint8_t*> PyBytes_AS_STRING(record), size,
                  queue_offsets[index], physical_offset, store_timestamp, append_crc)
            position += size
            physical_offset += size
    finally:
        PyBuffer_Release(&view)


cdef void place(uint8_t* p, const uint8_t* record, Py_ssize_t size, int64_t queue_offset, int64_t physical_offset,
                int64_t store_timestamp, bint append_crc) noexcept nogil:
    cdef uint32_t crc
    cdef int digit
    memcpy(p, record, size)
    set64(p + QUEUE_OFFSET_AT, queue_offset)
    set64(p + PHYSICAL_OFFSET_AT, physical_offset)
    set64(p + BORN_HOST_AT + (20 if p[SYS_FLAG_AT + 3] & BORN_IPV6 else 8), store_timestamp)
    if append_crc:
        crc = crc32_of(0, p, size - CRC_PROPERTY_SIZE) & 0x7FFFFFFF
        for digit in range(10):  # least significant digit first
            p[size - 11 + digit] = 48 + crc % 10
            crc //= 10


cdef int64_t parse(const uint8_t* p, int64_t room, int64_t expected_offset, bint check_crc, Record* r) noexcept nogil:
    """The size of the record at `p`, its fields in `r`; or one of the codes above, and then `r` means nothing."""
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
    if r.size < FIXED_SIZE or r.size > room:
        return BAD_SIZE
    r.body_crc = get32(p + 8)
    r.queue_id = get32(p + 12)
    r.flag = get32(p + 16)
    r.queue_offset = get64(p + QUEUE_OFFSET_AT)
    r.physical_offset = get64(p + PHYSICAL_OFFSET_AT)
    r.sys_flag = get32(p + SYS_FLAG_AT)
    r.born_timestamp = get64(p + 40)
    r.born_host_at = BORN_HOST_AT
    at = BORN_HOST_AT + (20 if r.sys_flag & BORN_IPV6 else 8)
    r.store_timestamp = get64(p + at)
    r.store_host_at = <int32_t> (at + 8)
    at = r.store_host_at + (20 if r.sys_flag & STORE_IPV6 else 8)
    # At most 108 + 4 bytes so far. A V1 record of 91 bytes with IPv6 hosts would end inside of them.
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
    if expected_offset >= 0 and r.physical_offset != expected_offset:
        return BAD_OFFSET
    if check_crc and r.body_size > 0 and <int32_t> (crc32_of(0, p + r.body_at, r.body_size) & 0x7FFFFFFF) != r.body_crc:
        return BAD_CRC
    return r.size


def check_record(data, Py_ssize_t position, Py_ssize_t end, int64_t physical_offset, bint check_crc):
    """The size of the record at `position`, or 0 for an end-of-file marker, or a negative code for what is wrong."""
    cdef Py_buffer view
    cdef Record record
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end:
            raise ValueError(f"[{position}, {end}) is not inside of {view.len} bytes")
        return parse(<const uint8_t*> view.buf + position, end - position, physical_offset, check_crc, &record)
    finally:
        PyBuffer_Release(&view)


def walk_records(log, Py_ssize_t position, Py_ssize_t end, int64_t log_start, bint check_crc):
    """Step over the records in [position, end) of a log file, as far as they hold.

    Returns where it stopped, why (1 = `end`, 0 = end-of-file marker, negative = code of `check_record`), the number of
    records, and physical offset and store time of the last of them (-1 and 0 where there is none).
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
            raise ValueError(f"[{position}, {end}) is not inside of {view.len} bytes")
        with nogil:
            while position < end:
                result = parse(<const uint8_t*> view.buf + position, end - position, log_start + position, check_crc,
                               &record)
                if result <= 0:
                    break
                last, timestamp = log_start + position, record.store_timestamp
                position += result
                count += 1
                result = REACHED_END
    finally:
        PyBuffer_Release(&view)
    return position, result, count, last, timestamp


def decode_record(bytes record not None):
    """The fields of one whole record, in the order of `reference.RecordFields`; ValueError where it is none."""
    cdef Record r
    cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(record)
    cdef int64_t size = parse(p, len(record), -1, False, &r)
    if size != len(record):
        raise ValueError(f"not one whole record: {size}")
    return (
        r.queue_id, r.flag, r.queue_offset, r.physical_offset, r.sys_flag, r.born_timestamp,
        record[r.born_host_at:r.store_host_at - 8], r.store_timestamp,
        record[r.store_host_at:r.body_at - 16], r.reconsume_times, r.prepared_offset, r.body_crc,
        r.body_at, r.body_size,
        (p + r.topic_at)[:r.topic_size].decode("utf-8", "replace"),
        r.properties_at, r.properties_size,
    )


def decode_properties(data):
    """RocketMQ's property text as a dict: malformed parts are left out, of a name given twice the last counts."""
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* stop
    cdef const uint8_t* middle
    cdef dict found = {}
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*> view.buf
        end = at + view.len
        while at < end:
            stop = next_property(at, end, &middle)
            if middle != NULL:
                name = at[:middle - at].decode("utf-8", "replace")
                found[name] = (middle + 1)[:stop - middle - 1].decode("utf-8", "replace")
            at = stop + 1
    finally:
        PyBuffer_Release(&view)
    return found


cdef inline const uint8_t* next_property(const uint8_t* at, const uint8_t* end, const uint8_t** middle) noexcept nogil:
    """Where the property at `at` stops; `middle` is the byte between name and value, or NULL where it is malformed."""
    cdef const uint8_t* stop = <const uint8_t*> memchr(at, 2, end - at)
    if stop == NULL:
        stop = end
    middle[0] = <const uint8_t*> memchr(at, 1, stop - at)
    if middle[0] == at or middle[0] == stop - 1:
        middle[0] = NULL
    return stop
