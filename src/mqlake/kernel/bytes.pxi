# Big-endian integers, buffers, CRC-32 and Java's string hash.

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef extern from "crc32.h" nogil:
    void crc32_prepare()
    uint32_t crc32_of(uint32_t value, const uint8_t* data, size_t size)
    uint32_t crc32c_of(uint32_t value, const uint8_t* data, size_t size)

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* Fields of a record are not aligned. memcpy makes the access legal; compilers turn it into one load and a swap. */
    static inline int32_t mq_get32(const uint8_t *p) {
        uint32_t v; memcpy(&v, p, 4); return (int32_t)__builtin_bswap32(v);
    }
    static inline int64_t mq_get64(const uint8_t *p) {
        uint64_t v; memcpy(&v, p, 8); return (int64_t)__builtin_bswap64(v);
    }
    static inline int16_t mq_get16(const uint8_t *p) {
        uint16_t v; memcpy(&v, p, 2); return (int16_t)__builtin_bswap16(v);
    }
    static inline void mq_set32(uint8_t *p, int32_t v) {
        uint32_t u = __builtin_bswap32((uint32_t)v); memcpy(p, &u, 4);
    }
    static inline void mq_set64(uint8_t *p, int64_t v) {
        uint64_t u = __builtin_bswap64((uint64_t)v); memcpy(p, &u, 8);
    }
    static inline void mq_set16(uint8_t *p, int16_t v) {
        uint16_t u = __builtin_bswap16((uint16_t)v); memcpy(p, &u, 2);
    }
    """
    int32_t get32 "mq_get32"(const uint8_t* p) nogil
    int64_t get64 "mq_get64"(const uint8_t* p) nogil
    int16_t get16 "mq_get16"(const uint8_t* p) nogil
    void set32 "mq_set32"(uint8_t* p, int32_t value) nogil
    void set64 "mq_set64"(uint8_t* p, int64_t value) nogil
    void set16 "mq_set16"(uint8_t* p, int16_t value) nogil

crc32_prepare()

cdef enum:
    RELEASE_FROM = 65536  # bytes of work above which releasing the interpreter lock pays


def crc32(data, uint32_t value=0):
    """Return the CRC-32 of a buffer, continued from `value`."""
    cdef Py_buffer view
    cdef uint32_t result
    # While the view is held, a bytearray cannot be resized and a mapping cannot be closed, so that releasing the
    # interpreter lock is safe.
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len >= RELEASE_FROM:
            with nogil:
                result = crc32_of(value, <const uint8_t*> view.buf, view.len)
        else:
            result = crc32_of(value, <const uint8_t*> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return result


def java_hash(str text not None, int32_t seed=0):
    """Return Java's String.hashCode: 31 * h + unit over the UTF-16 units, continued from `seed`."""
    cdef bytes data
    cdef Py_ssize_t size
    cdef const char* utf8
    try:
        utf8 = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:  # lone surrogates have no UTF-8 form
        data = text.encode("utf-16-be", "surrogatepass")
        return hash_units(<const uint8_t*> PyBytes_AS_STRING(data), len(data), seed)
    return hash_utf8(<const uint8_t*> utf8, size, seed)


cdef int32_t hash_units(const uint8_t* data, Py_ssize_t size, int32_t seed) noexcept nogil:
    cdef uint32_t h = <uint32_t> seed  # unsigned: Java's int wraps around, and a signed overflow is undefined in C
    cdef Py_ssize_t at
    for at in range(0, size, 2):
        h = h * 31 + <uint32_t> <uint16_t> get16(data + at)
    return <int32_t> h


cdef int32_t hash_utf8(const uint8_t* data, Py_ssize_t size, int32_t seed) noexcept nogil:
    """Return the hash of UTF-8 text. Each maximal malformed part counts as one U+FFFD, as Java and Python decode it."""
    cdef uint32_t h = <uint32_t> seed
    cdef uint32_t code
    cdef Py_ssize_t at = 0
    while at < size:
        code = data[at]
        if code < 0x80:
            h = h * 31 + code
            at += 1
            continue
        at += decode_utf8(data + at, size - at, &code)
        if code >= 0x10000:  # Java hashes the two surrogates
            code -= 0x10000
            h = h * 31 + (0xD800 + (code >> 10))
            h = h * 31 + (0xDC00 + (code & 0x3FF))
        else:
            h = h * 31 + code
    return <int32_t> h


cdef Py_ssize_t decode_utf8(const uint8_t* p, Py_ssize_t room, uint32_t* code) noexcept nogil:
    """Decode one code point above U+007F and return the bytes it took.

    Malformed bytes give U+FFFD and the length of the maximal malformed part.
    """
    cdef uint8_t lead = p[0]
    cdef uint8_t low = 0x80     # bounds of the second byte: they exclude overlong forms, surrogates
    cdef uint8_t high = 0xBF    # and code points above U+10FFFF
    cdef int more, i
    cdef uint32_t value
    if 0xC2 <= lead <= 0xDF:
        more, value = 1, lead & 0x1F
    elif 0xE0 <= lead <= 0xEF:
        more, value = 2, lead & 0x0F
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
    elif 0xF0 <= lead <= 0xF4:
        more, value = 3, lead & 0x07
        if lead == 0xF0:
            low = 0x90
        elif lead == 0xF4:
            high = 0x8F
    else:
        code[0] = 0xFFFD
        return 1
    for i in range(1, more + 1):
        if i >= room or not low <= p[i] <= high:  # `room` is checked first: p[i] may lie past the buffer
            code[0] = 0xFFFD
            return i
        value = (value << 6) | (p[i] & 0x3F)
        low, high = 0x80, 0xBF
    code[0] = value
    return more + 1


cdef inline bint is_equal(const uint8_t* p, Py_ssize_t size, const uint8_t* text, Py_ssize_t text_size) noexcept:
    """Return whether two texts are equal. An empty text equals none."""
    return size == text_size and size > 0 and memcmp(p, text, size) == 0
