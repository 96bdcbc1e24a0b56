# Encode a message as a record: measure it, then write its bytes.

from cpython.dict cimport PyDict_Next

cdef enum:
    HAS_LIGHTS = 1              # the message names light queues
    HAS_DELAY = 2               # the message is to be delivered later


def encode_record(Message message not None, int32_t queue_id, int64_t queue_offset, int64_t physical_offset,
                  int64_t store_timestamp, bytes store_host not None, bint append_crc):
    """Return the record of a message at a physical offset."""
    cdef Py_buffer body
    cdef Py_ssize_t topic_size, properties_size
    cdef int special
    cdef bytes record
    cdef bytes born_host = born_host_of(message, store_host)  # first: it may run Python code
    cdef uint8_t* p
    PyUnicode_AsUTF8AndSize(message.topic, &topic_size)
    properties_size = measure_properties(message.properties, append_crc, &special)
    take_body(message, &body)
    try:
        record = PyBytes_FromStringAndSize(
            NULL, record_size(len(born_host), len(store_host), topic_size, body.len, properties_size))
        p = <uint8_t*> PyBytes_AS_STRING(record)
        fill_record(p, len(record), message, queue_id, born_host, store_host, &body, properties_size, append_crc)
        finish_record(p, len(record), queue_offset, physical_offset, store_timestamp, append_crc)
    finally:
        PyBuffer_Release(&body)
    return record


cdef int take_body(Message message, Py_buffer* body) except -1:
    """Get the bytes of a message's body. The caller must release them; until then a bytearray cannot be resized."""
    try:
        PyObject_GetBuffer(message.body, body, PyBUF_SIMPLE)
    except (TypeError, BufferError):
        raise InvalidMessage("body", repr(type(message.body)), "bytes or another bytes-like object") from None
    return 0


cdef bytes born_host_of(Message message, bytes store_host):
    """Return the producer's host, packed. This may run Python code, so call it before measuring."""
    return store_host if message.born_host is None else pack_host(message.born_host)


cdef inline Py_ssize_t record_size(Py_ssize_t born_host_size, Py_ssize_t store_host_size, Py_ssize_t topic_size,
                                   Py_ssize_t body_size, Py_ssize_t properties_size) noexcept nogil:
    # FIXED_SIZE includes 17 bytes that are counted here: two IPv4 hosts and one byte for the topic's length.
    return (FIXED_SIZE - 17 + born_host_size + store_host_size + (2 if topic_size > 127 else 1)
            + body_size + topic_size + properties_size)


cdef int fill_record(uint8_t* p, Py_ssize_t size, Message message, int32_t queue_id, bytes born_host, bytes store_host,
                     Py_buffer* body, Py_ssize_t properties_size, bint append_crc) except -1:
    """Write all of a record but queue offset, physical offset and store time: see `finish_record`.

    Topic and properties are written as they were measured, before the interpreter lock may be released for the body:
    a message that another thread changes must not outgrow its place. The body's size cannot change while its buffer is
    exported, but its bytes can. So its CRC is taken of the copy in the log: the record holds, whatever it copied.
    """
    cdef Py_ssize_t topic_size
    cdef const char* topic = PyUnicode_AsUTF8AndSize(message.topic, &topic_size)
    cdef bint v2 = topic_size > 127
    cdef uint8_t* at = p + BORN_HOST_AT + len(born_host)
    cdef uint8_t* copied
    set32(p, <int32_t> size)
    set32(p + 4, MAGIC_V2 if v2 else MAGIC_V1)
    set32(p + 12, queue_id)
    set32(p + 16, message.flag)
    set32(p + SYS_FLAG_AT, (message.sys_flag & ~(BORN_IPV6 | STORE_IPV6)) | (BORN_IPV6 if len(born_host) == 20 else 0)
          | (STORE_IPV6 if len(store_host) == 20 else 0))
    set64(p + 40, message.born_timestamp)
    memcpy(p + BORN_HOST_AT, PyBytes_AS_STRING(born_host), len(born_host))
    memcpy(at + 8, PyBytes_AS_STRING(store_host), len(store_host))
    at += 8 + len(store_host)
    set32(at, message.reconsume_times)
    set64(at + 4, message.prepared_offset)
    set32(at + 12, <int32_t> body.len)
    copied = at + 16
    at += 16 + body.len
    if v2:
        set16(at, <int16_t> topic_size)
        at += 2
    else:
        at[0] = <uint8_t> topic_size
        at += 1
    memcpy(at, topic, topic_size)
    at += topic_size
    set16(at, <int16_t> properties_size)
    fill_properties(at + 2, message.properties, append_crc)
    set32(p + 8, <int32_t> (copy_body(copied, body) & 0x7FFFFFFF))
    return 0


