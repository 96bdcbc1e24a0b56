# The next whole record behind damage.


def find_record(data, Py_ssize_t position, Py_ssize_t end, int64_t log_start, bint check_crc=True):
    """Where the next whole record at or behind `position` begins, `end` where none does: it resumes behind damage."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end:
            raise ValueError(f"[{position}, {end}) is not inside of {view.len} bytes")
        with nogil:
            position = next_record(<const uint8_t*> view.buf, position, end, log_start, check_crc)
    finally:
        PyBuffer_Release(&view)
    return position


cdef Py_ssize_t next_record(const uint8_t* p, Py_ssize_t position, Py_ssize_t end, int64_t log_start,
                            bint check_crc) noexcept nogil:
    """The first byte of a magic number is rare enough to look for; `parse` judges what stands there."""
    cdef const uint8_t* found
    cdef Record r
    while position < end - 8:
        found = <const uint8_t*> memchr(p + position + 4, 0xDA, end - position - 4)
        if found == NULL:
            return end
        position = found - p - 4
        if parse(p + position, end - position, log_start + position, check_crc, &r) > 0:
            return position
        position += 1
    return end
