# The checksums of blocks of a log file.


def checksum_blocks(
    log, Py_ssize_t position, Py_ssize_t end, Py_ssize_t block_bytes, uint32_t crc=0, uint32_t crc_c=0
):
    """Return CRC-32 and CRC-32C of each block of [position, end), 4 bytes each, little-endian.

    Blocks begin at multiples of `block_bytes`; the last may be shorter. If `position` is inside of a block, its
    checksums are continued from `crc` and `crc_c`, those of the bytes before.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef uint8_t* made
    cdef Py_ssize_t stop, count
    cdef int shift
    cdef bytes result
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or end > view.len or position > end or block_bytes <= 0:
            raise ValueError(f"[{position}, {end}) in blocks of {block_bytes} is not inside {view.len} bytes")
        count = (end + block_bytes - 1) // block_bytes - position // block_bytes if position < end else 0
        result = PyBytes_FromStringAndSize(NULL, 8 * count)
        made = <uint8_t*> PyBytes_AS_STRING(result)
        p = <const uint8_t*> view.buf
        with nogil:
            while position < end:
                stop = min(end, position - position % block_bytes + block_bytes)
                crc = crc32_of(crc, p + position, stop - position)
                crc_c = crc32c_of(crc_c, p + position, stop - position)
                for shift in range(4):
                    made[shift] = (crc >> (8 * shift)) & 0xFF
                    made[4 + shift] = (crc_c >> (8 * shift)) & 0xFF
                made += 8
                position = stop
                crc = crc_c = 0
    finally:
        PyBuffer_Release(&view)
    return result