cdef uint32_t copy_body(uint8_t* at, Py_buffer* body) noexcept:
    """Copy a body and return the CRC of the copy; a large one without the interpreter lock."""
    cdef uint32_t crc
    if body.len < RELEASE_FROM:
        memcpy(at, body.buf, body.len)
        return crc32_of(0, at, body.len)
    with nogil:
        memcpy(at, body.buf, body.len)
        crc = crc32_of(0, at, body.len)
    return crc


cdef void finish_record(uint8_t* p, Py_ssize_t size, int64_t queue_offset, int64_t physical_offset,
                        int64_t store_timestamp, bint append_crc) noexcept nogil:
    """Write what only the log knows: queue offset, physical offset, store time, and the CRC over the whole record."""
    cdef uint32_t crc
    cdef int digit
    set64(p + QUEUE_OFFSET_AT, queue_offset)
    set64(p + PHYSICAL_OFFSET_AT, physical_offset)
    set64(p + BORN_HOST_AT + (20 if p[SYS_FLAG_AT + 3] & BORN_IPV6 else 8), store_timestamp)
    if append_crc:
        crc = crc32_of(0, p, size - CRC_PROPERTY_SIZE) & 0x7FFFFFFF
        for digit in range(10):  # least significant digit first
            p[size - 11 + digit] = 48 + crc % 10
            crc //= 10


cdef inline bint ends_with_crc(const uint8_t* p, Record* r) noexcept nogil:
    """Return whether the last property of a record is the CRC over the whole record."""
    return (r.properties_size >= CRC_PROPERTY_SIZE
            and memcmp(p + r.size - CRC_PROPERTY_SIZE, b"__CRC32#\x01", 9) == 0)


cdef Py_ssize_t measure_properties(dict properties, bint append_crc, int* special) except -1:
    """Return the encoded size of the properties. Raises InvalidMessage for what RocketMQ's text form cannot hold.

    `special` gets the flags HAS_LIGHTS and HAS_DELAY: properties for which copying the record is not enough.
    """
    cdef PyObject* name
    cdef PyObject* value
    cdef Py_ssize_t cursor = 0
    cdef Py_ssize_t name_size, value_size
    cdef Py_ssize_t total = CRC_PROPERTY_SIZE if append_crc else 0
    cdef const char* text
    special[0] = 0
    # The interpreter lock is held and str needs no Python code, so the dict cannot change during the walk and the
    # borrowed references stay valid.
    while PyDict_Next(properties, &cursor, &name, &value):
        text = property_text(<object> name, <object> name, &name_size)
        if append_crc and name_size == 8 and memcmp(text, b"__CRC32#", 8) == 0:
            continue  # the log writes its own
        if name_size == 20 and memcmp(text, b"INNER_MULTI_DISPATCH", 20) == 0:
            special[0] |= HAS_LIGHTS
        elif is_delay(text, name_size):
            special[0] |= HAS_DELAY
        property_text(<object> name, <object> value, &value_size)
        total += name_size + value_size + 2
    if total > MAX_PROPERTIES:
        raise InvalidMessage("properties", f"{total} bytes encoded", f"at most {MAX_PROPERTIES} bytes")
    return total


cdef inline bint is_delay(const char* name, Py_ssize_t size) noexcept:
    """Return whether a name is DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DEL_UNIQKEY."""
    return (size == 5 and memcmp(name, b"DELAY", 5) == 0) or (size >= 14 and memcmp(name, b"TIMER_DEL", 9) == 0)


cdef const char* property_text(object name, object text, Py_ssize_t* size) except NULL:
    """Return the UTF-8 of a name or a value, cached in the str. Raises InvalidMessage if a property cannot hold it."""
    cdef const char* utf8
    if not isinstance(text, str):
        raise InvalidMessage("properties", f"{name!r}: {text!r}", "names and values of type str")
    try:
        utf8 = PyUnicode_AsUTF8AndSize(text, size)
    except UnicodeEncodeError:
        raise InvalidMessage("properties", f"{name!r}: {text!r}", "text without lone surrogates") from None
    if size[0] == 0:
        raise InvalidMessage("properties", f"{name!r}: {text!r}", "no empty name or value: readers drop them")
    if memchr(utf8, 1, size[0]) != NULL or memchr(utf8, 2, size[0]) != NULL:
        raise InvalidMessage("properties", f"{name!r}: {text!r}",
                             "no \\x01 or \\x02 inside a name or a value: they separate properties on disk")
    return utf8


cdef int fill_properties(uint8_t* at, dict properties, bint append_crc) except -1:
    """Write the properties that were measured: same order, same omission. `at` has room for exactly that."""
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
