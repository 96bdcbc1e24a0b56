# Warming up and locking mapped pages, syncing a file system, writing to many files: system calls that Python lacks, or
# that would take the interpreter lock back too often.

from libc.errno cimport EINTR, EINVAL, errno
from posix.fcntl cimport O_NONBLOCK, O_WRONLY, open as c_open
from posix.stat cimport S_ISREG, fstat as c_fstat, struct_stat
from posix.unistd cimport close as c_close, pwrite as c_pwrite

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

cdef extern from "fcntl.h" nogil:
    const int O_CLOEXEC

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


cdef struct Write:              # bytes for one file
    const char* path
    int64_t position
    const uint8_t* data
    Py_ssize_t size


def write_to_files(list paths not None, list positions not None, list contents not None):
    """Write contents[i] at positions[i] of the existing regular file paths[i], each opened for that alone.

    Return how many were written, and why the next was not: an errno, EINVAL if it is no regular file; 0 if all were.
    The interpreter lock is released once for all of them: a busy thread would let this one wait at each call.
    """
    cdef Py_ssize_t count = len(paths)
    cdef Py_ssize_t done = 0
    cdef Py_ssize_t i
    cdef int failure = 0
    cdef Write* writes
    if len(positions) != count or len(contents) != count:
        raise ValueError(f"{count} paths, {len(positions)} positions and {len(contents)} contents")
    writes = <Write*> malloc(max(count, 1) * sizeof(Write))
    if writes == NULL:
        raise MemoryError
    try:
        for i in range(count):  # the lists keep paths and contents alive
            writes[i].path = PyBytes_AS_STRING(<bytes?> paths[i])
            writes[i].position = positions[i]
            writes[i].data = <const uint8_t*> PyBytes_AS_STRING(<bytes?> contents[i])
            writes[i].size = len(<bytes> contents[i])
        with nogil:
            while done < count and failure == 0:
                failure = write_once(&writes[done])
                done += failure == 0
    finally:
        free(writes)
    return done, failure


cdef int write_once(const Write* write) noexcept nogil:
    """Open, write, close. Return 0 or an errno."""
    cdef struct_stat found
    cdef Py_ssize_t written
    cdef Py_ssize_t at = 0
    cdef int failure = 0
    # Not blocking: a FIFO instead of a file would keep this thread waiting for a reader.
    cdef int descriptor = c_open(write.path, O_WRONLY | O_CLOEXEC | O_NONBLOCK)
    if descriptor < 0:
        return errno
    if c_fstat(descriptor, &found) != 0:
        failure = errno
    elif not S_ISREG(found.st_mode):
        failure = EINVAL
    while at < write.size and failure == 0:
        written = c_pwrite(descriptor, write.data + at, write.size - at, write.position + at)
        if written >= 0:
            at += written
        elif errno != EINTR:
            failure = errno
    c_close(descriptor)
    return failure
