# The next whole record after damage.


def find_record(data, Py_ssize_t position, Py_ssize_t end, int64_t log_start, bint check_crc=True):
    """Return where the next whole record at or after `position` begins; `end` if there is none."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end:
            raise ValueError(f"[{position}, {end}) is not inside {view.len} bytes")
        with nogil:
            position = next_record(<const uint8_t*> view.buf, position, end, log_start, check_crc)
    finally:
        PyBuffer_Release(&view)
    return position


cdef Py_ssize_t next_record(const uint8_t* p, Py_ssize_t position, Py_ssize_t end, int64_t log_start,
                            bint check_crc) noexcept nogil:
    """Search for the first byte of a magic number, which is rare, and let `parse` judge each place.

    It accepts only a record with the right physical offset and CRC. A body can still quote a record that was made for
    exactly the place where it lies, so a caller must not take the result for proof.
    """
    cdef const uint8_t* found
    cdef Record r
    # The magic number follows the size: a record that begins at `position` has it at `position + 4`. `end - 8` leaves
    # room for both, and `memchr` and `parse` are bounded by `end`.
    while position < end - 8:
        found = <const uint8_t*> memchr(p + position + 4, 0xDA, end - position - 4)
        if found == NULL:
            return end
        position = found - p - 4
        if parse(p + position, end - position, log_start + position, check_crc, &r) > 0:
            return position
        position += 1
    return end
