# Warm-up and locking of mapped pages: system calls that the mmap module lacks or makes under the interpreter lock.

from libc.errno cimport EINVAL, errno

cdef extern from "sys/mman.h" nogil:
    int c_mlock "mlock"(const void* address, size_t size)
    int c_munlock "munlock"(const void* address, size_t size)
    int c_madvise "madvise"(void* address, size_t size, int advice)

cdef enum:
    MADV_POPULATE_WRITE = 23    # Linux 5.14


def populate(pages, Py_ssize_t start, Py_ssize_t size):
    """Make pages ready for writing without changing a byte. False where the kernel has no such call."""
    cdef Py_buffer view
    cdef int failed
    PyObject_GetBuffer(pages, &view, PyBUF_WRITABLE)
    try:
        if start < 0 or size < 0 or size > view.len - start:
            raise ValueError(f"[{start}, {start + size}) is not inside of {view.len} bytes")
        with nogil:
            failed = c_madvise(<char*> view.buf + start, size, MADV_POPULATE_WRITE)
        if failed and errno != EINVAL:
            raise OSError(errno, "madvise(MADV_POPULATE_WRITE)")
    finally:
        PyBuffer_Release(&view)
    return not failed


def lock_memory(pages):
    """Pin pages in memory (mlock)."""
    call_on_pages(pages, True)


def unlock_memory(pages):
    """Let pinned pages go (munlock)."""
    call_on_pages(pages, False)


cdef int call_on_pages(object pages, bint lock) except -1:
    cdef Py_buffer view
    cdef int failed
    PyObject_GetBuffer(pages, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            failed = c_mlock(view.buf, view.len) if lock else c_munlock(view.buf, view.len)
        if failed:
            raise OSError(errno, "mlock" if lock else "munlock")
    finally:
        PyBuffer_Release(&view)
    return 0
