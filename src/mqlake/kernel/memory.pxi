# Warming up and locking mapped pages, syncing a file system: system calls that Python lacks or makes under its lock.

from libc.errno cimport EINVAL, errno

cdef extern from "sys/mman.h" nogil:
    int c_mlock "mlock"(const void* address, size_t size)
    int c_munlock "munlock"(const void* address, size_t size)
    int c_madvise "madvise"(void* address, size_t size, int advice)

cdef extern from "sys/vfs.h" nogil:
    struct c_statfs "statfs":
        long f_type
    int c_fstatfs "fstatfs"(int descriptor, c_statfs* found)

cdef extern from "unistd.h" nogil:
    int c_syncfs "syncfs"(int descriptor)

cdef enum:
    MADV_POPULATE_WRITE = 23    # Linux 5.14
    EXT_MAGIC = 0xEF53
    XFS_MAGIC = 0x58465342
    TMPFS_MAGIC = 0x01021994


def populate(pages, Py_ssize_t start, Py_ssize_t size):
    """Fault pages in for writing, without changing a byte. Return False if the operating system cannot do so."""
    cdef Py_buffer view
    cdef int failed
    PyObject_GetBuffer(pages, &view, PyBUF_WRITABLE)
    try:
        if start < 0 or size < 0 or size > view.len - start:
            raise ValueError(f"[{start}, {start + size}) is not inside {view.len} bytes")
        with nogil:
            # Writes through other mappings may run meanwhile: unlike writing a byte per page, this changes none.
            failed = c_madvise(<char*> view.buf + start, size, MADV_POPULATE_WRITE)
        # errno belongs to this thread, and taking the interpreter lock back preserves it.
        if failed and errno != EINVAL:
            raise OSError(errno, "madvise(MADV_POPULATE_WRITE)")
    finally:
        PyBuffer_Release(&view)
    return not failed


def lock_memory(pages):
    """Pin pages in memory (mlock)."""
    call_on_pages(pages, True)


def unlock_memory(pages):
    """Unpin pages (munlock)."""
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


def sync_file_system(int descriptor):
    """Bring all that was written to the file system of an open folder to the disk.

    Failures since the folder was opened are reported, from Linux 5.8 on, by file systems that keep their own errors.
    One that lies over another, as containers have, does not: False, and nothing is done.
    """
    cdef c_statfs found
    cdef int failed
    with nogil:
        failed = c_fstatfs(descriptor, &found)
    if failed:
        raise OSError(errno, "fstatfs")
    if found.f_type not in (EXT_MAGIC, XFS_MAGIC, TMPFS_MAGIC):
        return False
    with nogil:
        failed = c_syncfs(descriptor)
    if failed:
        raise OSError(errno, "syncfs")
    return True
